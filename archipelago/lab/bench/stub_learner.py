"""A learner without a model: it sends and receives every message of a real one, without computing.

`archipelago bench scale` runs hundreds of them on two cores, without JAX. A hand-in has the size,
the wire and the norm of real work. A version that is offered is decoded and dropped.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable

from archipelago.lab.bench.stub_lanes import StubLanes
from archipelago.lab.bench.stub_material import Material, StubLink, StubPace
from archipelago.lab.simulation.lease_reader import Pages
from cluster.tasks import Tasks
from coordinator.codec import Payload, decode
from coordinator.errors import RunFailed
from coordinator.protocol import (
    Fragment,
    Granted,
    HandIn,
    Island,
    Join,
    Lease,
    Life,
    Progress,
    Publication,
    Refused,
    Version,
    Vitals,
    Void,
)
from islands.learner_life import LearnerState, begun
from islands.learner_messages import (
    Adopt,
    Asked,
    Beat,
    End,
    Fed,
    HandOver,
    Happening,
    Heard,
    Keep,
    LetGo,
    Offered,
    Parked,
    Ready,
    Rested,
    Say,
    Step,
    Stepped,
    Take,
    Want,
)  # fmt: skip
from islands.learner_state import happen

GROUP = "crew"
"""The group name of all stub learners."""


class LightLearner:
    """A stub for one life of one island's learner, on `islands.learner_state`; for one event loop.

    It reports after every step. A real learner reports only at due points and by heartbeat.
    """

    def __init__(
        self,
        island: Island,
        material: Material,
        pace: StubPace,
        link: StubLink,
        now_s: Callable[[], float],
    ) -> None:
        self.island, self.latencies_s = island, list[float]()
        self.caught_up = Counter[str]()  # catch-ups, by kind
        self.now: LearnerState | None = None  # None before and after its life
        self._material, self._pace, self._link, self._now_s = material, pace, link, now_s
        self._over, self._steps = asyncio.Event(), asyncio.Event()
        self._staying, self._progress = True, Progress(0, 0, Lease(0))
        self._pages: Pages
        self._known: list[Version] = []
        self._lanes = StubLanes(self._follow, self._broke)
        self._broken: BaseException | None = None
        self._asks: dict[Fragment, asyncio.Future[tuple[HandIn, Payload] | None]] = {}
        self._to_say = asyncio.Queue[Say | Want | None]()

    @property
    def steps(self) -> int:
        """The inner steps that this life has done."""
        return self._progress.steps

    async def run(self) -> None:
        """Join, and step until the learner is drained.

        Errors: `RunFailed` if it is refused, or its life is ended.
        """
        join = Join(self.island, GROUP, self._material.layout.fingerprint)
        match await self._link.join(join):
            case Refused(island, reason):
                raise RunFailed(f"{island} may not join: {reason}")
            case Granted() as granted:
                versions = await self._versions()
        material = self._material
        self._known, self._pages = versions, Pages(material.lease_windows, granted.leases)
        cursor, remaining = self._pages.cursor, self._pages.remaining
        self.now = begun(material.terms, granted, versions, cursor, remaining)
        self._happens(Ready(remaining) if self._staying else LetGo())
        talker = Tasks().spawn(self._talk())
        talker.add_done_callback(lambda _: self.leave())  # stop if it cannot report
        try:
            await self._train()
        finally:
            self.now = None
            for waiter in self._asks.values():
                waiter.set_result(None)
            self._to_say.put_nowait(None)
            await talker
        if self._broken is not None:
            raise RunFailed(f"{self.island} cannot follow: {self._broken!r}") from self._broken

    async def _versions(self) -> list[Version]:
        """Fetch the model as every joining learner does, and drop each fragment at once."""
        versions = list[Version]()
        for p in range(len(self._material.deltas)):
            ((version, _),) = await self._link.whole([Fragment(p)])
            versions.append(version)
        return versions

    def _happens(self, happening: Happening) -> None:
        """Pass the event to the state machine, and carry out its effects."""
        if self.now is None:
            return
        self.now, words = happen(self.now, happening)
        self._progress = self.now.progress
        for word in words:
            match word:
                case Step():
                    self._steps.set()
                case HandOver(p):
                    self._asks.pop(p).set_result(self._material.handed_in(word))
                case Adopt() | Keep():
                    pass  # a stub has no parameters
                case Take(lease):
                    self._pages.add(lease)
                    self._happens(Fed(self._pages.remaining))
                case Say() | Want():
                    self._to_say.put_nowait(word)
                case End():
                    self._over.set()

    # --- called by others -------------------------------------------------------------------------

    def _lives(self, life: Life) -> bool:
        return self.now is not None and self.now.life == life

    async def hand_in(self, life: Life, fragment: Fragment) -> tuple[HandIn, Payload] | None:
        """Return the work since the last hand-in, at the next step boundary.

        Return None if this life is over.
        """
        if not self._lives(life):
            return None
        waiter = self._asks.get(fragment)
        if waiter is None:
            waiter = self._asks[fragment] = asyncio.get_running_loop().create_future()
            self._happens(Asked(fragment))
        return await waiter

    def catching_up(self, p: Fragment) -> bool:
        """Return whether missed versions of this fragment are fetched at present."""
        return self._lanes.busy(p)

    def offer(self, life: Life, publication: Publication, payload: Payload | None) -> None:
        """Follow the published versions; the newest is adopted at the next step boundary."""
        if self._lives(life):
            self._lanes.offer(publication, payload)

    async def _follow(self, publication: Publication, payload: Payload | None) -> None:
        """Decode the differences up to this version, and fetch those that were missed."""
        p = publication.fragment
        known = self._known[p]
        if publication.version <= known:
            return
        version, differences = publication.version, [] if payload is None else [payload]
        target = publication.version if payload is None else publication.previous
        if target != known:
            match await self._link.missed(p, known, target):
                case list() as found:
                    differences = [*found, *differences]
                    self.caught_up["differences"] += 1
                case version, _:
                    differences = []
                    self.caught_up["whole"] += 1
        for each in differences:
            decode(each, self._material.deltas[p].size)
        self._known[p] = max(self._known[p], version)
        self._happens(Offered(p, self._known[p]))

    def _broke(self, error: BaseException) -> None:
        """End this life, because a version could not be followed; `run` raises the error."""
        self._broken = error
        self.leave()

    def park(self) -> None:
        """Stop stepping, but continue to hand in."""
        self._happens(Parked())

    def leave(self) -> Progress:
        """End this life, and return its progress."""
        self._staying = False
        self._happens(LetGo())
        return self._progress

    async def outlive(self, life: Life) -> str:
        """Wait until this life is over, and return why."""
        await self._over.wait()
        return f"{life} was drained"

    # --- steps ------------------------------------------------------------------------------------

    async def _train(self) -> None:
        """Step at even intervals, from a random offset on; late steps are not made up for."""
        due_s = self._now_s() + self._pace.step_s * random.random()
        while not self._over.is_set():
            now_s = self._now_s()
            await asyncio.sleep(max(0.0, due_s - now_s))  # waiting for `_over` costs a task a step
            if self._steps.is_set() and not self._pace.resting:
                self._steps.clear()
                material = self._material
                self._pages.turn(material.windows)
                remaining = self._pages.remaining
                self._happens(Stepped(material.tokens, self._pages.cursor, remaining))
                self._happens(Rested(self._pace.step_s))
            self._happens(Beat())
            due_s = max(due_s + self._pace.step_s, now_s)

    # --- words ------------------------------------------------------------------------------------

    async def _talk(self) -> None:
        """Send the queued messages in turn, and record the latency of each report.

        Errors: `RunFailed` if the life is ended while the learner stays.
        """
        while (word := await self._to_say.get()) is not None:
            match word:
                case Say(report, adopted):
                    began_s = self._now_s()
                    vitals = Vitals(0.0, computing_s=self.steps)
                    answer = await self._link.report(report, vitals, adopted)
                    self.latencies_s.append(self._now_s() - began_s)
                case Want(event):
                    answer = await self._link.lease(event)
            if isinstance(answer, Void) and self._staying:
                raise RunFailed(f"{answer.life} was ended: {answer.why}")
            self._happens(Heard(answer))
