"""Tests of the time of a whole run: status, summary, rolling windows, and a restart."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from cluster.storage.files import json_text
from cluster.syncer import run_time
from cluster.syncer.badput import Badput
from cluster.view import ProcessStarts
from coordinator.protocol import Island, Life, Lost, Vitals
from islands.time_budget import Activity
from tests.cluster.test_measures import A, B, Told


def told_of(seconds: dict[str, float]) -> dict[str, float]:
    return {key: each for key, each in seconds.items() if each}


class Timed(Told):
    """A run of two islands whose processes report their time."""

    def look(self, now_s: float, age_s: float = 0.0, **started_at_s: tuple[int, float]) -> Any:
        """Look as the fleet does; `started_at_s`: number and time of an island's newest start."""
        starts = {
            Island(name): (number, now_s - at_s) for name, (number, at_s) in started_at_s.items()
        }
        self.measures.looked(ProcessStarts(age_s, starts), now_s)
        return self.status(now_s)

    def hear(self, now_s: float, life: Life, process: int, **seconds: float) -> None:
        named: dict[str, Any] = {f"{name}_s": each for name, each in seconds.items()}
        vitals = Vitals(2.0, process=process, age_s=math.fsum(named.values()), **named)
        self.measures.heard(life, vitals, now_s)


@pytest.fixture
def timed() -> Timed:
    """Return a run after 60 s: island a was killed at 40 s, and its next process began at 45 s."""
    told = Timed(began_s=100)
    told.look(102)
    told.look(104, a=(1, 103), b=(1, 104))
    first, b = told.join(110, A), told.join(110, B)
    told.hear(111, first, 1, starting=3, compiling=4, restoring=1)
    told.report(112, first, 1)
    told.report(112, b, 1)
    told.hear(139, first, 1, starting=3, compiling=4, restoring=1, computing=25, data=3)
    told.report(139, b, 2, step_s=5)
    told.say(140, Lost(first, "killed"))
    told.look(142)
    told.look(146, a=(2, 145), b=(1, 104))
    told.report(154, b, 3, step_s=5)
    second = told.join(155, A)
    told.hear(160, second, 2, starting=5, compiling=3, restoring=1, computing=6)
    told.hear(160, b, 3, starting=2, compiling=4, computing=50)
    told.second, told.b = second, b  # type: ignore[attr-defined]
    return told


def test_status_has_the_time_of_each_island(timed: Timed) -> None:
    a, b = timed.look(160, a=(2, 145), b=(1, 104))["islands"]
    assert told_of(a["time_s"]) == {
        "computing": 31, "data": 3, "starting": 11, "compiling": 7, "restoring": 2, "dead": 6,
    }  # fmt: skip
    assert told_of(b["time_s"]) == {"computing": 50, "starting": 6, "compiling": 4}
    assert a["life_s"] == b["life_s"] == 60
    assert a["time_s"].keys() == {each.value for each in Activity}
    json_text(timed.status(160.0))


def test_dead_island_is_accounted_for_while_it_is_dead(timed: Timed) -> None:
    """Only up to the fleet's knowledge: a process may have begun since."""
    timed.say(165, Lost(timed.second, "killed again"))  # type: ignore[attr-defined]
    a, _ = timed.look(180, age_s=2.0, a=(2, 145))["islands"]
    assert a["state"] == "lost"
    assert a["time_s"]["dead"] == 6 + 18
    later: Any = timed.status(190)["islands"][0]
    assert later["time_s"]["dead"] == 6 + 18, "nothing new is known"
    a, _ = timed.look(191, a=(3, 179))["islands"]
    shown: Any = a
    assert shown["time_s"]["dead"] == 6 + 19


def test_summary_adds_up_to_the_lives(timed: Timed) -> None:
    run_time.ended(timed.measures.counts, 161)  # the rules do this at the end of the run
    summary = timed.summary(172)
    budgets = summary["island_seconds"]
    for budget in budgets.values():
        assert math.fsum(budget.values()) == pytest.approx(61, rel=1e-6)
        assert budget["idle"] == 1, "since the last report"
    lost_s = summary["badput_s"]
    assert [*lost_s] == [each.value for each in Badput]
    assert summary["goodput_s"] + math.fsum(lost_s.values()) == pytest.approx(2 * 61, rel=1e-6)
    assert lost_s["elastic_reinitialization"] == 8
    assert lost_s["infrastructure_recovery_from_disruption"] == 6
    assert lost_s["wasted_progress_from_disruption"] >= 0
    json.dumps(summary)


def test_rolling_goodput_is_of_the_last_minutes() -> None:
    told, figures = Timed(began_s=0), dict[str, Any]()
    told.look(0, a=(1, 0), b=(1, 0))
    a, b = told.join(1, A), told.join(1, B)
    for now_s in range(5, 405, 5):
        quick = min(now_s, 200)  # both compute for 200 s, and wait for data from then on
        for process, life in enumerate((a, b), 1):
            told.hear(now_s, life, process, computing=quick, data=now_s - quick)
        found: Any = told.look(now_s)["figures"]
        figures = found
    assert figures["rolling_goodput"]["60"] == pytest.approx(0.0, abs=0.01)
    assert figures["rolling_goodput"]["300"] == pytest.approx(100 / 300, abs=0.02)
    assert figures["rolling_goodput"]["900"] == pytest.approx(0.5, abs=0.01)
    assert figures["goodput"] == pytest.approx(0.5, abs=0.01)
    recent = told.look(405)["islands"][0]["recent_s"]
    assert recent["data"] == pytest.approx(60, abs=10)
    assert recent["computing"] == pytest.approx(0, abs=1)


def test_time_outlives_the_process_of_the_syncer(timed: Timed) -> None:
    before = timed.look(160, a=(2, 145), b=(1, 104))
    memory = json.loads(json.dumps(timed.measures.memory()))
    again = Timed(began_s=162)
    again.measures.remember(memory)
    again.state, again.rule = timed.state, timed.rule
    after = again.look(163)
    for old, new in zip(before["islands"], after["islands"], strict=True):
        assert new["time_s"] == old["time_s"]
    again.hear(164, timed.b, 3, starting=2, compiling=4, computing=54)  # type: ignore[attr-defined]
    _, b = again.look(164)["islands"]
    assert told_of(b["time_s"]) == {"computing": 54, "starting": 6, "compiling": 4}
    assert b["life_s"] == 64


def test_tokens_that_are_lost_were_computed_in_vain(timed: Timed) -> None:
    figures = timed.look(160)["figures"]
    wasted_s = figures["badput_s"]["wasted_progress_from_disruption"]
    assert figures["tokens_lost"] > 0
    assert 0 < wasted_s < 31
    timed.say(165, Lost(timed.second, "killed"))  # type: ignore[attr-defined]
    assert timed.look(166)["figures"]["badput_s"]["wasted_progress_from_disruption"] >= wasted_s
