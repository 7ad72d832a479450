"""Tests of the conductor's actor without Ray around it.

The depots hang, states cannot be fetched, and meeting points die.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.exceptions import ActorDiedError, ObjectStoreFullError, RayError

from cluster.actors.ring import conductor
from cluster.actors.ring import ray_ports as ring_ports
from cluster.actors.ring.actor import RingActor
from cluster.actors.ring.ray_ports import RayRingPorts
from cluster.allreduce import rendezvous as meeting
from cluster.allreduce.rendezvous import Meetings
from cluster.allreduce.ring_messages import START, RingDecision, TrainingPosition
from cluster.allreduce.saved_state import RingState
from cluster.config.load import load
from cluster.names import island_actor, seat_of
from cluster.source import source_sha256
from cluster.storage import folder
from coordinator.errors import RunFailed
from coordinator.protocol import Fragment, Island, Join, Life
from coordinator.state import Phase
from tests.cluster.played import LAYOUT

CONFIG = """
[run]
mode = "{mode}"
steps = 4
[task]
preset = "byte-tiny"
[[islands]]
group = "g"
count = 2
"""
A, B = Island("g-0"), Island("g-1")
WAITS = (sys.executable, "-c", "import sys; sys.stdin.read()")
"""The command of a meeting point's process that only waits."""


class Actor:
    """An island's actor that lives until `dead` is set, and returns its state through `gives`."""

    def __init__(self) -> None:
        self.dead = asyncio.Event()
        self.gives: Callable[[], RingState | None] = lambda: None
        self.asked = 0
        self.watch, self.state_of, self.pause = (
            Remote(call) for call in (self._watch, self._state_of, self._pause)
        )
        self.__ray_ready__ = Remote(self._pause)

    async def _watch(self, life: Life) -> str:
        await self.dead.wait()
        raise ActorDiedError

    async def _state_of(self, life: Life) -> RingState | None:
        self.asked += 1
        return self.gives()

    async def _pause(self, *_: object) -> None: ...


