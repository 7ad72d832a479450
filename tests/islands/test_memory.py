"""A learner's device memory in bytes a parameter, also while it rejoins or donates moments."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.codec import Payload, Wire
from coordinator.fragments import Flat, take
from coordinator.protocol import (
    Adopted,
    Answer,
    Fragment,
    Granted,
    Incarnation,
    Island,
    Join,
    Known,
    Lease,
    LeaseGranted,
    LeaseWanted,
    Left,
    Life,
    Report,
    Version,
    Vitals,
    Void,
)
from coordinator.schedule import Schedule
from islands.adopt import AdoptRule, FragmentPort, layout_of
from islands.encoder import Where
from islands.exchange import Public
from islands.inner import NO_DRAW, Inner, InnerState, StepMeasures
from islands.learner import Learner
from islands.link import Link
from islands.optimizer import OptimizerKind
from islands.task import Batch, Params, Task
from tests.given import habits as a_habits
from tests.given import optimizer_spec
from tests.islands.test_learner import WAIT_S, Numbers, until

FRAGMENTS, EVERY = 4, 1000
MATRICES, OTHERS = 4 * 64 * 64, 100 * 64
"""Numbers of parameters: Muon keeps one moment of each matrix element; AdamW two of each."""
PARAMETERS = MATRICES + OTHERS
SLACK = 0.05
"""Bytes a parameter for counters, batches and losses, which count in so small a model."""
KINDS: tuple[OptimizerKind, ...] = ("adamw", "muon")


def init(seed: int) -> Params:
    rng = np.random.default_rng(seed)
    shapes = {"blocks": (4, 64, 64), "embedding": (100, 64)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def loss(params: Params, batch: Batch) -> jax.Array:
    return sum((jnp.mean(x**2) for x in jax.tree.leaves(params)), jnp.zeros(())) + batch[0, 0]


TASK = Task(
    name="weights",
    vocabulary=100,
    init=init,
    loss=loss,
    tokens=lambda batch: 1,
    stream=lambda batch_size: Numbers(),
    heldout=lambda batch_size: [np.zeros((1, 1), np.float32)],
    stacked=lambda path: path == "blocks",
    embedding=lambda path: path == "embedding",
)
LAYOUT = layout_of(TASK, FRAGMENTS)
V0 = Version(0, 0)
ALL = [Fragment(p) for p in range(FRAGMENTS)]


def on_devices() -> int:
    return sum(array.nbytes for array in jax.live_arrays())


def moments_bytes(kind: OptimizerKind) -> float:
    """Return the bytes of moments a parameter, on average."""
    return 8.0 if kind == "adamw" else (4 * MATRICES + 8 * OTHERS) / PARAMETERS


@cache
def compiled(kind: OptimizerKind) -> Inner:
    inner = Inner(TASK, optimizer_spec(kind=kind))
    inner.compile(np.zeros((1, 1), np.float32))
    return inner


PORT = FragmentPort(LAYOUT, AdoptRule.OVERWRITE)


class Scales(Inner):
    """An inner step that measures the device memory, on the thread that trains.

    It measures after each step, and whenever arrays are placed or given away. `most` holds the
    maximum in bytes a parameter since it was emptied, by occasion.
    """

    def __init__(self, kind: OptimizerKind) -> None:
        self.__dict__.update(compiled(kind).__dict__)
        gc.collect()
        self._before = on_devices()
        self.most: dict[str, float] = {}

    def _weigh(self, when: str) -> None:
        held = (on_devices() - self._before) / PARAMETERS
        self.most[when] = max(self.most.get(when, 0.0), held)

    def step(
        self, state: InnerState, batch: Batch, clock: int, draw: Any = NO_DRAW
    ) -> tuple[InnerState, StepMeasures]:
        stepped, measures = super().step(state, batch, clock, draw)
        self._weigh("training")
        return stepped, measures

    def place(self, tree: Params) -> Params:
        placed = super().place(tree)
        self._weigh("joining")
        return placed

    def place_flat(self, own: Flat, size: int) -> jax.Array:
        placed = super().place_flat(own, size)
        self._weigh("joining")
        return placed

    def start(self, params: Params, moments: Any = None) -> InnerState:
        state = super().start(params, moments)
        self._weigh("joining")
        return state

    def moment(self, state: InnerState, number: int) -> NDArray[Any]:
        leaf = super().moment(state, number)
        self._weigh("giving")
        return leaf


class Coordinator(Link):
    """A coordinator that grants lives, data, whole fragments and a donor's moments."""

    def __init__(self, given: list[NDArray[Any]] | None = None) -> None:
        self.lives: list[Life] = []
        self.given = given
        self._leases = count(1)

    def join(self, event: Join) -> Granted:
        self.lives.append(Life(event.island, Incarnation(len(self.lives) + 1)))
        donors = () if self.given is None else (Life(Island("donor"), Incarnation(1)),)
        return Granted(self.lives[-1], 0, (V0,) * FRAGMENTS, (Lease(0),), donors)

    def report(self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]) -> Answer:
        return Answer(0, 0, stopping=False)

    def lease(self, event: LeaseWanted) -> LeaseGranted:
        return LeaseGranted(event.life, Lease(next(self._leases)))

    def left(self, event: Left) -> None: ...

    def mean_moments(self, fragments: Sequence[Fragment]) -> dict[Fragment, Payload]:
        return {}

    def whole(self, fragments: Sequence[Fragment]) -> list[Public]:
        return [(V0, take(LAYOUT, p, jax.tree.leaves(init(0)))) for p in fragments]

    def missed(self, p: Fragment, older: Version, newer: Version) -> Public:
        raise AssertionError("nothing is published")

    def moments(self, donor: Life) -> list[NDArray[Any]] | None:
        return self.given


