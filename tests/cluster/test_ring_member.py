"""Tests of one island in a ring of its own: fault plans, and what a step of a ring sends."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from cluster.allreduce import rendezvous as meeting
from cluster.allreduce.member import NotFinite, RingMember
from cluster.allreduce.ring_messages import START, RingDecision, TrainingPosition
from cluster.allreduce.saved_state import RingState
from cluster.allreduce.step import RingStep, StepTotals
from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.workers.assembly import task_of
from coordinator.codec import Wire
from coordinator.protocol import Incarnation, Island, Life, Report, Vitals
from islands.task import load_task
from tests.given import LEAST, data_spec, optimizer_spec, sums

ALONE = Island("eu-0")
STEPS = 6
DRAG = 500.0
"""A slow-down far above what a busy machine causes; a step takes half a millisecond."""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    text = f"""
    [run]
    mode = "data-parallel"
    steps = {STEPS}
    [durability]
    snapshot_steps = 2
    [[islands]]
    group = "eu"
    batch_size = 2
    """
    return parse(tomllib.loads(text + LEAST.replace("SOURCE", str(sums(tmp_path)))))


class Alone:
    """A conductor with one ring of one island, from the beginning to the end."""

    def __init__(self, config: Config) -> None:
        self._first = RingState(START, jax.tree.leaves(task_of(config).init(0)), None)
        self._turns = [RingDecision(1, "", 0, 1, START, None)]
        self.kept, self.turns = list[RingState](), list[TrainingPosition]()
        self.vitals: Vitals

    def enter(self, island: Island) -> Life:
        return Life(island, Incarnation(1))

    def ready(self, life: Life, held: TrainingPosition | None, wasted: int) -> RingDecision | None:
        return self._turns.pop() if self._turns else None

    def turned(self, life: Life, ring: int, held: TrainingPosition) -> None:
        self.turns.append(held)

    def report(self, report: Report, vitals: Vitals) -> None:
        self.vitals = vitals

    def keep(self, life: Life, state: RingState) -> None:
        self.kept.append(state)

    def snapshot(self) -> RingState:
        return self._first

    def state_of(self, donor: Life) -> RingState | None:
        return None


@pytest.fixture
def member(config: Config, monkeypatch: pytest.MonkeyPatch) -> RingMember:
    monkeypatch.setattr(meeting, "leave", lambda mine: None)  # it would end JAX for other tests
    return RingMember(config, ALONE, Alone(config))


def link_of(member: RingMember) -> Alone:
    assert isinstance(member._link, Alone)
    return member._link


@pytest.mark.slow
def test_trains_to_the_end_and_gives_snapshots(member: RingMember) -> None:
    member.run()
    link = link_of(member)
    assert link.turns[-1].step == STEPS
    assert [state.held.step for state in link.kept] == [2, 4]
    last = member.state_of()
    assert last is not None
    assert last.held.step == STEPS
    assert math.isfinite(link.vitals.loss)


@pytest.mark.slow
def test_gradients_that_are_not_finite_are_not_shared(member: RingMember) -> None:
    """The process ends, and what is kept stays good."""
    member.spoil = math.nan
    with pytest.raises(NotFinite, match=r"gradients of step 1 are not all finite \(its loss is 5"):
        member.run()
    assert link_of(member).kept == []
    assert link_of(member).turns == []


@pytest.mark.long
@pytest.mark.slow
def test_slowed_member_idles(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "leave", lambda mine: None)
    idle_s = dict[float, float]()
    for drag in (1.0, DRAG):
        member = RingMember(config, ALONE, Alone(config))
        member.drag = drag
        member.run()
        idle_s[drag] = link_of(member).vitals.idle_s
    assert idle_s[DRAG] > 10 * idle_s[1.0]


# --- what is sent -------------------------------------------------------------------------------


def printed_by_two_devices(script: str, wire: str) -> str:
    """Run a script in a process with two CPU devices, and return what it prints."""
    two = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", script, wire],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **two},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


BUCKETS = """
import sys
import jax
from cluster.allreduce import wire
wire.buckets_of.__defaults__ = (20_000,)
from cluster.allreduce.step import RingStep
from coordinator.codec import Wire
from islands.task import load_task
from tests.given import data_spec, optimizer_spec
task = load_task("byte-tiny", None, {}, data_spec(window=32))
step = RingStep(task, optimizer_spec(), Wire(sys.argv[1]), 1)
state = step.start(task.init(0), None)
loss, buckets = step.gradients(state, task.heldout(2)[0])
emitted = step._sum.lower(buckets, jax.numpy.zeros(4))
print(len(buckets), emitted.as_text(), emitted.compile().as_text(), sep="\\n=====\\n")
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("wire", "words", "kinds"),
    [("f32", 1, ["all_reduce"]), ("bf16", 0, ["all_to_all", "all_gather"])],
)
def test_each_bucket_is_a_collective_of_its_own(wire: str, words: int, kinds: list[str]) -> None:
    """Count the collectives of a step; `words` is the number of f32 sums beside the gradients.

    XLA combines all sums between CPUs into one, which nothing could have run beside
    (docs/lab/baselines.md). It leaves collectives that only move bits.
    """
    printed = printed_by_two_devices(BUCKETS, wire)
    count, emitted, compiled = printed.split("\n=====\n")
    assert int(count) > 2
    for kind in kinds:
        assert emitted.count(f"stablehlo.{kind}") == int(count) + words
        if kind != "all_reduce":
            plain = kind.replace("_", "-")
            assert len(re.findall(rf" {plain}(?:-start)?\(", compiled)) == int(count)


