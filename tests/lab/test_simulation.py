"""Whole clusters in virtual time keep every invariant, and the judge detects violations."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from archipelago.cli.main import main
from archipelago.lab.checks.coverage import NEVER, PAIRS
from archipelago.lab.simulation.fuzz import ROUND, FuzzResult, fuzz, new_seed
from archipelago.lab.simulation.fuzz_failures import BREAKAGES, shortest, violated
from archipelago.lab.simulation.fuzz_schedule import Sum, one_schedule
from archipelago.lab.simulation.plan import (
    EVENTS_WANTED,
    FAULTS_WANTED,
    LAYOUT,
    ROUNDS_WANTED,
    SimFault,
    SimPlan,
    Trait,
    Trouble,
    draw,
)
from archipelago.lab.simulation.world import SimWorld
from archipelago.lab.virtual.event_loop import VirtualLoop, running
from cluster.shard import shard_fragment
from coordinator import advance as rules
from coordinator import contributions, lives, recovery, roster, rounds
from coordinator.direction_gate import Watch
from coordinator.gate import Refusal
from coordinator.protocol import Anchor, Cause, Fate, Island
from coordinator.quorum import Close
from coordinator.schedule import Schedule
from coordinator.state import Rule

FEW, MANY, SEED = 100, 2000, 7


def agrees(result: FuzzResult) -> None:
    for failure in result.failures:
        print(f"seed {failure.seed}, {failure.invariant}: {failure.words}", *failure.tape, sep="\n")
    assert result.violations == 0
    assert result.faults >= FAULTS_WANTED * result.schedules
    assert result.events >= EVENTS_WANTED * result.schedules


@pytest.mark.timeout(600)
def test_a_hundred_schedules_have_no_violation() -> None:
    result = fuzz(FEW, SEED)
    agrees(result)
    assert result.schedules == FEW
    assert result.effects_covered == result.effects, result.uncovered_effects
    assert result.judged > 10 * FEW


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_thousand_schedules_cover_everything() -> None:
    result = fuzz(MANY, SEED, jobs=2)
    agrees(result)
    assert result.uncovered_pairs == []
    assert result.pairs_covered == result.pairs
    print(f"{result.events} events, {result.events_per_s:.0f} per second and core")


def test_result_has_the_keys_that_scripts_read() -> None:
    assert {
        "schedules", "events", "faults", "violations", "pairs_covered", "pairs",
        "effects_covered", "effects", "events_per_s",
    } <= asdict(FuzzResult()).keys()  # fmt: skip


def test_schedule_has_the_promised_length() -> None:
    for number in range(10):
        total = Sum()
        one_schedule(f"{SEED}/{number}", total)
        assert total.schedules == 1
        assert total.events >= EVENTS_WANTED
        assert total.faults >= FAULTS_WANTED
    world = SimWorld(draw(f"{SEED}/0", stretch=2))
    world.run()
    assert world.enough
    assert min(world.judge.memory.rounds_of) >= ROUNDS_WANTED


def test_every_kind_of_trouble_is_drawn() -> None:
    drawn = {fault.trouble for number in range(FEW) for fault in draw(f"{SEED}/{number}").faults}
    assert drawn == set(Trouble)


def test_lock_step_plans_are_valid_configurations() -> None:
    """Each merge needs all islands, and each version is adopted before the next due point.

    Without the first, learners at their last step would wait forever for a merge without them.
    Without the second, no version would ever be adopted. Both kinds of plan were drawn once.
    """
    waiting = [plan for n in range(10 * FEW) if (plan := draw(f"{SEED}/{n}")).lock_step is not None]
    flown = {plan.rule.schedule.every - (plan.lock_step or 0) for plan in waiting}
    assert {1, 2, 3} < flown
    assert min(flown) == 1
    assert all(plan.rule.min_quorum == len(plan.traits) for plan in waiting)
    assert {0, 1, 2, 3} == {plan.lock_step for plan in waiting}


def test_refuses_lock_step_without_all_islands() -> None:
    plan = next(
        plan
        for n in count()
        if (plan := draw(f"{SEED}/{n}")).lock_step is not None and len(plan.traits) > 1
    )
    with pytest.raises(ValueError, match="quorum of 1"):
        replace(plan, rule=replace(plan.rule, min_quorum=1))


# Each seed was a violation of the plan that it gave then: the tests of plans, terms and the judge
# name them.
@pytest.mark.parametrize(
    "seed",
    [
        "1795378081/675", "81001/240", "81001/3996", "81001/9280", "81001/11207", "81001/11373",
        "7/1684", "95001/330", "95001/7668", "diagram/283", "3273622/1346",
    ],
)  # fmt: skip
def test_seeds_of_former_violations_pass(seed: str) -> None:
    one_schedule(seed, total := Sum(), shrink=False)
    assert [failure.words for failure in total.failures] == []


@pytest.mark.long
def test_learners_catch_up_by_differences_or_whole_fragments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They get differences or the whole; the judge would detect one difference too few."""
    came, give = Counter[str](), shard_fragment.between

    def counted(*asked: Any) -> list[Any] | None:
        found = give(*asked)
        came["whole" if found is None else "differences"] += 1
        return found

    monkeypatch.setattr(shard_fragment, "between", counted)
    played = 0
    while min(came["whole"], came["differences"]) == 0:
        assert played < 2 * FEW, came
        one_schedule(f"{SEED}/{played}", total := Sum())
        assert total.violations == 0
        played += 1
    monkeypatch.setattr(shard_fragment, "between", lambda *asked: (give(*asked) or [None])[1:])
    total = Sum()
    for number in range(played):
        one_schedule(f"{SEED}/{number}", total, shrink=False)
    assert {failure.invariant for failure in total.failures} == {"the public chain"}


