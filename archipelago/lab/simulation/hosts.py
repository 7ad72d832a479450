"""The other hosts of a simulated island: each hands in its own part, and may be gone by then.

At random, a host cannot be asked although its island lives, or it answers with the part of another
step boundary, as a host that disagrees with its island would. Such parts are judged by
`coordinator.parts`, as in a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from archipelago.lab.checks.facts import Violation
from archipelago.lab.simulation.learner import SimLearner
from archipelago.lab.simulation.network import SimNetwork
from archipelago.lab.simulation.process import SimProcess
from archipelago.lab.simulation.site import Machine
from cluster.failures import Failure, Reason
from coordinator.codec import BLOCK
from coordinator.parts import mismatch
from coordinator.protocol import HandIn, Life

STRANGE = 0.02
"""The probability that a host cannot be asked, and that it answers with another part.

It applies to randomly drawn plans until they are repaired.
"""


class SimPart(NamedTuple):
    """One block of a fragment that has as many blocks as its island has hosts."""

    facts: HandIn
    start: int
    stop: int


async def parts_of(
    first: HandIn, life: Life, process: SimProcess, machine: Machine, network: SimNetwork
) -> Sequence[SimPart] | Failure | str:
    """Return the parts of all hosts, given the first host's, or why there is none.

    Errors: `Violation` if the parts are of different contributions.
    """
    count, plan = machine.trait.hosts, network.site.plan
    probability = STRANGE if plan.unruly and network.loop.now_s < plan.healed_s else 0.0
    parts = [SimPart(first, 0, BLOCK)]
    for number in range(1, count):
        await network.loop.pause(network.delay_s(machine))
        learner = process.learner_of(life)
        if process.dead or learner is None:
            return f"host {number} of {life} is gone"
        if process.rng.random() < probability:
            return Failure(Reason.HAND_IN, f"host {number} of {life} cannot be asked")
        facts = _answer(first, learner, strange=process.rng.random() < probability)
        if facts is None:
            return Failure(Reason.SENT, f"host {number} of {life} has no part of {first.id}")
        parts.append(SimPart(facts, number * BLOCK, (number + 1) * BLOCK))
    if (problem := mismatch(parts, count * BLOCK)) is not None:
        return Failure(Reason.SENT, problem)
    if any((part.facts.id, part.facts.base) != (first.id, first.base) for part in parts):
        raise Violation("a contribution is of one life and one boundary", f"{first.id}: {parts}")
    return parts


def _answer(first: HandIn, learner: SimLearner, *, strange: bool) -> HandIn | None:
    """Return one host's part of this contribution; a host keeps the last two of each fragment."""
    kept = learner.cut.get(first.id.fragment, [])
    if strange:
        return next((each for each in kept if each != first), first)
    return next((each for each in kept if each == first), None)
