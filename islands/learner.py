"""The learner: it trains, reports, hands in, adopts, and recovers.

One thread trains and owns the parameters. It never waits for other processes, except with `overlap
= 0`, the lock-step mode. Other threads call `hand_in` and `offer`: they report to `learner_state`
what has happened, and the training thread does what follows at its next step boundary. Copying,
encoding and decoding stay with the caller. A third thread sends messages to the syncer.
docs/explanation/protocol.md describes the messages.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from coordinator.codec import Sent
from coordinator.errors import Rejected
from coordinator.fragments import Layout
from coordinator.protocol import (
    ContributionId,
    Fragment,
    Granted,
    HandIn,
    Join,
    Known,
    Life,
    Progress,
    Publication,
    Refused,
    Vitals,
    Void,
)
from islands.activity_clock import ActivityClock
from islands.adopt import FragmentPort
from islands.donations import Donation
from islands.hosts.lead import Lead
from islands.hosts.orders import FateNotice, News, Order, Over
from islands.inner import Share
from islands.learner_life import LearnerState
from islands.learner_messages import Ceased, Parked, Settled
from islands.life_setup import LifeSetup
from islands.link import LearnerSettings, Link
from islands.mailbox import Mailbox
from islands.message_thread import speak
from islands.moments import MomentSharing
from islands.task import Params, StreamLike, Task
from islands.time_budget import Activity
from islands.trainer import Trainer
from islands.training_step import TrainingStep

log = logging.getLogger("archipelago.learner")


def _no_followers(order: Order) -> None:
    """Do nothing: an island of one host has no others to notify."""


def _in_short(error: BaseException) -> str:
    """Return an exception's class, its message, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


