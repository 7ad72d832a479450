"""The law of the gap: its fit to the committed cells, and the table of the docs."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from archipelago.lab.planner.gap_law import LAW, MEASURED, GapLaw, GapPoint, fitted
from archipelago.lab.study.plan import read

ROOT = Path(__file__).resolve().parents[2]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("law", ROOT / "examples/studies/gap_law.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_measured_gaps_are_those_of_the_committed_cells() -> None:
    for each, found in zip(MEASURED, script().points(), strict=True):
        assert (each.every, each.steps, each.learners) == (
            found.every, found.steps, found.learners,
        )  # fmt: skip
        assert each.percent == pytest.approx(found.percent, abs=1e-3)
        assert each.error == pytest.approx(found.error, abs=1e-3)


def test_fit_finds_the_constants_of_exact_gaps() -> None:
    law = GapLaw((math.log(2.0), 0.8, 0.6, 0.5), LAW.covariance)
    places = [(8, 500, 4), (24, 500, 4), (8, 3000, 4), (24, 3000, 8), (96, 1000, 2)]
    points = [GapPoint(*place, law.percent(*place), 0.1) for place in places]
    np.testing.assert_allclose(fitted(points).constants, law.constants, rtol=1e-9)


def test_interval_is_wider_where_nothing_was_measured() -> None:
    def width(every: float, steps: float, learners: float) -> float:
        low, high = LAW.interval(every, steps, learners)
        assert low < LAW.percent(every, steps, learners) < high
        return high / low

    assert width(16, 1200, 4) < width(16, 1200, 32)
    assert width(16, 1200, 4) < width(16, 100_000, 4)
    assert width(16, 1200, 4) < width(1, 1200, 4)


def test_law_agrees_with_its_gaps_and_predicts_longer_runs() -> None:
    for each in MEASURED:
        value = LAW.percent(each.every, each.steps, each.learners)
        assert value == pytest.approx(each.percent, abs=2 * each.error)
    assert LAW.percent(8, 6000, 4) == pytest.approx(0.67, abs=0.005)
    assert LAW.percent(24, 6000, 4) == pytest.approx(1.60, abs=0.005)


def test_table_of_the_docs_is_what_the_script_prints(capsys: pytest.CaptureFixture[str]) -> None:
    script().main()
    printed = capsys.readouterr().out
    page = (ROOT / "docs/lab/convergence.md").read_text()
    assert next(x for x in printed.splitlines() if x.startswith("gap")).partition(";")[0] in page
    predicted = printed.splitlines()[-7:]
    for line in predicted[:-1]:
        assert line.partition(": ")[2] in page, line


@pytest.mark.parametrize("search", ["667", "2000", "6000", "eight"])
def test_search_compares_the_rates_of_each_arm(search: str) -> None:
    """Rates on the study's own axes would be places of their own, each with a best point."""
    study = read(ROOT / f"examples/studies/length-rates-{search}.toml", ())
    assert not any(row.shared for row in study.rows)
    results = ROOT / f"examples/studies/results/length-rates-{search}"
    rows = json.loads((results / "study.json").read_text())["rows"]
    assert [row["cells"] for row in rows] == [
        {str(cell.seed): cell.key for cell in row.cells} for row in study.rows
    ]
    for arm in dict.fromkeys(row.arm for row in study.rows):
        points = [row for row in rows if row["arm"] == arm]
        (best,) = (row for row in points if row["best"])
        rates = [row["point"]["optimizer.learning_rate"] for row in points]
        at_an_end = best["point"]["optimizer.learning_rate"] in (min(rates), max(rates))
        assert best["enclosed"] is not at_an_end
    at_ends = [row for row in rows if row["best"] and not row["enclosed"]]
    assert (results / "table.txt").read_text().count("*^") == len(at_ends)
