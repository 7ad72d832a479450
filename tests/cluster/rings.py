"""Islands, meeting points and a depot around the conductor's real shell, in virtual time.

At every call a process may die: the island that makes the call, another one, or the conductor.
Delays are drawn from the seed, so a seed is one interleaving.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from archipelago.lab.virtual.event_loop import VirtualLoop, settle
from cluster.allreduce.accounts import RingAccounts
from cluster.allreduce.ports import RingPorts, StateUnavailable
from cluster.allreduce.records import come_back
from cluster.allreduce.ring import RingStage, Rules
from cluster.allreduce.ring_messages import START, Effect, Event, RingDecision, TrainingPosition
from cluster.allreduce.saved_state import RingMemory, RingState
from cluster.allreduce.shell import RingShell
from cluster.allreduce.store import RingStore
from cluster.syncer.measures import Measures
from cluster.tasks import Tasks
from coordinator.codec import Wire
from coordinator.protocol import Island, Life
from tests.cluster.played import LAYOUT

JOIN_S = 60.0
"""Seconds that members of a ring wait for each other in the library before their processes end."""
STUCK_S = 200.0
"""Seconds without progress after which a test fails.

This is more than joining, ending a stuck process and fetching take together.
"""
AGAIN_S = 0.5
T = TypeVar("T")


def state(held: TrainingPosition) -> RingState:
    return RingState(held, [np.array([held.step], np.float32)], None)


class Process:
    """One process of an island. `ended` is set when it dies, or when its run is over."""

    def __init__(self, world: World, island: Island) -> None:
        self.world, self.island = world, island
        self.ended: asyncio.Future[str] = world.loop.create_future()
        self.host: RingState | None = None
        self.life: Life | None = None
        self.pausing = 0
        self.task: asyncio.Task[None] | None = None

    def die(self, why: str) -> None:
        settle(self.ended, why)
        if self.task is not None:
            self.task.cancel()
        self.world.starts_again(self)

    async def run(self) -> None:
        """Do what `RingMember.run` does."""
        world, wasted = self.world, 0
        await world.pause(0.0, 8.0)

        async def enter(shell: RingShell) -> Life:
            self.life = shell.enter(self.island)
            return self.life

        life = await world.insist(enter)
        while True:
            held = None if self.host is None else self.host.held
            turn = await self._place(life, held, wasted)
            if turn is None:
                settle(self.ended, f"{life} is over")
                return
            host, wasted = self.host, 0
            if host is None or host.held != turn.held:
                given = await world.give(turn.donor) if turn.donor is not None else None
                host = given if isinstance(given, RingState) else None
                host = host or await world.insist(snapshot)
            self.host = host
            if host.held == turn.held:
                wasted = await world.meetings[turn.address].turns(self, turn)

    async def _place(
        self, life: Life, held: TrainingPosition | None, wasted: int
    ) -> RingDecision | None:
        while True:
            again, turn = await self.world.insist(lambda shell: shell.ready(life, held, wasted))
            if not again:
                return turn


async def snapshot(shell: RingShell) -> RingState:
    return shell.snapshot


@dataclass
class Meeting:
    """The meeting point of one ring's members, and the ring that they form there."""

    world: World
    closed: asyncio.Future[None]
    there: dict[Process, asyncio.Future[int]] = field(default_factory=dict)
    began: bool = False

    def close(self) -> None:
        """Close the meeting point.

        The library ends a process that loses its coordination service.
        """
        settle(self.closed, None)
        for process in [*self.there]:
            process.die("its meeting point is gone")

    async def turns(self, process: Process, turn: RingDecision) -> int:
        """Train in this ring. Returns the tokens of a step that broke."""
        world = self.world
        if self.closed.done():
            await asyncio.sleep(JOIN_S)
            process.die("no process listens at the meeting point")
        waiting: asyncio.Future[int] = world.loop.create_future()
        self.there[process] = waiting
        if len(self.there) == turn.members and not self.began:
            self.began = True
            world.tasks.spawn(self._go([*self.there], turn))
        elif not self.began:
            world.tasks.spawn(self._give_up(process))
        return await waiting

    async def _give_up(self, process: Process) -> None:
        await asyncio.sleep(JOIN_S)
        if process in self.there and not self.began:
            process.die("the others did not come")

    async def _go(self, members: list[Process], turn: RingDecision) -> None:
        """Take steps with all members together, until one is dead or all pause."""
        world, held, first = self.world, turn.held, members[0]
        while held.step < world.rules.steps:
            await world.pause(0.05, 1.0)
            if any(each.ended.done() for each in members):
                for each in members:
                    world.tasks.spawn(self._notices(each))
                return
            tokens = 10 * len(members)
            held = TrainingPosition(
                held.step + 1, held.tokens + tokens, held.windows + len(members)
            )
            for each in members:
                each.host = state(held)
            assert first.life is not None
            leaving = any(each.pausing >= turn.ring for each in members)
            last = leaving or held.step == world.rules.steps
            if held.step == turn.held.step + 1 or last or world.rng.random() < 0.5:
                world.say(first.life, turn.ring, held, keep=not last and held.step % 5 == 0)
            if last:
                break
        for each in members:
            world.tasks.spawn(self._leaves(each, 0))

    async def _notices(self, process: Process) -> None:
        """Let a member leave the broken ring; one in ten does not notice that it is broken."""
        if not process.ended.done() and self.world.rng.random() > 0.1:
            await self._leaves(process, 7)

    async def _leaves(self, process: Process, wasted: int) -> None:
        await self.world.pause(0.0, 3.0)
        if (waiting := self.there.pop(process, None)) is not None:
            settle(waiting, wasted)


