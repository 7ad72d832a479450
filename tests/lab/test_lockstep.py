"""Whole runs without Ray, in lock-step, match plain AdamW and a naive reference."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np
import optax
import pytest

from cluster.config.load import parse
from cluster.config.rule import rule_for, schedule_of
from cluster.config.schema import Config
from cluster.shard.arrays import fresh
from cluster.shard.build import outer_of
from cluster.syncer.measures import Measures
from coordinator.codec import Wire
from coordinator.direction_gate import Watch
from coordinator.fragments import Layout, sew, take
from coordinator.merge import MergeRule
from coordinator.outer import OuterRule
from coordinator.protocol import (
    Adopted,
    Answer,
    Effect,
    Event,
    Fragment,
    Granted,
    Island,
    Join,
    Lease,
    Refused,
    Report,
    Vitals,
    Void,
)
from coordinator.schedule import Schedule
from coordinator.state import Rule, initial, validate
from islands.adopt import AdoptRule, FragmentPort, layout_of
from islands.encoder import Where
from islands.inner import Inner
from islands.learner import Learner
from islands.optimizer import OptimizerSpec
from islands.task import Batch, Params, Task, load_task
from tests.cluster.inprocess import LocalCluster, LocalLink
from tests.cluster.twin import twin
from tests.given import array_shard, data_spec, first_of, optimizer_spec, outer_rule, sums
from tests.given import habits as a_habits

pytestmark = pytest.mark.slow

BRISK = optimizer_spec(learning_rate=3e-3, warmup_steps=10, horizon_steps=150)
GENTLE = replace(BRISK, learning_rate=1e-4)
AS_IT_IS = outer_rule(learning_rate=1.0, momentum=0.0)
BATCH, WINDOW = 4, 32
LEASE_WINDOWS = 256
"""More windows than 60 steps read: the two leases of a join suffice if several islands run."""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """Return byte-tiny on a small text; "e" is not counted, so that islands' tokens differ."""
    folder = sums(tmp_path_factory.mktemp("text"))
    data = data_spec(str(folder), heldout_percent=20, window=WINDOW, lease_windows=LEASE_WINDOWS)
    task = load_task("byte-tiny", None, {}, data)
    return replace(task, tokens=lambda batch: int(np.sum(batch[:, 1:] != ord("e"))))


@lru_cache
def inner_of(task: Task, spec: OptimizerSpec) -> Inner:
    """Return an inner step that is compiled once for all tests; it keeps no state."""
    return Inner(task, spec)


@lru_cache
def parts_of(task: Task, fragments: int, blend: float = 0.0) -> tuple[Layout, FragmentPort]:
    layout, rule = layout_of(task, fragments), AdoptRule.BLEND if blend else AdoptRule.OVERWRITE
    return layout, FragmentPort(layout, rule, blend)


def leaves_of(params: Params) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(params)]


class Together(LocalLink):
    """A link that waits until all have joined, so that no learner is offered another's moments.

    The first learner with `stop_at` steps stops the run.
    """

    def __init__(
        self, cluster: LocalCluster, all_joined: threading.Barrier, stop_at: float
    ) -> None:
        super().__init__(cluster)
        self._cluster, self._all_joined, self._stop_at = cluster, all_joined, stop_at

    def join(self, event: Join) -> Granted | Refused:
        granted = super().join(event)
        self._all_joined.wait()
        return granted

    def report(self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]) -> Answer | Void:
        if event.progress.steps >= self._stop_at:
            self._cluster.on_loop(lambda: self._cluster.syncer.stop("enough"))
        return super().report(event, vitals, adopted)