MASKED = """
import sys
import jax
import numpy as np
from cluster.allreduce.step import RingStep
from coordinator.codec import Wire
from islands.task import load_task
from tests.given import data_spec, optimizer_spec
task = load_task("byte-tiny", None, {}, data_spec(window=32))
step = RingStep(task, optimizer_spec(), Wire(sys.argv[1]), 1)
everywhere = jax.sharding.NamedSharding(step._mesh, jax.sharding.PartitionSpec())

def of_members(*values):
    pieces = [jax.device_put(np.float32(x), d) for x, d in zip(values, jax.devices())]
    return jax.make_array_from_single_device_arrays(pieces[0].shape, everywhere, pieces)

gradients = of_members(np.full(8, 1.0), np.full(8, 5.0))
words = of_members([2.0, 0, 64, 3], [6.0, 1, 64, 4])
for counts in [None, (30, 10), (0, 7), (0, 0)]:
    counted = None if counts is None else of_members(*counts)
    for part in step._sum([gradients], words, counted):
        print(*np.ravel([np.asarray(x.addressable_shards[1].data) for x in jax.tree.leaves(part)]))
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("wire", ["f32", "bf16"])
def test_members_are_weighted_by_the_tokens_that_the_loss_counts(wire: str) -> None:
    """Gradients of 1 and 5 with 30 and 10 answer tokens have the mean 2, like one summed batch."""
    printed = printed_by_two_devices(MASKED, wire)
    found = [[float(word) for word in line.split()] for line in printed.splitlines()]
    without, three_to_one, one_alone, no_token = zip(found[::2], found[1::2], strict=True)
    assert without == no_token == ([3.0] * 8, [8.0, 1.0, 128.0, 7.0])
    assert three_to_one == ([2.0] * 8, [2 * 1.5 + 6 * 0.5, 1.0, 128.0, 7.0])
    assert one_alone == ([5.0] * 8, [12.0, 1.0, 128.0, 7.0])


@pytest.mark.slow
def test_tokens_of_a_step_are_counted_exactly() -> None:
    """A float32 is exact up to 2^24; a step of thousands of accelerators has more tokens."""
    task = load_task("byte-tiny", None, {}, data_spec(window=32))
    step = RingStep(task, optimizer_spec(), Wire.F32, 1)
    for tokens in (0, 4095, 2**24 + 1, 2**34 - 1):
        _, totals = step.mean(jnp.float32(1), [jnp.zeros(1)], tokens, leaving=True)
        assert totals == StepTotals(1.0, tokens, 1)
