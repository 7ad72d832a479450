"""The moves of learner, shard and fleet for `tests.diagram`.

Learner and shard are watched while simulated schedules run their code. The fleet's decisions about
an island are a pure function of few conditions, so all of these are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any, get_args
from unittest.mock import patch

from archipelago.lab.virtual import learner as virtual_learner
from cluster.config.schema import FailurePolicy
from cluster.fleet.reconcile import ActionKind, Hold, Holding, reconcile
from cluster.shard.shard import Shard
from cluster.status import IslandState
from coordinator.protocol import Fragment, Island, Merged
from islands.learner_life import LearnerState
from islands.learner_messages import Happening, Word
from islands.learner_state import happen
from tests.diagram import NOBODY, STAYS, Machine, Move

# --- the learner ----------------------------------------------------------------------------------

IN_A_STEP, ADOPTION, DATA = "in a step", "waits for adoption", "waits for data"
BETWEEN, LAST, PARKED, OVER = "between steps", "at the run's last step", "parked", "over"
PHASES = (BETWEEN, IN_A_STEP, DATA, ADOPTION, LAST, PARKED, OVER)
HAPPENINGS = tuple(kind.__name__ for kind in get_args(Happening))
LIFE = Machine("a life of a learner", PHASES, HAPPENINGS, BETWEEN)
WORDS = Machine(
    "what follows in a life",
    PHASES,
    HAPPENINGS,
    BETWEEN,
    ("nothing", *(kind.__name__ for kind in get_args(Word))),
)


def phase(state: LearnerState) -> str:
    """Return the activity of a learner in this state, or what it waits for."""
    if not state.goes_on:
        return OVER
    if state.busy:
        return IN_A_STEP
    if not state.stepping:
        return PARKED
    if state.awaiting:
        return ADOPTION
    if state.terms.until is not None and state.clock >= state.terms.until:
        return LAST
    return DATA if state.ahead_windows < state.terms.batch_windows else BETWEEN


# --- the shard ------------------------------------------------------------------------------------

NO_MODEL, PUBLIC, STAGED = "no model", "public", "staged"
CALLS = ("seed", "recover", "receive", "drop", "merge", "store", "publish", "whole", "missed")
UNSOUND, NOT_ITS_TURN, ALREADY = "merge (unsound)", "store (not its turn)", "publish (is public)"
FRAGMENT = Machine(
    "a fragment in its shard",
    (NO_MODEL, PUBLIC, STAGED),
    (*CALLS[:5], UNSOUND, "store", NOT_ITS_TURN, "publish", ALREADY, "whole", "missed"),
    NO_MODEL,
)


def stage(shard: Shard[Any, Any, Any, Any], p: Fragment) -> str:
    """Return the stage of a fragment in its shard."""
    known = shard._fragments.get(p)
    if known is None:
        return NO_MODEL
    return PUBLIC if known.staged is None else STAGED


def fragments_of(call: str, arguments: Sequence[Any]) -> Sequence[Fragment]:
    """Return the fragments that a call is about, except for `drop`, where the inbox has them."""
    match call, arguments[0]:
        case (("seed" | "recover" | "whole"), several):
            return [*several]
        case "receive", hand_in:
            return [hand_in.id.fragment]
        case (("merge" | "publish"), order):
            return [order.fragment]
        case _, p:
            return [p]


def called(call: str, result: object) -> str:
    """Return the call's name, with its outcome where that differs."""
    if call == "merge" and not isinstance(result, Merged):
        return UNSOUND
    if call == "store" and not result:
        return NOT_ITS_TURN
    return ALREADY if call == "publish" and result is None else call


# --- the fleet ------------------------------------------------------------------------------------

ISLAND = Island("a-0")
POLICY = FailurePolicy(hang="replace")
WANTED = ("wanted", "wanted, failed too often", "wanted, silent for too long")
UNWANTED = tuple(f"not wanted, learner {said}" for said in get_args(IslandState))
LATE = "not wanted, drains for too long"
HELD = Machine(
    "what a fleet does with an island",
    (NOBODY, *Hold),
    (*WANTED, *UNWANTED, LATE),
    NOBODY,
    ("nothing", *ActionKind),
)


def tried() -> set[Move]:
    """Return the fleet's moves for every hold under every condition."""
    found = set[Move]()
    for hold, event in product((NOBODY, *Hold), HELD.events):
        learner = event.rpartition(" ")[2] if event in UNWANTED else "live"
        holding = Holding(
            ISLAND,
            Hold.WAITING if hold == NOBODY else Hold(hold),
            since_s=0.0,
            learner=learner,  # type: ignore[arg-type]
            failures=POLICY.deaths if event == WANTED[1] else 0,
            silent_since_s=0.0 if event == WANTED[2] else None,
        )
        now_s = 2 * max(POLICY.hang_s, POLICY.drain_s) if event in (WANTED[2], LATE) else 0.0
        wanted, actual = event in WANTED, {} if hold == NOBODY else {ISLAND: holding}
        actions = reconcile([ISLAND] if wanted else [], actual, now_s, POLICY)
        deeds = [action.kind.value for action in actions] or ["nothing"]
        found.update(Move(hold, event, deed) for deed in deeds)
    return found


MACHINES = (LIFE, WORDS, FRAGMENT, HELD)


@contextmanager
def watched(found: Mapping[Machine, set[Move]]) -> Generator[None]:
    """Record the moves of learners and shards until the block ends; add those of the fleet."""
    found[HELD].update(tried())

    def happens(state: LearnerState, happening: Happening) -> Any:
        after, words = happen(state, happening)
        was, is_, event = phase(state), phase(after), type(happening).__name__
        found[LIFE].add(Move(was, event, STAYS if was == is_ else is_))
        said = [type(word).__name__ for word in words] or ["nothing"]
        found[WORDS].update(Move(was, event, each) for each in said)
        return after, words

    def noting(call: str) -> Callable[..., Any]:
        does = getattr(Shard, call)

        def noted(shard: Shard[Any, Any, Any, Any], *arguments: Any) -> Any:
            if call == "drop":
                held = shard.inbox.get(arguments[0])
                own = [] if held is None else [held.fragment]
            else:
                own = fragments_of(call, arguments)
            was = {p: stage(shard, p) for p in own}
            result = does(shard, *arguments)
            for p in own:
                is_ = stage(shard, p)
                outcome = STAYS if was[p] == is_ else is_
                found[FRAGMENT].add(Move(was[p], called(call, result), outcome))
            return result

        return noted

    with ExitStack() as patches:
        patches.enter_context(patch.object(virtual_learner, "happen", happens))
        for call in CALLS:
            patches.enter_context(patch.object(Shard, call, noting(call)))
        yield
