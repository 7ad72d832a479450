"""A learner that trains, hands in and adopts by itself: its contributions come back to it.

The hooks are those of a learner in a run. At each step boundary `Replica` cuts the fragment that is
due. On threads beside the training thread, `Uplink` encodes it with error feedback, and `Downlink`
decodes what comes back. `Replica` puts it in place at a later boundary. There is no syncer: each
contribution becomes the next public version unchanged.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from archipelago.lab.bench.accelerator_device import Measured
from coordinator.codec import Wire
from coordinator.fragments import Flat, sew
from coordinator.protocol import (
    ContributionId,
    Fragment,
    Incarnation,
    Island,
    Lease,
    Life,
    Progress,
    Publication,
    Version,
)
from islands.encoder import ENCODERS, Where
from islands.exchange import Downlink, FragmentSnapshot, Missed, Uplink
from islands.learner_messages import HandOver, Track
from islands.replica import Replica

THREADS = 4
"""Threads that encode and decode beside the training thread."""
WIRE = Wire.INT4
"""The encoding of the contributions."""


class Returned(NamedTuple):
    """A published version of a fragment, as received from the shard."""

    publication: Publication
    """The publication of the version that the contribution became."""
    flat: Flat
    """The public version on the host."""
    placed: jax.Array
    """The public version on the device."""
    sent_bytes: int
    """Bytes of the encoded contribution."""


@dataclass(slots=True)
class StepTimes:
    """The seconds of each step of a window, and of its hooks."""

    step: list[float] = field(default_factory=list[float])
    """Seconds of each step, hooks included."""
    hand_in: list[float] = field(default_factory=list[float])
    """Seconds of the training thread for each hand-in, which the devices do later."""
    adopt: list[float] = field(default_factory=list[float])
    """Seconds of the training thread for the adoptions at each step."""
    late: int = 0
    """Hand-ins that had to wait until the fragment's previous version was back."""


