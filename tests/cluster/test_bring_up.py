"""Tests of a restarted process: it makes its state once, and reports each obstacle."""

from __future__ import annotations

import asyncio

import pytest

from cluster.actors import bring_up
from cluster.actors.bring_up import BringUp
from coordinator.errors import RunFailed


def test_concurrent_callers_make_the_state_once() -> None:
    made: list[int] = []

    async def make() -> int:
        await asyncio.sleep(0)
        made.append(len(made))
        return made[-1]

    async def story() -> None:
        up = BringUp("it", make)
        assert up.made is None
        assert await asyncio.gather(*(up.ready() for _ in range(3))) == [0, 0, 0]
        assert up.made == 0

    asyncio.run(story())
    assert made == [0]


def test_retries_an_unavailable_depot_and_stops_at_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bring_up, "AGAIN_S", 0.0)
    errors: list[Exception] = [OSError("away"), OSError("away"), RunFailed("no snapshot")]
    asked: list[str] = []

    async def make() -> int:
        asked.append("made")
        raise errors[len(asked) - 1]

    async def story() -> None:
        up = BringUp("it", make)
        for _ in range(2):
            with pytest.raises(RunFailed, match="it cannot come back: no snapshot"):
                await up.ready()

    asyncio.run(story())
    assert len(asked) == 3


def test_gives_up_a_depot_that_stays_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bring_up, "PATIENCE_S", -1.0)

    async def make() -> int:
        raise OSError("away")

    with pytest.raises(RunFailed, match="it cannot come back: away"):
        asyncio.run(BringUp("it", make).ready())
