"""A learner without a model: it says and hears all that a real one does, and computes nothing.

For `archipelago bench scale`, where hundreds of them share two cores; no JAX in here. What it hands
in has the size, the wire and the norm of real work; what it is offered is decoded and dropped.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from coordinator.codec import Payload, Wire, decode, encode
from coordinator.errors import RunFailed
from coordinator.fragments import Flat, Layout
from coordinator.protocol import (
    Adopted,
    Answer,
    ContributionId,
    Fragment,
    Granted,
    HandIn,
    Island,
    Join,
    Lease,
    LeaseGranted,
    LeaseWanted,
    Life,
    Progress,
    Publication,
    Refused,
    Report,
    Version,
    Vitals,
    Void,
)

GROUP = "crew"
HEARTBEAT_S = 1.0
"""One that is parked says so this often."""


class StubLink(Protocol):
    """The way to the coordinator; each call waits for its answer."""

    async def join(self, event: Join) -> Granted | Refused: ...
    async def report(
        self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]
    ) -> Answer | Void: ...
    async def lease(self, event: LeaseWanted) -> LeaseGranted | Void: ...
    async def whole(self, fragments: Sequence[Fragment]) -> list[tuple[Version, Flat]]: ...
    async def missed(
        self, p: Fragment, older: Version, newer: Version
    ) -> list[Payload] | tuple[Version, Flat]: ...


@dataclass(slots=True)
class StubPace:
    """How fast all learners of a process step, in seconds; may change while they do.

    `resting`: they report as often, and do not step.
    """

    step_s: float
    resting: bool = False


@dataclass(frozen=True, slots=True)
class Material:
    """What the learners of a process have in common; constant over the run.

    `deltas`: what one step adds to each fragment. `windows`, `tokens`: of a step; `lease_windows`:
    of a lease.
    """

    layout: Layout
    wire: Wire
    deltas: tuple[Flat, ...]
    windows: int
    tokens: int
    lease_windows: int


@dataclass(slots=True)
class _Track:
    """One fragment: the version followed, and whence the next delta counts."""

    known: Version
    base: Version
    from_step: int = 0
    from_tokens: int = 0


class LightLearner:
    """One life of one island's learner; to be used on one event loop."""

    def __init__(
        self,
        island: Island,
        material: Material,
        pace: StubPace,
        link: StubLink,
        now_s: Callable[[], float],
    ) -> None:
        self.island, self.latencies_s = island, list[float]()
        self.caught_up = Counter[str]()  # how often, and by what
        self._material, self._pace, self._link, self._now_s = material, pace, link, now_s
        self._life: Life | None = None
        self._over = asyncio.Event()
        self._stepping = self._staying = True
        self._progress, self._step_s = Progress(0, 0, Lease(0)), 0.0
        self._leases: list[Lease] = []
        self._tracks: list[_Track] = []
        self._asks: dict[Fragment, asyncio.Future[tuple[HandIn, Payload] | None]] = {}
        self._news: dict[Fragment, Version] = {}
        self._said: list[Adopted] = []
        self._spoke, self._wished = asyncio.Event(), asyncio.Event()

    @property
    def steps(self) -> int:
        return self._progress.steps

    async def run(self) -> None:
        """Join, step, and go on until it is let go.

        Errors: `RunFailed` if it is refused, or its life is ended.
        """
        join = Join(self.island, GROUP, self._material.layout.fingerprint)
        match await self._link.join(join):
            case Refused(island, why):
                raise RunFailed(f"{island} may not join: {why}")
            case Granted() as granted:
                self._tracks = await self._begin()
        self._life, self._leases = granted.life, [*granted.leases]
        talker = asyncio.create_task(self._talk(granted.life))
        talker.add_done_callback(lambda _: self.leave())  # nobody steps on unheard
        try:
            await self._train()
        finally:
            self._life = None
            for waiter in self._asks.values():
                waiter.set_result(None)
            self._over.set()
            self._spoke.set()
            await talker

    async def _begin(self) -> list[_Track]:
        """Fetch the model, as every learner does that joins, and let go of it."""
        fragments = [Fragment(p) for p in range(len(self._material.deltas))]
        return [_Track(version, version) for version, _ in await self._link.whole(fragments)]

    # --- called by others -------------------------------------------------------------------------

    async def hand_in(self, life: Life, fragment: Fragment) -> tuple[HandIn, Payload] | None:
        """What was trained since, at the next step boundary; None if this life is over."""
        if self._life != life:
            return None
        if fragment not in self._asks:
            self._asks[fragment] = asyncio.get_running_loop().create_future()
            self._wished.set()
        return await self._asks[fragment]

    async def offer(self, life: Life, said: Publication, payload: Payload | None) -> None:
        """Follow the public chain; the version is adopted at the next step boundary."""
        if self._life != life:
            return
        p, track = said.fragment, self._tracks[said.fragment]
        if said.version <= track.known:
            return
        version, differences = said.version, [] if payload is None else [payload]
        upto = said.version if payload is None else said.previous
        if upto != track.known:
            match await self._link.missed(p, track.known, upto):
                case list() as found:
                    differences = [*found, *differences]
                    self.caught_up["differences"] += 1
                case version, _:
                    differences = []
                    self.caught_up["whole"] += 1
        for each in differences:
            decode(each, self._material.deltas[p].size)
        self._news[p] = track.known = max(track.known, version)
        self._wished.set()

    def park(self) -> None:
        self._stepping = False
        self._wished.set()

    def leave(self) -> Progress:
        self._stepping = self._staying = False
        self._wished.set()
        return self._progress

    async def outlive(self, life: Life) -> str:
        await self._over.wait()
        return f"{life} was let go"

    # --- steps ------------------------------------------------------------------------------------

    async def _train(self) -> None:
        """Steps of even length, from a moment of its own on; late ones are not made up for."""
        due_s = self._now_s() + self._pace.step_s * random.random()
        while self._staying:
            now_s = self._now_s()
            if self._stepping:
                await asyncio.sleep(due_s - now_s)
                if not self._pace.resting:
                    self._step()
            else:
                await self._wish()
            self._boundary()
            self._spoke.set()
            due_s = max(due_s + self._pace.step_s, now_s)

    async def _wish(self) -> None:
        """Parked: wait until something is wanted of it."""
        try:
            await asyncio.wait_for(self._wished.wait(), HEARTBEAT_S)
        except TimeoutError:
            return
        self._wished.clear()

    def _step(self) -> None:
        material, before = self._material, self._progress
        if self._remaining < material.windows:
            return  # the lease that it has asked for is on its way
        self._progress = Progress(
            before.steps + 1, before.tokens + material.tokens, self._read(material.windows)
        )
        self._step_s = self._pace.step_s

    @property
    def _remaining(self) -> int:
        return sum(self._material.lease_windows - lease.start for lease in self._leases)

    def _read(self, windows: int) -> Lease:
        """Go on with the data; the cursor after that."""
        while True:
            first = self._leases[0]
            taken = min(windows, self._material.lease_windows - first.start)
            windows -= taken
            self._leases[0] = cursor = Lease(first.number, first.start + taken)
            if not windows:
                return cursor
            self._leases.pop(0)

    def _boundary(self) -> None:
        """Hand in first, so that nothing is overwritten that was asked for."""
        for p in [*self._asks]:
            if not self._stepping or self._tracks[p].from_step < self.steps:
                self._asks.pop(p).set_result(self._hand_over(p, self._tracks[p]))
        news, self._news = self._news, {}
        for p, version in news.items():
            self._adopt(p, self._tracks[p], version)

    def _hand_over(self, p: Fragment, track: _Track) -> tuple[HandIn, Payload] | None:
        assert self._life is not None
        progress, material = self._progress, self._material
        if (steps := progress.steps - track.from_step) == 0:
            return None
        said = ContributionId(self._life, p, track.from_step, progress.steps)
        tokens = progress.tokens - track.from_tokens
        fingerprint = material.layout.fingerprint
        facts = HandIn(said, track.base, track.from_step, tokens, fingerprint, progress)
        track.from_step, track.from_tokens = progress.steps, progress.tokens
        return facts, encode(material.wire, material.deltas[p] * np.float32(steps))

    def _adopt(self, p: Fragment, track: _Track, version: Version) -> None:
        assert self._life is not None
        progress, from_step = self._progress, track.from_step
        tokens = progress.tokens - track.from_tokens
        track.base, track.from_step, track.from_tokens = version, progress.steps, progress.tokens
        self._said.append(Adopted(self._life, p, version, from_step, tokens, progress))

    # --- words ------------------------------------------------------------------------------------

    async def _talk(self, life: Life) -> None:
        """One message at a time; what comes meanwhile is joined."""
        while True:
            await self._spoke.wait()
            self._spoke.clear()
            if self._life != life:
                return
            said, self._said = self._said, []
            report = Report(life, self._progress, self._step_s)
            began_s = self._now_s()
            answer = await self._link.report(report, Vitals(0.0, computing_s=self.steps), said)
            self.latencies_s.append(self._now_s() - began_s)
            self._hear(answer)
            if self._stepping and self._remaining < self._material.lease_windows:
                self._hear(await self._link.lease(LeaseWanted(life)))

    def _hear(self, answer: Answer | LeaseGranted | Void) -> None:
        match answer:
            case Void(life, why) if self._staying:
                raise RunFailed(f"{life} was ended: {why}")
            case Answer(stopping=True):
                self.park()
            case Answer() | Void():
                pass
            case LeaseGranted(_, lease):
                self._leases.append(lease)
