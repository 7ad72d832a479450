"""Tests of a restarted process: it makes its state once, and reports each obstacle."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from cluster.actors.blocking_calls import BlockingCalls
from cluster.actors.bring_up import FIRST_S, LONGEST_S, BringUp
from cluster.actors.directory import Directory
from cluster.actors.fault_injection import Cable
from cluster.actors.start import Home
from cluster.fleet.backend import StorageSilent
from cluster.fleet.ray_backend import RayBackend
from coordinator.errors import RunFailed, Unreachable
from tests.cluster.test_controller import config_of
from tests.cluster.test_evaluation import remotely


def failing(
    errors: list[Exception],
) -> tuple[list[float], Callable[[], Awaitable[str]], list[float]]:
    """Return a clock, a recovery that raises these errors in turn, and the times of its calls."""
    clock, calls = [0.0], list[float]()

    async def make() -> str:
        calls.append(clock[0])
        await asyncio.sleep(0)
        if errors:
            raise errors.pop(0)
        return "made"

    return clock, make, calls


def test_concurrent_callers_make_the_state_once() -> None:
    _, make, calls = failing([])

    async def story() -> None:
        up = BringUp("it", make)
        assert up.made is None
        assert await asyncio.gather(*(up.ready() for _ in range(3))) == ["made"] * 3
        assert up.made == "made"

    asyncio.run(story())
    assert len(calls) == 1


def test_storage_that_does_not_answer_is_retried_without_a_limit() -> None:
    """An outage of an hour once ended the run after a minute, and the shards' model with it."""
    away: list[Exception] = [OSError("away"), remotely(OSError("away"))]
    clock, make, calls = failing(away * 200)
    told = set[str]()

    async def story() -> None:
        up = BringUp("it", make, lambda: clock[0])
        while up.made is None:
            try:
                assert await up.ready() == "made"
            except Unreachable as error:
                told.add(str(error))
            clock[0] += 0.25

    asyncio.run(story())
    (words,) = told
    assert words.startswith("it cannot come back yet, its storage does not answer: away; ")
    assert len(calls) == 401
    pauses = [later - sooner for sooner, later in pairwise(calls)]
    assert (pauses[0], max(pauses), pauses[-1]) == (FIRST_S, LONGEST_S, LONGEST_S)
    assert pauses == sorted(pauses), "they grow"


def test_calls_wait_for_an_attempt_and_are_answered_at_once_in_a_pause() -> None:
    clock, make, calls = failing([OSError("away")])

    async def story() -> None:
        up = BringUp("it", make, lambda: clock[0])
        for _ in range(2):
            answers = await asyncio.gather(*(up.ready() for _ in range(3)), return_exceptions=True)
            assert [type(each) for each in answers] == [Unreachable] * 3
        clock[0] = FIRST_S
        assert await asyncio.gather(*(up.ready() for _ in range(3))) == ["made"] * 3

    asyncio.run(story())
    assert calls == [0.0, FIRST_S]


def test_recovery_that_hangs_answers_its_callers_and_is_not_repeated() -> None:
    """The watchdog once killed a syncer whose storage hung, and the 11th time ended the run."""
    calls, words = list[str](), set[str]()

    async def story() -> None:
        answers = asyncio.Event()

        async def make() -> str:
            calls.append("attempt")
            await answers.wait()
            return "made"

        up = BringUp("it", make, silence_s=0.01)
        for _ in range(3):
            said = await asyncio.gather(*(up.ready() for _ in range(3)), return_exceptions=True)
            assert [type(each) for each in said] == [Unreachable] * 3
            words.update(map(str, said))
        assert up.made is None
        answers.set()
        assert await asyncio.gather(*(up.ready() for _ in range(3))) == ["made"] * 3
        assert up.made == "made"

    asyncio.run(story())
    assert calls == ["attempt"]
    assert {re.sub(r"\d+", "#", each) for each in words} == {
        "it cannot come back yet, its recovery has made no progress for # s: its storage, or that "
        "of a shard, hangs or is slow; it continues when the storage answers"
    }


def test_recovery_that_makes_progress_keeps_its_callers_waiting() -> None:
    async def story() -> None:
        looks, answers = list[int](), asyncio.Event()

        async def make() -> str:
            await answers.wait()
            return "made"

        def progress() -> int:
            looks.append(len(looks))
            if len(looks) == 10:
                answers.set()
            return len(looks)

        assert await BringUp("it", make, progress=progress, silence_s=0.01).ready() == "made"
        assert len(looks) == 10

    asyncio.run(story())


def test_attempt_that_fails_after_a_hang_is_followed_by_another_one() -> None:
    async def story() -> None:
        answers, errors = asyncio.Event(), [OSError("away"), LookupError("a shard")]

        async def make() -> str:
            await answers.wait()
            if errors:
                raise errors.pop()
            return "made"

        clock = [0.0]
        up = BringUp("it", make, lambda: clock[0], silence_s=0.01)
        waiting = asyncio.create_task(up.ready())
        await asyncio.wait({waiting}, timeout=0)
        answers.set()
        with pytest.raises(LookupError, match="a shard"):
            await waiting
        with pytest.raises(Unreachable, match="its storage does not answer: away"):
            await up.ready()
        clock[0] = FIRST_S
        assert await up.ready() == "made"

    asyncio.run(story())


def test_damage_is_final() -> None:
    clock, make, calls = failing([OSError("away"), RunFailed("no snapshot")])

    async def story() -> None:
        up = BringUp("it", make, lambda: clock[0])
        with pytest.raises(Unreachable):
            await up.ready()
        for now_s in (10.0, 1e6):
            clock[0] = now_s
            with pytest.raises(RunFailed, match="it cannot come back: no snapshot"):
                await up.ready()

    asyncio.run(story())
    assert calls == [0.0, 10.0]


def test_error_of_a_call_is_raised_as_it_is() -> None:
    """Ray's errors of a shard that restarts pass; the next call tries again."""
    clock, make, calls = failing([LookupError("a shard")])

    async def story() -> None:
        up = BringUp("it", make, lambda: clock[0])
        with pytest.raises(LookupError, match="a shard"):
            await up.ready()
        assert await up.ready() == "made"

    asyncio.run(story())
    assert calls == [0.0, 0.0]


def test_callers_of_a_process_without_its_storage_are_to_try_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Fleet and learners get their own passing errors, with the reason."""

    def get(*_: object, **__: object) -> NoReturn:
        raise remotely(Unreachable("the syncer cannot come back yet: EIO"))

    actor = SimpleNamespace(look=SimpleNamespace(remote=lambda: "asked"))
    for name, call in (("ray.get", get), ("ray.get_actor", lambda *_, **__: actor)):
        monkeypatch.setattr(name, call)
    home = Home("nowhere", detached=False)
    with pytest.raises(StorageSilent, match=r"cannot come back yet: EIO$"):
        RayBackend(config_of(), tmp_path, home).ask(actor, "look", meanwhile=lambda: None)
    with pytest.raises(Unreachable, match=r"^the syncer cannot come back yet: EIO$"):
        BlockingCalls(Directory("nowhere"), Cable()).ask("syncer", "look")
