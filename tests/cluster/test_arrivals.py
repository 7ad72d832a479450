"""Tests of publication delays: each is reported once, when the next publication goes out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from cluster.actors.shard.actor import ShardActor
from cluster.config.load import load
from cluster.names import Seat
from cluster.shard.arrivals import Arrivals
from coordinator.codec import Wire, encode
from coordinator.protocol import (
    ContributionId,
    Fragment,
    HandIn,
    Item,
    Lease,
    Merge,
    Progress,
    Publish,
    Reached,
    Version,
)
from tests.cluster.played import CONFIG, LAYOUT
from tests.coordinator.given import life

F0, F1 = Fragment(0), Fragment(1)
A, B = life("local-0"), life("local-1")


def v(number: int) -> Version:
    return Version(0, number)


def test_reports_each_publication_once_with_the_lives_it_reached() -> None:
    arrivals = Arrivals()
    assert arrivals.sent(F0, v(1), 10.0) is None, "there was none before"
    arrivals.reached(F0, v(1), B, 12.0)
    arrivals.reached(F0, v(1), A, 10.5)
    assert arrivals.sent(F1, v(1), 13.0) is None, "of another fragment"
    assert arrivals.sent(F0, v(2), 20.0) == Reached(F0, v(1), ((A, 0.5), (B, 2.0)))
    arrivals.reached(F0, v(1), A, 21.0)  # too late: v(1) has been reported already
    assert arrivals.sent(F0, v(3), 30.0) is None, "it has reached no learner"


def test_shard_reports_delays_with_the_fragments_next_publication(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(CONFIG)
    config = load(tmp_path / "run.toml").model_dump_json()
    shard = ShardActor(config, "nowhere", str(tmp_path))
    offered = asyncio.Event()

    async def offer(*_: object) -> None:
        offered.set()

    async def deaf(*_: object) -> None:
        await asyncio.Event().wait()

    for each, call in ((A, offer), (B, deaf)):
        handle: Any = SimpleNamespace(offer=SimpleNamespace(remote=call))
        shard._actors._known[f"island {each.island}"] = handle

    def received(number: int) -> Item:
        said = ContributionId(A, F0, number, number + 1)
        progress = Progress(number + 1, 10, Lease(0, 1))
        facts = HandIn(said, v(number), number, 10, LAYOUT.fingerprint, progress)
        delta = encode(Wire.BF16, np.full(LAYOUT.sizes[F0], 1e-3, np.float32))
        return Item(shard.process.shard.receive(facts, delta), 1.0)

    async def published(number: int) -> Reached | None:
        item = await shard.process.compute(received, number - 1)
        await shard.merge(Merge(F0, v(number), (item,), ""))
        order = Publish(F0, v(number), v(number - 1), (A, B), ())
        return (await shard.publish(order, [Seat("local-0"), Seat("local-1")])).reached

    async def story() -> None:
        flats = {Fragment(p): np.ones(n, np.float32) for p, n in enumerate(LAYOUT.sizes)}
        for p, flat in flats.items():
            await shard.seed(LAYOUT, p, flat)
        assert await published(1) is None
        await offered.wait()
        reached = await published(2)
        assert reached is not None
        assert (reached.fragment, reached.version) == (F0, v(1))
        ((who, after_s),) = reached.after_s
        assert who == A, "the other one has not answered"
        assert after_s >= 0.0
        shard._offers.cancel()
        await asyncio.sleep(0)

    asyncio.run(story())
