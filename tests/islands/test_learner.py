"""One learner against a scripted coordinator: hand-ins, adoptions, and the ends of lives."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coordinator.codec import Payload, Sent, Wire, decode, encode, split
from coordinator.errors import ArchipelagoError, Malformed, Rejected, Unreachable
from coordinator.fragments import Flat, sew, take
from coordinator.protocol import (
    Adopted,
    Answer,
    ContributionId,
    Fragment,
    Granted,
    HandIn,
    Incarnation,
    Island,
    Join,
    Known,
    Lease,
    LeaseGranted,
    LeaseWanted,
    Left,
    Life,
    MomentsTaken,
    Publication,
    Refused,
    Report,
    Version,
    Vitals,
    Void,
)
from coordinator.schedule import Schedule
from islands import message_thread as talker
from islands.adopt import AdoptRule, FragmentPort, layout_of
from islands.corpus import Starved
from islands.encoder import Where
from islands.exchange import Public
from islands.inner import NO_DRAW, Inner, InnerState, StepMeasures
from islands.learner import Learner
from islands.learner_life import LearnerState
from islands.life_start import donors_in_turn
from islands.link import Link
from islands.task import Batch, Params, Task
from tests.given import habits as a_habits
from tests.given import optimizer_spec

T = TypeVar("T")

WAIT_S = 20.0
"""A limit for what takes milliseconds."""
ISLAND = Island("a")
EVERY, FRAGMENTS = 4, 2
F0, F1 = Fragment(0), Fragment(1)
LEASE_BATCHES = 1000
BLEND = 0.25
SPEC = optimizer_spec(learning_rate=0.1, warmup_steps=1, horizon_steps=1000)

# --- the task: small, and each step counts another number of tokens ----------------------------


class Numbers:
    """A stream whose n-th batch holds the number n, over all leases."""

    batch_size = 1

    def __init__(self) -> None:
        self._leases: list[Lease] = []
        self._read = 0

    def add(self, lease: Lease) -> None:
        self._leases.append(lease)

    def next(self) -> Batch:
        if self.remaining == 0:
            raise Starved("no lease")
        while self._leases[0].start == LEASE_BATCHES:
            self._leases.pop(0)
        self._leases[0] = Lease(self._leases[0].number, self._leases[0].start + 1)
        self._read += 1
        return batch(self._read - 1)

    @property
    def cursor(self) -> Lease:
        return self._leases[0]

    @property
    def remaining(self) -> int:
        return sum(LEASE_BATCHES - lease.start for lease in self._leases)


def batch(number: int) -> Batch:
    return np.asarray([[number]], np.float32)


def tokens(batch: Batch) -> int:
    return 10 + int(batch[0, 0]) % 3


def trained(steps: range) -> int:
    """Return the tokens of these steps of a life."""
    return sum(tokens(batch(step)) for step in steps)


def init(seed: int) -> Params:
    rng = np.random.default_rng(seed)
    shapes = {"blocks": (2, 3, 2), "embedding": (4, 2), "rest": (3,)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def loss(params: Params, batch: Batch) -> jax.Array:
    wanted = jnp.sin(batch[0, 0])
    return sum((jnp.mean((x - wanted) ** 2) for x in jax.tree.leaves(params)), jnp.zeros(()))


TASK = Task(
    name="numbers",
    vocabulary=2,
    init=init,
    loss=loss,
    tokens=tokens,
    stream=lambda batch_size: Numbers(),
    heldout=lambda batch_size: [batch(0)],
    stacked=lambda path: path == "blocks",
    embedding=lambda path: path == "embedding",
)
LAYOUT = layout_of(TASK, FRAGMENTS)


@pytest.fixture(scope="module")
def inner() -> Inner:
    return Inner(TASK, SPEC)


@pytest.fixture(scope="module")
def ports() -> dict[AdoptRule, FragmentPort]:
    return {rule: FragmentPort(LAYOUT, rule, BLEND) for rule in AdoptRule}


def flats_of(params: Params) -> list[np.ndarray]:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
    return [take(LAYOUT, Fragment(p), leaves) for p in range(FRAGMENTS)]


def params_of(flats: Sequence[np.ndarray]) -> Params:
    return jax.tree.unflatten(jax.tree.structure(init(0)), sew(LAYOUT, flats))


def steps_of(inner: Inner, state: InnerState, clocks: range, first_batch: int = 0) -> InnerState:
    """Return the state after these steps of a learner that receives no messages."""
    for number, clock in enumerate(clocks, first_batch):
        state, _ = inner.step(state, batch(number), clock)
    return state


class Held(Numbers):
    """A stream that holds the training thread before its first step, and can then raise."""

    def __init__(self, breaks: Exception | None = None) -> None:
        super().__init__()
        self._breaks = breaks
        self._reached, self._go = threading.Event(), threading.Event()

    def next(self) -> Batch:
        read = super().next()
        self._reached.set()
        assert self._go.wait(WAIT_S)
        if self._breaks is not None:
            raise self._breaks
        return read

    def reached(self) -> None:
        assert self._reached.wait(WAIT_S)

    def go(self) -> None:
        self._go.set()


# --- the scripted coordinator ---------------------------------------------------------------------


class Script(Link):
    """A coordinator that answers as scripted and records messages; only `step` grants data."""

    def __init__(self) -> None:
        self.public: list[Public] = [(Version(0, 0), flat) for flat in flats_of(init(0))]
        self.offset = 0
        self.refusal: str | None = None
        self.waits_s: list[float] = []  # seconds to wait, for one refusal after another
        self.refused = 0
        self.answer: Callable[[Report], Answer | Void] | None = None
        self.donations: dict[Island, list[np.ndarray] | ArchipelagoError | None] = {}
        self.asked: list[Life] = []
        self.over_early = 0  # lives that end before they have the model
        self.joins: list[Life] = []
        self.first_lease = Lease(0, LEASE_BATCHES)
        self.deaf = threading.Event()
        self.reports: list[tuple[Report, Vitals]] = []
        self.adoptions: list[Adopted] = []
        self._wanting = threading.Semaphore(0)
        self._data: queue.Queue[Lease | None] = queue.Queue()
        self._number = 0

    # for the test

    def step(self, steps: int) -> None:
        """Let the learner train this far, and wait until it has no data left.

        By then it has sent everything that it had to send before.
        """
        self.allow(steps)
        self.all_read()

    def allow(self, steps: int) -> None:
        self._number += 1
        self._data.put(Lease(self._number, LEASE_BATCHES - steps))

    def all_read(self) -> None:
        assert self._wanting.acquire(timeout=WAIT_S), "the learner does not want data"

    def nothing_more(self) -> None:
        self._data.put(None)

    @property
    def life(self) -> Life:
        return self.joins[-1]

    # for the learner

    def join(self, event: Join) -> Granted | Refused:
        if self.refusal is not None:
            return Refused(event.island, self.refusal)
        if self.waits_s:
            self.refused += 1
            return Refused(event.island, "quarantined again", self.waits_s.pop(0))
        self.joins.append(Life(event.island, Incarnation(len(self.joins) + 1)))
        versions = tuple(version for version, _ in self.public)
        donors = tuple(Life(island, Incarnation(99)) for island in self.donations)
        return Granted(self.life, self.offset, versions, (self.first_lease,), donors)

    def report(self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]) -> Answer | Void:
        self._hear()
        self.adoptions.extend(adopted)
        answer = Answer(event.progress.steps + self.offset, self.offset, stopping=False)
        if self.answer is not None:
            answer = self.answer(event)
        self.reports.append((event, vitals))
        return answer

    def _hear(self) -> None:
        if self.deaf.is_set():
            raise Unreachable("the coordinator is out of reach")

    def lease(self, event: LeaseWanted) -> LeaseGranted | Void:
        self._wanting.release()
        if (lease := self._data.get()) is None:
            raise Unreachable("the test is over")
        return LeaseGranted(event.life, lease)

    def left(self, event: Left) -> None:
        raise AssertionError("the shell reports it, not the learner")

    def mean_moments(self, fragments: Sequence[Fragment]) -> dict[Fragment, Payload]:
        return {}

    def whole(self, fragments: Sequence[Fragment]) -> list[Public] | None:
        if self.over_early:
            self.over_early -= 1
            return None
        return [self.public[p] for p in fragments]

    def missed(self, p: Fragment, older: Version, newer: Version) -> Public:
        return self.public[p]

    def moments(self, donor: Life) -> list[np.ndarray] | None:
        self.asked.append(donor)
        given = self.donations[donor.island]
        if isinstance(given, ArchipelagoError):
            raise given
        return given


def life_of(alive: Alive) -> LearnerState:
    """Return the state of the present life."""
    now = alive.learner.now
    assert now is not None
    return now


class Alive:
    """A learner on its thread, and its coordinator."""

    def __init__(self, learner: Learner, script: Script) -> None:
        self.learner, self.script = learner, script
        self._callers = ThreadPoolExecutor(8)
        self._training = self._callers.submit(learner.run)

    def call(self, does: Callable[..., T], *arguments: object) -> Future[T]:
        """Call on another thread, as other processes do."""
        return self._callers.submit(does, *arguments)

    def hand_in(self, p: Fragment) -> tuple[HandIn, Sent]:
        handed = self.asked(p).result(WAIT_S)
        assert handed is not None
        return handed

    def asked(self, p: Fragment, life: Life | None = None) -> Future[tuple[HandIn, Sent] | None]:
        return self.call(self.learner.hand_in, life or self.script.life, p, Known((0, 0)))

    def pending(self, p: Fragment) -> Future[tuple[HandIn, Sent] | None]:
        """Ask for a hand-in that is not there yet; return when the learner has the request."""
        answer = self.asked(p)
        until(lambda: p in life_of(self).asks)
        return answer

    def publish(
        self, p: Fragment, flat: np.ndarray, merged: Sequence[ContributionId] = ()
    ) -> Version:
        """Make this the public fragment, and offer the difference."""
        (previous, before), life = self.script.public[p], self.script.life
        version = Version(0, previous.number + 1)
        self.script.public[p] = version, before + (flat - before)
        publication = Publication(p, version, previous, tuple(merged))
        self.learner.offer(life, publication, flat - before)
        return version

    def adopted(self, p: Fragment, version: Version) -> None:
        """Return when the training thread has this version in its parameters."""

        def there() -> bool:
            base = life_of(self).tracks[p].base
            return base == version and not self.learner._mail.is_adopting(p, version)

        until(there)

    def ends(self) -> None:
        """Wait for the training thread, and raise what it raised."""
        self.script.nothing_more()
        self._training.result(WAIT_S)

    def close(self) -> None:
        self.learner.leave()
        self.script.nothing_more()
        self._callers.shutdown()


def until(happened: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < deadline_s, "it does not happen"
        time.sleep(0.001)


Begin = Callable[..., Alive]
"""A function that starts a learner; its keyword arguments are those of the fixture's function."""