class Tape:
    """The events of a run, in memory."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def append(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        self.events.append(event)

    def flush(self) -> None:
        pass


@dataclass
class Outcome:
    """The state after a run."""

    cluster: LocalCluster
    learners: Sequence[Learner]
    layout: Layout
    tape: Sequence[Event]

    @property
    def versions(self) -> list[int]:
        return [fragment.version.number for fragment in self.cluster.syncer.state.fragments]

    @property
    def public(self) -> list[np.ndarray]:
        """The leaves of the global model."""
        fragments = [Fragment(p) for p in range(len(self.layout.fragments))]
        return sew(self.layout, [flat for _, flat in self.cluster.shard.whole(fragments)])

    @property
    def joined(self) -> list[Island]:
        return [event.island for event in self.tape if isinstance(event, Join)]


def train(
    task: Task,
    spec: OptimizerSpec,
    schedule: Schedule,
    *,
    islands: int,
    steps: int,
    quorum: int | None = None,
    merge: MergeRule = MergeRule.MEAN,
    outer: OuterRule = AS_IT_IS,
    overlap: int = 0,
    wire_up: Wire = Wire.F32,
    encode: Where = "host",
    mode: Config | None = None,
) -> Outcome:
    """Run real learners on threads, with a quorum of all unless it is given.

    Below the quorum t stays 0, so the run is stopped after `steps`. `mode`: a configuration in
    lock-step, whose rule and overlap apply.
    """
    layout, port = parts_of(task, schedule.fragments, mode.sync.blend or 0.0 if mode else 0.0)
    start = leaves_of(task.init(0))
    flats = [take(layout, Fragment(p), start) for p in range(schedule.fragments)]
    shard = array_shard(
        layout,
        fresh(flats),
        merge_rule=merge,
        outer=outer,
        wire_up=wire_up,
        wire_down=Wire.F32,
    )
    rule = Rule(
        schedule,
        layout.fingerprint,
        steps,
        min_quorum=islands if quorum is None else quorum,
        grace_s=None,
        overlap=overlap,
        max_staleness=8,
        lease_windows=LEASE_WINDOWS,
        watch=Watch.QUARANTINE,
    )
    until = None
    if mode is not None:
        overlap, until, rule = mode.sync.least_overlap, steps, rule_for(mode, layout.fingerprint)
    names = [Island(f"local-{number}") for number in range(islands)]
    all_joined = threading.Barrier(islands)
    groups, tape = dict.fromkeys(names, "local"), Tape()
    cluster = LocalCluster(
        rule,
        initial(rule),
        shard,
        Measures("run", groups, layout.sizes, Wire.F32, now_s=time.monotonic()),
        now_s=time.monotonic,
        tape=tape,
    )
    learners = {
        name: Learner(
            task,
            layout,
            inner_of(task, spec),
            port,
            None,
            lambda: task.stream(BATCH),
            Together(cluster, all_joined, math.inf if quorum is None else steps),
            a_habits(
                name, "local", wire_up, schedule, overlap, LEASE_WINDOWS, encode=encode, until=until
            ),
            now_s=time.perf_counter,
        )
        for name in names
    }
    cluster.run(learners)
    validate(rule, cluster.syncer.state)
    return Outcome(cluster, [*learners.values()], layout, tape.events)


def batches(task: Task, count: int, *, first_lease: int = 0) -> list[Batch]:
    """Return the batches of a learner that is granted this lease and, if needed, later ones."""
    stream = task.stream(BATCH)
    for number in range(-(-count * BATCH // LEASE_WINDOWS)):
        stream.add(Lease(first_lease + number))
    return [stream.next() for _ in range(count)]


def plain_adamw(task: Task, spec: OptimizerSpec, data: Sequence[Batch]) -> list[list[np.ndarray]]:
    """Return the leaves after each batch, computed with only JAX, optax and the task's loss."""
    adamw = optax.chain(
        optax.clip_by_global_norm(spec.clip_norm),
        optax.adamw(spec.rate, spec.b1, spec.b2, spec.eps, weight_decay=spec.weight_decay),
    )

    @jax.jit
    def step(params: Params, moments: Any, batch: Batch) -> tuple[Params, Any]:
        updates, moments = adamw.update(jax.grad(task.loss)(params, batch), moments, params)
        return optax.apply_updates(params, updates), moments

    params: Params = jax.tree.map(jax.numpy.asarray, task.init(0))
    moments, after = adamw.init(params), [leaves_of(params)]
    for batch in data:
        params, moments = step(params, moments, batch)
        after.append(leaves_of(params))
    return after