class Remote:
    """A method of an actor, as Ray exposes it."""

    def __init__(self, call: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self.remote = call


class Stage:
    """Conductors without processes of their own, and the actors that Ray finds."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
        (tmp_path / "run.toml").write_text(CONFIG.format(mode=mode))
        self.actors: dict[str, Actor] = {}
        self.started_over: list[str] = []
        self._config, self._run_dir = load(tmp_path / "run.toml").model_dump_json(), str(tmp_path)

        def get_actor(name: str, namespace: str) -> Actor:
            if name not in self.actors:
                raise ValueError(name)
            return self.actors[name]

        def start_over(why: str) -> None:
            self.started_over.append(why)

        monkeypatch.setattr("ray.get_actor", get_actor)
        monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
        monkeypatch.setattr(meeting, "COMMAND", WAITS)
        monkeypatch.setattr(ring_ports, "Meetings", lambda: Meetings(WAITS))
        monkeypatch.setattr(conductor, "start_over", start_over)

    @asynccontextmanager
    async def conductor(self) -> AsyncGenerator[RingActor]:
        """Open a conductor that has received the initial model."""
        actor = RingActor(self._config, "run", "nowhere", self._run_dir)
        for p, size in enumerate(LAYOUT.sizes):
            await actor.seed(LAYOUT, Fragment(p), np.zeros(size, np.float32))
        await actor.open(LAYOUT)
        try:
            yield actor
        finally:
            await actor.close()

    async def enters(self, actor: RingActor, island: Island) -> Life:
        self.actors[island_actor(seat_of(island))] = Actor()
        life = await actor.enter(Join(island, "g", ""), source_sha256(), seat_of(island))
        assert isinstance(life, Life), life
        return life


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch, "elastic-data-parallel")


def state(step: int) -> RingState:
    leaves = [np.full(leaf.shape, step, np.float32) for leaf in LAYOUT.leaves]
    return RingState(TrainingPosition(step, 10 * step, step), leaves, None)


async def in_a_ring(stage: Stage, actor: RingActor) -> tuple[list[Life], RingDecision]:
    """Return both islands' lives and the decision about their first ring."""
    lives = [await stage.enters(actor, island) for island in (A, B)]
    (_, turn), _ = await asyncio.gather(*(actor.ready(life, None, 0) for life in lives))
    assert turn is not None
    return lives, turn


async def at_the_end(stage: Stage, actor: RingActor) -> list[asyncio.Task[Any]]:
    """Return a waiting call of each island; both have the final state."""
    lives, turn = await in_a_ring(stage, actor)
    await actor.turned(lives[0], turn.ring, state(4).held)
    return [asyncio.create_task(actor.ready(life, state(4).held, 0)) for life in lives]


async def finished(actor: RingActor) -> np.ndarray:
    """Wait for the end, and return the first fragment of the result."""
    async with asyncio.timeout(20):
        while (await actor.look({}))[0].phase is not Phase.FINISHED:
            await asyncio.sleep(0.01)
    ((_, flat),) = await actor.whole([Fragment(0)])
    return flat


def breaks(error: Exception) -> Callable[[], RingState]:
    def gives() -> RingState:
        raise error

    return gives


@pytest.mark.parametrize("error", [RayError("an object was lost"), ObjectStoreFullError("full")])
def test_asks_the_next_island_if_a_final_state_cannot_be_fetched(
    stage: Stage, error: Exception
) -> None:
    async def story() -> None:
        async with stage.conductor() as actor:
            waiting = await at_the_end(stage, actor)
            first, second = (stage.actors[island_actor(seat_of(each))] for each in (A, B))
            first.gives, second.gives = breaks(error), lambda: state(4)
            assert np.all(await finished(actor) == 4)
            assert first.asked == 1
            for each in waiting:
                assert await each == (False, None), "the run is over"
        assert stage.started_over == []

    asyncio.run(story())


def test_final_state_lost_with_all_islands_is_trained_again(stage: Stage) -> None:
    async def story() -> None:
        async with stage.conductor() as actor:
            waiting = await at_the_end(stage, actor)
            for each in (A, B):
                stage.actors[island_actor(seat_of(each))].gives = breaks(ActorDiedError())
            _, turn = await waiting[0]
            assert (turn.ring, turn.held, turn.donor) == (2, START, None)
            view, status = await actor.look({})
            assert (view.phase, status["t"]) == (Phase.RUNNING, 0)

    asyncio.run(story())


def test_look_raises_a_defect_at_the_end(stage: Stage) -> None:
    async def story() -> None:
        async with stage.conductor() as actor:
            waiting = await at_the_end(stage, actor)
            for each in (A, B):
                stage.actors[island_actor(seat_of(each))].gives = breaks(KeyError("g-0"))
            with pytest.raises(RunFailed, match=r"has failed: KeyError: 'g-0' \(.*\.py:\d+\)"):
                await finished(actor)
            for each in waiting:
                each.cancel()

    asyncio.run(story())


def test_replaces_a_dead_prepared_meeting_point() -> None:
    meetings = Meetings(WAITS)
    try:
        assert meetings.prepared is not None
        pid = meetings.prepared.pid
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert meetings.next("127.0.0.1", 2).startswith("127.0.0.1:")
        assert meetings.prepared is not None
        assert meetings.prepared.pid != pid
    finally:
        meetings.close()


def test_conductor_without_a_meeting_point_starts_over(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> str:
        raise BrokenPipeError("out of processes")

    monkeypatch.setattr("cluster.allreduce.meeting_point.AGAIN_S", 0.0)

    async def story() -> None:
        async with stage.conductor() as actor:
            with monkeypatch.context() as patch:
                patch.setattr(Meetings, "next", none)
                lives = [await stage.enters(actor, island) for island in (A, B)]
                waiting = [asyncio.create_task(actor.ready(life, None, 0)) for life in lives]
                async with asyncio.timeout(20):
                    while not stage.started_over:
                        await asyncio.sleep(0.01)
                assert stage.started_over == ["BrokenPipeError: out of processes"]
                for each in waiting:
                    each.cancel()

    asyncio.run(story())


def test_ring_that_breaks_before_it_meets_is_not_begun(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, was = threading.Event(), Meetings.next

    def waits(meetings: Meetings, host: str, members: int) -> str:
        go.wait(60)
        return was(meetings, host, members)

    monkeypatch.setattr(Meetings, "next", waits)

    async def story() -> None:
        async with stage.conductor() as actor, asyncio.timeout(20):
            lives = [await stage.enters(actor, island) for island in (A, B)]
            _, waiting = (asyncio.create_task(actor.ready(life, None, 0)) for life in lives)
            stage.actors[island_actor(seat_of(A))].dead.set()
            while (await actor.status())["alive"] != 1:
                await asyncio.sleep(0.01)
            go.set()
            _, turn = await waiting
            assert turn is not None
            assert (turn.ring, turn.members) == (2, 1)

    try:
        asyncio.run(story())
    finally:
        go.set()


def test_island_that_was_unreachable_asks_again_and_joins_the_ring(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.allreduce.ring_places.WAIT_S", 0.2)

    async def story() -> None:
        async with stage.conductor() as actor, asyncio.timeout(20):
            a = await stage.enters(actor, A)
            there = stage.actors.pop(island_actor(seat_of(A)))  # the head does not list it yet
            assert await actor.ready(a, None, 0) == (True, None)
            stage.actors[island_actor(seat_of(A))] = there
            b = await stage.enters(actor, B)
            (_, turn), _ = await asyncio.gather(*(actor.ready(each, None, 0) for each in (a, b)))
            assert turn is not None
            assert turn.members == 2

    asyncio.run(story())


def test_restarted_conductor_watches_earlier_lives(stage: Stage) -> None:
    async def story() -> None:
        async with stage.conductor() as actor:
            lives = [await stage.enters(actor, island) for island in (A, B)]
        async with stage.conductor() as again, asyncio.timeout(20):
            turns = await asyncio.gather(*(again.ready(life, None, 0) for life in lives))
            assert all(turn is not None for _, turn in turns)
            stage.actors[island_actor(seat_of(A))].dead.set()
            while (await again.status())["alive"] != 1:
                await asyncio.sleep(0.01)

    asyncio.run(story())


def test_resumes_from_a_snapshot_without_a_memory(stage: Stage, tmp_path: Path) -> None:
    async def story() -> None:
        async with stage.conductor() as actor:
            lives, turn = await in_a_ring(stage, actor)
            await actor.turned(lives[0], turn.ring, state(2).held)
            await actor.keep(lives[0], state(2))
        (tmp_path / "ring.json").unlink()
        async with stage.conductor() as again:
            _, status = await again.look({})
            assert (status["t"], status["tokens_trained"]) == (2, 20)

    asyncio.run(story())


def test_islands_are_released_once_the_end_is_durable(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the islands may have the only copies of the final state."""
    was, full = folder.write, [False]

    def write(path: Path, *content: bytes) -> None:
        if full[0]:
            raise OSError(28, "No space left on device")
        was(path, *content)

    monkeypatch.setattr(folder, "write", write)
    monkeypatch.setattr("cluster.allreduce.ring_effects.END_S", 0.2)
    monkeypatch.setattr("cluster.allreduce.records.AGAIN_S", 0.05)

    async def story() -> None:
        async with stage.conductor() as actor, asyncio.timeout(20):
            waiting = await at_the_end(stage, actor)
            for each in (A, B):
                stage.actors[island_actor(seat_of(each))].gives = lambda: state(4)
            full[0] = True
            assert np.all(await finished(actor) == 4), "the result is there all the same"
            _, status = await actor.look({})
            assert status["figures"] is not None
            assert "No space left" in status["figures"]["not_durable"]
            assert not any(each.done() for each in waiting)
            full[0] = False
            assert [await each for each in waiting] == [(False, None)] * 2

    asyncio.run(story())


def test_ports_distinguish_a_dead_island_from_a_full_object_store(stage: Stage) -> None:
    async def story() -> None:
        ports, actor = RayRingPorts("nowhere"), Actor()
        life = Life(A, 1)  # pyright: ignore[reportArgumentType]
        said = await ports.state_of(life)
        assert not isinstance(said, RingState)
        assert not said.again, "there is no such actor"
        stage.actors[island_actor(seat_of(A))] = actor
        actor.gives = breaks(ObjectStoreFullError("full"))
        said = await ports.state_of(life)
        assert not isinstance(said, RingState)
        assert said.again
        assert "ObjectStoreFullError" in said.why

    asyncio.run(story())


def test_conductor_answers_while_the_depot_hangs(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Report the hanging depot, and write everything that is pending once it is back."""
    go, was = threading.Event(), folder.write

    def hangs(path: Path, *content: bytes) -> None:
        go.wait(60)
        was(path, *content)

    monkeypatch.setattr("cluster.actors.ring.actor.DURABLE_S", 0.2)
    monkeypatch.setattr("cluster.actors.ring.actor.LATE_S", 0.1)

    async def story() -> None:
        async with stage.conductor() as actor:
            await actor.fault(A)
            monkeypatch.setattr(folder, "write", hangs)
            async with asyncio.timeout(20):
                lives, turn = await in_a_ring(stage, actor)
                await actor.turned(lives[0], turn.ring, state(2).held)
                await actor.keep(lives[0], state(2))
                await actor.stop("asked")
                view, _ = await actor.look({})
                assert view.phase is Phase.STOPPING
                while True:
                    _, status = await actor.look({})
                    assert status["figures"] is not None
                    if status["figures"]["not_durable"].count("has not answered for") == 2:
                        break
                    await asyncio.sleep(0.01)
                go.set()
                while status["figures"]["not_durable"]:
                    await asyncio.sleep(0.01)
                    _, status = await actor.look({})
                    assert status["figures"] is not None
        async with stage.conductor() as again:
            assert np.all(await finished(again) == 2), "the stop is remembered"

    try:
        asyncio.run(story())
    finally:
        go.set()
