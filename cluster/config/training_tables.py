"""The tables of what a run trains and how: `[run]`, `[task]`, `[data]`, `[optimizer]`, `[sync]`.

The comment above a key is its documentation.
"""

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
    """The table `[run]`."""

    # Name of the run and of its directory; the default is the file's name and the start time.
    name: Name | None = None
    # Seed of the initial model and of the order of the data.
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = 0
    # How islands train together: "decoupled", "data-parallel", "elastic-data-parallel", "diloco" or
    # "streaming".
    mode: ModeName = Mode.DECOUPLED
    # T: the length of the run, in syncer steps.
    steps: Count = 300
    # Directory in which the run directory is created; below ~/archipelago for a submitted run.
    dir: Annotated[str, Field(min_length=1)] = "runs"


class TaskConfig(Table):
    """The task to learn: a preset of the project, or the user's own `target`."""

    # Name of a task of the project, for example "byte-1m".
    preset: Annotated[str, Field(min_length=1)] | None = None
    # Function that returns the user's task, as module:attribute.
    target: Annotated[str, Field(pattern=TARGET)] | None = None
    # Keyword arguments of the task: numbers, text, true or false.
    options: dict[str, OptionValue] = Field(default={})


class DataConfig(Table):
    """The table `[data]`."""

    # Corpus: "python-stdlib", a text file, a folder, a glob or Parquet files.
    source: Annotated[str, Field(min_length=1)] = "python-stdlib"
    # Column of a Parquet dataset to read.
    column: Annotated[str, Field(min_length=1)] | None = None
    # The column holds lists of token ids, not text.
    tokens: bool = False
    # Percentage of the corpus that is never trained on, only evaluated.
    heldout_percent: Annotated[float, Field(gt=0, lt=100)] = 5.0
    # Tokens that one window predicts.
    window: Count = 128
    # Windows in one lease.
    lease_windows: Count = 256


class OptimizerConfig(Table):
    """The inner optimizer; its rate has a linear warm-up and a cosine decay to a floor."""

    # Kind of optimizer. Muon applies to the matrices of hidden layers; AdamW to all other leaves.
    kind: Literal["muon", "adamw"] = "muon"
    # Peak learning rate; the default depends on the kind.
    learning_rate: Positive = RATES["muon"]
    # Steps of the linear warm-up.
    warmup_steps: Annotated[int, Field(ge=0)] = 20
    # Floor of the cosine decay, as a fraction of the peak rate.
    floor_fraction: Annotated[float, Field(gt=0, le=1)] = 0.1
    # Decay rate of AdamW's first moment.
    b1: Share = 0.9
    # Decay rate of AdamW's second moment.
    b2: Share = 0.99
    # AdamW's epsilon.
    eps: Positive = 1e-8
    # Muon's momentum.
    momentum: Share = 0.95
    # Learning rate of the leaves that AdamW updates beside Muon, as a factor of `learning_rate`.
    adamw_share: Positive = 1.0
    # Decoupled weight decay of all leaves; each step multiplies it by the learning rate.
    weight_decay: Amount = 0.1
    # Largest global norm of a gradient; 0 turns clipping off.
    clip_norm: Amount = 1.0


class OuterConfig(Table):
    """SGD with momentum on the outer gradient (arXiv:2311.08105), or an optax transformation."""

    # Outer learning rate eta; "auto" makes each step as long as the merged delta.
    learning_rate: Annotated[Rate, BeforeValidator(rate_value)] = 1.0
    # Outer momentum mu.
    momentum: Share = 0.0
    # Use Nesterov momentum.
    nesterov: bool = True
    # Optax transformation to use in place of SGD, as module:attribute, for example "optax:adam".
    target: Annotated[str, Field(pattern=TARGET)] | None = None
    # Keyword arguments of `target`.
    options: dict[str, OptionValue] = Field(default={})


LEAST_OVERLAP = 1
"""The least overlap of "auto", in steps: a learner that trains on adopts at its next boundary."""


class SyncConfig(Table):
    """The table `[sync]`: when and how fragments are merged and exchanged."""

    # H: syncer steps between two merges of a fragment; or [[from_step, H], ...] to change it.
    every: Interval = 8
    # P: number of fragments; at most H.
    fragments: Count = 8
    # tau: inner steps that a learner may train while a round is under way. "auto": as many as the
    # round takes; 0: learners wait for each adoption.
    overlap: Annotated[Overlap, BeforeValidator(overlap_value)] = "auto"
    # K: minimum quorum, the contributions of different islands that a merge needs.
    quorum: Count = 1
    # Grace window after the quorum, in seconds. "auto": adaptive, at most one step of the slowest
    # learner that keeps pace.
    grace: Annotated[Grace, BeforeValidator(grace_value)] = "auto"
    # Largest staleness of a contribution, in versions; older ones are discarded.
    max_staleness: Annotated[int, Field(ge=0)] = 8
    # Merge rule: token-weighted mean, or radial-directional averaging ("rda").
    merge: Literal["rda", "mean"] = "mean"
    # Damping exponent of "rda": 1, the default, is full RDA; towards 0 it becomes the mean.
    kappa: Annotated[float, Field(gt=0, le=1)] | None = None
    # Reference point of a delta: the learner's own base version ("base"), or the public fragment at
    # the merge ("current", as in the paper).
    anchor: Literal["base", "current"] = "base"
    # Adoption of a new version: "overwrite" the local fragment, "carry" the local progress since
    # the hand-in over, or "blend" the two.
    adopt: Literal["overwrite", "carry", "blend"] = "carry"
    # alpha: share of the local fragment in "blend".
    blend: Annotated[float, Field(gt=0, lt=1)] | None = None
    # Encoding of the deltas that learners send: f32, bf16, int8, int4, int2 or e3m0.
    wire_up: WireName = Wire.BF16
    # Encoding of the differences that learners receive.
    wire_down: WireName = Wire.BF16
    # First moments of the inner optimizer: each island keeps its "own", or merges share the "mean".
    moments: Literal["own", "mean"] = "own"
    # Interval at which moments = "mean" shares moments, in merges of a fragment.
    moments_every: Count = 1
    # Encoding of shared moments in both directions.
    wire_moments: WireName = Wire.INT8
    # Reaction to an island whose deltas point against all others, merge after merge: quarantine it,
    # only report it, or "off", which does not even measure directions.
    direction: Literal["quarantine", "report", "off"] = "quarantine"
    # R: recent differences of a fragment to keep for lagging learners, at most; in bf16 only two
    # are kept and in f32 none, since more would be larger than the fragment.
    keep_differences: Annotated[int, Field(ge=0)] = 4
    # Processes that share the fragments between them; at most P.
    shards: Count = 1
    # Ray labels of the nodes for the shards, used in turn; the default is the fleet's node.
    shard_labels: dict[str, str] | None = None
    # The outer optimizer: table [sync.outer].
    outer: OuterConfig = OuterConfig()

    @property
    def stretches(self) -> tuple[tuple[int, int], ...]:
        """Pairs of a first syncer step and the H from there on."""
        return ((0, self.every),) if isinstance(self.every, int) else self.every

    @property
    def least_overlap(self) -> int:
        """The overlap tau in steps, or the least one of "auto"."""
        return LEAST_OVERLAP if self.overlap == "auto" else self.overlap

    @property
    def lasting_every(self) -> int:
        """The H of the last stretch, which has no end."""
        return self.stretches[-1][1]
