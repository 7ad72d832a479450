"""The failures of a fuzz: their reports, their files, and how their tapes are shortened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from archipelago.lab.checks.facts import Truth, Violation
from archipelago.lab.checks.judge import InvariantJudge
from archipelago.lab.simulation.world import SimWorld
from cluster.storage.files import write_json
from coordinator.advance import advance
from coordinator.errors import ArchipelagoError
from coordinator.protocol import Event
from coordinator.state import initial

Events = list[tuple[float, Event]]

BREAKAGES = (
    ArchipelagoError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError,
    ValueError,
)  # fmt: skip
"""The exceptions by which a defect of the rules or of the shell shows."""
TRIALS = 1500
"""The most tapes to try in search of the shortest."""
KEPT = Path("runs", "fuzz")
"""The folder where failures are kept."""


@dataclass(slots=True)
class FuzzFailure:
    """One violation; `simulate --schedule SEED` repeats it."""

    seed: str
    """The seed of the schedule."""
    stretch: float
    """The factor of the length: the plan is `draw(seed, stretch=stretch)`."""
    invariant: str
    """The name of the invariant, or of the exception."""
    words: str
    events: int
    """The number of events before the failure."""
    tape: list[str]
    """The shortest list found of times and events that violates the same invariant of the rules.

    It is empty if the rest of the simulated world is needed to show the failure.
    """


def failure_of(world: SimWorld, seed: str, stretch: float, error: Exception) -> FuzzFailure:
    """Return the failure for an error of this schedule, without its tape."""
    return FuzzFailure(seed, stretch, _invariant(error), str(error), len(world.seat.tape), [])


def _invariant(error: Exception) -> str:
    return error.name if isinstance(error, Violation) else type(error).__name__


def keep(failure: FuzzFailure, folder: Path = KEPT) -> str:
    """Write a failure to a file, and return in words how to repeat it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{failure.seed.replace('/', '-')}.json"
    write_json(path, asdict(failure))
    return f"repeat it: archipelago simulate --schedule {failure.seed} (kept in {path})"


def shortest(world: SimWorld, failure: FuzzFailure) -> Events:
    """Return the shortest tape found that violates the same invariant; empty if no tape shows it.

    Ever smaller parts of the tape are left out (delta debugging: Zeller and Hildebrandt,
    "Simplifying and isolating failure-inducing input", 2002).
    """
    tape = list(world.seat.tape)
    event = world.seat.hearing
    if event is not None and (not tape or tape[-1][1] is not event):
        tape.append((world.site.now_s(), event))  # the rules failed on this event
    trials = 0

    def fails(candidate: Sequence[tuple[float, Event]]) -> bool:
        nonlocal trials
        trials += 1
        return violated(world, candidate) == failure.invariant

    if not fails(tape):
        return []
    parts = 2
    while len(tape) > 1 and trials < TRIALS:
        size = -(-len(tape) // parts)
        for start in range(0, len(tape), size):
            rest = tape[:start] + tape[start + size :]
            if rest and fails(rest):
                tape, parts = rest, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(tape), 2 * parts)
    return tape


def violated(world: SimWorld, tape: Sequence[tuple[float, Event]]) -> str | None:
    """Return the invariant that the rules violate on these events alone, or None."""
    rule = world.plan.rule
    judge = InvariantJudge(rule, Truth(world.site.made_of.get))
    state = initial(rule)
    try:
        for now_s, event in tape:
            before, (state, effects) = state, advance(rule, state, event, now_s)
            judge.saw(before, event, state, effects, now_s)
    except BREAKAGES as error:
        return _invariant(error)
    return None
