"""Tests of calls to a shard that dies: they fail, and no call starts until it is back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from cluster.syncer.shard_liveness import Attendance, Away

NAME, OTHER = "shard-0", "shard-1"


class Dead(Exception):
    """An exception of a call whose callee is dead."""


async def says(answer: str) -> str:
    return answer


async def fails() -> str:
    raise Dead


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def turns() -> None:
    """Let the loop turn more often than any test here needs."""
    for _ in range(100):
        await asyncio.sleep(0)


def plays(scene: Callable[[Attendance], Coroutine[Any, Any, None]]) -> None:
    async def play() -> None:
        async with asyncio.timeout(20):
            await scene(Attendance([NAME, OTHER], (Dead,)))

    asyncio.run(play())


def test_calls_a_live_shard() -> None:
    async def scene(shards: Attendance) -> None:
        assert await shards.ask(NAME, lambda: says("yes")) == "yes"
        await shards.until_back(NAME)

    plays(scene)


@pytest.mark.parametrize("watch", [fails, lambda: says("not the one that was meant")])
def test_does_not_call_a_dead_shard_until_it_is_back(watch: Callable[[], Awaitable[str]]) -> None:
    async def scene(shards: Attendance) -> None:
        await shards.until_dead(NAME, watch)
        with pytest.raises(Away, match="shard-0 is dead"):
            await shards.ask(NAME, lambda: says("yes"))
        assert await shards.ask(OTHER, lambda: says("yes")) == "yes"
        waiting = asyncio.create_task(shards.until_back(NAME))
        await asyncio.sleep(0)
        assert not waiting.done()
        shards.is_back(NAME)
        await waiting
        assert await shards.ask(NAME, lambda: says("yes")) == "yes"

    plays(scene)


def test_failed_call_counts_as_a_death() -> None:
    async def scene(shards: Attendance) -> None:
        dying = asyncio.create_task(shards.until_dead(NAME, never))
        with pytest.raises(Away):
            await shards.ask(NAME, fails)
        await dying
        shards.is_back(NAME)
        again = asyncio.create_task(shards.until_dead(NAME, never))
        await turns()
        assert not again.done(), "of that one death"
        again.cancel()

    plays(scene)


def test_answer_of_a_replaced_process_is_refused() -> None:
    async def scene(shards: Attendance) -> None:
        said: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        asking = asyncio.create_task(shards.ask(NAME, lambda: said))
        await asyncio.sleep(0)
        await shards.until_dead(NAME, fails)
        shards.is_back(NAME)
        said.set_result("yes")
        with pytest.raises(Away, match="has died meanwhile"):
            await asking

    plays(scene)


def test_late_failure_of_an_old_call_is_not_a_new_death() -> None:
    async def scene(shards: Attendance) -> None:
        said: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        asking = asyncio.create_task(shards.ask(NAME, lambda: said))
        await asyncio.sleep(0)
        await shards.until_dead(NAME, fails)
        shards.is_back(NAME)
        said.set_exception(Dead())
        with pytest.raises(Away):
            await asking
        again = asyncio.create_task(shards.until_dead(NAME, never))
        await turns()
        assert not again.done()
        again.cancel()

    plays(scene)


def test_other_errors_are_not_deaths() -> None:
    async def wrong() -> str:
        raise ValueError("wrong")

    async def scene(shards: Attendance) -> None:
        with pytest.raises(ValueError, match="wrong"):
            await shards.ask(NAME, wrong)
        with pytest.raises(ValueError, match="wrong"):
            await shards.until_dead(NAME, wrong)

    plays(scene)