class Ports(RingPorts):
    def __init__(self, world: World) -> None:
        self.world = world

    async def meet(self, ring: int, members: int) -> str:
        world = self.world
        await world.pause(0.0, 2.0)
        world.close_meeting()
        if world.faulty and world.rng.random() < 0.2:
            raise BrokenPipeError("the prepared meeting point has died")
        address = f"{world.starts}/{ring}"
        world.meetings[address] = world.meeting = Meeting(world, world.loop.create_future())
        world.met = ring
        return address

    async def part(self, ring: int) -> None:
        await self.world.pause(0.0, 0.5)
        if self.world.met == ring:
            self.world.close_meeting()

    async def watch(self, life: Life) -> str:
        await self.world.pause(0.0, 1.0)
        process = self.world.process_of(life)
        why = "its process ended" if process is None else await asyncio.shield(process.ended)
        await self.world.pause(0.0, 5.0)
        return why

    async def pause(self, life: Life, ring: int) -> None:
        await self.world.pause(0.0, 1.0)
        if (process := self.world.process_of(life)) is not None:
            process.pausing = max(process.pausing, ring)

    async def end(self, life: Life) -> None:
        await self.world.pause(0.0, 1.0)
        if (process := self.world.process_of(life)) is not None:
            process.die("ended")

    async def state_of(self, life: Life) -> RingState | StateUnavailable:
        return await self.world.give(life)


