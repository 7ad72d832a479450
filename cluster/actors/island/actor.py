"""The actor of one island: it holds the learner's process, and answers the run's calls."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import ray

from cluster.actors.directory import holder_of, setup_logging
from cluster.actors.fault_injection import BreakableIsland, Cable
from cluster.actors.hosts.ray_gang import RayGang
from cluster.actors.island.call_threads import its_own
from cluster.actors.island.learner_calls import LearnerCalls
from cluster.actors.learner_link import RayLink
from cluster.actors.object_store.moment_pieces import MomentPieceRef
from cluster.config.schema import Config
from cluster.failures import Failure, Reason
from cluster.names import Seat
from cluster.source import learner_sha256
from cluster.tasks import watch_process
from cluster.transfers import Prepared
from cluster.workers.border import OPEN, border_of
from cluster.workers.environment import drop_stale_addresses
from cluster.workers.island_process import IslandProcess
from cluster.workers.notice_watch import NoticeWatch
from coordinator.codec import Sent
from coordinator.errors import Malformed
from coordinator.parts import Split
from coordinator.protocol import (
    ContributionId,
    Fragment,
    Known,
    Life,
    Progress,
    Publication,
    Void,
)

if TYPE_CHECKING:
    from islands.learner import Learner


class IslandActor(BreakableIsland):
    """One island with its learner, or a spare that may become one.

    `hand_in` and `offer` are the two sides of its wire.
    """

    _border = OPEN  # until the configuration is read

    def __init__(self, config: str, group: str, seat: Seat, namespace: str) -> None:
        drop_stale_addresses()
        parsed_config = Config.model_validate_json(config, strict=False)
        own_group = parsed_config.group(group)
        self._border = border_of(parsed_config, own_group, f"{namespace}-{seat}")
        self._border.keep_output()
        setup_logging()
        self._cable = Cable()
        self._calls = LearnerCalls(lambda: self._learner, self._border)

        def link() -> RayLink:
            code = learner_sha256(parsed_config.learner_code, parsed_config.pickled_code)
            return RayLink(
                namespace,
                self._cable,
                seat,
                holder_of(parsed_config),
                relievable=own_group.spares > 0,
                code=code,
                border=self._border,
            )

        def gather() -> RayGang:
            self._calls.gang = gang = RayGang(config, own_group, seat, namespace, self.process.end)
            return gang

        gathered = gather if own_group.hosts > 1 else None
        self.process = IslandProcess(parsed_config, own_group, link, link, gathered, self._border)
        watch_process(lambda error: self.process.break_down(Reason.TRAIN, error))
        self._notices = NoticeWatch(
            parsed_config.faults, lambda *notice: link().notice(*notice), self.process.end
        )
        self._notices.start()

    @property
    def _learner(self) -> Learner | None:
        """The learner that serves this call; blocks while an injected cut of the network lasts."""
        self._cable.passes()
        return self.process.learner

    @its_own("asking", Reason.HAND_IN)
    def hand_in(self, life: Life, fragment: Fragment, known: Known) -> Prepared:
        """See `LearnerCalls.hand_in`."""
        return self._calls.hand_in(life, fragment, known)

    @its_own("giving", Reason.MOMENTS)
    def moments(self, life: Life, split: Split) -> list[MomentPieceRef] | None:
        """See `LearnerCalls.moments`."""
        return self._calls.moments(life, split)

    @its_own("control", Reason.MOMENTS)
    def copied(self, life: Life) -> tuple[int, float]:
        """See `LearnerCalls.copied`."""
        return self._calls.copied(life)

    @its_own("offering", Reason.OFFER)
    def offer(
        self, life: Life, publication: Publication, boxed: Sequence[Sent | ray.ObjectRef]
    ) -> Failure | None:
        """See `LearnerCalls.offer`.

        A reference is passed inside a list, so that Ray does not fetch its object before the call.
        """
        return self._calls.offer(life, publication, boxed)

    @its_own("control", Reason.WORDS)
    def refused(self, contribution: ContributionId) -> None:
        """Notify the learner that a contribution was discarded; it gets its residual back."""
        if (learner := self._learner) is not None:
            learner.refused(contribution)

    @its_own("control", Reason.WORDS)
    def cease(self, over: Void) -> None:
        """Notify the learner that the syncer has ended its life; the next life begins at once."""
        if (learner := self._learner) is not None:
            learner.cease(over)

    @its_own("control", Reason.WORDS)
    def park(self, life: Life) -> None:
        """Have the learner stop stepping in this life, but continue to hand in and adopt."""
        if (learner := self._learner) is not None:
            learner.park(life)

    @its_own("control", Reason.WORDS)
    def leave(self) -> Progress | None:
        """End the life for good, and return its final progress; None if there is no learner."""
        learner = self._learner
        return None if learner is None else learner.leave()

    @its_own("watching", Reason.WORDS)
    def watch(self, life: Life) -> str:
        """Return the reason when this life is over; if the process dies, Ray raises an error."""
        learner = self._learner
        why = "its process is another one" if learner is None else learner.outlive(life)
        return self._border.text(why)

    @ray.method(concurrency_group="control")
    def break_down(self, life: Life, why: str) -> None:
        """End the process if it had this life: the syncer found its messages unusable."""
        if (learner := self._learner) is not None and learner.had(life):
            self.process.break_down(Reason.SENT, Malformed(why), known=True)

    @ray.method(concurrency_group="control")
    def spoil(self, factor: float) -> None:
        """Multiply all later hand-ins of this process by `factor` (for fault plans)."""
        if (learner := self.process.learner) is not None:
            learner.spoil = factor

    @ray.method(concurrency_group="breaking")
    def slow(self, factor: float, for_s: float) -> None:
        """Lengthen each step by `factor` for `for_s` seconds (for fault plans)."""
        if (learner := self.process.learner) is not None:
            learner.drag = factor
            time.sleep(for_s)
            learner.drag = 1.0

    @ray.method(concurrency_group="breaking")
    def cut(self, for_s: float) -> None:
        """Cut the network of this process for `for_s` seconds (for fault plans)."""
        self._cable.cut(for_s)
