"""Tests of a learner that joins: it takes as long as its bytes do, and reports its progress."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import OwnerDiedError, RayActorError

from cluster.actors import blocking_calls
from cluster.actors import learner_link as link
from cluster.actors.directory import Directory
from cluster.actors.fault_injection import Cable
from cluster.actors.learner_link import RayLink
from cluster.actors.object_store.moment_pieces import MomentPieceRef
from cluster.actors.object_store.publish import (
    MIN_PART_BYTES,
    PART_S,
    PROBE_BYTES,
    RECENT_S,
    Encoded,
    FragmentPublisher,
    Probe,
    Rates,
    Shared,
    parts_of,
)
from cluster.actors.object_store.pull import (
    AHEAD_S,
    LATE_S,
    LATE_TIMES,
    PULLS,
    Fetching,
    Lot,
    Patience,
)
from cluster.names import Seat
from coordinator.codec import Wire, decode, encode
from coordinator.errors import Malformed, Unreachable
from coordinator.fragments import Flat
from coordinator.membership import SILENCE_JOINING_S
from coordinator.protocol import (
    Answer,
    Fragment,
    Granted,
    Island,
    Join,
    Lease,
    Report,
    Version,
    Vitals,
    Void,
)
from tests.coordinator.given import life

SIZE = 1000
MODEL = {Fragment(p): np.full(SIZE, float(p), np.float32) for p in range(6)}
OWNS: dict[Fragment, slice] = {p: slice(160 * p, 160 * p + 160) for p in MODEL}
"""The range of each fragment that one of several hosts owns."""
V3 = Version(0, 3)


# --- parts ----------------------------------------------------------------------------------------


@given(st.integers(1, 10**12), st.lists(st.floats(1e-9, 1e12), min_size=1, max_size=5))
def test_parts_fit_the_slowest_link_and_are_not_tiny(nbytes: int, told: list[float]) -> None:
    rates = Rates(lambda: 0.0)
    for bytes_s in told:
        rates.tell(bytes_s)
    parts, most = parts_of(nbytes, rates.slowest), max(MIN_PART_BYTES, PART_S * min(told))
    assert nbytes / parts <= most * (1 + 1e-9)
    assert parts == 1 or nbytes / (parts - 1) > most * (1 - 1e-9), "no more than that"


@pytest.mark.parametrize("bytes_s", [0.0, -1.0, math.nan, "fast", None])
def test_invalid_rate_of_one_learner_does_not_affect_others(
    bytes_s: object,
) -> None:
    rates = Rates(lambda: 0.0)
    rates.tell(1e9)
    with pytest.raises(Malformed, match="a link cannot carry"):
        rates.tell(bytes_s)
    assert rates.slowest == 1e9


def test_rate_of_a_cut_link_does_not_cause_tiny_parts() -> None:
    rates = Rates(lambda: 0.0)
    rates.tell(1.0)
    assert parts_of(750 * 2**20, rates.slowest) == 750


def test_old_rate_of_a_slow_link_is_ignored() -> None:
    now_s = [0.0]
    rates = Rates(lambda: now_s[0])
    rates.tell(1e3)
    now_s[0] = RECENT_S + 1
    rates.tell(1e9)
    assert rates.slowest == 1e9


def test_version_is_put_once_for_all_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[Any] = []
    monkeypatch.setattr("ray.put", lambda array: put.append(array) or len(put) - 1)
    version = [V3]

    async def story() -> None:
        shares = FragmentPublisher(
            lambda p, own: (version[0], MODEL[p]), lambda: {Fragment(0): 10**9}
        )
        assert await shares.probe(PROBE_BYTES) == await shares.probe(PROBE_BYTES)
        assert len(put) == 1
        put.clear()
        asked = [shares.fragment(Fragment(1), 1e9) for _ in range(16)]
        found = await asyncio.gather(*asked)
        assert {(each.version, each.nbytes, tuple(each.parts)) for each in found} == {
            (V3, 4000, (0,))
        }
        assert len(put) == 1
        shares.renew([Fragment(0)])  # a learner did not receive its objects
        assert await shares.fragment(Fragment(1), 1e9) == found[0]
        await shares.probe(PROBE_BYTES)
        assert len(put) == 2, "only the probe is another one"
        shares.renew([Fragment(1)])
        assert list((await shares.fragment(Fragment(1), 1e9)).parts) == [2]
        version[0] = Version(0, 4)
        shares.forget(Fragment(1))
        monkeypatch.setattr("cluster.actors.object_store.publish.MIN_PART_BYTES", 1)
        newer = await shares.fragment(Fragment(1), 1000 / PART_S)
        assert (newer.version, len(newer.parts)) == (version[0], 4)
        np.testing.assert_array_equal(np.concatenate(put[3:]), MODEL[Fragment(1)])

    asyncio.run(story())


def test_failed_put_is_retried_for_the_next_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = [True]

    def put(array: Flat) -> int:
        if full[0]:
            raise MemoryError("full")
        return 0

    monkeypatch.setattr("ray.put", put)

    async def story() -> None:
        shares = FragmentPublisher(lambda p, own: (V3, MODEL[p]), dict)
        with pytest.raises(MemoryError):
            await shares.fragment(Fragment(0), 1e9)
        full[0] = False
        assert (await shares.fragment(Fragment(0), 1e9)).parts == [0]

    asyncio.run(story())


# --- pulling --------------------------------------------------------------------------------------


class Line:
    """A link of `bytes_s` bytes a second by its own clock, shared by all transfers under way."""

    def __init__(self, bytes_s: float) -> None:
        self.bytes_s, self.now_s, self.most = bytes_s, 0.0, 0.0
        self._lock, self._flying = threading.Lock(), 0.0

    def get(self, nbytes: Any) -> Any:
        with self._lock:
            self._flying += nbytes
            self.most = max(self.most, self._flying)
        with self._lock:
            self.now_s += nbytes / self.bytes_s
            self._flying -= nbytes
        return nbytes


def test_transfers_in_flight_are_bounded_by_the_links_rate() -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice, line, told = random.Random(seed), Line(1e6), list[float]()
    fetching = Fetching(Cable(), lambda: line.now_s, line.get)
    sizes = [dice.randint(1, 3_000_000) for _ in range(100)]
    lots: list[Any] = [Lot(size, size) for size in sizes]  # type: ignore[arg-type]
    assert fetching.pull(lots, lambda: told.append(line.now_s)) == sizes
    assert line.most <= max(AHEAD_S * line.bytes_s * 1.01, *sizes)
    assert fetching.bytes_s == pytest.approx(line.bytes_s, rel=0.01)
    assert len(told) == len(sizes), "each is a sign of life"


@pytest.mark.parametrize(
    ("bytes_s", "late_s", "largest"),
    [(25e6, 0.05, 67e6), (25e6, 0.3, 30e6), (1e9, 0.01, 67e6), (1e5, 0.2, 1e9), (1e9, 0.0, 1e4)],
)
def test_link_rate_is_measured_before_large_transfers(
    bytes_s: float, late_s: float, largest: float
) -> None:
    """The rate is within a factor of two, or so high that nothing is cut, at any latency."""
    now_s, sizes = [0.0], list[int]()

    def get(nbytes: Any) -> None:
        now_s[0] += late_s + nbytes / bytes_s

    def probed(nbytes: int) -> Probe:
        parts: list[Any] = [nbytes] if nbytes < largest else []
        sizes.extend(parts)
        return Probe(nbytes, parts, int(largest))

    fetching = Fetching(Cable(), lambda: now_s[0], get)
    found = fetching.measure(probed)
    rates = Rates(lambda: 0.0)
    rates.tell(found)
    parts = parts_of(int(largest), rates.slowest)
    wanted = largest / max(MIN_PART_BYTES, PART_S * bytes_s)
    assert max(1, wanted) <= parts <= max(1.0, 2 * wanted) + 1e-9 or parts == math.ceil(wanted)
    assert sum(sizes) < largest or not sizes


def test_object_lost_with_its_owner_is_unreachable() -> None:
    def get(_: object) -> None:
        raise OwnerDiedError("", None, "")

    with pytest.raises(Unreachable, match="OwnerDiedError"):
        Fetching(Cable(), get=get).pull([Lot(None, 1.0)])  # type: ignore[arg-type]


def test_failed_pull_leaves_no_thread_blocked() -> None:
    """Otherwise eight objects of a node that hangs would block all threads of a learner."""
    looked = threading.Semaphore(0)

    def there(reference: Any) -> bool:
        looked.release()
        return reference != "hangs"

    def get(reference: Any) -> Any:
        if reference == "lost":
            for _ in range(PULLS):
                assert looked.acquire(timeout=60.0)
            raise OwnerDiedError("", None, "")
        return reference

    fetching = Fetching(Cable(), get=get, arrived=there)
    fetching._rates.append(math.inf)  # as many pulls at once as there are threads
    broken: list[Any] = ["lost", *["hangs"] * (PULLS - 1)]
    for _ in range(3):
        with pytest.raises(Unreachable, match="OwnerDiedError"):
            fetching.pull(Lot(each, 1.0) for each in broken)
    good: list[Any] = [*range(3 * PULLS)]
    assert fetching.pull(Lot(each, 1.0) for each in good) == good


def test_small_object_is_waited_for_while_large_ones_use_the_link() -> None:
    """10 MB at 1 MB/s take 10 s, so the pull of 1 MB waits as long as that of 9 MB."""
    clock, looks, release = [0.0], threading.Semaphore(0), threading.Event()
    asked = {name: threading.Event() for name in ("first", "large", "small")}

    def now_s() -> float:
        looks.release()
        return clock[0]

    def there(reference: Any) -> bool:
        asked[reference].set()
        return reference == "first" or release.wait(0.05)

    def get(reference: Any) -> Any:
        clock[0] += reference == "first"
        return reference

    def pulled(name: Any, nbytes: float) -> list[Any]:
        return fetching.pull([Lot(name, nbytes)])

    fetching = Fetching(Cable(), now_s, get, there)
    assert pulled("first", 1e6) == ["first"], "in a second, which measures the link"
    alone_s, shared_s = LATE_S + LATE_TIMES * 1.0, LATE_S + LATE_TIMES * 10.0
    with ThreadPoolExecutor(2) as pool, ExitStack() as at_end:
        at_end.callback(release.set)
        large = pool.submit(pulled, "large", 9e6)
        small = pool.submit(pulled, "small", 1e6)
        assert asked["large"].wait(60.0)
        assert asked["small"].wait(60.0)
        for waited_s in (alone_s + 1.0, shared_s - 1.0):
            clock[0] = 1.0 + waited_s
            while looks.acquire(blocking=False):
                pass
            for _ in range(4):  # each pull looks at the clock once more at least
                assert looks.acquire(timeout=60.0)
            assert not small.done(), waited_s
        clock[0] = 1.0 + shared_s + 1.0
        for late in wait([large, small], 60.0, FIRST_COMPLETED).done:
            with pytest.raises(Unreachable, match="nothing has arrived for 101 s"):
                late.result()


@given(st.lists(st.floats(0.0, 1e4), max_size=10), st.floats(0.0, 1e4))
def test_patience_exceeds_what_arrivals_take_and_is_bounded(
    took: list[float], now_s: float
) -> None:
    patience = Patience()
    for took_s in took:
        patience.came(took_s)
    assert patience.seconds(now_s) >= LATE_S + LATE_TIMES * max([now_s, *took[-3:]])
    usual_s = patience.seconds()
    for _ in range(100):
        patience.in_vain()
    assert 2 * usual_s < patience.seconds() <= 10 * usual_s
    for _ in range(3):
        patience.came(0.0)
    assert patience.seconds() == LATE_S


@pytest.mark.parametrize("lost", [1, 3])
def test_pull_without_arrivals_ends_and_leaves_no_thread_blocked(lost: int) -> None:
    """A connection is gone with its transfers, as after a cut, and Ray waits for minutes."""
    now_s = [0.0]

    def clock() -> float:
        now_s[0] += 8.0
        return now_s[0]

    looked = threading.Semaphore(0)

    def there(reference: Any) -> bool:
        return reference != "lost" or looked.acquire(timeout=0.01)

    fetching = Fetching(Cable(), clock, get=lambda reference: reference, arrived=there)
    lots: list[Any] = [Lot(cast("Any", each), 1.0) for each in (1, *["lost"] * lost)]
    fetching.pull(lots[:1])
    began_s = now_s[0]
    with pytest.raises(Unreachable, match=r"^1 object of .*: nothing has arrived for"):
        fetching.pull(lots)
    assert now_s[0] - began_s >= LATE_S + LATE_TIMES * 8, "the first one took 8 s by this clock"
    good: list[Any] = [*range(3 * PULLS)]
    assert fetching.pull(Lot(each, 1.0) for each in good) == good


# --- a join ---------------------------------------------------------------------------------------


class Run:
    """A stand-in for the syncer, two shards and a donor, for one link."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.granted = Granted(life(), 0, (V3,) * 6, (Lease(4), Lease(5)), ())
        self.reports: list[Report] = []
        self.over_after = 10**9
        self.pulls, self.small = 0, False
        self.lost = 0  # the number of objects that are gone when they are pulled
        self.calls: list[tuple[str, object]] = []
        self.leaves: list[np.ndarray] | None = [np.ones(3), np.zeros(2)]
        self.copied: list[tuple[int, float]] = []
        self.pending = 0  # the number of waits that find no moments yet
        monkeypatch.setattr("ray.get_actor", lambda name, **_: Handle(self, name))
        monkeypatch.setattr("ray.get", self.get)
        monkeypatch.setattr("ray.wait", self.wait)
        monkeypatch.setattr("ray.ObjectRef", np.ndarray)
        monkeypatch.setattr(link, "SIGN_S", 0.0)
        monkeypatch.setattr(blocking_calls, "AGAIN_S", 0.0)
        holder = {p: f"shard-{p % 2}" for p in MODEL}
        self.link = RayLink("run", Cable(), Seat("a-0"), holder, relievable=False, get=self.pulled)
        self.link._fetching._now_s = lambda: float(self.pulls * 3600)
        self.late = 0  # the number of answers before everything is put
        self.asked: list[dict[Fragment, tuple[int, int]]] = []

    def get(self, value: Any, timeout: float | None = None) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    def wait(self, calls: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        self.pending -= 1
        return ([], calls) if self.pending >= 0 else (calls, [])

    def pulled(self, reference: Any) -> Any:
        self.pulls += 1
        if self.lost:
            self.lost -= 1
            raise OwnerDiedError("", None, "")
        return reference

    def answer(self, who: str, method: str, *arguments: Any) -> Any:
        self.calls.append((method, arguments[0] if arguments else None))
        match method:
            case "join":
                return self.granted, {}
            case "report":
                return self.reported(arguments[0])
            case "probe":
                parts = [] if self.small else [np.zeros(1, np.uint8)]
                return Probe(arguments[0], parts, 1000)  # type: ignore[arg-type]
            case "shared":
                assert all(f"shard-{p % 2}" == who for p in arguments[0])
                return [self.shared(p, arguments[2].get(p)) for p in arguments[0]]
            case "renew":
                assert all(f"shard-{p % 2}" == who for p in arguments[0])
                return None
            case "missed":
                p, own = arguments[0], arguments[4]
                if own is None:
                    cuts = [*np.array_split(np.ones(2, np.float32), 2)]
                    return [Encoded(8, cuts, None)]  # type: ignore[arg-type]
                return self.shared(p, own)
            case "mean_moments":
                owns: Any = [arguments[2].get(p, (0, SIZE)) for p in arguments[0]]
                asked: Any = zip(arguments[0], owns, strict=True)
                return [self.mean(p, own) for p, own in asked]
            case "moments":
                if self.leaves is None:
                    return None
                leaves: Any = enumerate(self.leaves)
                return [MomentPieceRef(0, number, 0, leaf.nbytes, leaf) for number, leaf in leaves]
            case "copied":
                return self.copied.pop(0) if self.copied else RayActorError()
            case _:
                raise AssertionError(method)

    def mean(self, p: Fragment, own: tuple[int, int]) -> list[Encoded]:
        """Return the mean moments of a fragment; every third fragment has none."""
        sent = encode(Wire.INT8, MODEL[p][slice(*own)])
        parts: Any = np.array_split(sent, 3)
        return [Encoded(sent.nbytes, parts, None)] if p % 3 else []

    def reported(self, report: Report) -> Answer | Void:
        self.reports.append(report)
        over = len(self.reports) > self.over_after
        return Void(life(), "given up", False) if over else Answer(0, 0, False)

    def shared(self, p: Fragment, own: tuple[int, int] | None) -> Shared | None:
        if self.late:
            self.late -= 1
            return None
        flat = MODEL[p] if own is None else MODEL[p][slice(*own)]
        parts: Any = np.array_split(flat, 1 + p % 2) if flat.size else []
        return Shared(V3, flat.nbytes, parts)

    def join(self) -> None:
        self.link.join(Join(Island("a-0"), "a", "L"))


class Handle:
    def __init__(self, run: Run, who: str) -> None:
        self._run, self._who = run, who

    def __getattr__(self, method: str) -> SimpleNamespace:
        def call(*arguments: Any) -> Any:
            return self._run.answer(self._who, method, *arguments)

        return SimpleNamespace(remote=call)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


def test_joining_learner_gets_the_model_and_reports_progress(run: Run) -> None:
    run.join()
    found = run.link.whole([*MODEL])
    assert found is not None
    for (version, flat), wanted in zip(found, MODEL.values(), strict=True):
        assert version == V3
        np.testing.assert_array_equal(flat, wanted)
    assert found[0][1].base is MODEL[Fragment(0)], "of one part: it is where it was"
    assert len(run.reports) >= 9, "of each part, and the probe"
    assert {each.life for each in run.reports} == {life()}
    assert {(each.progress.steps, each.progress.lease) for each in run.reports} == {(0, Lease(4))}
    run.link.report(run.reports[-1], Vitals(0.0), ())
    said = len(run.reports)
    missed = run.link.missed(Fragment(0), V3, Version(0, 4))
    assert isinstance(missed, list)
    (difference,) = missed
    np.testing.assert_array_equal(difference, [1, 1])  # type: ignore[arg-type]
    assert len(run.reports) == said, "it speaks for itself by now"


def test_handle_forgotten_during_its_lookup_is_returned(run: Run) -> None:
    """Another thread's call to the same actor has just failed."""

    class Forgetful(dict[str, Any]):
        def __setitem__(self, name: str, actor: Any) -> None:
            super().__setitem__(name, actor)
            directory.forget(name)

    directory = Directory("run")
    directory._known = Forgetful()
    assert isinstance(directory["shard-0"], Handle)


@pytest.mark.parametrize("said", [RayActorError(), None])
def test_unavailable_shard_is_asked_once_for_missed_differences(
    run: Run, said: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard has died, or has no model yet. The learner asks again if it needs to."""
    run.join()
    assert run.link.whole([*MODEL]) is not None
    run.calls.clear()
    answer = run.answer
    monkeypatch.setattr(
        run, "answer", lambda who, how, *more: said if how == "missed" else answer(who, how, *more)
    )
    with pytest.raises(Unreachable, match="shard-0"):
        run.link.missed(Fragment(0), V3, Version(0, 4))


def test_learner_asks_again_for_a_difference_lost_on_its_way(run: Run) -> None:
    run.join()
    assert run.link.whole([*MODEL]) is not None
    run.lost = 1
    with pytest.raises(Unreachable, match="lost on its way"):
        run.link.missed(Fragment(0), V3, Version(0, 4))
    assert run.calls[-1] == ("renew", [Fragment(0)])
    assert len(run.link.missed(Fragment(0), V3, Version(0, 4))) == 1


@pytest.mark.parametrize("late", [0, 7])
def test_host_of_several_reports_progress_for_each_part_of_its_ranges(run: Run, late: int) -> None:
    run.join()
    run.late = late
    run.link.ranges = {**OWNS, Fragment(5): slice(SIZE, SIZE)}
    found = run.link.whole([*MODEL])
    assert found is not None
    for (version, flat), (p, own) in zip(found, run.link.ranges.items(), strict=True):
        assert version == V3
        np.testing.assert_array_equal(flat, MODEL[p][own])
    assert found[0][1].base is MODEL[Fragment(0)], "a range of one part is where it was, too"
    assert len(run.reports) >= 7 + late, "of each part, the probe, and each answer without bytes"
    said = len(run.reports)
    means = run.link.mean_moments([*MODEL])
    assert means is not None
    assert means.keys() == {p for p in MODEL if p % 3}
    for p, mean in means.items():
        own = run.link.ranges[p]
        np.testing.assert_allclose(decode(mean, own.stop - own.start), MODEL[p][own])
    assert len(run.reports) >= said + 3, "of moments, too"


def test_catching_up_host_reports_and_survives_the_end_of_its_life(run: Run) -> None:
    """The host has ordered others to begin, so the life ends after it has begun on all of them."""
    run.join()
    run.link.ranges = OWNS
    run.over_after = 0
    version, flat = run.link.missed(Fragment(1), V3, V3)
    assert version == V3
    np.testing.assert_array_equal(flat, MODEL[Fragment(1)][OWNS[Fragment(1)]])  # type: ignore[arg-type]
    assert run.reports


def test_other_host_reports_progress_to_the_first_host(run: Run) -> None:
    told: list[bool] = []
    run.link.ranges, run.link.tell = OWNS, lambda: told.append(True)
    assert run.link.whole([*MODEL]) is not None
    assert len(told) >= 9
    assert not run.reports, "it has no life of its own to speak for"


def test_fetching_a_range_reports_progress_often_enough(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fetch 64 fragments at 3 s each, which takes longer than the syncer's silence limit."""
    now_s, heard_s = [0.0], [0.0]
    gaps: list[float] = []

    def pulled(reference: Any) -> Any:
        now_s[0] += 3.0
        return reference

    def reported(*_: object) -> Any:
        gaps.append(now_s[0] - heard_s[0])
        heard_s[0] = now_s[0]
        return Answer(0, 0, False)

    many = {Fragment(p): np.full(SIZE, float(p), np.float32) for p in range(64)}
    monkeypatch.setattr("tests.cluster.test_joining.MODEL", many)
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    monkeypatch.setattr(link, "SIGN_S", 2.0)
    run.granted = Granted(life(), 0, (V3,) * 64, (Lease(4), Lease(5)), ())
    holder = {p: f"shard-{p % 2}" for p in many}
    joining = RayLink("run", Cable(), Seat("a-0"), holder, relievable=False, get=pulled)
    joining.ranges = {p: slice(0, SIZE // 2) for p in many}
    monkeypatch.setattr(run, "reported", reported)
    joining.join(Join(Island("a-0"), "a", "L"))
    assert joining.whole([*many]) is not None
    assert now_s[0] > SILENCE_JOINING_S, "else this proves nothing"
    assert max(gaps) < SILENCE_JOINING_S / 4


def test_ended_life_stops_fetching_the_model(run: Run) -> None:
    run.join()
    run.over_after = 2
    assert run.link.whole([*MODEL]) is None
    assert run.pulls <= 3, "of ten"
    run.over_after = 10**9
    run.join()
    assert run.link.whole([*MODEL]) is not None


def test_fragments_lost_with_their_shard_are_requested_again(run: Run) -> None:
    run.join()
    run.lost = 3
    found = run.link.whole([*MODEL])
    assert found is not None
    np.testing.assert_array_equal(found[5][1], MODEL[Fragment(5)])
    asked = [(method, what) for method, what in run.calls if method in ("probe", "renew", "shared")]
    renewed = [number for number, (method, _) in enumerate(asked) if method == "renew"]
    assert len(renewed) == 3
    for number in renewed:
        _, fragments = asked[number]
        method, again = asked[number + 1]
        assert method == "probe" or again == fragments, "the same fragments, of other objects"


def test_donor_is_waited_for_while_it_copies(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])

    def wait(calls: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        now_s[0] += 100.0
        return ([], calls) if run.copied else (calls, [])

    monkeypatch.setattr("ray.wait", wait)
    run.join()
    run.copied = [(n, 0.1) for n in range(50)]
    given = run.link.moments(life("b"))
    assert given is not None
    assert len(given) == 2
    assert now_s[0] > 5000.0, "for as long as that takes"
    assert len(run.reports) >= 50, "and reports it"
    run.copied = [(7, 0.1)] * 3
    with pytest.raises(Unreachable, match="has copied 7 of its moments and no more"):
        run.link.moments(life("b"))
    run.copied = [(7, 10.0)] * 3  # steps of ten seconds
    assert run.link.moments(life("b")) is not None


def test_dead_or_finished_donor_is_skipped(run: Run) -> None:
    run.join()
    run.pending = 1
    with pytest.raises(Unreachable):
        run.link.moments(life("b"))
    run.leaves = None
    assert run.link.moments(life("b")) is None


Begin = Callable[..., Any]


def test_shard_shares_public_fragments_with_joining_learners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard reuses the shared objects until it recovers."""
    from cluster.actors.shard.actor import ShardActor
    from cluster.config.load import load
    from tests.cluster.played import CONFIG, LAYOUT

    monkeypatch.setattr("ray.put", np.array)
    (tmp_path / "run.toml").write_text(CONFIG)
    config = load(tmp_path / "run.toml").model_dump_json()
    shard = ShardActor(config, "nowhere", str(tmp_path))
    flats = {Fragment(p): np.full(n, p, np.float32) for p, n in enumerate(LAYOUT.sizes)}

    async def story() -> None:
        for p, flat in flats.items():
            await shard.seed(LAYOUT, p, flat)
        both = await shard.shared([*flats], 1e9)
        assert both is not None
        for p, each in zip(flats, both, strict=True):
            assert each is not None
            version, nbytes, parts = each
            assert (version, nbytes) == (Version(0, 0), flats[p].nbytes)
            np.testing.assert_array_equal(np.concatenate(parts), flats[p])  # type: ignore[arg-type]
        assert await shard.shared([*flats], 1e9) == both, "the same objects"
        await shard.recover({p: Version(0, 0) for p in flats}, 1)
        again = await shard.shared([*flats], 1e9)
        assert again is not None
        assert again[0] is not None
        assert both[0] is not None
        assert again[0].parts[0] is not both[0].parts[0]
        probe = await shard.probe(PROBE_BYTES)
        assert probe is not None
        assert probe.parts == (), "nothing here is as large"

    asyncio.run(story())