class Store(RingStore):
    """A depot that is slow, that refuses some writes, and that hangs for a while."""

    def __init__(self, world: World) -> None:
        self.world = world

    @property
    def events(self) -> int:
        return len(self.world.tape)

    def note(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        self.world.tape.append((now_s, event, effects))

    async def _write(self) -> None:
        world = self.world
        await world.pause(0.0, 0.5)
        if world.faulty and world.rng.random() < 0.02:
            await asyncio.sleep(100.0)
        if world.faulty and world.rng.random() < 0.1:
            raise OSError("no space left on device")

    async def remember(self, memory: RingMemory) -> None:
        await self._write()
        self.world.memory = memory

    async def keep(self, state: RingState) -> None:
        await self._write()
        self.world.stored = max(self.world.stored, state, key=lambda each: each.held)

    async def close(self) -> None: ...


class World:
    """One run of a few islands; up to `faults` processes die, at any call."""

    def __init__(self, seed: str, *, elastic: bool, islands: int, faults: int, steps: int) -> None:
        self.rng, self.loop = random.Random(seed), VirtualLoop()
        self.rules = Rules(elastic, islands, steps)
        self.faults, self.starts = faults, 0
        self.broken: list[BaseException] = []
        self.tasks = Tasks(self.broken.append)
        self.asking = Tasks()
        self.tape: list[tuple[float, Event, Sequence[Effect]]] = []
        self.memory: RingMemory | None = None
        self.stored = state(START)
        self.meetings: dict[str, Meeting] = {"": Meeting(self, self.loop.create_future())}
        self.meeting: Meeting | None = None
        self.met = 0
        self.processes: dict[Island, Process] = {}
        self.shell: RingShell | None = None
        self.gone: asyncio.Future[None] = self.loop.create_future()
        self.moved: tuple[float, object] = (0.0, None)
        self.stopped = False

    @property
    def faulty(self) -> bool:
        """Whether something may still go wrong."""
        return self.faults > 0

    @property
    def over(self) -> bool:
        """Whether the result is there and every island has been notified of the end."""
        shell = self.shell
        ended = shell is not None and shell.ring.stage is RingStage.OVER
        return ended and all(each.ended.done() for each in self.processes.values())

    def begin(self) -> None:
        self._start_conductor()
        for n in range(self.rules.count):
            self._start(Island(f"g-{n}"))
        self.tasks.spawn(self._look())

    def end(self) -> None:
        """Cancel all tasks."""
        if self.shell is not None:
            self.shell.close()
        self.tasks.cancel()
        self.asking.cancel()
        self.loop.finish()

    async def _look(self) -> None:
        """Fail if the run makes no progress for `STUCK_S`."""
        while not self.over:
            await asyncio.sleep(1.0)
            shell, seen = self.shell, object()
            if shell is not None:
                ring = shell.ring
                seen = (self.starts, ring.ring, ring.held, ring.members, ring.stage, ring.broken)
            if self.moved[1] != seen:
                self.moved = self.loop.now_s, seen
            stands_s = self.loop.now_s - self.moved[0]
            assert stands_s < STUCK_S, f"nothing has moved for {stands_s:.0f} s: {seen}"

    async def pause(self, least_s: float, most_s: float) -> None:
        """Let others run; a process may die meanwhile."""
        if self.faulty and self.rng.random() < 0.03:
            self.faults -= 1
            if self.rng.random() < 0.25:
                self.loop.call_later(self.rng.uniform(0, most_s), self.kill_conductor)
            else:
                victim = self.rng.choice(sorted(self.processes))
                self.loop.call_later(self.rng.uniform(0, most_s), self._kill, victim)
        await asyncio.sleep(self.rng.uniform(least_s, most_s))

    async def insist(self, call: Callable[[RingShell], Awaitable[T]]) -> T:
        """Retry a call to the conductor until one process of it has answered."""
        while True:
            await self.pause(0.0, 0.2)
            if (shell := self.shell) is not None:
                gone, asked = self.gone, self.loop.create_future()
                asking = self.asking.spawn(answer(call(shell), asked))
                await asyncio.wait({asked, gone}, return_when=asyncio.FIRST_COMPLETED)
                if asked.done() and asked.result() is not None:
                    await self.pause(0.0, 0.2)
                    return asked.result()[0]
                asking.cancel()
            await asyncio.sleep(AGAIN_S)

    def say(self, life: Life, ring: int, held: TrainingPosition, *, keep: bool) -> None:
        """Call the conductor without waiting; the call is lost if the conductor is dead."""

        def heard(shell: RingShell) -> None:
            if shell is self.shell:
                shell.turned(life, ring, held)
                if keep:
                    shell.keep(state(held))

        if self.shell is not None:
            self.loop.call_later(self.rng.uniform(0.0, 0.5), heard, self.shell)

    async def give(self, life: Life) -> RingState | StateUnavailable:
        """Return the state of this life, unless it is dead or the object store is full."""
        await self.pause(0.0, 3.0)
        process = self.process_of(life)
        if process is None or process.host is None:
            return StateUnavailable("its process ended", again=False)
        if self.rng.random() < 0.2:
            return StateUnavailable("ObjectStoreFullError", again=True)
        return process.host

    def process_of(self, life: Life) -> Process | None:
        """Return the process of this life, also of one that has learned that the run is over."""
        process = self.processes[life.island]
        return process if process.life == life and not self._is_dead(process) else None

    def _is_dead(self, process: Process) -> bool:
        return process.ended.done() and "is over" not in process.ended.result()

    def starts_again(self, process: Process) -> None:
        if self.processes.get(process.island) is process:
            if self.meeting is not None:
                self.meeting.there.pop(process, None)
            self.loop.call_later(self.rng.uniform(0.5, 15.0), self._start, process.island)

    def _start(self, island: Island) -> None:
        known = self.processes.get(island)
        if known is None or self._is_dead(known):
            process = self.processes[island] = Process(self, island)
            process.task = self.tasks.spawn(process.run())

    def _kill(self, island: Island) -> None:
        if not self._is_dead(process := self.processes[island]):
            process.die("killed")

    def close_meeting(self) -> None:
        if self.meeting is not None:
            self.meeting.close()
            self.meeting = None

    def kill_conductor(self) -> None:
        if self.shell is not None:
            self.shell.close()
            self.shell = None
            settle(self.gone, None)
            self.close_meeting()
            self.loop.call_later(self.rng.uniform(0.5, 5.0), self._start_conductor)

    def _failed(self, error: BaseException) -> None:
        """Restart the conductor after an `OSError`, as the actor does; record any other error."""
        if isinstance(error, OSError):
            self.kill_conductor()
        else:
            self.broken.append(error)

    def _start_conductor(self) -> None:
        self.starts += 1
        self.gone = self.loop.create_future()
        measures = Measures("r", {}, LAYOUT.sizes, Wire.F32, now_s=0.0)
        memory, lives = self.memory, 0
        if memory is not None:
            measures.remember(memory.measures)
            lives = memory.lives
        ring, resume = come_back(memory, self.stored)
        self.shell = shell = RingShell(
            self.rules, ring, self.stored, Ports(self), Store(self), measures,
            RingAccounts(measures, LAYOUT, Wire.F32), now_s=self.loop.time, lives=lives,
            failed=self._failed,
        )  # fmt: skip
        if resume is not None:
            shell.feed(resume)
        shell.remember()


async def answer(call: Awaitable[T], asked: asyncio.Future[tuple[T] | None]) -> None:
    """Set `asked` to the call's result, or to `None` if the call failed."""
    try:
        settle(asked, (await call,))
    finally:
        settle(asked, None)
