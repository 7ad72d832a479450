"""The tables of what a run trains and how: `[run]`, `[task]`, `[data]`, `[optimizer]`, `[sync]`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from cluster.config.table import Table
from cluster.config.values import (
    LARGEST_SEED,
    RATES,
    TARGET,
    Amount,
    Count,
    Grace,
    Interval,
    Mode,
    ModeName,
    Name,
    OptionValue,
    Overlap,
    Positive,
    Rate,
    Share,
    WireName,
    grace_value,
    overlap_value,
    rate_value,
)
from coordinator.codec import Wire


class RunConfig(Table):
    name: Name | None = None  # None: the file's name and the time of the start
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = 0
    mode: ModeName = Mode.DECOUPLED
    steps: Count = 300  # T, in syncer steps
    dir: Annotated[str, Field(min_length=1)] = "runs"


class TaskConfig(Table):
    """What is learned: a preset that comes with the project, or the user's own `target`."""

    preset: Annotated[str, Field(min_length=1)] | None = None
    target: Annotated[str, Field(pattern=TARGET)] | None = None  # module:attribute
    options: dict[str, OptionValue] = Field(default={})


class DataConfig(Table):
    source: Annotated[str, Field(min_length=1)] = "python-stdlib"
    column: Annotated[str, Field(min_length=1)] | None = None  # of a Parquet dataset
    tokens: bool = False  # the column holds token ids, not text
    heldout_percent: Annotated[float, Field(gt=0, lt=100)] = 5.0
    window: Count = 128  # tokens predicted in one window
    lease_windows: Count = 256


class OptimizerConfig(Table):
    """The inner one, with a linear warm-up and a cosine down to a floor."""

    kind: Literal["muon", "adamw"] = "muon"  # muon: for hidden matrices; all other leaves by adamw
    learning_rate: Positive = RATES["muon"]  # or what suits the other kind
    warmup_steps: Annotated[int, Field(ge=0)] = 20
    floor_fraction: Annotated[float, Field(gt=0, le=1)] = 0.1
    b1: Share = 0.9
    b2: Share = 0.99
    eps: Positive = 1e-8
    momentum: Share = 0.95  # muon's
    adamw_share: Positive = 1.0  # beside muon: of the rate, for the leaves that go by adamw
    weight_decay: Amount = 0.1
    clip_norm: Amount = 1.0  # 0: no clipping


class OuterConfig(Table):
    """SGD with momentum on the outer gradient (arXiv:2311.08105), or an optax transformation."""

    learning_rate: Annotated[Rate, BeforeValidator(rate_value)] = 1.0  # auto: a step as long as
    # the merged delta
    momentum: Share = 0.0
    nesterov: bool = True
    target: Annotated[str, Field(pattern=TARGET)] | None = None  # such as "optax:adam", instead
    options: dict[str, OptionValue] = Field(default={})  # ... called with these


LEAST_OVERLAP = 1
"""Of `overlap = "auto"`, in steps: whoever trains on meanwhile adopts at its next boundary."""


class SyncConfig(Table):
    every: Interval = (
        8  # H: each fragment is merged once in so many syncer steps; or [[from, H], ...]
    )
    fragments: Count = 8  # P
    overlap: Annotated[Overlap, BeforeValidator(overlap_value)] = (
        "auto"  # what a round takes; or tau, in steps; 0 = learners wait for adoption
    )
    quorum: Count = 1  # K
    grace: Annotated[Grace, BeforeValidator(grace_value)] = "auto"  # seconds
    max_staleness: Annotated[int, Field(ge=0)] = 8  # versions
    merge: Literal["rda", "mean"] = "mean"
    kappa: Annotated[float, Field(gt=0, le=1)] | None = None  # of "rda": towards 0 it is the mean
    anchor: Literal["base", "current"] = "base"  # the learner's own base, or the syncer's fragment
    adopt: Literal["overwrite", "carry", "blend"] = "carry"
    blend: Annotated[float, Field(gt=0, lt=1)] | None = None  # alpha, the share of the local one
    wire_up: WireName = Wire.BF16
    wire_down: WireName = Wire.BF16
    moments: Literal["own", "mean"] = "own"  # mean: first moments are shared, too
    moments_every: Count = 1  # ... with every so-many-th merge of a fragment
    wire_moments: WireName = Wire.INT8  # ... written like this, either way
    direction: Literal["quarantine", "report", "off"] = "quarantine"  # of who is against all
    keep_differences: Annotated[int, Field(ge=0)] = (
        4  # R: recent ones of a fragment, for lagging learners
    )
    shards: Count = 1  # processes that share the fragments between them
    shard_labels: dict[str, str] | None = None  # of their nodes, in turn; None: the fleet's node
    outer: OuterConfig = OuterConfig()

    @property
    def stretches(self) -> tuple[tuple[int, int], ...]:
        """From which step on which H."""
        return ((0, self.every),) if isinstance(self.every, int) else self.every

    @property
    def least_overlap(self) -> int:
        """tau, or the least that it can be."""
        return LEAST_OVERLAP if self.overlap == "auto" else self.overlap

    @property
    def lasting_every(self) -> int:
        """The H of the last stretch, which has no end."""
        return self.stretches[-1][1]
