"""Tables of figures in a document are replaced where they stand, and nothing else is touched."""

from __future__ import annotations

import pytest

from cluster.bench_tables import rewrite, table, where
from coordinator.errors import RunFailed

TEXT = """# Figures
Before.
<!-- bench merge --threads 2 -->
old
<!-- end -->
Between.
<!-- bench wire -->
also old
<!-- end -->
"""


def test_only_the_bench_that_is_named_is_run_with_its_own_switches() -> None:
    commands: list[str] = []

    def run(command: str) -> dict[str, object]:
        commands.append(command)
        return {"ratio": 0.98765, "ratio_low": 0.97, "ratio_high": 0.99, "samples": 7}

    (text,) = rewrite(TEXT, ["merge"], run)
    assert commands == ["merge --threads 2"]
    assert "`archipelago bench merge --threads 2 --json`" in text
    assert where() in text
    assert "| `ratio` | 0.9877 | (0.97 to 0.99) |\n| `samples` | 7 |  |\n<!-- end -->" in text
    assert "\nold\n" not in text
    assert text.endswith("Between.\n<!-- bench wire -->\nalso old\n<!-- end -->\n")
    assert [*rewrite(text, ["merge"], run)] == [text]


def test_without_a_name_all_are_run_and_what_was_measured_outlives_a_failure() -> None:
    def run(command: str) -> dict[str, object]:
        if command == "wire":
            raise RunFailed("wire broke")
        return {"samples": 7}

    texts = rewrite(TEXT, [], run)
    first = next(texts)
    assert "| `samples` | 7 |" in first
    assert "also old" in first
    with pytest.raises(RunFailed, match="wire broke"):
        next(texts)


def test_rows_make_a_table_of_their_own() -> None:
    rows = [{"wire": "int4", "loss": 2.0, "loss_low": 1.9, "loss_high": 2.1}]
    assert list(table({"steps": 300, "rows": rows})) == [
        "| figure | value | interval |",
        "|---|---|---|",
        "| `steps` | 300 |  |",
        "",
        "| wire | loss |",
        "|---|---|",
        "| int4 | 2 (1.9 to 2.1) |",
    ]
