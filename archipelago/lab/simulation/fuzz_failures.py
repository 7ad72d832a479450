"""The failures of a fuzz: how one is told and kept, and how its tape is made short."""

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
"""What a defect of the rules or of the shell looks like."""
TRIALS = 1500
"""Tapes tried out in search of the shortest."""
KEPT = Path("runs", "fuzz")
"""Where failures are kept."""


@dataclass(slots=True)
class FuzzFailure:
    """One violation; `simulate --schedule SEED` repeats it, which draws `draw(seed,
    stretch=stretch)`.

    `events`: heard until then. `tape`: the shortest list of (time, event) found that violates the
    same invariant of the rules; empty if the world's part is needed to see it.
    """

    seed: str
    stretch: float
    invariant: str
    words: str
    events: int
    tape: list[str]


def failure_of(world: SimWorld, seed: str, stretch: float, error: Exception) -> FuzzFailure:
    """Return the failure that an error of this schedule is; its tape is still to be found."""
    return FuzzFailure(seed, stretch, _invariant(error), str(error), len(world.seat.tape), [])


def _invariant(error: Exception) -> str:
    return error.name if isinstance(error, Violation) else type(error).__name__


def keep(failure: FuzzFailure, folder: Path = KEPT) -> str:
    """Write down a failure; how to repeat it, in words."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{failure.seed.replace('/', '-')}.json"
    write_json(path, asdict(failure))
    return f"repeat it: archipelago simulate --schedule {failure.seed} (kept in {path})"


def shortest(world: SimWorld, failure: FuzzFailure) -> Events:
    """The shortest tape found that violates the same invariant, by leaving out ever smaller parts
    of it (Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", 2002); empty
    if the events alone do not show it."""
    tape = list(world.seat.tape)
    event = world.seat.hearing
    if event is not None and (not tape or tape[-1][1] is not event):
        tape.append((world.site.now_s(), event))  # the rules broke of it
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
    """Which invariant the rules violate when they hear these events, and nothing else."""
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
