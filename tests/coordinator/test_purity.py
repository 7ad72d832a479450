"""The rules are a pure function of the rule, the state, the event and the time."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import replace

import pytest

from coordinator.advance import advance
from coordinator.plain_sums import plain_sum
from coordinator.protocol import (
    Arrived,
    Ask,
    Effect,
    Event,
    Fragment,
    Granted,
    Island,
    Join,
    Lease,
    LeaseWanted,
    Life,
    Lost,
    Merge,
    Merged,
    Progress,
    Publish,
    Report,
    Store,
    Stored,
    Tick,
)
from coordinator.state import Rule, State, initial, validate
from tests.coordinator.given import LAYOUT, contribution, rule

ISLANDS = tuple(map(Island, "abc"))
STEPS = 60


Run = list[tuple[Event, float]]


def far(lease: Lease, steps: int) -> Progress:
    """Return the progress of a life that reads one window of this lease a step."""
    return Progress(steps, 100 * steps, Lease(lease.number, lease.start + steps))


def a_run(rule: Rule) -> Run:
    """Return the events of a run of three islands.

    The islands hand in what they are asked for and adopt nothing; one dies and rejoins.
    """
    said: Run = []
    todo: list[Event] = [Join(island, "group", LAYOUT) for island in ISLANDS]
    state = initial(rule)
    lives: dict[Life, int] = {}
    reads: dict[Life, Lease] = {}  # the first lease of each life
    handed: dict[tuple[Life, Fragment], int] = {}
    dead: set[Life] = set()
    for turn in range(STEPS):
        for life, born in lives.items():
            if life in dead:
                continue
            steps = turn - born
            todo.append(Report(life, far(reads[life], steps), 1.0))
        if turn == STEPS // 2:
            dead.add(last := max(lives))
            todo += [Lost(last, "died"), LeaseWanted(last), Join(last.island, "group", LAYOUT)]
        while todo:
            event = todo.pop(0)
            said.append((event, float(turn)))
            state, effects = advance(rule, state, event, float(turn))
            validate(rule, state)
            for effect in effects:
                match effect:
                    case Granted(life, leases=leases):
                        lives[life], reads[life] = turn, leases[0]
                    case Ask(life, p) if turn > lives[life] + handed.get((life, p), 0):
                        span = (handed.get((life, p), 0), turn - lives[life])
                        handed[life, p] = span[1]
                        base = state.fragments[p].version
                        progress = far(reads[life], span[1])
                        handed_in = contribution(life, p, span, base=base, progress=progress)
                        todo.append(Arrived(handed_in))
                    case Merge(p, version):
                        todo.append(Merged(p, version))
                    case Store(p, version):
                        todo.append(Stored(p, version, durable=True))
                    case _:
                        pass
    return said


def told(rule: Rule, events: Run) -> tuple[list[State], list[Effect]]:
    states: list[State] = [initial(rule)]
    effects: list[Effect] = []
    for event, now_s in events:
        state, answers = advance(rule, states[-1], event, now_s)
        states.append(state)
        effects += answers
    return states, effects


RULE = rule(quorum=2, fragments=3, every=6, grace_s=0.0)


@pytest.fixture(scope="module")
def run() -> Run:
    return a_run(RULE)


def test_sampled_run_publishes_many_versions(run: Run) -> None:
    _, effects = told(RULE, run)
    published = [effect for effect in effects if isinstance(effect, Publish)]
    assert len(published) > 8 * RULE.schedule.fragments
    assert len(run) > 5 * STEPS


def test_same_events_and_times_give_same_states_and_effects(run: Run) -> None:
    assert told(RULE, run) == told(RULE, copy.deepcopy(run))


def test_advance_does_not_change_earlier_states(run: Run) -> None:
    as_they_were: list[State] = []
    states = [initial(RULE)]
    for event, now_s in run:
        as_they_were.append(copy.deepcopy(states[-1]))
        states.append(advance(RULE, states[-1], event, now_s)[0])
    assert as_they_were == states[:-1]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_pickled_state_continues_unchanged(run: Run, share: float) -> None:
    states, _ = told(RULE, run)
    cut = int(share * len(run))
    state = pickle.loads(pickle.dumps(states[cut]))
    for event, now_s in run[cut:]:
        state, _ = advance(RULE, state, event, now_s)
    assert state == states[-1]


def test_passing_time_changes_nothing_before_the_alarm(run: Run) -> None:
    states, _ = told(RULE, run)
    for state in states:
        if state.wake_s is not None:
            shortly_before_s = math.nextafter(state.wake_s, 0.0)
            after, _ = advance(RULE, state, Tick(), shortly_before_s)
            assert replace(after, wake_s=None) == replace(state, wake_s=None)


def test_sums_have_the_same_bits_on_every_version_of_python() -> None:
    assert plain_sum([0.1] * 10) == 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1
    assert plain_sum([0.1] * 10).hex() == "0x1.fffffffffffffp-1", "with the error of each addition"
    assert plain_sum([1e16, 1.0, -1e16]) == 0.0
    assert plain_sum([]) == 0.0