class Learner:
    """One life after another of one island's learner; `run` is the training thread's body."""

    def __init__(
        self,
        task: Task,
        layout: Layout,
        inner: TrainingStep,
        port: FragmentPort,
        sharing: MomentSharing | None,
        stream: Callable[[], StreamLike],
        link: Link,
        settings: LearnerSettings,
        *,
        now_s: Callable[[], float],
        lead: Lead[Order] | None = None,
        clock: ActivityClock | None = None,
    ) -> None:
        """Create a learner that has not joined yet.

        `stream` makes a reader without leases, once for each life. `now_s` is a steady clock.
        `sharing`: of first moments; None: each island keeps its own. `lead`: the way to the other
        hosts, if the island has any. `clock`: the time budget of this process; None: a new one.
        """
        self._clock = clock = ActivityClock(now_s) if clock is None else clock
        self._layout, self._inner, self._link, self._settings = layout, inner, link, settings
        self.spoil = 1.0  # a fault plan multiplies hand-ins by it
        self._mail = mail = Mailbox(now_s, clock)
        self._lead = lead
        tell = _no_followers if lead is None else lead.tell
        self._trainer = Trainer(task, inner, port, sharing, settings, mail, now_s, tell, clock)
        self._setup = LifeSetup(
            task, layout, inner, port, sharing, stream, link, settings, mail, self._trainer, lead
        )

    # --- lives ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Train, life after life, until the run ends or this learner must leave.

        Errors: `Rejected` if the syncer refuses the join for good; whatever the task raises.
        """
        distrusted = False  # whether the syncer distrusts the last life
        while (granted := self._join()) is not None:
            if (life := self._setup.begin(granted, distrusted=distrusted)) is None:
                self._clock.switch(Activity.STARTING)
                continue
            talker = threading.Thread(
                target=speak, args=(self._mail, self._link, life), name=f"talk {life}", daemon=True
            )
            talker.start()
            try:
                distrusted = self._trainer.train()
                if (broken := self._mail.history.broken) is not None:
                    raise broken
            except BaseException as error:  # do not wait for the talker: its call may take long
                self._mail.end(f"its learner broke: {_in_short(error)}")
                raise
            self._mail.end()
            talker.join()
            if self._lead is not None:
                self._lead.tell(Over())
            if (broken := self._mail.history.broken) is not None:
                raise broken

    @property
    def params(self) -> Params:
        """The parameters, on the devices; valid once `run` has returned."""
        return self._trainer.params

    @property
    def now(self) -> LearnerState | None:
        """The state of the present life; None between two lives."""
        return self._mail.now

    def _join(self) -> Granted | None:
        """Ask for a life, with the syncer's back-off; None once this learner must leave."""
        settings = self._settings
        join = Join(settings.island, settings.group, self._layout.fingerprint, settings.region)
        while self._mail.history.staying:
            match self._link.join(join):
                case Granted() as granted:
                    self._clock.switch(Activity.RESTORING)
                    return granted
                case Refused(island, why, retry_s):
                    if retry_s is None:
                        raise Rejected(f"{island} may not join: {why}")
                    log.warning("%s may not join for %.1f s: %s", island, retry_s, why)
                    self._clock.switch(Activity.IDLE)
                    self._mail.history.leaves_within(retry_s)
                    self._clock.switch(Activity.STARTING)
        return None

    # --- called by others -------------------------------------------------------------------------

    @property
    def vitals(self) -> tuple[int, Vitals]:
        """The inner steps of this life, and where the time of this process went."""
        return self._mail.vitals

    def hand_in(self, life: Life, fragment: Fragment, known: Known) -> tuple[HandIn, Sent] | None:
        """Return this life's work on the fragment since its last hand-in or adoption.

        The call waits for the next step boundary. It returns None if there is nothing to hand in,
        or the life is over. `known`: the fate of the life's contributions to the fragment before
        this call.
        """
        if (ends := self._mail.ends(life)) is None:
            return None
        held = known.held if ends.uplink.hear(fragment, known) else None
        if (future := self._mail.asks(life, fragment, held)) is None:
            return None
        snapshot = future.result()
        return None if snapshot is None else ends.uplink.encode(fragment, snapshot, self.spoil)

    def moments(self, life: Life) -> Donation | None:
        """Return this life's optimizer moments, for a learner that joins; None if the life is over.

        They hold the share of each leaf that this host has (`Inner.shares`), in flat form. The
        training thread copies them to the host, some leaves at each boundary, so that one leaf may
        be a step or two older than another. The other hosts of the island copy theirs at the same
        boundaries, and keep them under the donation's number.
        """
        donation = self._mail.donations.ask(life)
        return None if donation is None else donation.given.result()

    @property
    def shares(self) -> Sequence[Share]:
        """The share of each leaf of the optimizer's moments that this host has."""
        return self._inner.shares

    def copied(self, life: Life) -> tuple[int, float]:
        """Return how many leaves of moments this life has copied, and its seconds per step."""
        return self._mail.donations.copied(life)

    def needs_payload(self, life: Life, p: Fragment) -> bool:
        """Return whether the payload of a new version of the fragment is of use to this life.

        It is of none if the life is over, or fetches missed versions of the fragment at present.
        """
        ends = self._mail.ends(life)
        return ends is not None and not ends.following.catching_up(p)

    def offer(self, life: Life, publication: Publication, payload: Sent | None) -> None:
        """Adopt a newer version at the next step boundary, and learn what was merged.

        Without a payload, the missing deltas are fetched on a thread of that fragment, since the
        shard may be away.
        """
        if (ends := self._mail.ends(life)) is None:
            return
        if self._lead is not None:
            self._lead.tell(News(life, publication))
        ends.uplink.settle_merged(publication)
        self._mail.happens(Settled(publication.merged), life)
        ends.following.offer(publication, payload)

    def had(self, life: Life) -> bool:
        """Return whether this is one of the lives of this learner."""
        return self._mail.history.had(life)

    def refused(self, contribution: ContributionId) -> None:
        """Take back the rounding error that a discarded contribution took along."""
        if self._lead is not None:
            self._lead.tell(FateNotice(contribution))
        if (ends := self._mail.ends(contribution.life)) is not None:
            ends.uplink.settle(contribution, merged=False)
            self._mail.happens(Settled((contribution,)), contribution.life)

    def cease(self, over: Void) -> None:
        """End this life on the syncer's order; the next one begins at once."""
        self._mail.happens(Ceased(over), over.life)

    def park(self, life: Life) -> None:
        """Stop stepping until this life ends; continue to hand in and adopt."""
        self._mail.happens(Parked(), life)

    def leave(self) -> Progress:
        """End this life and begin no other; return its progress."""
        return self._mail.leave()

    def outlive(self, life: Life) -> str:
        """Wait until this life, which may be about to begin, is over; return the reason."""
        return self._mail.history.outlive(life)

    @property
    def drag(self) -> float:
        """A factor by which a fault plan slows down each step."""
        return self._trainer.drag

    @drag.setter
    def drag(self, factor: float) -> None:
        """Slow down each step by this factor."""
        self._trainer.drag = factor
