"""Tests of a shard's answers to hosts that join or missed something: quick, with few copies."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from ray.exceptions import OutOfDiskError

from cluster.actors.object_store import publish as sharing
from cluster.actors.object_store.publish import (
    PROBE_BYTES,
    Boxed,
    Encoded,
    FragmentPublisher,
    Shared,
)
from cluster.actors.shard import public_fragments
from cluster.actors.shard.public_fragments import PublicFragments
from cluster.shard.arrays import ArrayShard, fresh
from coordinator.codec import Sent, Wire, WithMoments, decode, encode, split
from coordinator.fragments import Flat, Leaf, cut
from coordinator.parts import Split
from coordinator.protocol import Fragment, Merge, Publish, Version
from tests.cluster.test_shard import Shelf
from tests.given import array_shard
from tests.lab.test_shared_moments import LIVES, handed

P = Fragment(0)
RATE = 1e9
HOSTS, ISLANDS = 16, 4
WAIT_S = 60.0


class Store:
    """A stand-in for the object store; an object that is put is its own reference."""

    def __init__(self) -> None:
        self.put_bytes = 0
        self.free = threading.Event()
        self.free.set()
        self.errors = list[Exception]()

    def put(self, array: Any) -> Any:
        if getattr(array, "dtype", None) == np.float32:  # public fragments
            assert self.free.wait(WAIT_S)
        if self.errors:
            raise self.errors.pop()
        self.put_bytes += array.nbytes
        return array


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    monkeypatch.setattr("ray.put", made.put)
    return made


class Shown:
    """A shard with one fragment of `size` elements, and its public fragments."""

    def __init__(self, size: int) -> None:
        self.layout = cut([Leaf("w", (size,))], 1)
        first = np.arange(size, dtype=np.float32)
        self.shard: ArrayShard = array_shard(
            self.layout,
            fresh([first]),
            wire_down=Wire.INT8,
            wire_moments=Wire.INT8,
            keep_differences=3,
            files=Shelf(),
        )
        self.public = PublicFragments(self.shard, lambda: {P: size})

    def publish(self, delta: Flat, moments: Flat) -> Version:
        """Publish a version with these differences and moments, and return it."""
        before = self.shard.version(P)
        version = Version(before.generation, before.number + 1)
        item = handed(self.shard, LIVES[0], WithMoments(delta, encode(Wire.INT8, moments)), 1)
        self.shard.merge(Merge(P, version, (item,), ""))
        said = self.shard.publish(Publish(P, version, before, (), ()))
        assert said is not None
        self.public.ranges.published(*said)
        self.public.sharing.forget(P)
        return version

    @property
    def flat(self) -> Flat:
        return self.shard.whole([P])[0][1]


def play(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(story())


def flat_of(shared: Shared | None) -> Flat:
    assert shared is not None
    parts: Any = shared.parts
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def opened(boxed: Boxed) -> Sent:
    if not isinstance(boxed, Encoded):
        return boxed
    difference: Any = np.concatenate(boxed.difference)  # type: ignore[arg-type]
    if boxed.moments is None:
        return difference
    moments: Any = np.concatenate(boxed.moments)  # type: ignore[arg-type]
    return WithMoments(difference, moments)


def test_joining_hosts_share_one_copy_of_a_fragment(
    store: Store,
) -> None:
    """Four islands of 16 hosts ask for 64 ranges, and the bytes of one fragment are put."""
    size = 2**21
    shown = Shown(size)
    ranges = Split(HOSTS, HOSTS).ranges(size)

    async def story() -> None:
        found = list[tuple[slice, Shared | None]]()
        tracemalloc.start()
        held_bytes = tracemalloc.get_traced_memory()[0]
        for _ in range(ISLANDS):
            for own in ranges:
                asked = shown.public.shared([P], RATE, {P: (own.start, own.stop)})
                found.append((own, (await asked)[0]))
        peak_bytes = tracemalloc.get_traced_memory()[1] - held_bytes
        tracemalloc.stop()
        assert store.put_bytes == 4 * size, "each byte once, however many ask"
        assert peak_bytes < 1.1 * 4 * size, "the ranges, which stand for what is in the store"
        for own, shared in found:
            np.testing.assert_array_equal(flat_of(shared), shown.flat[own])

    play(story)


def test_range_is_copied_without_the_rest_of_its_fragment(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.put", lambda array: array.nbytes)
    size = 2**22
    shown = Shown(size)

    async def story() -> None:
        await shown.public.shared([P], RATE, {P: (0, 32)})  # imports modules and starts the thread
        tracemalloc.start()
        await shown.public.shared([P], RATE, {P: (0, size // HOSTS)})
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert 4 * size / HOSTS <= peak_bytes < 2 * 4 * size / HOSTS

    play(story)


@pytest.mark.parametrize("inline_bytes", [0, 10**6])
def test_host_that_missed_a_version_gets_its_range_with_moments(
    store: Store, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    monkeypatch.setattr(public_fragments, "INLINE_BYTES", inline_bytes)
    monkeypatch.setattr(sharing, "MIN_PART_BYTES", 100)
    size, own = 960, (320, 640)
    shown = Shown(size)
    rng = np.random.default_rng(3)

    async def story() -> None:
        before, old = shown.flat, shown.shard.version(P)
        moments = rng.normal(size=size).astype(np.float32)
        newer = shown.publish(rng.normal(size=size).astype(np.float32), moments)
        store.put_bytes = 0
        said = [
            await shown.public.missed(P, old, newer, 10.0, each) for each in (own, own, None, own)
        ]
        assert (store.put_bytes == 0) == (inline_bytes > 0)
        for each, part in zip(said, (own, own, None, own), strict=True):
            assert isinstance(each, list)
            (boxed,) = each
            assert isinstance(boxed, Encoded) == (inline_bytes == 0)
            difference, mean = split(opened(boxed))
            cut = slice(0, size) if part is None else slice(*part)
            flat = before[cut] + decode(difference, cut.stop - cut.start)
            np.testing.assert_array_equal(flat, shown.flat[cut])
            assert (mean is None) == (part is None), "whoever wants all got it as it was published"
        if inline_bytes == 0:
            there = (said[0][0], said[1][0], said[3][0])  # type: ignore[index]
            assert len({id(each) for each in there}) == 1, "put once for all that ask for it"
        (means,) = await shown.public.mean_moments([P], RATE, {P: own})
        assert means is not None
        mean = opened(means[0])
        assert isinstance(mean, np.ndarray)
        np.testing.assert_allclose(decode(mean, 320), moments[slice(*own)], atol=0.05)

    play(story)


def test_shard_answers_soon_while_much_is_put(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer version does not displace the one being put.

    Otherwise callers might never get any.
    """
    monkeypatch.setattr(public_fragments, "SOON_S", 0.05)
    shown = Shown(960)

    async def story() -> None:
        store.free.clear()
        for _ in range(3):
            assert await shown.public.shared([P], RATE) == [None]
        older, flat = shown.shard.version(P), shown.flat
        newer = shown.publish(np.ones(960, np.float32), np.ones(960, np.float32))
        assert await shown.public.shared([P], RATE) == [None]
        store.free.set()
        (late,) = await until(lambda: shown.public.shared([P], RATE))
        assert late is not None
        assert late.version == older
        np.testing.assert_array_equal(flat_of(late), flat)
        (fresh,) = await until(lambda: shown.public.shared([P], RATE))
        assert fresh is not None
        assert fresh.version == newer, "it was given once"

    play(story)