def test_same_seed_gives_the_same_run() -> None:
    first, second = SimWorld(draw("a seed")), SimWorld(draw("a seed"))
    first.run()
    second.run()
    assert repr(first.seat.tape) == repr(second.seat.tape), "a norm may be no number"
    assert repr(first.seat.states[-1]) == repr(second.seat.states[-1])


ISLAND = Island("a")
ALONE = SimPlan(
    "one island",
    Rule(
        Schedule(4, 2),
        LAYOUT,
        steps=40,
        min_quorum=1,
        grace_s=None,
        overlap=2,
        max_staleness=8,
        lease_windows=20,
        watch=Watch.QUARANTINE,
    ),
    (Trait(ISLAND, 0.0, step_s=1.0, jitter=0.0, tokens=3, windows=1, latency_s=0.3),),
    carry=False,
    faults=(),
    healed_s=20.0,
    stop_s=math.inf,
    merge_s=0.1,
    store_s=0.1,
    store_every=1,
    anchor=Anchor.BASE,
    lock_step=None,
)
"""A plan with one island, without which nothing proceeds."""


@pytest.mark.parametrize("healed_s", range(20, 60))
def test_island_returns_whenever_its_layout_is_fixed(healed_s: int) -> None:
    """The refusal of its join may still be on its way."""
    traits = (replace(ALONE.traits[0], latency_s=4.0),)
    faults = (
        SimFault(15.0, Trouble.LAYOUT, ISLAND, 1.0),
        SimFault(16.0, Trouble.RUMOUR, ISLAND, 1.0),
    )
    SimWorld(replace(ALONE, traits=traits, healed_s=healed_s, faults=faults)).run()


@pytest.mark.parametrize("tenth", range(0, 150, 3))
def test_island_returns_whenever_it_was_drained(tenth: int) -> None:
    """The island may be barred then, and in no life."""
    ill = SimFault(3.0, Trouble.INCURABLE, ISLAND, 1.0)
    drained = SimFault(5 + tenth / 10, Trouble.DRAIN, ISLAND, 1.0)
    SimWorld(replace(ALONE, faults=(ill, drained))).run()


def broken(name: str) -> tuple[object, str, Callable[..., object]]:
    """Return the place of a guard of the rules, and its broken replacement."""
    match name:
        case "the gate lets everything in":
            return contributions.gate, "inspect", lambda *_, **__: None
        case "the gate lets nobody in":
            return (
                contributions.gate,
                "inspect",
                lambda c, **_: Refusal(Fate.GATE, Cause.LAYOUT, f"{c.id}"),
            )
        case "the dead are heard":
            return lives, "speaking", lambda members, life: members.get(life.island)
        case "the quorum does not count":
            return rounds, "judge", lambda *, arrived, **_: Close(f"{arrived}")
        case "t is the fastest clock":
            return rules, "kth_clock", lambda members, k: roster.kth_clock(members, 1)
        case "data goes back unread":
            return (
                lives.leases,
                "give_back",
                lambda pool, held, covered, windows: type(pool)(
                    pool.fresh, (*pool.returned, *(type(e)(e.number) for e in held))
                ),
            )
        case "what was merged is forgotten":
            return recovery.ledger, "unmerge", lambda book, contribution: book
        case _:
            raise AssertionError(name)