@pytest.fixture
def begin(
    inner: Inner, ports: dict[AdoptRule, FragmentPort], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Begin]:
    """Yield a function that starts a learner, which stands at step 0 without data."""
    monkeypatch.setattr(talker, "HEARTBEAT_S", 0.05)
    started: list[Alive] = []

    def begin(
        *,
        adopt: AdoptRule = AdoptRule.OVERWRITE,
        overlap: int = 2,
        speed: float = 1.0,
        step_s: float = 0.0,
        encode: Where = "host",
        script: Script | None = None,
        stream: Numbers | None = None,
        inner: Inner = inner,
        port: FragmentPort | None = None,
        now_s: Callable[[], float] = time.perf_counter,
        wire: Wire = Wire.F32,
        task: Task = TASK,
        wait: bool = True,
    ) -> Alive:
        script = script or Script()
        schedule = Schedule(EVERY, FRAGMENTS)
        habits = a_habits(ISLAND, "g", wire, schedule, overlap, 1, speed, step_s, encode=encode)
        learner = Learner(
            task,
            LAYOUT,
            inner,
            port or ports[adopt],
            None,
            lambda: stream or Numbers(),
            script,
            habits,
            now_s=now_s,
        )
        joins = wait and script.refusal is None and not script.waits_s
        started.append(Alive(learner, script))
        if joins:
            script.all_read()
        return started[-1]

    yield begin
    for alive in started:
        alive.close()


def span(handed: tuple[HandIn, Sent]) -> tuple[int, int]:
    said, _ = handed
    return said.id.from_step, said.id.to_step


# --- training and handing in ----------------------------------------------------------------------


def test_reports_its_progress(begin: Begin) -> None:
    alive = begin()
    alive.script.step(3)
    alive.script.step(4)
    report, vitals = alive.script.reports[-1]
    assert report.life == alive.script.life
    assert report.progress.steps == 7
    assert report.progress.tokens == trained(range(7))
    assert report.progress.lease == Lease(2, LEASE_BATCHES)
    assert report.step_s > 0
    assert vitals.loss > 0
    assert vitals.computing_s > 0
    assert vitals.data_s > 0, "it has waited for leases"


