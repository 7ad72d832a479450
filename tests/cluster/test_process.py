"""Tests of an island's process without Ray: any exception in a call ends it, reported once."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from logging.handlers import QueueHandler
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import numpy as np
import pytest
from ray.exceptions import (
    GetTimeoutError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    RayActorError,
    RayTaskError,
)

from cluster.actors.fault_injection import Cable
from cluster.actors.hosts.ray_gang import RayGang
from cluster.actors.island.actor import IslandActor
from cluster.actors.island.call_threads import THREADS
from cluster.actors.island.learner_calls import LearnerCalls
from cluster.actors.island.payload_waits import LAST_S
from cluster.actors.learner_link import RayLink
from cluster.actors.object_store.moment_pieces import MomentPieceRef
from cluster.actors.object_store.publish import Probe, Shared
from cluster.actors.object_store.pull import LATE_S
from cluster.config.load import load
from cluster.failures import Failure, Reason
from cluster.names import Seat
from cluster.workers.island_process import IslandProcess
from coordinator.errors import Malformed, Rejected, Unreachable
from coordinator.parts import Split
from coordinator.protocol import (
    ContributionId,
    Fragment,
    Incarnation,
    Island,
    Known,
    LeaseWanted,
    Life,
    Publication,
    Version,
    Void,
)
from islands.donations import Donation
from islands.inner import Share
from islands.learner import Learner

WAIT_S = 20.0
LIFE = Life(Island("local-0"), Incarnation(1))
F0 = Fragment(0)
UNKNOWN = Known((0, 1))
SAID = Publication(F0, Version(0, 1), Version(0, 0), ())
CONFIG = """
[task]
preset = "byte-tiny"
[[islands]]
count = 2
"""


@dataclass(frozen=True)
class Stored:
    """A stand-in for a reference to an object."""

    number: int = 0


STORED = Stored()
CALLS: dict[str, tuple[Reason, tuple[object, ...]]] = {
    "hand_in": (Reason.HAND_IN, (LIFE, F0, UNKNOWN)),
    "moments": (Reason.MOMENTS, (LIFE, Split())),
    "copied": (Reason.MOMENTS, (LIFE,)),
    "offer": (Reason.OFFER, (LIFE, SAID, [np.ones(3, np.float32)])),
    "refused": (Reason.WORDS, (ContributionId(LIFE, F0, 0, 4),)),
    "cease": (Reason.WORDS, (Void(LIFE, "enough"),)),
    "park": (Reason.WORDS, (LIFE,)),
    "leave": (Reason.WORDS, ()),
    "watch": (Reason.WORDS, (LIFE,)),
}
"""The calls of the shard, the syncer and the fleet, with the reason of a failure in each."""


class Ended(BaseException):
    """The end of the process."""


class Fleet:
    """A fleet that records the messages of a process. The test brings its own learner."""

    def __init__(self) -> None:
        self.words: list[tuple[Failure | None, str]] = []
        self.heard = threading.Event()
        self.hear = threading.Event()
        self.hear.set()

    def starting(self) -> float:
        raise Rejected("not today")

    def role(self, *, warm: bool) -> Island | None:
        return None

    def broke(self, failure: Failure | None, words: str) -> None:
        self.words.append((failure, words))
        self.heard.set()
        assert self.hear.wait(WAIT_S)


def raising(error: BaseException) -> Any:
    """Return a stand-in for a learner whose calls all raise this error."""

    def raises(*_: object) -> NoReturn:
        raise error

    calls = {
        "outlive": raises, "had": lambda life: life == LIFE, "needs_payload": lambda *_: True,
    }  # fmt: skip
    return cast("Learner", SimpleNamespace(**dict.fromkeys(CALLS, raises) | calls))


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def island(
    tmp_path: Path, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Any], IslandActor]:
    def ends(code: int) -> NoReturn:
        raise Ended(code)

    monkeypatch.setattr("cluster.workers.island_process.os._exit", ends)
    monkeypatch.setattr("cluster.workers.island_process.logging.shutdown", lambda: None)
    (tmp_path / "config.toml").write_text(CONFIG)
    config = load(tmp_path / "config.toml")

    def made(learner: Any) -> IslandActor:
        actor = IslandActor.__new__(IslandActor)
        actor._cable, actor._calls = Cable(), LearnerCalls(lambda: actor._learner)
        link = cast("Any", lambda: None)
        actor.process = IslandProcess(config, config.islands[0], lambda: fleet, link)
        actor.process.learner = learner
        return actor

    return made


@pytest.mark.parametrize("call", CALLS)
def test_exception_in_a_call_ends_the_process_with_its_traceback(
    island: Callable[[Any], IslandActor], fleet: Fleet, call: str
) -> None:
    reason, arguments = CALLS[call]
    actor = island(raising(RuntimeError("INTERNAL: ECC\nand a page of details")))
    with pytest.raises(Ended):
        getattr(actor, call)(*arguments)
    ((failure, words),) = fleet.words
    assert failure is not None
    said, _, place = failure.why.partition(" (cluster/test_process.py:")
    assert (failure.reason, failure.ends, said) == (
        reason, True, f"RuntimeError in {reason}: INTERNAL: ECC"
    )  # fmt: skip
    assert place.rstrip(")").isdigit(), "where it was raised"
    assert "in raises" in words
    assert "RuntimeError: INTERNAL: ECC\nand a page of details" in words


@pytest.mark.parametrize("error", [StopIteration("x"), KeyboardInterrupt(), SystemExit(3)])
def test_exception_that_ray_cannot_transport_ends_the_process(
    island: Callable[[Any], IslandActor], fleet: Fleet, error: BaseException
) -> None:
    """A coroutine that gets a `StopIteration` raises something that is no `RayError`."""
    with pytest.raises(Ended):
        island(raising(error)).hand_in(LIFE, F0, UNKNOWN)
    assert len(fleet.words) == 1


def test_exception_without_a_string_ends_the_process(
    island: Callable[[Any], IslandActor],
) -> None:
    class Unshowable(Exception):
        def __str__(self) -> str:
            raise ValueError

    with pytest.raises(Ended):
        island(raising(Unshowable())).hand_in(LIFE, F0, UNKNOWN)


def test_failure_under_concurrent_calls_is_reported_once(
    island: Callable[[Any], IslandActor], fleet: Fleet
) -> None:
    """Three reports would count as three exceptions in a row, and set the island aside."""
    actor = island(raising(RuntimeError("INTERNAL")))
    fleet.hear.clear()
    waiting = [threading.Thread(target=actor.moments, args=(LIFE,), daemon=True) for _ in range(3)]
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(actor.hand_in, LIFE, F0, UNKNOWN)
        assert fleet.heard.wait(WAIT_S)
        for thread in waiting:
            thread.start()
        fleet.hear.set()
        with pytest.raises(Ended):
            first.result(WAIT_S)
    assert len(fleet.words) == 1
    assert all(thread.is_alive() for thread in waiting), "they wait for the end"


def test_donor_survives_an_object_store_without_room(
    island: Callable[[Any], IslandActor], fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All callers get `None`, however many ask at once, and look for another donor."""
    asked = threading.Event()

    def moments(life: Life) -> Donation:
        assert asked.wait(WAIT_S)
        return Donation(1, [np.ones(3, np.float32)], Future())

    def put(array: object) -> NoReturn:
        raise ObjectStoreFullError

    monkeypatch.setattr("ray.put", put)
    actor = island(SimpleNamespace(moments=moments, shares=[Share(0, 3, 3, everywhere=False)]))
    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(actor.moments, LIFE, Split()) for _ in range(3)]
        asked.set()
        assert [each.result(WAIT_S) for each in asking] == [None, None, None]
    assert not fleet.words


