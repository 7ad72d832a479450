"""Tests of requests to many learners through one shard: which learner is asked when."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from cluster.syncer.collect import Asker, Gatherer, HandInAnswers
from coordinator.protocol import Contribution, Fragment, Incarnation, Island, Life

A, B, C = (Life(Island(name), Incarnation(1)) for name in "abc")
F0, F1 = Fragment(0), Fragment(1)


class Shard:
    """A shard whose learners answer when the test lets them; it records each request."""

    def __init__(self) -> None:
        self.gatherer = Gatherer()
        self.calls: list[tuple[Fragment, list[Life]]] = []
        self.asked: list[tuple[Life, Fragment]] = []
        self.answers: dict[Life, asyncio.Future[str]] = {}
        self.asker = Asker(self.call)

    async def call(self, fragment: Fragment, lives: Sequence[Life]) -> HandInAnswers:
        self.calls.append((fragment, [*lives]))

        async def ask(life: Life) -> Contribution | str:
            self.asked.append((life, fragment))
            return await self.answer_of(life)

        return await self.gatherer.gather(fragment, lives, ask)

    def answer_of(self, life: Life) -> asyncio.Future[str]:
        return self.answers.setdefault(life, asyncio.get_running_loop().create_future())

    async def until(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not happened():
                await asyncio.sleep(0)

    def begin(self, *lives: Life, fragment: Fragment = F0) -> dict[Life, asyncio.Task[object]]:
        return {
            life: asyncio.get_running_loop().create_task(self.asker.collect(life, fragment))
            for life in lives
        }


def test_requests_of_one_turn_share_one_call() -> None:
    async def story() -> None:
        shard = Shard()
        asked = shard.begin(A, B) | shard.begin(C, fragment=F1)
        for life in (A, B, C):
            shard.answer_of(life).set_result(f"{life.island} has nothing")
        assert await asyncio.gather(*asked.values()) == [f"{i} has nothing" for i in "abc"]
        assert shard.calls == [(F0, [A, B]), (F1, [C])]

    asyncio.run(story())


def test_answer_is_delivered_while_others_are_missing() -> None:
    async def story() -> None:
        shard = Shard()
        asked = shard.begin(A, B, C)
        await shard.until(lambda: len(shard.asked) == 3)
        shard.answer_of(B).set_result("b")
        assert await asyncio.wait_for(asked[B], 5.0) == "b"
        assert not asked[A].done()
        shard.answer_of(A).set_result("a")
        shard.answer_of(C).set_result("c")
        assert await asyncio.gather(asked[A], asked[C]) == ["a", "c"]
        assert shard.calls[:2] == [(F0, [A, B, C]), (F0, [A, C])]
        assert shard.asked == [(A, F0), (B, F0), (C, F0)]

    asyncio.run(story())


def test_simultaneous_answers_return_together() -> None:
    async def story() -> None:
        shard = Shard()
        crowd = [Life(Island(f"i{n}"), Incarnation(1)) for n in range(100)]
        asked = shard.begin(*crowd)
        await shard.until(lambda: len(shard.asked) == 100)
        for life in crowd[:50]:
            shard.answer_of(life).set_result("here")
            await asyncio.sleep(0)
        await asyncio.gather(*(asked[life] for life in crowd[:50]))
        for life in crowd[50:]:
            shard.answer_of(life).set_result("here")
        await asyncio.gather(*asked.values())
        assert len(shard.calls) <= 3

    asyncio.run(story())


def test_two_requests_to_a_learner_are_asked_once_and_both_answered() -> None:
    """This happens when an island is released while a round is open."""

    async def story() -> None:
        shard = Shard()
        first = shard.begin(A)
        await shard.until(lambda: len(shard.calls) == 1)
        second = shard.begin(A)
        await shard.until(lambda: len(shard.calls) == 2)
        shard.answer_of(A).set_result("here")
        assert await asyncio.gather(first[A], second[A]) == ["here", "here"]
        assert shard.asked == [(A, F0)]

    asyncio.run(story())


def test_death_of_a_shard_is_raised_to_all_waiting_callers() -> None:
    async def story() -> None:
        shard = Shard()
        asked = shard.begin(A, B)
        shard.answer_of(A).set_exception(ConnectionError("gone"))
        for task in asked.values():
            with pytest.raises(ConnectionError, match="gone"):
                await asyncio.wait_for(task, 5.0)

    asyncio.run(story())


def test_cancelled_caller_does_not_affect_others() -> None:
    async def story() -> None:
        shard = Shard()
        asked = shard.begin(A, B)
        await shard.until(lambda: len(shard.asked) == 2)
        asked[A].cancel()
        for life in (A, B):
            shard.answer_of(life).set_result("here")
        assert await asyncio.wait_for(asked[B], 5.0) == "here"

    asyncio.run(story())


def test_learners_are_asked_again_after_a_recovery() -> None:
    async def story() -> None:
        shard = Shard()
        before = shard.begin(A)
        await shard.until(lambda: len(shard.asked) == 1)
        shard.gatherer.forget()
        shard.answers.clear()
        after = shard.begin(A)
        await shard.until(lambda: len(shard.asked) == 2)
        shard.answer_of(A).set_result("again")
        assert await asyncio.wait_for(after[A], 5.0) == "again"
        assert shard.asked == [(A, F0), (A, F0)]
        assert await asyncio.wait_for(before[A], 5.0) == "not asked any more"

    asyncio.run(story())
