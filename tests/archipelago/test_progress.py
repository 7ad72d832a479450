"""A status in one line of a terminal, and as a table of a notebook."""

from __future__ import annotations

import io
import json
import math
from contextlib import redirect_stdout
from typing import Any

from archipelago.progress import ProgressDisplay, StatusTable, line_of, table_of
from coordinator.errors import UserMistake
from tests.archipelago.test_callbacks import island, status

STATUS = status(
    24, [1], steps=100, phase="running", merges=5, alive=2, tokens_per_s=1234.6, left_s=61.2,
    heldout=[(0, 5.5), (16, 4.25)], islands=[island("local-0"), island("<b>", "lost")],
)  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_line_has_the_run_its_step_and_its_loss() -> None:
    assert line_of(STATUS) == (
        "mine: phase running, step 24/100, held-out loss 4.250, merges 5, islands 2, "
        "tokens/s 1235, left 61 s"
    )
    assert "held-out loss -" in line_of(status(0, heldout=[(0, math.nan)]))


def test_table_lists_the_islands_and_escapes_names() -> None:
    html = table_of(STATUS)
    assert html.count("<tr>") == 3
    assert "&lt;b&gt;" in html
    assert "4.250" in html
    many = table_of(status(1, islands=[island(f"local-{n}") for n in range(30)]))
    assert "and 6 more" in many


def test_status_is_a_dictionary_with_a_table() -> None:
    shown: Any = StatusTable.of(STATUS)
    assert shown == STATUS
    assert json.loads(json.dumps(shown))["t"] == 24
    assert getattr(shown, "_repr_" + "html_")() == table_of(STATUS)


def test_terminal_gets_one_line_that_is_updated() -> None:
    later = status(25, phase="running")
    with redirect_stdout(Terminal()) as out, ProgressDisplay(enabled=True) as progress:
        progress.show(lambda: STATUS)
        progress.show(lambda: later)
        progress.show(_refused)
    first, second = out.getvalue().removeprefix("\r").split("\r")
    assert first == line_of(STATUS)
    assert second == f"{line_of(later):<{len(first)}}\n"


def _refused() -> Any:
    raise UserMistake("not reached")


def test_file_and_silence_get_nothing() -> None:
    for enabled, stream in ((True, io.StringIO()), (False, Terminal())):
        with redirect_stdout(stream), ProgressDisplay(enabled=enabled) as progress:
            progress.show(lambda: STATUS)
        assert stream.getvalue() == ""
