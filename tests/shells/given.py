"""A task for learner shells whose numbers do not change, so that arrays name their version.

The learning rate is zero. So a fragment on the devices is at each moment the public version that
was adopted last, to the last bit, and everything that is handed in is zero. An array that travels
with the wrong message shows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coordinator.codec import Payload, Wire
from coordinator.errors import Unreachable
from coordinator.fragments import Flat, take
from coordinator.protocol import (
    Adopted,
    Answer,
    ContributionId,
    Fragment,
    Granted,
    Incarnation,
    Island,
    Join,
    Lease,
    LeaseGranted,
    LeaseWanted,
    Left,
    Life,
    Publication,
    Refused,
    Report,
    Version,
    Vitals,
    Void,
)
from coordinator.schedule import Schedule
from islands.adopt import AdoptRule, FragmentPort, layout_of
from islands.corpus import Starved
from islands.exchange import Public
from islands.inner import Inner
from islands.link import LearnerSettings, Link
from islands.task import Batch, Params, Task
from tests.given import habits, optimizer_spec
from tests.shells.scheduler import Scheduler

FRAGMENTS, EVERY = 2, 4
LEASE = 1000
"""The windows of a lease."""
LEASED = 3
"""The windows that are left of each granted lease."""
AWAY = 0.1
"""The chance that a call to the coordinator is lost."""
CALL_S = 0.02
"""Seconds of the longest call to the coordinator."""


class Numbers:
    """A stream of batches of one window each."""

    batch_size = 1

    def __init__(self) -> None:
        self._leases: list[Lease] = []

    def add(self, lease: Lease) -> None:
        self._leases.append(lease)

    def next(self) -> Batch:
        if self.remaining == 0:
            raise Starved("no lease")
        while self._leases[0].start == LEASE:
            self._leases.pop(0)
        self._leases[0] = Lease(self._leases[0].number, self._leases[0].start + 1)
        return np.zeros((1, 1), np.float32)

    @property
    def cursor(self) -> Lease:
        return self._leases[0]

    @property
    def remaining(self) -> int:
        return sum(LEASE - lease.start for lease in self._leases)


def _init(seed: int) -> Params:
    shapes = {"blocks": (2, 3, 2), "embedding": (4, 2), "rest": (3,)}
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def _loss(params: Params, batch: Batch) -> jax.Array:
    return sum((jnp.mean((x - batch[0, 0]) ** 2) for x in jax.tree.leaves(params)), jnp.zeros(()))


TASK = Task(
    name="numbers",
    vocabulary=2,
    init=_init,
    loss=_loss,
    tokens=lambda batch: 1,
    stream=lambda batch_size: Numbers(),
    heldout=lambda batch_size: [np.zeros((1, 1), np.float32)],
    stacked=lambda path: path == "blocks",
    embedding=lambda path: path == "embedding",
)
LAYOUT = layout_of(TASK, FRAGMENTS)
INNER = Inner(TASK, optimizer_spec(learning_rate=0.0, weight_decay=0.0))
PORTS = {rule: FragmentPort(LAYOUT, rule, 0.25) for rule in AdoptRule}
EVERYTHING = [Fragment(p) for p in range(FRAGMENTS)]


def flat_of(p: Fragment, number: int) -> Flat:
    """Return version `number` of a fragment: this number in each element."""
    return np.full(LAYOUT.sizes[p], number, np.float32)


def flats_of(params: Params) -> list[Flat]:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
    return [take(LAYOUT, p, leaves) for p in EVERYTHING]


class Port(FragmentPort):
    """A port that remembers the version of each fragment at the last `take`."""

    def __init__(self, rule: AdoptRule) -> None:
        self.__dict__.update(PORTS[rule].__dict__)
        self.taken: dict[Fragment, int] = {}

    def take(self, params: Params, p: Fragment) -> jax.Array:
        flat = super().take(params, p)
        (number,) = {*np.asarray(flat).tolist()}
        self.taken[p] = int(number)
        return flat


def habits_of(overlap: int) -> LearnerSettings:
    return habits(Island("a"), "g", Wire.F32, Schedule(EVERY, FRAGMENTS), overlap, 1, encode="host")


class World(Link):
    """The coordinator and the shards, as one learner's process sees them; each call takes time.

    `public` holds the newest versions. `adopted` lists the adoptions that the learner reports, in
    order.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.public: list[Public] = [(Version(0, 0), flat_of(p, 0)) for p in EVERYTHING]
        self.life: Life | None = None
        self.lives = 0
        self.leases = 0
        self.adopted: list[Adopted] = []
        self.donor: Callable[[], list[np.ndarray[Any, Any]] | None] = lambda: None

    def publish(self, p: Fragment, merged: tuple[ContributionId, ...] = ()) -> Publication:
        """Make the next version of a fragment public."""
        before, _ = self.public[p]
        version = Version(0, before.number + 1)
        self.public[p] = version, flat_of(p, version.number)
        return Publication(p, version, before, merged)

    def _goes(self, call: str) -> None:
        """Take the time of a call.

        Errors: `Unreachable` if the call is lost.
        """
        self.scheduler.nap(call, CALL_S)
        if self.scheduler.rng.random() < AWAY:
            raise Unreachable(f"{call}: by chance")

    def join(self, event: Join) -> Granted | Refused:
        self.scheduler.nap("join", CALL_S)
        self.lives += 1
        self.life = Life(event.island, Incarnation(self.lives))
        versions = tuple(version for version, _ in self.public)
        donors = (Life(Island("donor"), Incarnation(1)),)
        return Granted(self.life, 0, versions, (self._lease(),), donors)

    def _lease(self) -> Lease:
        self.leases += 1
        return Lease(self.leases, LEASE - LEASED)

    def report(self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]) -> Answer | Void:
        self._goes("report")
        self.adopted.extend(adopted)
        return Answer(event.progress.steps, 0, stopping=False)

    def lease(self, event: LeaseWanted) -> LeaseGranted | Void:
        self._goes("lease")
        return LeaseGranted(event.life, self._lease())

    def left(self, event: Left) -> None:
        raise AssertionError("the process says so, not the learner")

    def whole(self, fragments: Sequence[Fragment]) -> list[Public] | None:
        self.scheduler.nap("whole", CALL_S)
        return [self.public[p] for p in fragments]

    def mean_moments(self, fragments: Sequence[Fragment]) -> dict[Fragment, Payload] | None:
        return {}

    def missed(self, p: Fragment, older: Version, newer: Version) -> Public:
        self._goes("missed")
        return self.public[p]

    def moments(self, donor: Life) -> list[np.ndarray[Any, Any]] | None:
        self._goes("moments")
        return self.donor()