def test_joining_learners_do_not_block_hand_ins_or_offers(
    island: Callable[[Any], IslandActor],
) -> None:
    """Each kind of call has threads of its own in Ray, however many learners ask at once."""
    given, joiners = threading.Event(), 2 * sum(THREADS.values())

    def moments(life: Life) -> None:
        assert given.wait(WAIT_S)

    learner = SimpleNamespace(
        moments=moments,
        hand_in=lambda *_: None,
        offer=lambda *_: None,
        needs_payload=lambda *_: True,
        copied=lambda _: (0, 1.0),
    )
    actor = island(learner)
    pools = {group: ThreadPoolExecutor(count) for group, count in THREADS.items()}

    def call(name: str) -> Future[Any]:
        innermost: Any = inspect.unwrap(getattr(IslandActor, name))
        group: str = innermost.__ray_concurrency_group__
        return pools[group].submit(getattr(actor, name), *CALLS[name][1])

    asking = [call("moments") for _ in range(joiners)]
    for name in ("hand_in", "offer", "copied"):
        call(name).result(WAIT_S)
    assert not any(each.done() for each in asking)
    given.set()
    assert [each.result(WAIT_S) for each in asking] == [None] * joiners
    for pool in pools.values():
        pool.shutdown()


def test_each_error_of_a_process_is_logged_and_only_the_first_is_reported(
    island: Callable[[Any], IslandActor], fleet: Fleet
) -> None:
    """Two threads can break at the same moment, and the text of neither may be lost."""
    actor: Any = island(raising(RuntimeError()))
    with pytest.raises(Ended):
        actor.process.break_down(Reason.TRAIN, RuntimeError("the first one"))
    logged: Queue[logging.LogRecord] = Queue()
    handler = QueueHandler(logged)
    logger = logging.getLogger("archipelago.island")
    logger.addHandler(handler)
    try:
        error = RuntimeError("the second one")
        late = threading.Thread(
            target=actor.process.break_down, args=(Reason.TRAIN, error), daemon=True
        )
        late.start()
        assert "the second one" in logged.get(timeout=WAIT_S).getMessage()
    finally:
        logger.removeHandler(handler)
    assert late.is_alive(), "the process is ended by the first one"
    assert len(fleet.words) == 1