def test_delays_reports_of_steps_at_which_nothing_is_due(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner sends the first step at once, and reports also when it asks for data."""
    alive = begin()
    monkeypatch.setattr(talker, "HEARTBEAT_S", WAIT_S)
    before = len(alive.script.reports)
    alive.script.step(LEASE_BATCHES)
    told = alive.script.reports[before:]
    due = len(range(EVERY // FRAGMENTS, LEASE_BATCHES + 1, EVERY // FRAGMENTS))
    assert len(told) <= 1 + due + 2
    assert told[-1][0].progress.steps == LEASE_BATCHES


def test_vitals_account_for_all_time(begin: Begin) -> None:
    began_s = time.perf_counter()
    alive = begin()
    alive.script.step(5)
    alive.hand_in(F0)
    alive.script.step(5)
    steps, vitals = alive.learner.vitals
    spent_s = vitals.computing_s + vitals.talking_s + vitals.data_s + vitals.idle_s
    assert steps == 10
    assert vitals.talking_s > 0
    assert vitals.idle_s == 0
    assert 0 < spent_s < time.perf_counter() - began_s


@jax.jit
def after_long(leaf: jax.Array) -> jax.Array:
    """Return the same value after asynchronous work, which a CPU backend dispatches as well."""
    matrix = jnp.full((500, 500), leaf.reshape(-1)[0])
    for _ in range(12):
        matrix = jnp.tanh(matrix @ matrix)
    return leaf + 0 * matrix[0, 0]


@pytest.mark.parametrize("served", ["hand-in", "adoption"])
def test_device_work_for_the_syncer_does_not_count_as_computing(
    begin: Begin, inner: Inner, monkeypatch: pytest.MonkeyPatch, served: str
) -> None:
    """A step that follows no running one begins when that work is done."""
    alive = begin()
    alive.script.step(3)
    learner, made, done = alive.learner, list[Any](), list[bool]()
    jax.block_until_ready(jax.tree.map(after_long, learner._trainer._replica.state))  # compile

    def slowly(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            result = jax.tree.map(after_long, real(*arguments))
            made.extend(jax.tree.leaves(result))
            return result

        return call

    def step(*arguments: Any) -> Any:
        done.extend(array.is_ready() for array in made)
        made.clear()  # a step donates its arguments
        return real_step(*arguments)

    real_step = inner.step
    monkeypatch.setattr(inner, "step", step)
    port = learner._trainer._replica._port
    for name in ("take", "put"):
        monkeypatch.setattr(port, name, slowly(getattr(port, name)))
    if served == "hand-in":
        alive.asked(F0)
        until(lambda: bool(learner._trainer._copying))
    else:
        alive.adopted(F0, alive.publish(F0, flats_of(init(1))[F0]))
    alive.script.step(1)
    assert done
    assert all(done)


class SlowPort(FragmentPort):
    """A port whose hand-ins take the devices much longer than it takes to dispatch a step."""

    def __init__(self) -> None:
        super().__init__(LAYOUT, AdoptRule.OVERWRITE)
        self.taken: list[jax.Array] = []

    def take(self, params: Params, p: Fragment) -> jax.Array:
        self.taken.append(slowly_copied(super().take(params, p)))
        return self.taken[-1]


def slowly_copied(flat: jax.Array) -> jax.Array:
    for _ in range(20):
        flat = after_long(flat)
    return flat


class WatchedSteps(Inner):
    """A step that calls `seen` with its number, from 1, when it is dispatched."""

    seen: Callable[[int], None] = staticmethod(lambda number: None)
    dispatched = 0

    def step(self, state: InnerState, *arguments: Any, **named: Any) -> Any:
        self.dispatched += 1
        self.seen(self.dispatched)
        return super().step(state, *arguments, **named)


def test_step_is_dispatched_behind_a_hand_in_that_counts_as_copying(begin: Begin) -> None:
    """To wait for the hand-in first would leave the devices idle before each step."""
    port, inner, ready = SlowPort(), WatchedSteps(TASK, SPEC), list[bool]()
    alive = begin(port=port, inner=inner)
    alive.script.step(3)
    alive.hand_in(F0)  # compiles
    began_s = time.perf_counter()
    jax.block_until_ready(slowly_copied(port.taken[-1]))
    long_s = time.perf_counter() - began_s

    def seen(number: int) -> None:
        if number == 5:
            alive.pending(F0)  # served at the end of this step
        if number == 6:
            taken: Any = port.taken[-1]
            ready.append(taken.is_ready())

    inner.seen = seen
    _, before = alive.learner.vitals
    alive.script.step(4)
    _, after = alive.learner.vitals
    assert ready == [False], "the step waited for the hand-in"
    copied_s = after.talking_s - before.talking_s
    assert copied_s > long_s / 4, "a part of it may be done while the step before is read"


def test_steps_at_the_granted_clock(begin: Begin, inner: Inner) -> None:
    """The learning rate follows the clock."""
    script = Script()
    script.offset = 500
    alive = begin(script=script)
    alive.script.step(3)
    wanted = steps_of(inner, inner.start(init(0)), range(500, 503))
    handed = [payload for _, payload in (alive.hand_in(F0), alive.hand_in(F1))]
    for delta, after, before in zip(
        handed, flats_of(wanted.params), flats_of(init(0)), strict=True
    ):
        np.testing.assert_array_equal(delta, after - before)


def test_hand_in_is_the_training_since_the_last_one(begin: Begin, inner: Inner) -> None:
    alive = begin()
    alive.script.step(3)
    first, delta = alive.hand_in(F0)
    assert (span((first, delta)), first.base) == ((0, 3), Version(0, 0))
    assert first.tokens == first.progress.tokens == trained(range(3))
    assert first.fingerprint == LAYOUT.fingerprint
    alive.script.step(2)
    second, more = alive.hand_in(F0)
    assert (span((second, more)), second.base) == ((3, 5), Version(0, 0))
    assert (second.tokens, second.progress.tokens) == (trained(range(3, 5)), trained(range(5)))
    other, whole = alive.hand_in(F1)
    assert (span((other, whole)), other.tokens) == ((0, 5), trained(range(5)))
    after = flats_of(steps_of(inner, inner.start(init(0)), range(5)).params)
    np.testing.assert_allclose(delta + more, after[F0] - flats_of(init(0))[F0], atol=1e-6)
    np.testing.assert_array_equal(whole, after[F1] - flats_of(init(0))[F1])


def test_early_request_is_answered_at_the_next_boundary(begin: Begin) -> None:
    alive = begin()
    at_the_start = alive.pending(F0)
    alive.script.step(1)
    handed = at_the_start.result(WAIT_S)
    assert handed is not None
    assert span(handed) == (0, 1)
    twice = alive.pending(F0)
    alive.script.step(3)
    handed = twice.result(WAIT_S)
    assert handed is not None
    assert span(handed) == (1, 2)


def test_concurrent_requests_get_the_same_hand_in(begin: Begin) -> None:
    alive = begin()
    both = [alive.pending(F0), alive.pending(F0)]
    alive.script.step(1)
    first, second = (answer.result(WAIT_S) for answer in both)
    assert first is not None
    assert second is not None
    assert first[0] == second[0]
    np.testing.assert_array_equal(first[1], second[1])


def test_next_request_reports_the_fate_of_earlier_hand_ins(begin: Begin, inner: Inner) -> None:
    """The earlier hand-ins were merged, so their rounding errors come with the next one.

    The learner has received no publication.
    """
    alive = begin(wire=Wire.INT4)
    handed: list[tuple[HandIn, Sent]] = []
    for merged in (False, False, True):
        alive.script.step(2)
        sent = tuple(each.id for each, _ in handed)
        known = Known((0, len(sent) + 1), () if merged else sent, sent if merged else ())
        answer = alive.call(alive.learner.hand_in, alive.script.life, F0, known).result(WAIT_S)
        assert answer is not None
        handed.append(answer)
    flats, state = [flats_of(init(0))[F0]], inner.start(init(0))
    for steps in range(0, 6, 2):
        state = steps_of(inner, state, range(steps, steps + 2), first_batch=steps)
        flats.append(flats_of(state.params)[F0])
    deltas = [after - before for before, after in pairwise(flats)]
    wanted, left = [encode(Wire.INT4, delta) for delta in deltas[:2]], np.zeros_like(flats[0])
    for delta, payload in zip(deltas, wanted, strict=False):
        left += delta - decode(payload, delta.size)
    wanted.append(encode(Wire.INT4, deltas[2] + left))
    for (_, payload), each in zip(handed, wanted, strict=True):
        np.testing.assert_array_equal(payload, each)


# --- adopting -------------------------------------------------------------------------------------

anywhere = pytest.mark.parametrize("encode", ["host", "device"])
"""Runs with the anchors on the host and on the device."""


def test_overwriting_discards_and_reports_steps_not_handed_in(begin: Begin) -> None:
    alive = begin()
    alive.script.step(3)
    said, delta = alive.hand_in(F0)
    alive.script.step(2)
    public = flats_of(init(0))[F0] + split(delta)[0] / 2
    version = alive.publish(F0, public, [said.id])
    alive.script.step(1)
    (adopted,) = alive.script.adoptions
    assert (adopted.life, adopted.fragment, adopted.version) == (alive.script.life, F0, version)
    assert (adopted.from_step, adopted.progress.steps) == (3, 5)
    assert adopted.tokens == trained(range(3, 5))
    following, _ = alive.hand_in(F0)
    assert (following.base, following.id.from_step) == (version, 5)
    assert following.tokens == trained(range(5, 6))
    assert span(alive.hand_in(F1)) == (0, 6), "only that fragment's counters start again"


@anywhere
def test_overwriting_continues_from_the_public_fragment(
    begin: Begin, inner: Inner, encode: Where
) -> None:
    alive = begin(encode=encode)
    alive.script.step(3)
    public = flats_of(init(5))[F0]
    alive.publish(F0, public)
    alive.script.step(2)
    state = steps_of(inner, inner.start(init(0)), range(3))
    mine = flats_of(state.params)
    moments = jax.tree.map(np.array, state.opt_state)
    mixed = inner.start(params_of([alive.script.public[F0][1], mine[F1]]), moments)
    wanted = flats_of(steps_of(inner, mixed, range(3, 5), first_batch=3).params)
    _, delta = alive.hand_in(F0)
    np.testing.assert_allclose(public + delta, wanted[F0], rtol=1e-5)
    _, other = alive.hand_in(F1)
    np.testing.assert_allclose(flats_of(init(0))[F1] + other, wanted[F1], rtol=1e-5)


@anywhere
def test_carrying_keeps_steps_since_the_hand_in(begin: Begin, inner: Inner, encode: Where) -> None:
    alive = begin(adopt=AdoptRule.CARRY, encode=encode)
    alive.script.step(3)
    said, delta = alive.hand_in(F0)
    alive.script.step(2)
    public = flats_of(init(0))[F0] + split(delta)[0] / 2
    version = alive.publish(F0, public, [said.id])
    alive.script.step(1)
    (adopted,) = alive.script.adoptions
    assert (adopted.from_step, adopted.progress.steps, adopted.tokens) == (5, 5, 0)
    following, more = alive.hand_in(F0)
    assert (following.base, span((following, more))) == (version, (3, 6))
    assert following.tokens == trained(range(3, 6))
    plain = inner.start(init(0))
    sent = flats_of((plain := steps_of(inner, plain, range(3))).params)[F0]
    now = flats_of((plain := steps_of(inner, plain, range(3, 5), first_batch=3)).params)
    moments = jax.tree.map(np.array, plain.opt_state)
    carried = inner.start(params_of([public + (now[F0] - sent), now[F1]]), moments)
    wanted = flats_of(steps_of(inner, carried, range(5, 6), first_batch=5).params)[F0]
    np.testing.assert_allclose(public + more, wanted, rtol=1e-5, atol=1e-6)


@anywhere
def test_carrying_keeps_a_hand_in_that_is_not_yet_merged(
    begin: Begin, inner: Inner, encode: Where
) -> None:
    """The hand-in was late for its round and will be merged in the next one.

    Until then the learner trains on with those steps in place, and hands them in nowhere else.
    """
    alive = begin(adopt=AdoptRule.CARRY, encode=encode)
    alive.script.step(3)
    late, delta = alive.hand_in(F0)
    alive.script.step(2)
    public = flats_of(init(5))[F0]
    version = alive.publish(F0, public)
    alive.script.step(1)
    following, more = alive.hand_in(F0)
    assert (following.base, span((following, more))) == (version, (3, 6))
    plain = steps_of(inner, inner.start(init(0)), range(5))
    now, moments = flats_of(plain.params), jax.tree.map(np.array, plain.opt_state)
    moved = public + (now[F0] - flats_of(init(0))[F0])
    ahead = inner.start(params_of([moved, now[F1]]), moments)
    ahead = steps_of(inner, ahead, range(5, 6), first_batch=5)
    before = public + split(delta)[0]
    np.testing.assert_allclose(
        before + split(more)[0], flats_of(ahead.params)[F0], rtol=1e-5, atol=1e-6
    )

    merged = alive.publish(F0, before, [late.id])  # the last hand-in is not merged yet
    alive.script.step(1)
    last, rest = alive.hand_in(F0)
    assert (last.base, span((last, rest))) == (merged, (6, 7))
    wanted = flats_of(steps_of(inner, ahead, range(6, 7), first_batch=6).params)[F0]
    found = before + split(more)[0] + split(rest)[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_hand_in_that_is_never_merged_stops_waiting(begin: Begin) -> None:
    """The shard died, as the next request reports, or the gate refused the hand-in."""
    alive = begin(adopt=AdoptRule.CARRY)
    life = alive.script.life
    alive.script.step(1)
    alive.hand_in(F0)
    refused, _ = alive.hand_in(F1)
    alive.script.step(1)
    asked = alive.call(alive.learner.hand_in, life, F0, Known((0, 1)))
    assert asked.result(WAIT_S) is not None
    alive.learner.refused(refused.id)
    assert [len(track.waiting) for track in life_of(alive).tracks] == [1, 0]


@anywhere
def test_blending_mixes_parameters_and_resets_counters(
    begin: Begin, inner: Inner, encode: Where
) -> None:
    alive = begin(adopt=AdoptRule.BLEND, encode=encode)
    alive.script.step(3)
    public = flats_of(init(5))[F0]
    version = alive.publish(F0, public)
    alive.script.step(1)
    (adopted,) = alive.script.adoptions
    assert (adopted.from_step, adopted.progress.steps) == (0, 3)
    state = steps_of(inner, inner.start(init(0)), range(3))
    mine = flats_of(state.params)
    moments = jax.tree.map(np.array, state.opt_state)
    blended = inner.start(params_of([BLEND * mine[F0] + (1 - BLEND) * public, mine[F1]]), moments)
    wanted = flats_of(steps_of(inner, blended, range(3, 4), first_batch=3).params)[F0]
    said, delta = alive.hand_in(F0)
    assert (said.base, span((said, delta))) == (version, (3, 4))
    np.testing.assert_allclose(public + delta, wanted, rtol=1e-5, atol=1e-6)


def test_requested_hand_in_precedes_an_overwriting_adoption(begin: Begin) -> None:
    held = Held()
    alive = begin(stream=held)
    alive.script.allow(1)
    held.reached()
    asked = alive.pending(F0)
    alive.publish(F0, flats_of(init(5))[F0])
    held.go()
    handed = asked.result(WAIT_S)
    assert handed is not None
    assert span(handed) == (0, 1)
    alive.script.all_read()
    alive.script.step(1)
    (adopted,) = alive.script.adoptions
    assert (adopted.from_step, adopted.progress.steps, adopted.tokens) == (1, 1, 0)


@pytest.mark.parametrize("adopt", AdoptRule)
@pytest.mark.parametrize("seed", range(4))
def test_each_step_is_handed_in_or_overwritten_exactly_once(
    begin: Begin, adopt: AdoptRule, seed: int
) -> None:
    """For any order of requests and publications, hand-ins and overwritten steps tile the life."""
    alive, chance = begin(adopt=adopt), np.random.default_rng(seed)
    handed: list[HandIn] = []
    steps = 0
    for _ in range(40):
        p = Fragment(int(chance.integers(FRAGMENTS)))
        match int(chance.integers(3)):
            case 0:
                steps += (more := int(chance.integers(1, 4)))
                alive.script.step(more)
            case 1 if steps > 0 and life_of(alive).tracks[p].from_step < steps:
                handed.append(alive.hand_in(p)[0])
            case _:
                alive.adopted(p, alive.publish(p, flats_of(init(int(chance.integers(99))))[p]))
    alive.script.step(1)
    handed += [alive.hand_in(p)[0] for p in (F0, F1)]
    steps += 1
    for p in (F0, F1):
        spans = [(h.id.from_step, h.id.to_step, h.tokens) for h in handed if h.id.fragment == p]
        spans += [
            (a.from_step, a.progress.steps, a.tokens)
            for a in alive.script.adoptions
            if a.fragment == p and a.from_step < a.progress.steps
        ]
        spans.sort()
        assert (spans[0][0], spans[-1][1]) == (0, steps)
        assert all(before[1] == after[0] for before, after in pairwise(spans))
        assert all(said == trained(range(start, stop)) for start, stop, said in spans)


def test_outdated_offer_changes_nothing(begin: Begin) -> None:
    alive = begin()
    alive.script.step(2)
    alive.publish(F0, flats_of(init(5))[F0])
    again = Publication(F0, Version(0, 1), Version(0, 0), ())
    alive.learner.offer(alive.script.life, again, flats_of(init(6))[F0])
    alive.script.step(1)
    assert len(alive.script.adoptions) == 1


class Slow(Inner):
    """An inner step that copies arrays near `number` to the devices only when `go` is set."""

    number: float = float("nan")

    def __init__(self, inner: Inner) -> None:
        self.__dict__.update(inner.__dict__)
        self.reached, self.go = threading.Event(), threading.Event()

    def place_flat(self, own: Flat, size: int) -> jax.Array:
        if np.allclose(own, self.number):
            self.reached.set()
            assert self.go.wait(WAIT_S)
        return super().place_flat(own, size)


def full(p: Fragment, number: float) -> np.ndarray:
    return np.full(LAYOUT.sizes[p], number, np.float32)


def overtaken(alive: Alive, slow: Slow) -> Future[Version]:
    """Publish version 2 of fragment 0 while version 1 is still being copied."""
    slow.number = 1.0
    first = alive.call(alive.publish, F0, full(F0, 1))
    assert slow.reached.wait(WAIT_S)
    alive.publish(F0, full(F0, 2))
    return first


def test_overtaken_offer_changes_nothing(begin: Begin, inner: Inner) -> None:
    """The newer offer waits for the next boundary meanwhile."""
    held = Held()
    alive = begin(inner=(slow := Slow(inner)), stream=held)
    alive.script.allow(1)
    held.reached()
    first = overtaken(alive, slow)
    slow.go.set()
    first.result(WAIT_S)
    held.go()
    alive.script.all_read()
    alive.script.step(1)
    assert [each.version for each in alive.script.adoptions] == [Version(0, 2)]


def test_overtaken_offer_does_not_undo_an_adoption(begin: Begin, inner: Inner) -> None:
    """The overtaken offer arrives after the adoption."""
    alive = begin(inner=(slow := Slow(inner)))
    alive.script.step(1)
    first = overtaken(alive, slow)
    alive.adopted(F0, Version(0, 2))
    slow.go.set()
    first.result(WAIT_S)
    alive.script.step(2)
    alive.script.step(1)
    assert [each.version for each in alive.script.adoptions] == [Version(0, 2)]
    assert alive.hand_in(F0)[0].base == Version(0, 2)


def test_offer_to_an_ended_life_changes_nothing(begin: Begin, inner: Inner) -> None:
    """The late offer also hides nothing that is offered to the next life."""
    alive = begin(inner=(slow := Slow(inner)))
    alive.script.step(1)
    first = overtaken(alive, slow)
    alive.adopted(F0, Version(0, 2))
    alive.script.public = [(Version(0, 0), flat) for flat in flats_of(init(0))]
    alive.learner.cease(Void(alive.script.life, "for a reason"))
    alive.script.nothing_more()
    alive.script.all_read()
    slow.go.set()
    first.result(WAIT_S)
    alive.script.step(1)
    assert alive.hand_in(F0)[0].base == Version(0, 0)
    alive.adopted(F0, alive.publish(F0, full(F0, 3)))


class AwayShard(Script):
    """A coordinator whose shard of fragment 0 is unreachable until `back` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.back, self.asked_in_vain = threading.Event(), threading.Semaphore(0)

    def missed(self, p: Fragment, older: Version, newer: Version) -> Public:
        if p == F0 and not self.back.is_set():
            self.asked_in_vain.release()
            raise Unreachable("the shard is away")
        return super().missed(p, older, newer)


def lost(alive: Alive, p: Fragment, number: int) -> Version:
    """Make a version public whose difference was lost with its shard; the offer returns at once."""
    previous, version = Version(0, number - 1), Version(0, number)
    alive.script.public[p] = version, full(p, number)
    alive.learner.offer(alive.script.life, Publication(p, version, previous, ()), None)
    return version


def test_unreachable_shard_does_not_block_other_fragments(begin: Begin) -> None:
    alive = begin(script=(script := AwayShard()))
    *_, last = [lost(alive, F0, number) for number in range(1, 9)]
    assert script.asked_in_vain.acquire(timeout=WAIT_S)
    life = alive.script.life
    assert not alive.learner.needs_payload(life, F0), "it catches up"
    assert alive.learner.needs_payload(life, F1)
    assert not alive.learner.needs_payload(Life(life.island, Incarnation(99)), F1), "it is over"
    alive.adopted(F1, alive.publish(F1, full(F1, 1)))
    script.back.set()
    alive.adopted(F0, last)
    script.step(1)
    assert [each.version for each in script.adoptions if each.fragment == F0] == [last]


def test_ended_life_stops_asking_shards(begin: Begin) -> None:
    alive = begin(script=(script := AwayShard()))
    lost(alive, F0, 1)
    assert script.asked_in_vain.acquire(timeout=WAIT_S)
    (asks,) = (each for each in threading.enumerate() if each.name == "follow 0")
    alive.learner.cease(Void(script.life, "for a reason"))
    script.nothing_more()
    script.all_read()
    asks.join(WAIT_S)
    assert not asks.is_alive()


# --- lives ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("distrusted", [False, True])
def test_voided_life_rejoins_at_the_public_versions(
    begin: Begin, inner: Inner, distrusted: bool
) -> None:
    """The learner keeps its moments unless they are distrusted; all else of the old life goes.

    A life that ends before it has the model does not change this.
    """
    alive = begin()
    alive.script.over_early = 1
    alive.script.step(3)
    alive.hand_in(F0)
    alive.adopted(F1, alive.publish(F1, flats_of(init(5))[F1]))
    first, alive.script.offset = alive.script.life, 40
    alive.learner.cease(Void(first, "for a reason", distrusted))
    alive.script.nothing_more()
    alive.script.all_read()
    assert alive.script.life == Life(Island("a"), Incarnation(3))
    alive.script.step(2)
    report, _ = alive.script.reports[-1]
    assert (report.life, report.progress.steps) == (alive.script.life, 2)
    before = steps_of(inner, inner.start(init(0)), range(3))
    public = [flat for _, flat in alive.script.public]
    moments = None if distrusted else jax.tree.map(np.array, before.opt_state)
    wanted = steps_of(inner, inner.start(params_of(public), moments), range(40, 42))
    for p in (F0, F1):
        said, delta = alive.hand_in(p)
        assert span((said, delta)) == (0, 2)
        assert (said.base, said.tokens) == (alive.script.public[p][0], trained(range(2)))
        after = flats_of(wanted.params)[p]
        np.testing.assert_allclose(public[p] + delta, after, rtol=1e-5, atol=1e-6)


def test_syncer_can_void_a_life_in_its_answer(begin: Begin) -> None:
    script = Script()
    script.answer = lambda report: (
        Void(report.life, "silent for too long")
        if report.life.incarnation == 1 and report.progress.steps == 2
        else Answer(0, 0, stopping=False)
    )
    begin(script=script)
    script.allow(2)
    script.nothing_more()
    until(lambda: len(script.joins) == 2)


def test_new_life_steps_although_the_former_one_was_stopped(begin: Begin) -> None:
    """The syncer died before it logged that stop, so the new one has no record of it."""
    script = Script()
    script.answer = lambda report: Answer(9, 0, stopping=report.life.incarnation == 1)
    alive = begin(script=script)
    until(lambda: not life_of(alive).stepping)
    alive.learner.cease(Void(script.life, "the syncer has restarted"))
    script.nothing_more()
    script.all_read()
    script.step(2)
    assert script.reports[-1][0].progress.steps == 2


def test_message_about_another_life_changes_nothing(begin: Begin) -> None:
    alive = begin()
    alive.script.step(1)
    alive.learner.cease(Void(Life(Island("a"), Incarnation(7)), "not you"))
    alive.script.step(1)
    assert len(alive.script.joins) == 1
    assert span(alive.hand_in(F0)) == (0, 2)


def test_ended_life_hands_in_and_adopts_nothing(begin: Begin) -> None:
    alive = begin()
    alive.script.step(2)
    old = alive.script.life
    alive.learner.cease(Void(old, "for a reason"))
    alive.script.nothing_more()
    alive.script.all_read()
    assert alive.asked(F0, old).result(WAIT_S) is None
    publication = Publication(F0, Version(0, 1), Version(0, 0), ())
    alive.learner.offer(old, publication, flats_of(init(6))[F0])
    alive.script.step(1)
    alive.script.step(1)
    assert not alive.script.adoptions
    assert alive.hand_in(F0)[0].base == Version(0, 0)


def test_end_of_a_life_is_reported_to_waiters(begin: Begin) -> None:
    alive = begin()
    alive.script.step(1)
    alive.hand_in(F0)
    first, asked = alive.script.life, alive.pending(F0)
    waiting = alive.call(alive.learner.outlive, first)
    alive.learner.cease(Void(first, "for a reason"))
    alive.script.nothing_more()
    assert "ended" in waiting.result(WAIT_S)
    assert asked.result(WAIT_S) is None, "there was nothing new to hand in"
    assert "ended" in alive.call(alive.learner.outlive, first).result(WAIT_S), "also later"


def test_refused_join_raises_the_reason(begin: Begin) -> None:
    script = Script()
    script.refusal = "the run is stopping"
    with pytest.raises(Rejected, match="a may not join: the run is stopping"):
        begin(script=script).ends()


def test_learner_retries_a_delayed_join(begin: Begin) -> None:
    script = Script()
    script.waits_s = [0.01, 0.01]
    alive = begin(script=script)
    script.all_read()
    assert (script.refused, len(script.joins)) == (2, 1)
    script.step(1)
    assert span(alive.hand_in(F0)) == (0, 1)


def test_waiting_learner_can_leave(begin: Begin) -> None:
    script = Script()
    script.waits_s = [10 * WAIT_S]
    alive = begin(script=script)
    until(lambda: script.refused == 1)
    alive.learner.leave()
    alive.ends()
    assert script.joins == []


# --- moments from donors -------------------------------------------------------------------


def moments_after(inner: Inner, steps: int) -> list[np.ndarray]:
    state = steps_of(inner, inner.start(init(0)), range(steps))
    return inner.moments(state)


def trains_with(alive: Alive, inner: Inner, moments: list[np.ndarray] | None) -> bool:
    """Return whether the first two steps are those of a learner with these moments."""
    state = inner.start(init(0), None if moments is None else inner.accept(moments))
    wanted = flats_of(steps_of(inner, state, range(2)).params)
    alive.script.step(2)
    trained = [flats_of(init(0))[p] + alive.hand_in(p)[1] for p in (F0, F1)]
    return all(np.allclose(x, y, rtol=1e-5) for x, y in zip(trained, wanted, strict=True))


def test_first_life_takes_moments_of_the_first_usable_donor(begin: Begin, inner: Inner) -> None:
    good = moments_after(inner, 5)
    script = Script()
    in_turn = {
        Island("gone"): Unreachable("it has died"),
        Island("over"): None,
        Island("other"): good[:-1],
        Island("ill"): [*good[:-1], good[-1] * np.nan],
        Island("strange"): [*good[:-1], good[-1].astype("S8")],
        Island("mad"): Malformed("7 (int) instead of moments"),
        Island("good"): good,
        Island("spare"): moments_after(inner, 3),
    }
    (first, *_) = donors_in_turn(ISLAND, [Life(each, Incarnation(1)) for each in in_turn])
    shift = [*in_turn].index(first.island)
    named = [*in_turn][-shift:] + [*in_turn][:-shift]  # the order in which learner "a" asks
    script.donations = {each: in_turn[each] for each in named}
    alive = begin(script=script)
    before = ["gone", "over", "other", "ill", "strange", "mad"]
    assert [life.island for life in script.asked] == [*before, "good"]
    assert trains_with(alive, inner, good)
    nbytes = sum(leaf.nbytes for leaf in good)
    assert script.reports[0][0].moments == MomentsTaken(script.asked[-1], nbytes)
    assert script.reports[-1][0].moments is None


def test_without_usable_donor_starts_with_fresh_moments(begin: Begin, inner: Inner) -> None:
    script = Script()
    script.donations = {Island("gone"): Unreachable("it has died")}
    assert trains_with(begin(script=script), inner, None)


def test_donor_gives_moments_at_a_boundary_and_steps_on(begin: Begin, inner: Inner) -> None:
    alive = begin()
    alive.script.step(3)
    given = alive.learner.moments(alive.script.life)
    alive.script.step(3)
    assert given is not None
    for leaf, wanted in zip(given.leaves, moments_after(inner, 3), strict=True):
        np.testing.assert_array_equal(leaf, wanted)
    assert alive.learner.moments(Life(Island("a"), Incarnation(7))) is None


class Heavy(Inner):
    """A step takes 1 s by its clock, and copying one leaf of the moments `copying_s`."""

    def __init__(self, inner: Inner, copying_s: float) -> None:
        self.__dict__.update(inner.__dict__)
        self.copying_s, self.now_s, self.steps = copying_s, 0.0, 0
        self.copied_at: list[int] = []

    def step(
        self, state: InnerState, batch: Batch, clock: int, draw: Any = NO_DRAW
    ) -> tuple[InnerState, StepMeasures]:
        self.now_s, self.steps = self.now_s + 1.0, self.steps + 1
        return super().step(state, batch, clock, draw)

    def moment(self, state: InnerState, number: int) -> np.ndarray:
        self.now_s += self.copying_s
        self.copied_at.append(self.steps)
        return super().moment(state, number)


class Told:
    """A loss that records when it is read."""

    def __init__(self, loss: jax.Array, number: int, log: list[str]) -> None:
        self._loss, self._number, self._log = loss, number, log

    def __float__(self) -> float:
        self._log.append(f"read {self._number}")
        return float(self._loss)

    def is_ready(self) -> bool:
        loss: Any = self._loss
        return loss.is_ready()


class Logged(Inner):
    """An inner step that records the order of dispatches and of reads of the losses."""

    def __init__(self, inner: Inner) -> None:
        self.__dict__.update(inner.__dict__)
        self.log: list[str] = []
        self.number = -1

    def step(
        self, state: InnerState, batch: Batch, clock: int, draw: Any = NO_DRAW
    ) -> tuple[InnerState, StepMeasures]:
        self.number += 1
        self.log.append(f"step {self.number}")
        state, measures = super().step(state, batch, clock, draw)
        told: Any = Told(cast("jax.Array", measures.loss), self.number, self.log)
        return state, StepMeasures(told, metrics={"number": jnp.float32(self.number)})


def test_loss_is_read_while_the_next_step_runs(begin: Begin, inner: Inner) -> None:
    """The first step of a life is an exception, and so is a step that is waited for anyway."""
    logged, held = Logged(inner), Held()
    alive = begin(inner=logged, stream=held)
    alive.script.allow(6)
    held.reached()
    held.go()
    until(lambda: logged.log[-1:] == ["read 5"])
    assert logged.log == [
        "step 0", "read 0", "step 1", "step 2", "read 1", "step 3", "read 2", "step 4", "read 3",
        "step 5", "read 4", "read 5",
    ]  # fmt: skip
    until(lambda: alive.learner.vitals[0] == 6)
    alive.script.all_read()
    assert alive.learner.vitals[1].loss > 0
    until(lambda: alive.learner.vitals[1].metrics == (("number", 5.0),))


def test_paced_learner_waits_for_each_step(begin: Begin, inner: Inner) -> None:
    logged = Logged(inner)
    alive = begin(inner=logged, step_s=0.01)
    alive.script.step(4)
    pairs = [(f"step {n}", f"read {n}") for n in range(4)]
    assert logged.log == [word for pair in pairs for word in pair]


@pytest.mark.parametrize("copying_s", [0.1, 0.26, 3.0])
def test_donor_pauses_for_half_a_step_or_one_leaf_at_a_time(
    begin: Begin, inner: Inner, copying_s: float
) -> None:
    held = Held()
    heavy = Heavy(inner, copying_s)
    alive = begin(inner=heavy, stream=held, now_s=lambda: heavy.now_s)
    alive.script.allow(30)
    held.reached()
    asked = alive.call(alive.learner.moments, alive.script.life)
    until(lambda: alive.learner._mail.donations.asked() is not None)
    held.go()
    given = asked.result(WAIT_S)
    assert given is not None
    assert [leaf.shape for leaf in given.leaves] == [leaf.shape for leaf in moments_after(inner, 0)]
    at_once = [heavy.copied_at.count(step) for step in dict.fromkeys(heavy.copied_at)]
    assert len(at_once) > 1
    assert all(number == 1 or (number - 1) * copying_s < 1 for number in at_once)
    alive.script.all_read()


class Talking(Script):
    """A coordinator that never answers a report, as if the connection hung."""

    def __init__(self) -> None:
        super().__init__()
        self.called, self.over = threading.Event(), threading.Event()

    def report(self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]) -> Answer | Void:
        self.called.set()
        assert self.over.wait(WAIT_S)
        raise Unreachable("the test is over")


