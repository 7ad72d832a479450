"""Defaults for tests; product classes have none and read everything from a configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster.shard.arithmetic import Files
from cluster.shard.arrays import ArrayArithmetic, ArrayShard
from cluster.shard.files import NoFiles
from cluster.shard.method import Method, OuterOptimizer
from cluster.shard.retention import Retention
from cluster.shard.shard import Shard
from cluster.storage.fragments import Arrays
from coordinator.codec import Wire
from coordinator.fragments import Layout
from coordinator.merge import MergeRule
from coordinator.outer import OuterRule
from coordinator.own_merge import OwnMerge
from coordinator.protocol import Anchor, Fragment, Island
from coordinator.schedule import Schedule
from islands.corpus import Corpus
from islands.corpus_reader import read_corpus
from islands.encoder import Where
from islands.link import LearnerSettings
from islands.optimizer import OptimizerKind, OptimizerSpec
from islands.sources import STDLIB, DataSpec

LEAST = """
[task]
preset = "byte-tiny"
options = { width = 16, layers = 1, heads = 1, hidden = 32 }
[data]
source = "SOURCE"
window = 16
lease_windows = 32
heldout_percent = 20.0
"""
"""A configuration of the least model that trains on the text of `sums`; replace SOURCE."""


def sums(folder: Path) -> Path:
    """Write a small text in eight files, and return the folder."""
    folder.mkdir(exist_ok=True)
    for number in range(8):
        lines = (f"{number} times {i} is {number * i}, and so on\n" for i in range(200))
        (folder / f"{number}.txt").write_text("".join(lines))
    return folder


def one_corpus(data: DataSpec, vocabulary: int = 256) -> Any:
    """Read a corpus of one source; its tokens are an array or `JoinedTokens`."""
    corpus = read_corpus(data, vocabulary)
    assert isinstance(corpus, Corpus)
    return corpus


def data_spec(
    source: str = STDLIB,
    column: str | None = None,
    tokens: bool = False,
    heldout_percent: float = 5.0,
    window: int = 128,
    seed: int = 0,
    lease_windows: int = 256,
) -> DataSpec:
    return DataSpec(source, column, tokens, heldout_percent, window, seed, lease_windows)


def optimizer_spec(kind: OptimizerKind = "adamw", **more: Any) -> OptimizerSpec:
    usual: dict[str, Any] = {
        "target": None,
        "options": (),
        "schedule": "cosine",
        "decay_fraction": 0.2,
        "learning_rate": 6e-3,
        "warmup_steps": 20,
        "floor_fraction": 0.1,
        "b1": 0.9,
        "b2": 0.99,
        "eps": 1e-8,
        "momentum": 0.95,
        "adamw_share": 1.0,
        "weight_decay": 0.1,
        "clip_norm": 1.0,
        "horizon_steps": 400,
    }
    return OptimizerSpec(kind=kind, **{**usual, **more})


def outer_rule(
    learning_rate: float = 1.0,
    momentum: float = 0.0,
    nesterov: bool = True,
    as_long: bool = False,
) -> OuterRule:
    return OuterRule(learning_rate, momentum, nesterov, as_long)


def habits(
    island: Island,
    group: str,
    wire_up: Wire,
    schedule: Schedule,
    overlap: int,
    lease_windows: int,
    speed: float = 1.0,
    step_s: float = 0.0,
    anchor: Anchor = Anchor.BASE,
    encode: Where = "host",
    until: int | None = None,
    wire_moments: Wire | None = None,
    moments_every: int = 1,
) -> LearnerSettings:
    return LearnerSettings(
        island,
        group,
        wire_up,
        wire_moments,
        moments_every,
        schedule,
        overlap,
        lease_windows,
        speed,
        step_s,
        anchor,
        encode,
        None,
        until,
    )


def array_shard(
    layout: Layout,
    arrays: Mapping[Fragment, Arrays],
    *,
    merge_rule: MergeRule | OwnMerge = MergeRule.MEAN,
    outer: OuterRule | OuterOptimizer | None = None,
    wire_up: Wire = Wire.F32,
    wire_down: Wire = Wire.F32,
    anchor: Anchor = Anchor.BASE,
    max_staleness: int = 0,
    keep_differences: int = 0,
    files: Files[Arrays] | None = None,
    every: int = 1,
    wire_moments: Wire | None = None,
    kappa: float = 1.0,
) -> ArrayShard:
    """Return a shard with this model; without `files` it stores nothing."""
    method = Method(
        merge_rule,
        outer or outer_rule(),
        wire_up,
        wire_down,
        keep_differences,
        wire_moments,
        kappa,
    )
    shard: ArrayShard = Shard(
        lambda: (ArrayArithmetic(layout, method, map), files or NoFiles()),
        Retention(anchor, max_staleness, every),
    )
    shard.seed(arrays)
    return shard


def first_of(values: Iterable[object]) -> list[Any]:
    """Return the values as parameters of a test that is long for all but the first of them."""
    first, *others = values
    return [first, *(pytest.param(each, marks=pytest.mark.long) for each in others)]