def test_break_down_ends_the_process_only_for_its_own_life(
    island: Callable[[Any], IslandActor], fleet: Fleet
) -> None:
    actor: Any = island(raising(RuntimeError()))
    actor.break_down(Life(LIFE.island, Incarnation(2)), "another process's")
    assert not fleet.words
    with pytest.raises(Ended):
        actor.break_down(LIFE, "7 (int) instead of facts and a payload")
    ((failure, words),) = fleet.words
    assert failure is None, "it was notified"
    assert words.strip().endswith("Malformed: 7 (int) instead of facts and a payload")


def test_ray_finds_the_thread_group_of_each_call() -> None:
    """Ray reads the group from the innermost function. Otherwise all calls wait in one line."""
    for call in CALLS:
        innermost = inspect.unwrap(getattr(IslandActor, call))
        assert innermost.__ray_concurrency_group__ in THREADS  # type: ignore[attr-defined]


# --- a version that cannot be fetched -------------------------------------------------------------


class Offered:
    def __init__(self, *, behind: bool = False) -> None:
        self.payloads: list[object] = []
        self.behind = behind

    def needs_payload(self, life: Life, p: Fragment) -> bool:
        assert life == LIFE
        return not self.behind

    def offer(self, life: Life, said: Publication, payload: object) -> None:
        self.payloads.append(payload)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ObjectLostError("00", None, ""), None),
        (GetTimeoutError("not yet"), None),
        (OutOfDiskError("full"), "OutOfDiskError in offer: the object store had no room"),
        (
            ObjectStoreFullError("full"),
            "ObjectStoreFullError in offer: the object store had no room",
        ),
    ],
)
def test_unfetchable_payload_is_left_to_be_requested_from_the_shard(
    island: Callable[[Any], IslandActor],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    told: str | None,
) -> None:
    def get(_: object, timeout: float) -> NoReturn:
        assert timeout > 0
        raise error

    fetching_by(monkeypatch, get)
    offered = Offered()
    failure = island(offered).offer(LIFE, SAID, cast("Any", [Stored()]))
    assert offered.payloads == [None]
    assert failure == (None if told is None else Failure(Reason.STORE, told, ends=False))
    behind = Offered(behind=True)
    failure = island(behind).offer(LIFE, SAID, cast("Any", [Stored()]))
    assert failure is None, "it catches up, so that the payload is among those that it missed"
    assert behind.payloads == [None]


