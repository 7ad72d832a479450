"""The study of honest islands: what counts as a miss, and what its controls must show."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from coordinator.direction_gate import RUN
from coordinator.protocol import Island

STUDY = runpy.run_path(
    str(Path(__file__).parents[2] / "examples" / "studies" / "honest_islands.py")
)
HONEST = STUDY["HONEST"]
AGAINST, ON_TRIAL, LONG = STUDY["CONTROLS"]
FR, RU = Island("fr-0"), Island("ru-0")


def problems(case: Any, **counts: Any) -> list[str]:
    found: list[str] = STUDY["problems_of"](case, STUDY["Counts"](**counts))
    return found


def test_run_without_any_suspicion_is_good() -> None:
    assert problems(HONEST, against={RU: RUN - 1}) == []


def test_every_suspicion_of_an_honest_island_is_a_miss() -> None:
    assert problems(HONEST, suspects={FR}) == ["fr-0 was quarantined"]
    assert problems(HONEST, against={RU: RUN}) == [f"ru-0 reached {RUN}"]
    assert problems(HONEST, refused={RU: 2}) == []
    assert problems(ON_TRIAL, suspects={FR, RU}) == ["ru-0 was quarantined"]


def test_control_that_shows_nothing_is_a_miss() -> None:
    assert problems(AGAINST) == [f"fr-0 did not reach {RUN}"]
    assert problems(ON_TRIAL, against={FR: RUN}) == ["fr-0 was not quarantined"]
    assert problems(LONG) == ["fr-0 was not quarantined"]
    assert problems(AGAINST, against={FR: RUN}) == []
    assert problems(LONG, suspects={FR}, refused={FR: 3}, against={RU: RUN}) == []


def test_runs_have_a_language_for_each_region_and_speeds_of_one_to_four() -> None:
    config = STUDY["config_of"](HONEST, 7, 200, Path("texts"))
    assert {each.data for each in config.regions.values()} == {
        f"texts/{each.group}" for each in config.islands
    }
    assert [each.speed for each in config.islands] == [1.0, 0.25] * 3
    assert not config.faults.plan
    (fault,) = STUDY["config_of"](ON_TRIAL, 7, 200, Path("texts")).faults.plan
    assert (fault.island, fault.factor) == (FR, -1.0)
    assert STUDY["config_of"](ON_TRIAL, 7, 200, Path("texts")).regions == {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--languages=nowhere"], "nowhere/de is missing: run `python examples/studies/prepare_"),
        (["--steps=60"], "--steps 60: the faults of controls begin at step 60"),
    ],
)
def test_missing_text_and_too_few_steps_are_refused(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in STUDY["LANGUAGES"]:
        (tmp_path / name).mkdir()
    with pytest.raises(SystemExit) as ended:
        STUDY["main"]([f"--languages={tmp_path}", *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