def apart(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """Return the largest difference, as a share of the largest value of its tensor."""
    return max(
        float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for a, b in zip(found, wanted, strict=True)
    )


@pytest.mark.long
def test_without_synchronization_equals_plain_adamw_bit_for_bit(task: Task) -> None:
    never = Schedule(every=10_000, fragments=1)
    run = train(task, BRISK, never, islands=1, steps=60, quorum=2, overlap=2)
    (learner,) = run.learners
    steps = learner.leave().steps
    assert steps >= 60, "it steps on until it hears that the run is over"
    assert run.versions == [0], "under the quorum there is no last round either"
    plain = plain_adamw(task, BRISK, batches(task, steps))[steps]
    for mine, wanted in zip(leaves_of(learner.params), plain, strict=True):
        np.testing.assert_array_equal(mine, wanted)


def test_merging_one_learner_unchanged_only_rounds(task: Task) -> None:
    run = train(task, BRISK, Schedule(every=10, fragments=1), islands=1, steps=10)
    assert run.versions == [1]
    plain = plain_adamw(task, BRISK, batches(task, 10))[10]
    assert apart(run.public, plain) < 1e-7


def test_one_learner_merged_unchanged_trains_like_plain_adamw(task: Task) -> None:
    """Every fragment is merged once more at step 207, the last one.

    The rate is low because training itself amplifies differences: at 3e-3, a change of the last bit
    of one parameter in a hundred at step 10 grows to about 1e-5 at step 200.
    """
    run = train(task, GENTLE, Schedule(every=10, fragments=4), islands=1, steps=207)
    assert run.versions == [21, 22, 22, 21]
    plain = plain_adamw(task, GENTLE, batches(task, 207))
    assert apart(run.public, plain[207]) < 2e-6


@pytest.mark.parametrize("rule", first_of(MergeRule))
def test_four_learners_in_lock_step_match_a_naive_reference(task: Task, rule: MergeRule) -> None:
    """Each fragment has four rounds; fragments without a round at the end have a last one.

    10 steps are not a multiple of 4 fragments. The reference rounds only what it differentiates.
    The f32 rounding error, 6e-8 of each number, grows to about 2e-6 in these 40 steps; another
    merge, weight or schedule would differ by more than 5e-4.
    """
    every, steps = 10, 40
    outer = outer_rule(learning_rate=0.9, momentum=0.5)
    schedule = Schedule(every, fragments=4)
    run = train(task, BRISK, schedule, islands=4, steps=steps, merge=rule, outer=outer)
    assert run.versions == [4, 5, 5, 5]
    assert not any(row.all_discarded for row in run.cluster.syncer.state.ledger.rows)
    places = [run.joined.index(island) for island in sorted(run.joined)]
    data = [batches(task, steps, first_lease=2 * place) for place in places]
    wanted = twin(task, run.layout, BRISK, every, rule, outer, data)
    assert apart(run.public, wanted) < 2e-5


MODES = {
    "diloco": ({"every": 10}, [4]),
    "streaming": ({"every": 10, "fragments": 4, "overlap": 3}, [4, 5, 5, 4]),
    "streaming, all of it taken over": (
        {"every": 5, "fragments": 2, "overlap": 2, "adopt": "overwrite"},
        [8, 9],
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", first_of(MODES))
def test_lock_step_mode_matches_a_naive_reference_of_its_paper(task: Task, name: str) -> None:
    """DiLoCo (arXiv:2311.08105) and Streaming DiLoCo (arXiv:2501.18512), as in `run.mode`.

    No step comes earlier or later than in the reference. A fragment adopted at the last step has no
    last round.
    """
    (mode, *_), (sync, versions), steps = name.split(","), MODES[name], 40
    config = parse(
        {
            "run": {"mode": mode, "steps": steps},
            "task": {"preset": "byte-tiny"},
            "sync": sync,
            "islands": [{"group": "local", "count": 4, "batch_size": BATCH}],
        }
    )
    outer = outer_of(config)
    assert isinstance(outer, OuterRule)
    assert (outer.learning_rate, outer.momentum) == (0.7, 0.9)
    run = train(task, BRISK, schedule_of(config), islands=4, steps=steps, outer=outer, mode=config)
    assert run.versions == versions
    assert [learner.leave().steps for learner in run.learners] == [steps] * 4
    places = [run.joined.index(island) for island in sorted(run.joined)]
    data = [batches(task, steps, first_lease=2 * place) for place in places]
    every, overlap, blend = (
        config.sync.lasting_every,
        config.sync.least_overlap,
        config.sync.blend or 0.0,
    )
    wanted = twin(task, run.layout, BRISK, every, MergeRule.MEAN, outer, data, overlap, blend)
    assert apart(run.public, wanted) < 2e-5


@pytest.mark.parametrize("wire", [Wire.BF16, Wire.INT4])
def test_encoding_on_host_or_device_gives_the_same_parameters(task: Task, wire: Wire) -> None:
    """The parameters stay equal to the last bit over four rounds, with error feedback."""
    one, other = (
        train(
            task, BRISK, Schedule(10, fragments=4), islands=1, steps=40, wire_up=wire, encode=where
        )
        for where in ("host", "device")
    )
    assert one.versions == other.versions == [4, 5, 5, 5]
    for mine, theirs in zip(one.public, other.public, strict=True):
        np.testing.assert_array_equal(mine, theirs)