def test_training_error_is_raised_before_the_syncer_answers(begin: Begin) -> None:
    class Breaks(Numbers):
        def next(self) -> Batch:
            assert script.called.wait(WAIT_S)
            raise ArithmeticError("a device has failed")

    script = Talking()
    script.first_lease = Lease(0, LEASE_BATCHES - 1)
    alive = begin(script=script, stream=Breaks(), wait=False)
    with pytest.raises(ArithmeticError, match="a device has failed"):
        alive.ends()
    assert not script.over.is_set()
    said = alive.learner.outlive(script.life)
    assert "its learner broke: ArithmeticError: a device has failed (test_learner.py:" in said
    script.over.set()


# --- the end --------------------------------------------------------------------------------------


def test_stopped_learner_does_not_step_but_hands_in(begin: Begin) -> None:
    script = Script()
    script.answer = lambda report: Answer(9, 0, stopping=report.progress.steps >= 3)
    alive = begin(script=script)
    script.allow(3)
    until(lambda: not life_of(alive).stepping)
    assert span(alive.hand_in(F0)) == (0, 3)
    assert alive.asked(F0).result(WAIT_S) is None, "nothing more will come"
    script.allow(5)
    alive.publish(F0, flats_of(init(5))[F0])
    until(lambda: len(script.adoptions) == 1)
    assert span(alive.hand_in(F1)) == (0, 3)
    assert alive.learner.leave().steps == 3
    alive.ends()


