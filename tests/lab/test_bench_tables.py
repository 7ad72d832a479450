"""Tables of figures in a document are replaced in place, and nothing else changes."""

from __future__ import annotations

import pytest

from archipelago.lab.bench.goals import GOALS, Goal, verdict
from archipelago.lab.bench.tables import rewrite, table, where
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


def test_runs_only_the_named_bench_with_its_switches() -> None:
    commands: list[str] = []

    def run(command: str) -> dict[str, object]:
        commands.append(command)
        return {"ratio": 0.98765, "ratio_low": 0.97, "ratio_high": 0.99, "samples": 7}

    (text,) = rewrite(TEXT, ["merge"], run)
    assert commands == ["merge --threads 2"]
    assert "`archipelago bench merge --threads 2 --json`" in text
    assert where() in text
    row = "| `ratio` | 0.9877 | (0.97 to 0.99) |  |\n| `samples` | 7 |  |  |\n<!-- end -->"
    assert row in text
    assert "\nold\n" not in text
    assert text.endswith("Between.\n<!-- bench wire -->\nalso old\n<!-- end -->\n")
    assert [*rewrite(text, ["merge"], run)] == [text]


def test_runs_all_benches_and_keeps_figures_after_a_failure() -> None:
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


def test_rows_get_their_own_table() -> None:
    rows = [{"wire": "int4", "loss": 2.0, "loss_low": 1.9, "loss_high": 2.1}]
    assert list(table({"steps": 300, "rows": rows})) == [
        "| figure | value | interval | goal |",
        "|---|---|---|---|",
        "| `steps` | 300 |  |  |",
        "",
        "| wire | loss |",
        "|---|---|",
        "| int4 | 2 (1.9 to 2.1) |",
    ]


def test_goal_is_shown_beside_its_figure_with_the_verdict() -> None:
    figures = {"ratio": 0.995, "ratio_low": 0.991, "ratio_high": 1.0, "coverage": 0.96}
    *_, ratio, _ = table(figures, GOALS["overhead"])
    assert ratio == "| `ratio` | 0.995 | (0.991 to 1) | 0.99 or more: **reached** |"


@pytest.mark.parametrize(
    ("low", "high", "coverage", "said"),
    [
        (1.0, 2.0, 0.96, "reached"),
        (1.0, 3.0, 0.96, "reached"),
        (2.9, 3.1, 0.96, "inconclusive"),
        (3.1, 4.0, 0.96, "missed"),
        (1.0, 2.0, 0.75, "inconclusive"),  # three samples
        (3.1, 4.0, 0.75, "missed"),
    ],
)
def test_goal_is_reached_if_the_whole_interval_meets_it(
    low: float, high: float, coverage: float, said: str
) -> None:
    figures = {"gap_percent": 2.5, "gap_percent_low": low, "gap_percent_high": high}
    goal = GOALS["parity"]["gap_percent"]
    assert verdict(goal, "gap_percent", {**figures, "coverage": coverage}) == said


def test_figures_of_the_page_miss_the_goals_of_throughput_and_return() -> None:
    """The figures are those of docs/lab/benchmarks.md: 20 pairs, and two times three kills."""
    ratio = {"ratio": 0.93, "ratio_low": 0.86, "ratio_high": 0.96, "coverage": 0.96}
    assert verdict(GOALS["overhead"]["ratio"], "ratio", ratio) == "missed"
    goal, name = GOALS["recovery"]["learner_back_of_cold"], "learner_back_of_cold"
    for value, low, high in ((0.51, 0.50, 0.62), (0.78, 0.62, 0.80)):
        back = {name: value, f"{name}_low": low, f"{name}_high": high, "coverage": 0.75}
        assert verdict(goal, name, back) == "missed"


def test_coverage_of_a_single_figure_counts_for_it_alone() -> None:
    goal = GOALS["wan"]["speedup"]
    figures = {"speedup": 32.0, "speedup_low": 31.0, "speedup_high": 33.0, "speedup_coverage": 0.98}
    assert verdict(goal, "speedup", {**figures, "coverage": 0.5}) == "reached"
    assert verdict(goal, "speedup", {**figures, "speedup_coverage": 0.5}) == "inconclusive"


def test_count_needs_no_interval() -> None:
    goal = GOALS["faults"]["lost_merges"]
    assert verdict(goal, "lost_merges", {"lost_merges": 0, "coverage": 0.5}) == "reached"
    assert verdict(goal, "lost_merges", {"lost_merges": 1, "coverage": 1.0}) == "missed"


def test_goals_are_written_with_their_limits() -> None:
    assert str(Goal(at_least=0.8)) == "0.8 or more"
    assert str(Goal(at_most=3)) == "3 or less"
    assert str(Goal(at_least=0.9, at_most=1.1)) == "0.9 or more, 1.1 or less"