def test_one_thread_of_offers_is_free_within_a_second(
    island: Callable[[Any], IslandActor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a payload does not arrive, offers of the same fragment and of others come in."""
    offered, waits_s, threads = Offered(), list[float](), THREADS["offering"]
    actor = island(offered)

    def get(_: object, timeout: float) -> NoReturn:
        waits_s.append(timeout)
        actor.offer(LIFE, SAID, cast("Any", [Stored()]))  # waits for nothing
        if len(waits_s) < threads:
            other = Fragment(SAID.fragment + len(waits_s))
            said = Publication(other, SAID.version, SAID.previous, ())
            actor.offer(LIFE, said, cast("Any", [Stored()]))
        raise GetTimeoutError("not yet")

    fetching_by(monkeypatch, get)
    actor.offer(LIFE, SAID, cast("Any", [Stored()]))
    assert len(waits_s) == threads
    assert min(waits_s[:-1]) >= LATE_S
    assert waits_s[-1] == LAST_S
    assert offered.payloads == [None] * 2 * threads
    waits_s[:] = [LATE_S] * (threads - 1)
    actor.offer(LIFE, SAID, cast("Any", [Stored()]))
    assert waits_s[-1] > LATE_S, "all the waits before have ended"


def test_version_without_room_is_offered_without_a_payload(
    island: Callable[[Any], IslandActor],
) -> None:
    offered = Offered()
    assert island(offered).offer(LIFE, SAID, []) is None
    assert offered.payloads == [None]


# --- calls to other processes ---------------------------------------------------------------------


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> RayLink:
    class Anyone:
        def __getattr__(self, method: str) -> SimpleNamespace:
            return SimpleNamespace(remote=lambda *_: method)

    monkeypatch.setattr("ray.get_actor", lambda *_, **__: Anyone())
    monkeypatch.setattr("ray.wait", lambda calls, **_: (calls, []))
    return RayLink("nowhere", Cable(), Seat("local-1"), {F0: "shard-0"}, relievable=False)


def answer(monkeypatch: pytest.MonkeyPatch, given: object) -> None:
    """Let each call return `given`, in which a `Stored` counts as a reference."""
    fetching_by(monkeypatch, lambda *_, **__: given)


def fetching_by(monkeypatch: pytest.MonkeyPatch, get: Callable[..., object]) -> None:
    """Fetch references, which are each a `Stored`, by this function."""
    monkeypatch.setattr("ray.get", get)
    monkeypatch.setattr("ray.ObjectRef", Stored)


def remotely(cause: BaseException) -> RayTaskError:
    told = RayTaskError("it", "Traceback: over there", cause, "ray::it", 1, "192.0.2.1")
    return told.as_instanceof_cause()


@pytest.mark.parametrize(
    "error",
    [remotely(RuntimeError("out of memory")), RayActorError(), GetTimeoutError(), OutOfDiskError()],
)
def test_exception_of_a_donor_makes_it_unreachable(
    link: RayLink, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def get(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr("ray.get", get)
    with pytest.raises(Unreachable):
        link.moments(LIFE)


@pytest.mark.parametrize(
    "given",
    [
        7,
        (np.ones(3),),
        [np.ones(3), None],
        [MomentPieceRef(0, 0, 0, 12, cast("Any", "here"))],
        [MomentPieceRef(0, -1, 0, 12, cast("Any", STORED))],
        [MomentPieceRef(0, 2**40, 0, 12, cast("Any", STORED))],
        [MomentPieceRef(0, 0, cast("Any", 0.5), 12, cast("Any", STORED))],
    ],
)
def test_malformed_answer_of_a_donor_is_refused(
    link: RayLink, monkeypatch: pytest.MonkeyPatch, given: object
) -> None:
    answer(monkeypatch, given)
    with pytest.raises(Malformed):
        link.moments(LIFE)


@pytest.mark.parametrize("pulled", [7, np.array([None]), np.ones((2, 2), np.float32)])
def test_malformed_pieces_of_a_donor_are_refused(
    link: RayLink, monkeypatch: pytest.MonkeyPatch, pulled: object
) -> None:
    given = [MomentPieceRef(0, 0, 0, 12, cast("Any", STORED))]
    answer(monkeypatch, given)
    link._fetching._get = lambda _: pulled
    with pytest.raises(Malformed):
        link.moments(LIFE)


def test_moment_pieces_are_joined(link: RayLink, monkeypatch: pytest.MonkeyPatch) -> None:
    """The donor sends pieces for two hosts, and the first host joins its own."""
    arrays = [np.array([7], np.int32), np.full(3, 2, np.float32), np.full(2, 1, np.float32)]
    places = [(1, 0), (0, 3), (0, 0)]  # leaf, and where it begins
    given = [MomentPieceRef(0, *at, 12, cast("Any", Stored(n))) for n, at in enumerate(places)]
    others = [each._replace(host=1) for each in given]
    answer(monkeypatch, [*others, *given])
    link._fetching._get = lambda reference: arrays[cast("Any", reference).number]
    found = [each.tolist() for each in link.moments(LIFE) or []]
    assert found == [[1.0, 1.0, 2.0, 2.0, 2.0], [7]]
    answer(monkeypatch, None)
    assert link.moments(LIFE) is None


def test_donor_shows_progress_while_it_puts_what_it_has_copied(
    island: Callable[[Any], IslandActor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a joining learner would skip a donor of large moments once all are copied."""
    counts: list[int] = []

    def put(_: object) -> object:
        counts.append(actor.copied(LIFE)[0])
        return object()

    monkeypatch.setattr("ray.put", put)
    leaves = [np.ones(3, np.float32)] * 5
    shares = [SimpleNamespace(start=0, size=3, everywhere=False)] * 5
    donation = SimpleNamespace(leaves=leaves, number=1)
    calls: dict[str, Any] = {"moments": lambda _: donation, "copied": lambda _: (5, 0.1)}
    actor = island(SimpleNamespace(**calls, shares=shares))
    assert len(actor.moments(LIFE, Split()) or []) == 5
    assert counts == sorted(set(counts)), "more with each leaf"
    assert counts[0] > 5


@pytest.mark.parametrize("error", [GetTimeoutError(), RayActorError()])
def test_host_without_moments_in_time_does_not_end_its_island(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def get(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr("ray.get", get)
    gang = RayGang.__new__(RayGang)
    host = SimpleNamespace(moments=SimpleNamespace(remote=lambda *_: "asked"))
    gang._hosts = cast("Any", SimpleNamespace(actors=[host]))
    assert gang.moments(LIFE, Split(), 1)() is None


@pytest.mark.parametrize("why", [None, "moments of another model or optimizer"])
def test_all_hosts_of_a_joining_island_have_moments_or_none_has(
    link: RayLink, monkeypatch: pytest.MonkeyPatch, why: str | None
) -> None:
    given = [MomentPieceRef(host, 0, 0, 12, cast("Any", STORED)) for host in (0, 1)]
    answers: list[Any] = [given, [why]]
    monkeypatch.setattr("ray.get", lambda *_, **__: answers.pop(0))
    monkeypatch.setattr("ray.ObjectRef", Stored)
    link._fetching._get = lambda _: np.ones(3, np.float32)
    shared: list[tuple[list[MomentPieceRef], int]] = []

    def share(pieces: Any, leaves: int) -> Any:
        shared.append((pieces, leaves))
        return ["asked"]

    link.donors.share = share
    if why is None:
        assert [each.tolist() for each in link.moments(LIFE) or []] == [[1.0, 1.0, 1.0]]
    else:
        with pytest.raises(Unreachable, match=why):
            link.moments(LIFE)
    assert shared == [(given, 1)]


def test_fetching_the_model_waits_for_a_full_object_store(
    link: RayLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = iter([remotely(OutOfDiskError("full")), ObjectStoreFullError("full")])
    flat = np.ones(3, np.float32)

    def get(asked: object, **__: object) -> object:
        if asked == "shared" and (error := next(full, None)) is not None:
            raise error
        there: dict[object, object] = {
            "probe": Probe(12, (), 12),
            "shared": [Shared(Version(0, 1), 12, [cast("Any", flat)])],
        }
        return there[asked]

    monkeypatch.setattr("ray.get", get)
    monkeypatch.setattr("cluster.actors.blocking_calls.AGAIN_S", 0.001)
    link._fetching._get = lambda where: where
    assert link.whole([F0]) == [(Version(0, 1), flat)]
    assert next(full, None) is None


def test_refusal_of_the_syncer_is_not_retried(
    link: RayLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(*_: object, **__: object) -> NoReturn:
        raise remotely(Malformed("progress.tokens is 0.5 (float), not a count"))

    monkeypatch.setattr("ray.get", get)
    with pytest.raises(Malformed):
        link.lease(LeaseWanted(LIFE))


def test_last_words_reach_the_fleet_even_if_the_syncer_is_away(
    link: RayLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[object] = [RayActorError(), None]

    def get(*_: object, **__: object) -> object:
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    monkeypatch.setattr("ray.get", get)
    link.broke(Failure(Reason.TRAIN, "RuntimeError in train"), "Traceback ...")
    assert not answers
