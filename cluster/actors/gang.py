"""The hosts of one island as actors: the first one's way to the others, and what each of those is.

An island lives and dies as a whole (`cluster.actors.hosts`); then a new life begins.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn

import ray

from cluster.actors.directory import holder_of, setup_logging
from cluster.actors.handed import FirstPart
from cluster.actors.hosts import Hosts
from cluster.actors.inject import Cable
from cluster.actors.link import RayLink
from cluster.config.schema import Config, IslandGroup
from cluster.names import Seat, island_actor
from coordinator.codec import Sent
from coordinator.parts import Part
from coordinator.protocol import ContributionId, Fragment, HandIn, Island, Known

if TYPE_CHECKING:  # JAX is imported on a thread where a failure can be reported
    from cluster.host.gang import Meeting
    from islands.follower import Follower
    from islands.lead import Lead
    from islands.link import Link
    from islands.orders import Order

log = logging.getLogger("archipelago.gang")


class RayGang:
    """The other hosts of an island, as the first one has them."""

    def __init__(
        self,
        config: str,
        group: IslandGroup,
        seat: Seat,
        namespace: str,
        end: Callable[[str], NoReturn],
    ) -> None:
        """Start the others, and meet them. `end`: this process, with the reason."""
        given = (config, group.group, seat, namespace)
        self._hosts = Hosts(HostActor, given, group, namespace, island_actor(seat), end)
        self._ranges: Mapping[Fragment, slice] = {}

    @property
    def lead(self) -> Lead[Order]:
        return self._hosts.lead

    def narrowed(self, link: Link, ranges: Mapping[Fragment, slice]) -> Link:
        assert isinstance(link, RayLink)
        link.ranges = self._ranges = ranges
        return link

    def first_part(self, fragment: Fragment, facts: HandIn, sent: Sent) -> FirstPart:
        own = self._ranges[fragment]
        return FirstPart(Part(facts, own.start, own.stop, sent), self._hosts.names)


class HostActor:
    """A host of an island that is not the first."""

    def __init__(
        self, config: str, group: str, seat: Seat, namespace: str, number: int, meeting: Meeting
    ) -> None:
        setup_logging()
        plain = Config.model_validate_json(config, strict=False)
        self._config, self._group = plain, plain.group(group)
        self._number, self._meeting = number, meeting
        self._link = RayLink(namespace, Cable(), seat, holder_of(plain), relievable=False)
        self._follower: Follower | None = None
        threading.Thread(target=self._live, name="train", daemon=True).start()

    def _live(self) -> None:
        try:
            from cluster.host.gang import Other, enter
            from islands.orders import Fate, News

            first = Other(self._meeting, self._number, lambda error: self._end(str(error)))

            def beside(said: News | Fate) -> None:
                if (follower := self._follower) is not None:
                    try:
                        match said:
                            case News(life, publication):
                                follower.offer(life, publication)
                            case Fate(contribution):
                                follower.refused(contribution)
                    except BaseException:
                        log.exception("a publication could not be taken in")
                        self._end("see above")

            first.start(beside)
            enter(self._meeting, self._number)
            from cluster.host.build import assemble_follower, compiled, ranges_of

            parts = compiled(self._config, self._group)
            self._link.ranges = ranges_of(parts)
            any_of_it: Island = self._group.names[0]
            self._follower = assemble_follower(
                self._config, any_of_it, parts, self._link, first.say
            )
            self._follower.run(first.orders())
        except BaseException:
            log.exception("a host of an island broke")
        self._end("nothing is left to do")

    def _end(self, why: str) -> NoReturn:
        """End this process, and with it the island."""
        log.error("host %d of an island of %s ends: %s", self._number, self._group.group, why)
        logging.shutdown()
        os._exit(1)

    @ray.method(concurrency_group="asking")
    def part(self, said: ContributionId, known: Known) -> Part | str | None:
        """Its part of a contribution; whatever this raises ends the island."""
        try:
            follower = self._follower
            return None if follower is None else follower.part(said, known)
        except BaseException:
            log.exception("what was trained could not be handed in")
            self._end("see above")
