"""The hosts of one island as actors: the first one's way to the others, and what each of those is.

An island lives and dies as a whole (`cluster.actors.hosts.host_group`); then a new life begins.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NoReturn

import ray
from ray.exceptions import RayError

from cluster.actors.call_errors import STORE_FULL
from cluster.actors.directory import Actor, holder_of, setup_logging
from cluster.actors.fault_injection import Cable
from cluster.actors.hosts.host_group import Hosts
from cluster.actors.learner_link import RayLink
from cluster.actors.object_store.moment_pieces import Piece, put_pieces
from cluster.config.schema import Config, IslandGroup
from cluster.hosts.first_part import FirstPart
from cluster.names import CALL_TIMEOUT_S, Seat, island_actor
from cluster.tasks import watch_process
from coordinator.codec import Sent
from coordinator.errors import Malformed, Unreachable
from coordinator.parts import Part, Split
from coordinator.protocol import ContributionId, Fragment, HandIn, Island, Known, Life

if TYPE_CHECKING:  # JAX is imported on a thread where a failure can be reported
    from cluster.hosts.gang import Meeting
    from cluster.workers.assembly import Parts
    from islands.hosts.follower import Follower
    from islands.hosts.lead import Lead
    from islands.hosts.orders import Order
    from islands.link import Link

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
        kind: type[HostActor] | None = None,
    ) -> None:
        """Start the others, and meet them. `end`: this process, with the reason. `kind`: of the
        others, if it is another one."""
        given, called = (config, group.group, seat, namespace), island_actor(seat)
        self._hosts = Hosts(kind or HostActor, given, group, namespace, called, end)
        self._ranges: Mapping[Fragment, slice] = {}

    @property
    def lead(self) -> Lead[Order]:
        return self._hosts.lead

    @property
    def others(self) -> Sequence[Actor]:
        return self._hosts.actors

    def narrowed(self, link: Link, ranges: Mapping[Fragment, slice], split: Split) -> Link:
        assert isinstance(link, RayLink)
        link.ranges = self._ranges = ranges
        link.donors.split, link.donors.share = split, self._share
        self.lead.came = link.came
        return link

    def moments(self, life: Life, split: Split, donation: int) -> Callable[[], list[Piece] | None]:
        """Have the other hosts put their shares of the moments that this life has just copied.

        `donation` is the number under which they were copied. What is returned waits, and says
        where they lie; None if that life is over, or one of them has none, which is no reason to
        end. Each is waited for as long as its bytes take: one that is gone raises, and one that
        hangs ends the island.
        """
        asked = [host.moments.remote(life, split, donation) for host in self._hosts.actors]

        def put() -> list[Piece] | None:
            found: list[list[Piece] | None]
            try:
                found = ray.get(asked)
            except RayError as error:
                kind = type(error).__name__
                log.warning("no moments for a newcomer, a host gives none: %s", kind)
                return None
            some = [each for each in found if each is not None]
            return [*chain(*some)] if len(some) == len(found) else None

        return put

    def _share(self, pieces: Sequence[Piece], leaves: int) -> list[ray.ObjectRef]:
        """Have each other host pull what it needs of a donor's moments, of so many leaves; they
        will answer why they have none, or None."""
        return [
            host.given.remote([each for each in pieces if each.host == number], leaves)
            for number, host in enumerate(self._hosts.actors, 1)
        ]

    def first_part(self, fragment: Fragment, facts: HandIn, sent: Sent) -> FirstPart:
        own = self._ranges[fragment]
        return FirstPart(Part(facts, own.start, own.stop, sent), self._hosts.names)


class HostActor:
    """A host of an island that is not the first."""

    def __init__(
        self, config: str, group: str, seat: Seat, namespace: str, number: int, meeting: Meeting
    ) -> None:
        setup_logging()
        watch_process(lambda error: self._end(f"a thread died: {error!r}"))
        plain = Config.model_validate_json(config, strict=False)
        self._config, self._group = plain, plain.group(group)
        self._number, self._meeting = number, meeting
        self._link = RayLink(namespace, Cable(), seat, holder_of(plain), relievable=False)
        self._follower: Follower | None = None
        self._parts: Parts | None = None
        self._ready = threading.Event()
        threading.Thread(target=self._live, name="train", daemon=True).start()

    def _live(self) -> None:
        try:
            from cluster.hosts.gang import Other, enter
            from islands.hosts.orders import Coming, Fate, News

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

            self._link.tell = lambda: first.say(Coming())
            first.start(beside)
            enter(self._meeting, self._number)
            from cluster.workers.assembly import assemble_follower, compiled, ranges_of

            parts = self._parts = compiled(self._config, self._group)
            self._link.ranges = ranges_of(parts)
            any_of_it: Island = self._group.names[0]
            self._follower = assemble_follower(
                self._config, any_of_it, parts, self._link, first.say
            )
            self._ready.set()
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

    @ray.method(concurrency_group="asking")
    def moments(self, life: Life, split: Split, donation: int) -> list[Piece] | None:
        """Its share of what the first host has copied under this number for another island; None
        if that life is over, the first host has given it up, or there is no room."""
        try:
            follower = self._follower
            leaves = None if follower is None else follower.moments(life, donation)
            if follower is None or leaves is None:
                return None
            return put_pieces(leaves, follower.shares, split, first=False)
        except STORE_FULL as error:
            log.warning("no moments for a newcomer, the object store has no room: %s", error)
            return None

    @ray.method(concurrency_group="asking")
    def given(self, pieces: Sequence[Piece], leaves: int) -> str | None:
        """Pull its share of a donor's moments; why there is none, None if there is."""
        try:
            if not self._ready.wait(CALL_TIMEOUT_S) or self._follower is None:
                return "it is not ready"
            self._follower.given(self._link.donors.pulled(pieces, leaves))
        except (Unreachable, Malformed, ValueError) as error:
            return str(error)
        return None
