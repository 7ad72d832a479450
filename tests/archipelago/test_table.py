"""The live table at size: 64 fragments and 16 islands at 80 columns, with keys and completion."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from archipelago.cli.live_table import render, time_table
from archipelago.cli.options import run_names
from archipelago.cli.run_header import page_line
from archipelago.cli.table_view import FIXED_LINES, ORDERS, TableView
from archipelago.cli.tables import summary_table
from archipelago.cli.terminal_keys import TerminalKeys, keys_in
from islands.time_budget import Activity
from tests.cluster.test_progress import a_status, row, text

COLUMNS, LINES = 80, 24


def a_large_status() -> Any:
    """Return a status of 16 islands and 64 fragments in which much happens."""
    status = a_status(16, 64)
    for number, island in enumerate(status["islands"]):
        island |= {"why": "steps", "tokens_per_s": 1000.0 + number, "loss": 2.0 + number / 100}
        island["time_s"] = {each.value: 1.0 for each in Activity} | {"computing": 92.0}
        island["recent_s"] = {each.value: 0.0 for each in Activity} | {"computing": 60.0}
        island["life_s"] = 127.0
    status["islands"][13] |= {"state": "lost", "why": "killed, and its process is restarted"}
    for fragment in status["fragments"][::8]:
        fragment["round"] = {"arrived": 3, "asked": 9, "why": "waits for the quorum " * 9}
    return status


def test_large_run_fits_a_terminal_of_80_columns() -> None:
    status, view = a_large_status(), TableView(interactive=True).fitting(LINES)
    for shown_view in (view, TableView().fitting(LINES), TableView(time=True).fitting(LINES)):
        lines = text(render(status, width=COLUMNS, view=shown_view), COLUMNS).splitlines()
        assert max(map(len, lines)) <= COLUMNS
        assert len(lines) <= LINES
        assert any(each.startswith("p0 ") for each in lines), "the fragments are there"


def test_table_without_keys_shows_troubles_first() -> None:
    status, view = a_large_status(), TableView().fitting(LINES)
    shown = text(render(status, width=COLUMNS, view=view), COLUMNS)
    assert row(shown, "local-13").startswith("local-13 lost")
    assert f"and {16 - (LINES - FIXED_LINES)} more islands (live)" in shown
    everything = text(render(status, width=COLUMNS), COLUMNS)
    assert all(f"local-{number} " in everything for number in range(16))
    assert "more islands" not in everything


def names(view: TableView, status: Any) -> list[str]:
    return [each["island"] for each in view.visible(status["islands"])]


def test_keys_sort_and_page() -> None:
    status, view = a_large_status(), TableView(interactive=True, rows=5)

    def after(*keys: str, of: TableView = view) -> TableView:
        for key in keys:
            pressed = of.pressed(key, 16)
            assert pressed is not None
            of = pressed
        return of

    assert names(view, status) == [f"local-{n}" for n in range(5)], "by number, not by letter"
    assert names(after("page down"), status)[0] == "local-5"
    assert names(after(" ", " ", " ", " "), status) == [f"local-{n}" for n in range(11, 16)]
    assert names(after("end", "up"), status)[0] == "local-10"
    assert names(after("end", "page up", "home"), status)[0] == "local-0"
    assert names(after("j", "j", "k"), status)[0] == "local-1"
    assert names(after("up"), status) == names(view, status)
    assert "islands 6 to 10 of 16  by name" in after("page down").note(status["islands"])
    by_trouble = after("down", "s")
    assert by_trouble.order == "trouble"
    assert names(by_trouble, status)[0] == "local-13", "a new order begins at its top"
    assert names(after("s", "s"), status)[0] == "local-0", "the slowest"
    assert names(after("s", "s", "s"), status)[0] == "local-15", "the highest loss"
    assert after(*["s"] * len(ORDERS)).order == "name"
    assert after("t").time
    assert after("f").fragments
    assert after("?") == view
    assert view.pressed("q", 16) is None


def test_time_of_an_island_is_shown_in_per_cent() -> None:
    shown = text(time_table(a_large_status()["islands"], COLUMNS), COLUMNS)
    assert row(shown, "local-3") == "local-3 2:07 92% 1% 1% 1% 1% 1% 1% 1% 1%"
    assert row(shown, "island") == "island life comp data copy wait start jit rest idle dead"


def test_summary_shows_where_the_time_went() -> None:
    budgets = {name: {"computing": 45.0, "dead": 5.0, "idle": 0.0} for name in ("a", "b")}
    shown = text(summary_table({"island_seconds": budgets}))
    assert row(shown, "time") == "time computing 90.0 % of the islands' time with their devices"
    assert row(shown, "dead") == "dead 10.0 % of the islands' time with their devices"
    assert "idle" not in shown


def test_keys_of_a_terminal_have_names() -> None:
    assert keys_in("sj\x1b[A\x1b[6~q") == ["s", "j", "up", "page down", "q"]
    assert keys_in("\x1b[<35;1Mt") == ["<", "3", "5", ";", "1", "M", "t"]
    assert keys_in("") == []


def test_keys_are_read_at_once_and_the_terminal_is_restored() -> None:
    main, side = pty.openpty()
    with closing(os.fdopen(side)) as terminal, closing(os.fdopen(main, "wb", 0)) as keyboard:
        before = termios.tcgetattr(side)
        with TerminalKeys(terminal) as keys:
            assert keys.readable
            assert keys.within(0.0) == []
            keyboard.write(b"t\x1b[B")
            assert keys.within(20.0) == ["t", "down"]
        assert termios.tcgetattr(side)[3] == before[3]


def test_first_lines_of_a_run_have_the_address_of_its_page() -> None:
    link = "http://127.0.0.1:9101/?key=abc"
    assert page_line(link).startswith(f"page     {link} ")


# --- completion -----------------------------------------------------------------------------------


def completed(words: str, folder: Path) -> list[str]:
    """Return what bash would offer after these words."""
    found = subprocess.run(
        [sys.executable, "-m", "archipelago"],
        env={
            **os.environ,
            "_ARCHIPELAGO_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - (not words.endswith(" "))),
        },
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    return found.stdout.split()


@pytest.mark.long
@pytest.mark.slow
def test_shell_completes_commands_options_and_runs(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.toml").touch()
    (tmp_path / "runs" / "no-run").mkdir()
    assert {"status", "stop", "study", "submit"} <= {*completed("archipelago st", tmp_path)} | {
        *completed("archipelago su", tmp_path)
    }
    assert "--every" in completed("archipelago top --e", tmp_path)
    assert completed("archipelago top runs/", tmp_path) == ["runs/first", "runs/second"]


def test_runs_of_a_folder_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_names("") == []
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "config.toml").touch()
    assert run_names("runs/f") == ["runs/first"]
    assert run_names("runs/x") == []
