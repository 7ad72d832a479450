"""CI's choice of long tests gives each its turn, and those that may never have passed go first."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def script(tmp_path: Path) -> ModuleType:
    """Return the module of `.ci/long`, which records in a file of its own."""
    loader = SourceFileLoader("long_choice", str(ROOT / ".ci" / "long"))
    spec = spec_from_loader("long_choice", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    vars(module)["SECONDS"] = tmp_path / "long-seconds"
    return module


def test_choice_fits_the_budget_and_gives_each_test_its_turn(script: ModuleType) -> None:
    seconds = {f"test_{number}": 10.0 * number for number in range(1, 21)}
    seen = set[str]()
    for commit in map(str, range(300)):
        picked = script.chosen(seconds, seconds, 300.0, commit)
        assert picked == script.chosen(seconds, seconds, 300.0, commit)
        assert 100.0 < sum(seconds[test] for test in picked) <= 300.0
        seen.update(picked)
    assert seen == seconds.keys()
    assert script.chosen(seconds, seconds, 5.0, "any") == []


def test_test_without_a_recorded_time_goes_first(script: ModuleType) -> None:
    seconds = {"old": 100.0, "older": 100.0, "new": 900.0, "newer": 120.0}
    for commit in map(str, range(20)):
        picked = script.chosen(seconds, {"old", "older"}, 220.0, commit)
        assert picked[0] == "newer", "the other new one does not fit"
        assert picked[1] in ("old", "older")


def test_record_adds_parameters_and_leaves_failures_out(script: ModuleType, tmp_path: Path) -> None:
    here = "tests/test_long_choice.py"
    script.SECONDS.write_text(f"# head\n7 {here}::kept\n8 {here}::gone\n9 {here}::broken\n")
    tests = [f"{here}::{name}" for name in ("kept", "timed", "fails", "broken")]
    (tmp_path / "report.xml").write_text(
        """<testsuites><testsuite>
        <testcase classname="tests.test_long_choice" name="timed[a]" time="2.5" />
        <testcase classname="tests.test_long_choice" name="timed[b]" time="4.0" />
        <testcase classname="tests.test_long_choice" name="fails[a]" time="1"><failure /></testcase>
        <testcase classname="tests.test_long_choice" name="fails[b]" time="1.0" />
        <testcase classname="tests.test_long_choice" name="broken" time="1.0"><error /></testcase>
        <testcase classname="tests.test_long_choice.TestRules" name="runTest" time="9.0" />
        </testsuite></testsuites>"""
    )
    assert script.record([str(tmp_path / "report.xml")], tests) == 0
    assert script.recorded() == {
        f"{here}::kept": 7.0, f"{here}::timed": 6.0, f"{here}::broken": 9.0,
    }  # fmt: skip