@contextmanager
def trained(
    inner: Scales, link: Coordinator, encode: Where = "host"
) -> Generator[tuple[Learner, Callable[[], None]]]:
    """Yield a learner that trains, and a function that waits for some more steps."""
    schedule = Schedule(EVERY, FRAGMENTS)
    habits = a_habits(Island("a"), "g", Wire.BF16, schedule, 2, 1, encode=encode)
    learner = Learner(
        TASK, LAYOUT, inner, PORT, None, Numbers, link, habits, now_s=time.perf_counter
    )
    thread = threading.Thread(target=learner.run)
    thread.start()

    def steps() -> None:
        begun = learner.vitals[0]
        until(lambda: learner.vitals[0] not in range(begun + 3))

    try:
        yield learner, steps
    finally:
        learner.leave()
        thread.join(WAIT_S)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "distrusted", "encode"),
    [
        ("adamw", False, "host"),
        ("adamw", False, "device"),
        ("adamw", True, "host"),
        ("muon", False, "host"),
    ],
)
def test_rejoining_needs_no_more_memory_than_training(
    kind: OptimizerKind, distrusted: bool, encode: Where
) -> None:
    """The former life has handed in everything, and keeps a copy of it."""
    inner, link = Scales(kind), Coordinator()
    steady = 4 + moments_bytes(kind) + 4 * (encode == "device")
    with trained(inner, link, encode) as (learner, some_steps):
        some_steps()
        assert inner.most["training"] <= steady + SLACK
        first = link.lives[0]
        for p in ALL:
            learner.hand_in(first, p, Known((0, 0)))
        some_steps()
        inner.most.clear()
        learner.cease(Void(first, "for a reason", distrusted))
        until(lambda: "joining" in inner.most)
        some_steps()
        assert inner.most["joining"] <= steady + SLACK


@pytest.mark.parametrize("kind", KINDS)
def test_joining_with_donated_moments_needs_no_more_memory(kind: OptimizerKind) -> None:
    donor = compiled(kind)
    state, _ = donor.step(donor.start(init(0)), np.zeros((1, 1), np.float32), 0)
    given = donor.moments(state)
    del state
    inner = Scales(kind)
    with trained(inner, Coordinator(given)) as (_, some_steps):
        some_steps()
        assert inner.most["joining"] <= 4 + moments_bytes(kind) + SLACK


@pytest.mark.parametrize("kind", KINDS)
def test_donating_moments_needs_no_device_memory(kind: OptimizerKind) -> None:
    inner, link = Scales(kind), Coordinator()
    with trained(inner, link) as (learner, some_steps):
        some_steps()
        given = learner.moments(link.lives[0])
        some_steps()
        assert given is not None
        assert sum(leaf.nbytes for leaf in given.leaves) >= moments_bytes(kind) * PARAMETERS
        assert inner.most["giving"] <= 4 + moments_bytes(kind) + SLACK
        assert inner.most["training"] <= 4 + moments_bytes(kind) + SLACK