@pytest.mark.parametrize("joins", [True, False])
def test_copy_of_an_older_version_is_not_given_to_callers_that_need_newer(
    store: Store, monkeypatch: pytest.MonkeyPatch, joins: bool
) -> None:
    monkeypatch.setattr(public_fragments, "SOON_S", 0.05)
    shown = Shown(960)

    async def story() -> None:
        store.free.clear()
        assert await shown.public.shared([P], RATE) == [None]
        newer = shown.publish(np.ones(960, np.float32), np.ones(960, np.float32))
        store.free.set()
        if joins:
            (found,) = await until(lambda: shown.public.shared([P], RATE, {}, {P: newer}))
        else:  # its chain is broken
            (found,) = await until(missed)
        assert isinstance(found, Shared)
        assert found.version == newer
        np.testing.assert_array_equal(flat_of(found), shown.flat)

    async def missed() -> list[Any]:
        return [await shown.public.missed(P, Version(0, 77), shown.shard.version(P), RATE)]

    play(story)


async def until(ask: Callable[[], Coroutine[Any, Any, list[Any]]]) -> list[Any]:
    """Ask until no answer is `None`, as learners do."""
    while None in (found := await ask()):
        pass
    return found


def test_failed_probe_is_not_given_to_later_callers(store: Store) -> None:
    """Such a probe was once given to all callers for a minute."""
    shares = FragmentPublisher(
        lambda p, own: (Version(0, 0), np.ones(1, np.float32)), lambda: {P: 10**9}
    )

    async def story() -> None:
        store.errors.append(OutOfDiskError("full"))
        with pytest.raises(OutOfDiskError):
            await shares.probe(PROBE_BYTES)
        probe = await shares.probe(PROBE_BYTES)
        assert len(probe.parts) == 1
        assert await shares.probe(PROBE_BYTES) == probe

    play(story)


def test_publication_does_not_wait_for_joining_learners(store: Store) -> None:
    shown = Shown(960)

    async def story() -> None:
        store.free.clear()
        joins = asyncio.gather(shown.public.shared([P], RATE))
        payload = encode(Wire.INT8, shown.flat)
        found: Any = await asyncio.wait_for(shown.public.sharing.publication(payload), WAIT_S)
        assert found[0] is payload
        assert not joins.done()
        store.free.set()
        await joins

    play(story)