@pytest.mark.parametrize(
    "name",
    [
        "the gate lets everything in", "the gate lets nobody in", "the dead are heard",
        "the quorum does not count", "t is the fastest clock", "data goes back unread",
        "what was merged is forgotten",
    ],
)  # fmt: skip
def test_broken_rule_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, guard, instead = broken(name)
    monkeypatch.setattr(where, guard, instead)
    total = Sum()
    for number in range(FEW):
        one_schedule(f"{SEED}/{number}", total, shrink=False)
        if total.violations:
            break
    assert total.violations == 1


def test_failure_is_shrunk_to_its_shortest_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    where, guard, instead = broken("the quorum does not count")
    monkeypatch.setattr(where, guard, instead)
    total = Sum()
    number = 0
    while not total.failures:
        one_schedule(f"{SEED}/{number}", total, shrink=False)
        number += 1
    (failure,) = total.failures
    world = SimWorld(draw(failure.seed, stretch=failure.stretch))
    with pytest.raises(BREAKAGES):
        world.run()
    tape = shortest(world, failure)
    # The merge is empty, or has fewer than the quorum, which the state shows as well.
    assert violated(world, tape) == failure.invariant in {"the quorum is kept", "validate"}
    fewer = [tape[:i] + tape[i + 1 :] for i in range(len(tape))]
    assert all(violated(world, each) != failure.invariant for each in fewer)
    # Islands join, some repeatedly, so that others read their leases, and step.
    assert len(tape) <= 5 * len(world.plan.traits)
    assert len(tape) < failure.events


def test_unreachable_pairs_are_known_pairs_with_reasons() -> None:
    assert NEVER.keys() < PAIRS
    assert all(NEVER.values())


def test_virtual_loop_runs_tasks_in_order_of_time() -> None:
    """The loop runs real tasks, futures and alarms in the order of their times."""
    loop, said = VirtualLoop(), list[str]()

    async def sleeper(name: str, seconds: float) -> None:
        await loop.pause(seconds)
        said.append(f"{name} at {loop.time():g}")

    async def both() -> None:
        late = loop.create_task(sleeper("late", 5))
        gone = loop.create_task(sleeper("gone", 4))
        await asyncio.gather(loop.create_task(sleeper("soon", 2)))
        gone.cancel()
        await late

    with running(loop):
        never = loop.call_later(1, said.append, "never")
        loop.call_later(3, said.append, "alarm")
        never.cancel()
        task = loop.create_task(both())
        loop.run(60, task.done)
    assert said == ["soon at 2", "alarm", "late at 5"]
    assert loop.time() == 5
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.long
def test_timed_fuzz_starts_no_schedule_after_its_time() -> None:
    """A fuzz of that many schedules with the same seed gives the same result."""
    clock = count()
    in_time = fuzz(None, SEED, for_s=3, now_s=lambda: float(next(clock)))
    assert in_time.schedules == 2 * ROUND
    wanted = fuzz(2 * ROUND, SEED)
    in_time.events_per_s = wanted.events_per_s
    assert in_time == wanted


def test_failure_is_saved_with_the_command_that_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def simulate(*arguments: str) -> tuple[int | str | None, FuzzResult, str]:
        with pytest.raises(SystemExit) as end:
            main(["simulate", "--json", *arguments])
        out, err = capsys.readouterr()
        return end.value.code, FuzzResult(**json.loads(out)), err

    monkeypatch.chdir(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*broken("the quorum does not count"))
        code, found, said = simulate("--fuzz", "10", "--jobs", "1", "--for", "60")
        assert (code, found.violations > 0) == (1, True)
        assert f"seed {found.seed}\n" in said
        (kept,) = sorted((tmp_path / "runs" / "fuzz").iterdir())[:1]
        failure = json.loads(kept.read_text())
        assert failure["seed"].startswith(f"{found.seed}/")
        line = f"repeat it: archipelago simulate --schedule {failure['seed']} (kept in runs/fuzz/"
        assert line in said
        code, again, _ = simulate("--schedule", failure["seed"])
        assert (code, again.schedules, again.violations) == (1, 1, 1)
        assert asdict(again)["failures"] == [failure]
    code, mended, _ = simulate("--schedule", failure["seed"])
    assert (code, mended.schedules, mended.violations) == (0, 1, 0)


def test_new_seed_differs_each_time() -> None:
    assert len({new_seed() for _ in range(5)}) > 1
