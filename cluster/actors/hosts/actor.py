"""The actor of a host of an island that is not the first one.

An island lives and dies as a whole (`cluster.actors.hosts.host_group`); then a new life begins.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import ray

from cluster.actors.call_errors import STORE_FULL
from cluster.actors.directory import holder_of, setup_logging
from cluster.actors.fault_injection import Cable
from cluster.actors.learner_link import RayLink
from cluster.actors.object_store.moment_pieces import MomentPieceRef, put_pieces
from cluster.config.region_tables import Leaving
from cluster.config.schema import Config
from cluster.names import CALL_TIMEOUT_S, Seat
from cluster.tasks import watch_process
from cluster.workers.border import border_of
from cluster.workers.environment import drop_stale_addresses
from cluster.workers.notice_watch import NoticeWatch
from coordinator.errors import Malformed, Unreachable
from coordinator.parts import Part, Split
from coordinator.protocol import ContributionId, Island, Known, Life

if TYPE_CHECKING:  # JAX is imported on a thread where a failure can be reported
    from cluster.hosts.gang import GangAddress
    from cluster.workers.assembly import LearnerParts
    from islands.hosts.follower import Follower

log = logging.getLogger("archipelago.gang")


class HostActor:
    """A host of an island that is not the first."""

    def __init__(
        self, config: str, group: str, seat: Seat, namespace: str, number: int, meeting: GangAddress
    ) -> None:
        drop_stale_addresses()
        parsed_config = Config.model_validate_json(config, strict=False)
        self._config, self._group = parsed_config, parsed_config.group(group)
        owner = f"{namespace}-{seat}-host-{number}"
        self._border = border_of(parsed_config, self._group, owner)
        self._border.keep_output()
        setup_logging()
        watch_process(lambda error: self._end(f"a thread died: {error!r}"))
        self._number, self._meeting = number, meeting
        self._link = RayLink(
            namespace,
            Cable(),
            seat,
            holder_of(parsed_config),
            relievable=False,
            border=self._border,
        )
        self._follower: Follower | None = None
        self._parts: LearnerParts | None = None
        self._ready = threading.Event()
        self._notices = NoticeWatch(parsed_config.faults, self._link.notice, self._end)
        self._notices.start()
        threading.Thread(target=self._live, name="train", daemon=True).start()

    def _live(self) -> None:
        """Meet the first host, build the follower, and follow its orders until the end."""
        try:
            from cluster.hosts.gang import Other, enter
            from islands.hosts.orders import Coming, FateNotice, News

            first = Other(self._meeting, self._number, lambda error: self._end(str(error)))

            def beside(notice: News | FateNotice) -> None:
                if (follower := self._follower) is not None:
                    try:
                        match notice:
                            case News(life, publication):
                                follower.offer(life, publication)
                            case FateNotice(contribution):
                                follower.refused(contribution)
                    except BaseException:
                        log.exception("a publication could not be taken in")
                        self._end("see above")

            self._link.tell = lambda: first.say(Coming())
            first.start(beside)
            enter(self._meeting, self._number)
            from cluster.workers.assembly import assemble_follower, compiled, ranges_of

            parts = self._parts = compiled(self._config, self._group)
            self._border.knows(parts.layout.fingerprint)
            self._link.ranges = ranges_of(parts)
            any_island: Island = self._group.names[0]
            self._follower = assemble_follower(
                self._config, any_island, parts, self._link, first.say
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
    def part(self, contribution: ContributionId, known: Known) -> Part | str | None:
        """Return this host's part of a contribution; any exception ends the island."""
        try:
            follower = self._follower
            part = None if follower is None else follower.part(contribution, known)
            if isinstance(part, str):
                return self._border.text(part)
            return self._border.passes(Leaving.DELTA, part)
        except BaseException:
            log.exception("this host's part of the contribution could not be handed in")
            self._end("see above")

    @ray.method(concurrency_group="asking")
    def moments(self, life: Life, split: Split, donation: int) -> list[MomentPieceRef] | None:
        """Return this host's share of the moments that the first host copied, for another island.

        `donation`: the number of that copy. None if that life is over, if the first host has given
        the donation up, if the object store has no room, or if moments may not leave the region.
        """
        try:
            follower = self._follower if self._border.permits(Leaving.MOMENTS) else None
            leaves = None if follower is None else follower.moments(life, donation)
            if follower is None or leaves is None:
                return None
            return put_pieces(leaves, follower.shares, split, first=False)
        except STORE_FULL as error:
            log.warning("no moments for a newcomer, the object store has no room: %s", error)
            return None

    @ray.method(concurrency_group="asking")
    def given(self, pieces: Sequence[MomentPieceRef], leaves: int) -> str | None:
        """Pull this host's share of a donor's moments; return the error message, or None."""
        try:
            if not self._ready.wait(CALL_TIMEOUT_S) or self._follower is None:
                return "it is not ready"
            self._follower.given(self._link.donors.pulled(pieces, leaves))
        except (Unreachable, Malformed, ValueError) as error:
            return str(error)
        return None