def test_parked_learner_does_not_step_but_hands_in(begin: Begin) -> None:
    alive = begin()
    alive.script.step(2)
    alive.learner.park(alive.script.life)
    alive.script.allow(5)
    assert span(alive.hand_in(F0)) == (0, 2)
    assert alive.asked(F0).result(WAIT_S) is None
    assert alive.learner.leave().steps == 2


class Pairs(Numbers):
    """A stream of batches of two windows, whose leases may have one."""

    batch_size = 2

    def next(self) -> Batch:
        if self.remaining < self.batch_size:
            raise Starved("half a batch")
        super().next()
        return super().next()


def test_learner_with_a_partial_batch_asks_for_the_rest(begin: Begin) -> None:
    """This holds also if a batch is larger than a lease, which is what the learner keeps ahead."""
    alive = begin(stream=Pairs())
    alive.script.step(1)
    alive.script.step(1)
    until(lambda: alive.learner.vitals[0] == 1)


class Boastful(Numbers):
    """A stream that always claims to have data; `vain` counts reads without any."""

    vain = 0

    def next(self) -> Batch:
        if super().remaining == 0:
            self.vain += 1
            raise Starved("nothing, after all")
        return super().next()

    @property
    def remaining(self) -> int:
        return 100


def test_starved_stream_is_not_read_again_before_more_data_comes(begin: Begin) -> None:
    stream = Boastful()
    alive = begin(stream=stream)  # it wants data, and could ask again and again
    alive.script.step(2)
    alive.script.step(1)
    assert stream.vain == 3, "once before each lease, and after the last one"


