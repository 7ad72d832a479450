"""A learner without a model: it says and hears all that a real one does, and computes nothing.

For `archipelago bench scale`, where hundreds of them share two cores; no JAX in here. What it hands
in has the size, the wire and the norm of real work; what it is offered is decoded and dropped.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable

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


class LightLearner:
    """One life of one island's learner, carrying `islands.learner_state`; for one event loop.

    It reports after every step, which a real one does at due points and by heartbeat only.
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
        self.caught_up = Counter[str]()  # how often, and by what
        self.now: LearnerState | None = None  # while the life is lived
        self._material, self._pace, self._link, self._now_s = material, pace, link, now_s
        self._over, self._steps = asyncio.Event(), asyncio.Event()
        self._staying, self._progress = True, Progress(0, 0, Lease(0))
        self._pages: Pages
        self._known: list[Version] = []
        self._asks: dict[Fragment, asyncio.Future[tuple[HandIn, Payload] | None]] = {}
        self._to_say = asyncio.Queue[Say | Want | None]()

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
                versions = await self._versions()
        material = self._material
        self._known, self._pages = versions, Pages(material.lease_windows, granted.leases)
        cursor, ahead = self._pages.cursor, self._pages.remaining
        self.now = begun(material.terms, granted, versions, cursor, ahead)
        self._happens(Ready(ahead) if self._staying else LetGo())
        talker = Tasks().spawn(self._talk())
        talker.add_done_callback(lambda _: self.leave())  # nobody steps on unheard
        try:
            await self._train()
        finally:
            self.now = None
            for waiter in self._asks.values():
                waiter.set_result(None)
            self._to_say.put_nowait(None)
            await talker

    async def _versions(self) -> list[Version]:
        """Fetch the model, as every learner does that joins, and let go of it piece by piece."""
        versions = list[Version]()
        for p in range(len(self._material.deltas)):
            ((version, _),) = await self._link.whole([Fragment(p)])
            versions.append(version)
        return versions

    def _happens(self, happening: Happening) -> None:
        """Take it in, and do what follows."""
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
                    pass  # there are no parameters
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
        """What was trained since, at the next step boundary; None if this life is over."""
        if not self._lives(life):
            return None
        waiter = self._asks.get(fragment)
        if waiter is None:
            waiter = self._asks[fragment] = asyncio.get_running_loop().create_future()
            self._happens(Asked(fragment))
        return await waiter

    async def offer(self, life: Life, said: Publication, payload: Payload | None) -> None:
        """Follow the public chain; the version is adopted at the next step boundary."""
        if not self._lives(life):
            return
        p, known = said.fragment, self._known[said.fragment]
        if said.version <= known:
            return
        version, differences = said.version, [] if payload is None else [payload]
        upto = said.version if payload is None else said.previous
        if upto != known:
            match await self._link.missed(p, known, upto):
                case list() as found:
                    differences = [*found, *differences]
                    self.caught_up["differences"] += 1
                case version, _:
                    differences = []
                    self.caught_up["whole"] += 1
        for each in differences:
            decode(each, self._material.deltas[p].size)
        self._known[p] = max(self._known[p], version)
        if self._lives(life):
            self._happens(Offered(p, self._known[p]))

    def park(self) -> None:
        """Step no more; go on handing in."""
        self._happens(Parked())

    def leave(self) -> Progress:
        """End this life; how far it came."""
        self._staying = False
        self._happens(LetGo())
        return self._progress

    async def outlive(self, life: Life) -> str:
        """Return when this life is over."""
        await self._over.wait()
        return f"{life} was let go"

    # --- steps ------------------------------------------------------------------------------------

    async def _train(self) -> None:
        """Steps of even length, from a moment of its own on; late ones are not made up for."""
        due_s = self._now_s() + self._pace.step_s * random.random()
        while not self._over.is_set():
            now_s = self._now_s()
            await asyncio.sleep(max(0.0, due_s - now_s))  # a wait for `_over` makes a task a step
            if self._steps.is_set() and not self._pace.resting:
                self._steps.clear()
                material = self._material
                self._pages.turn(material.windows)
                ahead = self._pages.remaining
                self._happens(Stepped(material.tokens, self._pages.cursor, ahead))
                self._happens(Rested(self._pace.step_s))
            self._happens(Beat())
            due_s = max(due_s + self._pace.step_s, now_s)

    # --- words ------------------------------------------------------------------------------------

    async def _talk(self) -> None:
        """Say what there is to say; what it measures of itself is how long an answer takes."""
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
