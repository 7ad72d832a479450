"""The other hosts of an island, as its first host reaches them over Ray."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NoReturn

import ray
from ray.exceptions import RayError

from cluster.actors.directory import Actor
from cluster.actors.hosts.actor import HostActor
from cluster.actors.hosts.host_group import Hosts
from cluster.actors.learner_link import RayLink
from cluster.actors.object_store.moment_pieces import MomentPieceRef
from cluster.config.schema import IslandGroup
from cluster.hosts.first_part import FirstPart
from cluster.names import Seat, island_actor
from coordinator.codec import Sent
from coordinator.parts import Part, Split
from coordinator.protocol import Fragment, HandIn, Life

if TYPE_CHECKING:  # JAX is imported on a thread where a failure can be reported
    from islands.hosts.lead import Lead
    from islands.hosts.orders import Order
    from islands.link import Link

log = logging.getLogger("archipelago.gang")


class RayGang:
    """The other hosts of an island, as the first one reaches them."""

    def __init__(
        self,
        config: str,
        group: IslandGroup,
        seat: Seat,
        namespace: str,
        end: Callable[[str], NoReturn],
        kind: type[HostActor] | None = None,
    ) -> None:
        """Start the other hosts, and meet them.

        `end`: ends this process, with a reason. `kind`: the class of their actors; None:
        `HostActor`.
        """
        arguments, actor_name = (config, group.group, seat, namespace), island_actor(seat)
        self._hosts = Hosts(kind or HostActor, arguments, group, namespace, actor_name, end)
        self._ranges: Mapping[Fragment, slice] = {}

    @property
    def lead(self) -> Lead[Order]:
        """The sender of orders to the other hosts."""
        return self._hosts.lead

    @property
    def others(self) -> Sequence[Actor]:
        """The actors of the other hosts, in order."""
        return self._hosts.actors

    def narrowed(self, link: Link, ranges: Mapping[Fragment, slice], split: Split) -> Link:
        """See `Gang.narrowed`."""
        assert isinstance(link, RayLink)
        link.ranges = self._ranges = ranges
        link.donors.split, link.donors.share = split, self._share
        self.lead.came = link.came
        return link

    def moments(
        self, life: Life, split: Split, donation: int
    ) -> Callable[[], list[MomentPieceRef] | None]:
        """Have the other hosts put their shares of the moments that this life has just copied.

        `donation`: the number of that copy. Return a function that waits for the hosts and returns
        the pieces. That function returns None if the life is over or a host has no share, which is
        not a reason to end. There is no timeout: a host that is gone raises, and one that hangs
        ends the island.
        """
        calls = [host.moments.remote(life, split, donation) for host in self._hosts.actors]

        def put() -> list[MomentPieceRef] | None:
            answers: list[list[MomentPieceRef] | None]
            try:
                answers = ray.get(calls)
            except RayError as error:
                kind = type(error).__name__
                log.warning("no moments for a newcomer, a host gives none: %s", kind)
                return None
            shares = [each for each in answers if each is not None]
            return [*chain(*shares)] if len(shares) == len(answers) else None

        return put

    def _share(self, pieces: Sequence[MomentPieceRef], leaves: int) -> list[ray.ObjectRef]:
        """Have each other host pull its share of a donor's moments, which have `leaves` leaves.

        Each will answer with the reason why it has no share, or with None.
        """
        return [
            host.given.remote([each for each in pieces if each.host == number], leaves)
            for number, host in enumerate(self._hosts.actors, 1)
        ]

    def first_part(self, fragment: Fragment, facts: HandIn, sent: Sent) -> FirstPart:
        """Return this host's part of a contribution, with the names of the other hosts' actors."""
        own = self._ranges[fragment]
        return FirstPart(Part(facts, own.start, own.stop, sent), self._hosts.names)
