"""The requests of a shard to the hosts of an island: one contribution, part by part.

Each part is the answer to a call that names the contribution, and only the caller has it. If one
part does not come, the contribution is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ray.exceptions import RayError

from cluster.actors.directory import Directory
from cluster.failures import Failure, Reason
from cluster.hosts.first_part import FirstPart
from coordinator.message_checks import flaw
from coordinator.parts import Part, misfit
from coordinator.protocol import Fragment, Known, Life


async def all_parts(
    first: FirstPart, life: Life, fragment: Fragment, known: Known, size: int, actors: Directory
) -> Sequence[Part] | Failure | str:
    """Return the parts of all hosts for a fragment of `size` elements, in order, or why not.

    A `Failure` is the island's fault; a string explains a loss that is no fault of the island.
    """

    def bad(part: object) -> str | None:
        if type(part) is not Part:
            return part if isinstance(part, str) else f"a {type(part).__name__} instead of a part"
        return flaw((part.facts, part.payload), life, fragment)

    if (why := bad(first.part)) is not None:
        return Failure(Reason.SENT, why)

    async def part(name: str) -> Part | str | None:
        host = await actors.find(name)
        return await host.part.remote(first.part.facts.id, known)

    try:
        others = await asyncio.gather(*map(part, first.others))
    except RayError as error:
        for name in first.others:  # all are actors of one life of the island
            actors.forget(name)
        kind = type(error).__name__  # the first host's own link to that host works
        return Failure(Reason.HAND_IN, f"a host of {life} cannot be asked: {kind}")
    if None in others:
        return f"{life} is over on one of its hosts"
    if (why := next(filter(None, map(bad, others)), None)) is not None:
        return Failure(Reason.SENT, why)
    parts = [first.part, *(each for each in others if isinstance(each, Part))]
    if (why := misfit(parts, size)) is not None:
        return Failure(Reason.SENT, why)
    return parts