def is_starved(alive: Alive) -> None:
    alive.script.step(1)


def is_parked(alive: Alive) -> None:
    alive.script.step(1)
    alive.learner.park(alive.script.life)


def waits_for_adoption(alive: Alive) -> None:
    alive.script.allow(EVERY)
    until(lambda: alive.learner.vitals[0] == EVERY // FRAGMENTS)


def idles(alive: Alive) -> None:
    alive.script.allow(EVERY)
    until(lambda: alive.learner.vitals[0] == 1)


WAITS = {"starved": is_starved, "parked": is_parked, "adoption": waits_for_adoption, "idle": idles}


@pytest.mark.parametrize("waits", WAITS)
def test_no_request_waits_for_ever_after_leaving(begin: Begin, waits: str) -> None:
    overlap = 0 if waits == "adoption" else 2
    alive = begin(overlap=overlap, speed=1e-4 if waits == "idle" else 1.0)
    WAITS[waits](alive)
    life = alive.script.life
    alive.asked(F0).result(WAIT_S)
    asked = [alive.asked(p) for p in (F0, F0, F1, F1)]
    alive.learner.leave()
    alive.ends()
    for answer in asked:
        answer.result(WAIT_S)
    assert alive.asked(F1, life).result(WAIT_S) is None
    assert "ended" in alive.learner.outlive(life)
    assert len(alive.script.joins) == 1, "it begins no other life"


class Broken(Exception):
    """An error in a user's code."""


@pytest.mark.parametrize("where", ["data", "boundary"])
def test_task_error_ends_the_learner_and_answers_all_requests(
    begin: Begin, ports: dict[AdoptRule, FragmentPort], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    held = Held(Broken("in the user's code") if where == "data" else None)

    def cannot(params: Params, p: Fragment) -> jax.Array:
        raise Broken("no memory left")

    if where == "boundary":
        monkeypatch.setattr(ports[AdoptRule.OVERWRITE], "take", cannot)
    alive = begin(stream=held)
    alive.script.allow(1)
    held.reached()
    asked = [alive.pending(p) for p in (F0, F1, F0)]
    held.go()
    with pytest.raises(Broken):
        alive.ends()
    assert [answer.result(WAIT_S) for answer in asked] == [None] * 3


def test_error_in_the_talking_thread_ends_the_learner(begin: Begin) -> None:
    """Otherwise the learner would train on without reporting."""
    script = Script()

    def refuses(report: Report) -> Answer:
        raise Malformed("progress.tokens is 0.5 (float), not a count")

    alive = begin(script=script)
    script.answer = refuses
    alive.script.allow(3)
    with pytest.raises(Malformed):
        alive.ends()
    assert alive.asked(F0).result(WAIT_S) is None


def test_token_counts_are_plain_integers(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy integers count; a fraction of a token is the task's mistake, and is reported."""
    counted = iter([np.int64(7), np.uint8(200), 0.5])
    counting = replace(TASK, tokens=lambda batch: cast("int", next(counted)))
    alive = begin(task=counting)
    alive.script.step(2)
    report, _ = alive.script.reports[-1]
    assert type(report.progress.tokens) is int
    assert report.progress.tokens == 207
    alive.script.allow(1)
    with pytest.raises(TypeError, match="float"):
        alive.ends()


def test_learner_recognizes_its_own_lives(begin: Begin) -> None:
    alive = begin()
    first = alive.script.life
    alive.learner.cease(Void(first, "why not"))
    alive.script.nothing_more()
    alive.script.all_read()
    assert alive.learner.had(first)
    assert alive.learner.had(alive.script.life)
    assert alive.script.life != first
    assert not alive.learner.had(Life(first.island, Incarnation(99)))


def test_version_without_payload_is_fetched(begin: Begin) -> None:
    """The merged hand-in is acknowledged nevertheless."""
    alive = begin()
    alive.script.step(2)
    said, _ = alive.hand_in(F0)
    flat = flats_of(init(3))[F0]
    version = Version(0, 1)
    alive.script.public[F0] = version, flat
    publication = Publication(F0, version, Version(0, 0), (said.id,))
    alive.learner.offer(alive.script.life, publication, None)
    alive.script.step(1)
    alive.adopted(F0, version)
    np.testing.assert_array_equal(alive.learner._trainer._replica._basis[F0].public, flat)


# --- waiting, and an unreachable coordinator ----------------------------------------------


def test_lock_step_waits_at_each_due_point_for_the_newer_version(begin: Begin) -> None:
    """Fragment 1 is due at 2, 6, ..., fragment 0 at 4, 8, ..."""
    alive = begin(overlap=0)
    alive.script.allow(5)
    for due, p, other in ((2, F1, F0), (4, F0, F1)):
        until(lambda due=due: alive.learner.vitals[0] == due)
        said, delta = alive.hand_in(p)
        alive.adopted(other, alive.publish(other, flats_of(init(7))[other]))
        assert said.progress.steps == alive.learner.vitals[0] == due, "not for another one"
        alive.publish(p, alive.script.public[p][1] + delta, [said.id])
    alive.script.all_read()
    assert alive.script.reports[-1][0].progress.steps == 5


def test_lock_step_due_points_follow_the_clock(begin: Begin) -> None:
    script = Script()
    script.offset = 101
    alive = begin(overlap=0, script=script)
    alive.script.allow(3)
    until(lambda: alive.learner.vitals[0] == 1)
    said, delta = alive.hand_in(F1)
    assert alive.learner.vitals[0] == 1, "clock 102 = 25 x 4 + 2"
    alive.publish(F1, alive.script.public[F1][1] + delta, [said.id])
    until(lambda: alive.learner.vitals[0] == 3)


def test_training_continues_while_the_coordinator_is_unreachable(begin: Begin) -> None:
    """The learner sends what it had to send when the coordinator is back."""
    alive = begin()
    alive.script.step(1)
    alive.script.deaf.set()
    alive.publish(F0, flats_of(init(5))[F0])
    alive.script.allow(6)
    until(lambda: alive.learner.vitals[0] == 7)
    assert not alive.script.adoptions
    alive.script.deaf.clear()
    alive.script.all_read()
    assert alive.script.reports[-1][0].progress.steps == 7
    (adopted,) = alive.script.adoptions
    assert (adopted.fragment, adopted.from_step) == (F0, 0)


def test_slowed_learner_keeps_the_pace_of_its_quickest_step(
    begin: Begin, inner: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that takes longer because others need the cores is followed by less idling."""
    alive, real = begin(speed=0.2), inner.step
    alive.script.step(3)

    def busy(*arguments: Any) -> Any:
        time.sleep(2 * alive.learner._trainer._timing.quickest_s)
        return real(*arguments)

    for step in (real, busy):
        monkeypatch.setattr(inner, "step", step)
        _, before = alive.learner.vitals
        alive.script.step(1)
        _, after = alive.learner.vitals
        computed_s = after.computing_s - before.computing_s
        idled_s = after.idle_s - before.idle_s
        pace_s = 5 * alive.learner._trainer._timing.quickest_s
        assert idled_s == pytest.approx(max(0.0, pace_s - computed_s))
    assert idled_s < 2 * computed_s  # of the busy step; in proportion it would be four times


def test_paced_step_lasts_its_time_whatever_else_happens(
    begin: Begin, inner: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive, real, pace_s = begin(step_s=0.3), inner.step, 0.3
    alive.script.step(3)

    def busy(*arguments: Any) -> Any:
        time.sleep(0.1)
        return real(*arguments)

    for step in (real, busy):
        monkeypatch.setattr(inner, "step", step)
        _, before = alive.learner.vitals
        began_s = time.monotonic()
        alive.script.step(2)
        took_s = time.monotonic() - began_s
        _, after = alive.learner.vitals
        computed_s, talked_s, read_s, idled_s = (
            getattr(after, name) - getattr(before, name)
            for name in ("computing_s", "talking_s", "data_s", "idle_s")
        )
        slack_s = 0.05  # this thread may see the end of a step late, the first or the last
        assert took_s >= 2 * pace_s - slack_s
        assert computed_s + talked_s + read_s + idled_s <= took_s + slack_s
        assert computed_s + idled_s <= 2 * pace_s * 1.001


def test_slowed_learner_hands_in_while_it_idles(begin: Begin) -> None:
    alive = begin(speed=1e-5)  # hours, unless it is asked
    alive.script.allow(2)
    until(lambda: alive.learner.vitals[0] == 1)
    assert span(alive.hand_in(F0)) == (0, 1)
    assert alive.learner.leave().steps == 1
