"""Tests of the effect of single contributions on the held-out loss: measured, compared, shown."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import ray

from archipelago.cli.status_lines import line
from cluster.actors.shard.actor import ShardActor
from cluster.config.load import parse
from cluster.config.rule import judge_of
from cluster.config.schema import Config
from cluster.failures import Unjudged
from cluster.fleet.contribution_effects import (
    IN_A_ROW,
    KEPT,
    LEAST_OTHERS,
    EffectHistory,
    has_room,
    is_harmful,
)
from cluster.fleet.evaluation import Evaluating, EvaluationSchedule, Pending
from cluster.names import EVALUATOR, region_evaluator
from cluster.shard.contribution_samples import chosen
from cluster.workers.assembly import task_of
from cluster.workers.contribution_effect import SampledContribution, effect_of
from cluster.workers.evaluator import Evaluator
from cluster.workers.evaluator_answers import ContributionEffect
from coordinator.codec import Sent, Wire, WithMoments, decode, encode
from coordinator.fragments import Flat, Layout, Leaf, cut, sew, take
from coordinator.protocol import (
    Contribution,
    ContributionId,
    Fragment,
    HandIn,
    Incarnation,
    Island,
    Item,
    Lease,
    Life,
    Merge,
    Merged,
    Progress,
    Publish,
    Unsound,
    Version,
)
from islands.losses import evaluation_loss, frozen_of
from islands.trainable import shapes_of
from tests.cluster.test_evaluation import remotely
from tests.cluster.test_progress import a_status

F0, V1 = Fragment(0), Version(0, 1)
LAYOUT = cut([Leaf("w", (64,))], 1)
A, B, C = (Island(f"local-{number}") for number in range(3))


# --- when an effect is measured -------------------------------------------------------------------


def test_effect_is_measured_while_evaluations_take_at_most_a_quarter_of_the_time() -> None:
    assert has_room(1.25, measured=False, every_s=10.0), "it will take twice as long"
    assert not has_room(1.26, measured=False, every_s=10.0)
    assert has_room(2.5, measured=True, every_s=10.0)
    assert not has_room(2.6, measured=True, every_s=10.0)


class Clock(Evaluating):
    """An evaluator in virtual time, whose evaluations take this long and have this result."""

    def __init__(self) -> None:
        self.now_s, self.takes_s = 0.0, 1.0
        self.result: Any = None
        self.measures: list[object] = []

    def ask(self, method: str, *arguments: object) -> Pending:
        if method == "judged":
            return lambda _: (0, 0.0)
        self.measures.append(arguments[0])

        def pending(wait_s: float) -> Any:
            if isinstance(self.result, BaseException):
                raise self.result.with_traceback(None)
            return self.result

        return pending

    def restart(self) -> None:
        raise AssertionError("nothing hangs")

    def evaluates(self, schedule: EvaluationSchedule) -> Unjudged | None:
        """Have the next evaluation begin and end, and return why it has failed."""
        self.now_s += 10.0
        assert schedule.look() is None
        self.now_s += self.takes_s
        return schedule.look()


def test_busy_evaluator_measures_nothing_and_a_failure_is_no_effect() -> None:
    clock, found = Clock(), list[ContributionEffect]()
    schedule = EvaluationSchedule(clock, 10.0, lambda: clock.now_s, found.append)
    effect = ContributionEffect(A, F0, -0.5)
    clock.evaluates(schedule)
    clock.result = effect
    clock.evaluates(schedule)
    assert (clock.measures, found) == ([False, True], [effect])
    clock.takes_s = 4.0
    clock.evaluates(schedule)
    clock.takes_s = 1.0
    clock.evaluates(schedule)
    assert clock.measures == [False, True, True, False]
    clock.result = remotely(MemoryError())
    assert clock.evaluates(schedule) is Unjudged.RAISED
    clock.result = None
    clock.evaluates(schedule)
    assert clock.measures == [False, True, True, False, True, False], "a plain one comes first"
    assert found == [effect, effect, effect]


def test_nothing_is_measured_without_a_receiver() -> None:
    clock = Clock()
    schedule = EvaluationSchedule(clock, 10.0, lambda: clock.now_s)
    for _ in range(3):
        clock.evaluates(schedule)
    assert clock.measures == [False] * 3


# --- which effects are harmful --------------------------------------------------------------------


def test_harmful_effect_is_above_zero_and_above_the_spread_of_the_others() -> None:
    others = [-0.03, -0.02, -0.01, -0.02, -0.03]
    assert not is_harmful(-0.0001, others), "it has lowered the loss"
    assert not is_harmful(0.02, others), "three deviations of 0.0148 above -0.02"
    assert is_harmful(0.03, others)
    assert not is_harmful(0.03, others[: LEAST_OTHERS - 1]), "their spread is not known"
    assert not is_harmful(2e-5, [0.0] * 9), "f32 resolves no less"
    assert is_harmful(4e-5, [0.0] * 9)
    assert is_harmful(0.5, [-0.03, -0.02, -0.01, -0.02, 0.6]), "one bad island hides no other"


def history_of(*effects: tuple[Island, float]) -> EffectHistory:
    history = EffectHistory()
    for island, nats in effects:
        history = history.added(ContributionEffect(island, F0, nats))
    return history


def test_harmful_contributions_are_counted_in_a_row() -> None:
    well = [(B, -0.02), (C, -0.03)] * 4
    history = history_of(*well, (A, 0.5), (A, 0.4), (A, 0.6))
    assert {island: each.harmful for island, each in history.by_island.items()} == {
        A: 3,
        B: 0,
        C: 0,
    }
    history = history.added(ContributionEffect(A, F0, -0.02))
    assert history.by_island[A].harmful == 0, "one good contribution ends the row"
    assert history.by_island[A].recent == (0.5, 0.4, 0.6, -0.02)
    long = history_of(*[(A, float(number)) for number in range(KEPT + 3)])
    assert long.by_island[A].recent[0] == 3.0
    assert long.by_island[A].harmful == 0, "there is no other island to compare with"


def test_status_names_an_island_that_does_harm() -> None:
    status = a_status(islands=2)
    island = status["islands"][0]
    island["contribution_effect"], island["harmful_contributions"] = 0.0125, IN_A_ROW - 1
    assert "held-out loss (by" not in line(status)
    island["harmful_contributions"] = IN_A_ROW
    told = f"the last 3 measured contributions of {island['island']} raised the held-out loss"
    assert f"{told} (by 0.0125 at the last one)" in line(status)


# --- whose evaluator measures ---------------------------------------------------------------------


def config_of(**more: Any) -> Config:
    plain = {
        "merge": "mean",
        "wire_up": "f32",
        "wire_down": "f32",
        "outer": {"learning_rate": 1.0, "momentum": 0.0, "nesterov": False},
    }
    return parse(
        {
            "task": {"preset": "byte-tiny"},
            "islands": [{"count": 3}],
            **more,
            "sync": {"fragments": 1, **plain, **more.get("sync", {})},
        }
    )


REGIONS: dict[str, Any] = {
    "islands": [{"group": name, "region": name} for name in ("eu", "us", "asia")],
    "regions": {
        "eu": {"data": "/corpus/eu"},
        "us": {"data": "/corpus/us", "evaluate": False},
    },
}


def test_contributions_of_a_region_go_to_no_other_evaluator_than_its_own() -> None:
    config = config_of(**REGIONS)
    assert judge_of(config, Island("eu-0")) == region_evaluator("eu")
    assert judge_of(config, Island("us-0")) is None
    assert judge_of(config, Island("asia-0")) == EVALUATOR, "it has no text of its own"


def test_measuring_can_be_turned_off() -> None:
    assert judge_of(config_of(), A) == EVALUATOR
    assert judge_of(config_of(monitor={"contribution_effects": False}), A) is None
    assert judge_of(config_of(monitor={"evaluator": {"hosts": 2}}), A) is None


# --- what a shard keeps ---------------------------------------------------------------------------


class Fragments:
    """A shard with one fragment, over a directory, and merges into it."""

    def __init__(self, config: Config, run_dir: Path, layout: Layout, first: Flat) -> None:
        self.config, self.layout, self.now = config, layout, 0
        self.shard = ShardActor(config.model_dump_json(), "nowhere", str(run_dir))
        asyncio.run(self.shard.seed(layout, F0, first))

    @property
    def public(self) -> list[tuple[Version, Flat]]:
        """The public fragment with its version."""
        found = asyncio.run(self.shard.whole([F0]))
        assert found is not None
        return found

    def hand_in(self, island: Island, payload: Sent) -> Contribution:
        id_ = ContributionId(Life(island, Incarnation(1)), F0, self.now, self.now + 1)
        progress = Progress(self.now + 1, 1, Lease(0))
        base = Version(0, self.now)
        said = HandIn(id_, base, self.now, 1, self.layout.fingerprint, progress)
        return self.shard.process.shard.receive(said, payload)

    def merge(
        self, *sent: tuple[Island, Sent], limit: float = math.inf, public: bool = True
    ) -> Merged | Unsound:
        """Merge contributions in equal shares, and publish the result if it is sound."""
        items = tuple(Item(self.hand_in(*each), 1 / len(sent)) for each in sent)
        before, after = Version(0, self.now), Version(0, self.now + 1)

        async def both() -> Merged | Unsound:
            event, _ = await self.shard.merge(Merge(F0, after, items, "due", limit=limit))
            if public and isinstance(event, Merged):
                await self.shard.publish(Publish(F0, after, before, (), ()), ())
                self.now += 1
            return event

        return asyncio.run(both())

    def sampled(self, judge: str = EVALUATOR) -> SampledContribution | None:
        return asyncio.run(self.shard.contribution(judge))


def numbers(seed: int) -> Flat:
    return np.random.default_rng(seed).normal(size=64).astype(np.float32)


@pytest.fixture
def fragments(tmp_path: Path) -> Callable[..., Fragments]:
    return lambda **more: Fragments(config_of(**more), tmp_path, LAYOUT, numbers(0))


def test_shard_keeps_a_public_contribution_once_an_evaluator_has_asked(
    fragments: Callable[..., Fragments],
) -> None:
    run = fragments()
    run.merge((A, numbers(1)))
    assert run.sampled() is None, "nothing was kept"
    run.merge((A, numbers(2)), (B, numbers(3)))
    sampled = run.sampled()
    assert sampled is not None
    assert sampled[:4] == (A, F0, Version(0, 2), 0.5)
    np.testing.assert_array_equal(decode(sampled.delta, 64), numbers(2))
    assert run.sampled() is None, "it is given once"


def test_islands_are_sampled_in_turn_and_the_newest_merge_counts(
    fragments: Callable[..., Fragments],
) -> None:
    run, found = fragments(), list[tuple[Island, int]]()
    run.sampled()
    for _ in range(4):
        for seed in (1, 2):
            run.merge((C, numbers(seed)), (A, numbers(seed)), (B, numbers(seed)))
        sampled = run.sampled()
        assert sampled is not None
        found.append((sampled.island, sampled.version.number))
    assert found == [(A, 2), (B, 4), (C, 6), (A, 8)]
    assert chosen((), {}) is None


def test_contribution_that_is_not_in_the_public_model_is_not_given(
    fragments: Callable[..., Fragments],
) -> None:
    run = fragments()
    run.sampled()
    assert isinstance(run.merge((A, numbers(1)), limit=1e-9), Unsound)
    assert run.sampled() is None
    run.merge((A, numbers(1)), public=False)
    assert run.sampled() is None, "it is staged"
    asyncio.run(run.shard.recover({F0: Version(0, 0)}, 0))
    run.merge((B, numbers(2)))
    sampled = run.sampled()
    assert sampled is not None
    assert sampled.island == B


def test_moments_and_contributions_of_other_regions_stay(
    fragments: Callable[..., Fragments],
) -> None:
    run = fragments(**REGIONS, sync={"moments": "mean", "wire_moments": "bf16"})
    for judge in (EVALUATOR, region_evaluator("eu"), region_evaluator("us")):
        run.sampled(judge)
    sent = WithMoments(numbers(1), encode(Wire.BF16, numbers(2)))
    run.merge((Island("eu-0"), sent), (Island("us-0"), sent))
    assert run.sampled() is None
    assert run.sampled(region_evaluator("us")) is None, "its evaluator is turned off"
    sampled = run.sampled(region_evaluator("eu"))
    assert sampled is not None
    assert sampled.island == "eu-0"
    np.testing.assert_array_equal(sampled.delta, numbers(1))


# --- the effect -----------------------------------------------------------------------------------


def test_effect_is_the_loss_minus_the_loss_without_the_weighted_delta() -> None:
    model = [(V1, numbers(1)), (V1, numbers(2))]
    sampled = SampledContribution(A, Fragment(1), V1, 0.25, encode(Wire.INT8, numbers(3)))

    def loss_of(flats: list[Flat]) -> float:
        return float(flats[0].sum() + 2 * flats[1].sum())

    loss = loss_of([flat for _, flat in model])
    effect = effect_of(sampled, model, loss, Wire.INT8, loss_of)
    expected = 2 * 0.25 * float(decode(sampled.delta, 64).sum())
    assert effect == (A, Fragment(1), pytest.approx(expected, abs=1e-4))
    np.testing.assert_array_equal(model[1][1], numbers(2), "the model is not changed")


def test_there_is_no_effect_on_a_model_that_was_rolled_back_or_has_no_finite_loss() -> None:
    model = [(V1, numbers(1))]
    sampled = SampledContribution(A, F0, Version(0, 2), 0.25, numbers(3))
    assert effect_of(None, model, 1.0, Wire.F32, lambda flats: 1.0) is None
    assert effect_of(sampled, model, 1.0, Wire.F32, lambda flats: 1.0) is None
    sampled = SampledContribution(A, F0, V1, 0.25, numbers(3))
    assert effect_of(sampled, model, 1.0, Wire.F32, lambda flats: math.nan) is None
    assert effect_of(sampled, model, math.inf, Wire.F32, lambda flats: 1.0) is None


class Trainer:
    """The gradients of a small real model on text that the evaluation does not use."""

    def __init__(self, config: Config, layout: Layout) -> None:
        task = task_of(config)
        self._layout, self._structure = layout, jax.tree.structure(shapes_of(task))
        self._batches, loss, frozen = task.heldout(16), evaluation_loss(task), frozen_of(task)
        self._gradient = jax.jit(jax.grad(lambda params, batch: loss(params, batch, frozen)[0]))

    def delta(self, flat: Flat, batch: int) -> Flat:
        """Return a step of gradient descent; `batch`: none of those of an evaluation."""
        params = jax.tree.unflatten(self._structure, [*sew(self._layout, [flat])])
        gradient = jax.tree.leaves(self._gradient(params, self._batches[batch]))
        return -0.5 * take(self._layout, F0, [np.asarray(each) for each in gradient])


@pytest.fixture
def ray_ends() -> Generator[None]:
    """End the Ray that starts by itself when a shard shares a large publication."""
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_ends")
def test_harmful_island_is_told_from_honest_ones_by_a_real_model(tmp_path: Path) -> None:
    config = config_of()
    evaluator = Evaluator(config)
    trainer = Trainer(config, evaluator.layout)
    run = Fragments(config, tmp_path, evaluator.layout, evaluator.initial()[0])
    run.sampled()
    history = EffectHistory()
    for number in range(15):
        flat = run.public[0][1]
        first, second = (trainer.delta(flat, 1 + (2 * number + each) % 7) for each in (0, 1))
        run.merge((A, first), (B, second), (C, -0.9 * first))
        sampled, model = run.sampled(), run.public
        loss = evaluator.sample([flat for _, flat in model])
        effect = effect_of(sampled, model, loss, Wire.F32, evaluator.sample)
        assert effect is not None
        history = history.added(effect)
    harmful = {each: it.harmful for each, it in history.by_island.items()}
    assert (harmful[A], harmful[B]) == (0, 0)
    assert harmful[C] >= IN_A_ROW
    assert max(*history.by_island[A].recent, *history.by_island[B].recent) < 0
    assert min(history.by_island[C].recent) > 0
