"""Checks between fields of `[optimizer]`: keys that have no effect beside a target."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.config.field_check import reads
from cluster.config.problem_text import Problem
from cluster.config.schema import Config, OptimizerConfig
from cluster.config.values import RATES

BUILT_IN = ("kind", "b1", "b2", "eps", "momentum", "adamw_share", "weight_decay", "clip_norm")
"""The keys of the built-in optimizers, which have no effect on a target."""
OF_LOSS_SCALE = ("loss_scale", "loss_scale_steps")
"""The keys of the loss scale, which applies to every optimizer."""
OF_RATE = ("learning_rate", "warmup_steps", "floor_fraction")
"""The keys of the built-in schedules, which have no effect on a schedule of the user's."""


@reads("optimizer")
def one_inner_optimizer(config: Config) -> Iterator[Problem]:
    """Check that the inner optimizer is either built in or a target, with no key of the other."""
    optimizer = config.optimizer
    if optimizer.target is None:
        if optimizer.options:
            yield Problem("optimizer.options", "are those of a target, and there is none")
        if optimizer.schedule == "target":
            yield Problem(
                "optimizer.schedule", 'is "target", and there is no optimizer.target; use "cosine"'
            )
        return
    for key in BUILT_IN:
        if _is_set(optimizer, key):
            yield Problem(
                f"optimizer.{key}",
                f"has no effect on {optimizer.target}; leave it out, or put it into the target or "
                "optimizer.options",
            )


@reads("optimizer")
def one_schedule(config: Config) -> Iterator[Problem]:
    """Check that the rate has one source, and that a target has a rate."""
    optimizer, ours = config.optimizer, config.optimizer.schedule in ("cosine", "wsd")
    if ours and optimizer.target is not None and "learning_rate" not in optimizer.model_fields_set:
        yield Problem(
            "optimizer.learning_rate",
            f"is missing: it multiplies the updates of {optimizer.target}; give the peak rate (and "
            'the target the rate 1), or schedule = "target" if the target has its own rates',
        )
    for key in () if ours else OF_RATE:
        if _is_set(optimizer, key):
            whose = optimizer.target if optimizer.schedule == "target" else optimizer.schedule
            yield Problem(
                f"optimizer.{key}", f"has no effect: {whose} has its own rates; leave it out"
            )
    if optimizer.schedule != "wsd" and _is_set(optimizer, "decay_fraction"):
        yield Problem(
            "optimizer.decay_fraction",
            f'is read only by schedule = "wsd", and schedule is "{optimizer.schedule}"; leave one '
            "out",
        )


@reads("optimizer.kind", "optimizer.adamw_share")
def some_leaves_go_by_adamw(config: Config) -> Iterator[Problem]:
    """Check that `adamw_share` is set only for Muon, where it has an effect."""
    optimizer = config.optimizer
    if optimizer.target is None and optimizer.kind == "adamw" and optimizer.adamw_share != 1:
        yield Problem(
            "optimizer.adamw_share",
            'is for the leaves beside those of kind = "muon"; with "adamw" all go by it: set '
            "optimizer.learning_rate instead",
        )


@reads("optimizer", "islands", "run.mode")
def groups_have_rates_only(config: Config) -> Iterator[Problem]:
    """Check that the values of a group have an effect, as those of `[optimizer]` must."""
    for number, group in enumerate(config.islands):
        own = group.optimizer.values
        if own and config.run.mode.sums_gradients:
            yield Problem(
                f"islands.{number}.optimizer",
                f"has no effect with run.mode = {config.run.mode.value!r}, where all islands take "
                "the same step; leave it out",
            )
            continue
        there = config.optimizer.model_copy(update=own)
        merged = config.model_copy(update={"optimizer": there})
        for check in (one_inner_optimizer, one_schedule, some_leaves_go_by_adamw):
            for problem in check.problems(merged):
                if (key := problem.where.removeprefix("optimizer.")) in own:
                    yield Problem(f"islands.{number}.optimizer.{key}", problem.what)


def _is_set(optimizer: OptimizerConfig, key: str) -> bool:
    """Return whether the user set a key.

    A resolved configuration names every key, so a key at its default does not count in it. The
    rate of a kind is filled in before the table is checked, and counts only if it is another.
    """
    fields, given = OptimizerConfig.model_fields, optimizer.model_fields_set
    default = RATES[optimizer.kind] if key == "learning_rate" else fields[key].default
    if key == "learning_rate" or given >= fields.keys() - {"target", "pickled"}:
        return getattr(optimizer, key) != default
    return key in given