class Loopback:
    """A learner that trains, hands in and adopts, and whose contributions come back unmerged."""

    def __init__(self, measured: Measured, where: Where, windows: int, wire: Wire = WIRE) -> None:
        """Begin a life with `windows` windows in each step.

        `where` is the side on which deltas are encoded.
        """
        self._it, self._wire = measured, wire
        layout = measured.layout
        self._replica = Replica(measured.inner, measured.port, where, None)
        self._life = Life(Island("bench-0"), Incarnation(1))
        self._batch = measured.batch(windows)
        self._tokens = int(measured.task.tokens(self._batch))
        flats = self._drawn()
        params = jax.tree.unflatten(
            jax.tree.structure(measured.task.shapes), sew(layout, [*flats.values()])
        )
        self._replica.begin(params, None, flats, {}, 0)
        del params
        self._tracks = {p: Track(Version(0, 0)) for p in flats}
        self._uplink = Uplink(self._life, ENCODERS[where](wire), layout)
        public = {p: (Version(0, 0), flat) for p, flat in flats.items()}
        self._downlink = Downlink(public, _missed)
        self._under_way: dict[Fragment, Future[Returned]] = {}
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="wire")
        self.clock = self.adopted = self.sent_bytes = 0  # of the training thread only
        self.loss = float("nan")

    def _drawn(self) -> dict[Fragment, Flat]:
        """Draw the first public fragments on the device, and keep them on the host only."""
        params = self._it.drawn(seed=0)
        fragments = map(Fragment, range(len(self._it.layout.fragments)))
        return {p: np.array(self._it.port.take(params, p)) for p in fragments}

    @property
    def params(self) -> Any:
        """The parameters, on the device."""
        return self._replica.params

    @property
    def state(self) -> Any:
        """Parameters and moments, on the device."""
        return self._replica.state

    def close(self) -> None:
        """Wait for the exchanges under way, and free the device's memory."""
        self._pool.shutdown()
        self._replica.end()

    # --- windows of steps -------------------------------------------------------------------------

    def plain(self, steps: int) -> StepTimes:
        """Train as between two exchanges: dispatch the next step while one runs."""
        times = StepTimes()
        jax.block_until_ready(self.state)
        ended_s, running = time.perf_counter(), None
        for number in range(steps + 1):
            loss = self._step() if number < steps else None
            if running is not None:
                self.loss = float(running)
                now_s = time.perf_counter()
                times.step.append(now_s - ended_s)
                ended_s = now_s
            running = loss
        return times

    def hooked(self, steps: int) -> StepTimes:
        """Train, and hand in and adopt fragments between two steps, as `islands.trainer` does."""
        times = StepTimes()
        jax.block_until_ready(self.state)
        ended_s, running, copying = time.perf_counter(), None, list[jax.Array]()
        for number in range(steps + 1):
            loss = self._step() if number < steps else None
            if running is not None:
                self.loss = float(running)
                jax.block_until_ready(copying)
                now_s = time.perf_counter()
                times.step.append(now_s - ended_s)
                ended_s = now_s
            running = loss
            if loss is not None:
                copying = self._exchange(times)
        jax.block_until_ready((copying, self.state.params))
        times.step[-1] += time.perf_counter() - ended_s  # the last exchange
        return times

    def _exchange(self, times: StepTimes) -> list[jax.Array]:
        """Hand in the fragment that is due, and adopt those that are back.

        Returns arrays that are ready once the devices have done so.
        """
        began_s = time.perf_counter()
        ready = list[jax.Array]()
        p = Fragment(self.clock % self._it.model.fragments)
        if p in self._under_way:
            times.late += 1
            ready.append(self._adopt(p))
        ready.append(self._hand_in(p))
        handed_s = time.perf_counter()
        ready += [self._adopt(q) for q, each in [*self._under_way.items()] if each.done()]
        times.hand_in.append(handed_s - began_s)
        times.adopt.append(time.perf_counter() - handed_s)
        return ready

    def settle(self) -> None:
        """Adopt all fragments that are under way."""
        for p in [*self._under_way]:
            self._adopt(p)
        jax.block_until_ready(self.state.params)

    def _step(self) -> Any:
        """Dispatch one inner step, and return its loss."""
        self.clock += 1
        return self._replica.step(self._batch, self.clock - 1).loss

    def _hand_in(self, p: Fragment) -> jax.Array:
        """Cut the fragment, and have it encoded beside the training thread."""
        track = self._tracks[p]
        contribution_id = ContributionId(self._life, p, track.from_step, self.clock)
        progress = Progress(self.clock, self.clock * self._tokens, Lease(0))
        snapshot = self._replica.take(HandOver(p, contribution_id, track, progress))
        self._tracks[p] = Track(
            track.base, track.since_step, self.clock, progress.tokens, waiting=(contribution_id,)
        )
        assert snapshot.cut is not None
        flat = snapshot.cut.flat
        self._under_way[p] = self._pool.submit(self._returned, p, snapshot)
        return flat

    def _returned(self, p: Fragment, snapshot: FragmentSnapshot) -> Returned:
        """Encode a contribution, and decode it as the next version, beside the training thread."""
        facts, sent = self._uplink.encode(p, snapshot)
        newer = Version(0, facts.base.number + 1)
        publication = Publication(p, newer, facts.base, (facts.id,))
        self._uplink.settle_merged(publication)
        followed = self._downlink.follow(publication, sent)
        assert followed is not None
        flat = followed[1]
        placed = self._it.inner.place_flat(flat, self._it.layout.sizes[p])
        return Returned(publication, flat, jax.block_until_ready(placed), sent.nbytes)

    def _adopt(self, p: Fragment) -> jax.Array:
        """Wait for the fragment's new version, and put it in place."""
        publication, flat, placed, sent_bytes = self._under_way.pop(p).result()
        adopted = self._replica.adopt(p, flat, placed)
        assert adopted is not None
        track = self._tracks[p]
        self._tracks[p] = Track(
            publication.version, track.from_step, track.from_step, track.from_tokens
        )
        self.adopted += 1
        self.sent_bytes += sent_bytes
        return adopted


def _missed(p: Fragment, older: Version, newer: Version) -> Missed:
    """Raise `AssertionError`, since a loopback loses no versions."""
    raise AssertionError(f"fragment {p}: nothing is lost between {older} and {newer} in a loopback")
