"""The tables of what a run trains and how: `[task]`, `[data]`, `[optimizer]`, `[sync]`.

The comment above a key is its documentation.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from cluster.config.table import Table
from cluster.config.values import (
    AUTO,
    RATES,
    SHA256,
    SHORT_SHA256,
    TARGET,
    Amount,
    Count,
    FragmentWire,
    Grace,
    IntervalValue,
    LossScale,
    OptionValue,
    Overlap,
    Positive,
    Rate,
    ShareValue,
    WireName,
    grace_value,
    loss_scale_value,
    merge_value,
    overlap_value,
    rate_value,
    schedule_value,
)
from coordinator.codec import Wire
from islands.own_wire import OwnWire


class TaskConfig(Table):
    """The task to learn: a preset of the project, or the user's own `target`."""

    preset: Annotated[str, Field(min_length=1)] | None = None
    """Name of a task of the project, for example "byte-1m"."""
    target: Annotated[str, Field(pattern=TARGET)] | None = None
    """Function that returns the user's task, as module:attribute."""
    options: dict[str, OptionValue] = Field(default={})
    """Keyword arguments of the task: numbers, text, true or false."""
    pickled: Annotated[str, Field(min_length=1)] | None = None
    """Function of `task=` of the Python API, pickled; `target` is then only its name.

    It runs code of the configuration in every process of the run.
    """
    loop: Annotated[str, Field(pattern=TARGET)] | None = None
    """Training loop in place of our step: a function that calls `archipelago.join`.

    As module:attribute. The task's loss then only evaluates.
    """
    init_from: Annotated[str, Field(min_length=1)] | None = None
    """Source of the initial parameters, in place of the task's `init`.

    "FILE.safetensors", "orbax:DIR", "hf:DIR": a folder of transformers with a Gemma model, or
    "run:NAME[@T]": the model of a run, at step T. Default: `init` makes them.
    """
    compute_dtype: Literal["bfloat16", "float16"] | None = None
    """Type in which the loss gets parameters, and the real arrays of a batch and of `frozen`.

    The parameters themselves are float32. Default: each in the type that `init` gives it.
    """
    remat: Literal["dots", "all"] | None = None
    """Values that a backward pass computes again instead of keeping them in memory.

    "dots": all but matrix products without a batch; "all": the whole loss. For single layers use
    `jax.checkpoint` in the loss.
    """
    init_other_shapes: Literal["refuse", "skip"] = "refuse"
    """Treatment of leaves that `init_from` has with another shape.

    "refuse" to start, or "skip" them: keep those from `init`.
    """
    init_sha256: Annotated[str, Field(pattern=SHA256)] | None = None
    """Digest that the leaves of `init_from` must have; a run that starts fills it in."""


class OptimizerConfig(Table):
    """The inner optimizer; its rate has a linear warm-up and decays to a floor."""

    kind: Literal["muon", "adamw"] = "muon"
    """Kind of optimizer; Muon applies to matrices of hidden layers, AdamW to all other leaves."""
    target: Annotated[str, Field(pattern=TARGET)] | None = None
    """Optax transformation in place of `kind`, as module:attribute, for example "optax:lion".

    The rate multiplies its updates, which are added to the parameters.
    """
    options: dict[str, OptionValue] = Field(default={})
    """Keyword arguments of `target`."""
    pickled: Annotated[str, Field(min_length=1)] | None = None
    """Function of `optimizer=` of the Python API, pickled; `target` is then only its name."""
    schedule: Annotated[str, BeforeValidator(schedule_value)] = "cosine"
    """Schedule of the rate: "cosine", "wsd", "target", or a function as module:attribute.

    "wsd" is warm-up, stable, decay. With "target" the rate is 1, and the target has its own. A
    function gets the clock, a number of steps, and returns the rate.
    """
    decay_fraction: Annotated[float, Field(gt=0, le=1)] = 0.2
    """Last part of the run, over which "wsd" decays."""
    learning_rate: Positive = RATES["muon"]
    """Peak learning rate; the default depends on the kind. A target needs one."""
    warmup_steps: Annotated[int, Field(ge=0)] = 20
    """Steps of the linear warm-up."""
    floor_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Floor of the decay, as a fraction of the peak rate; 0: the rate decays to zero."""
    b1: ShareValue = 0.9
    """Decay rate of AdamW's first moment."""
    b2: ShareValue = 0.99
    """Decay rate of AdamW's second moment."""
    eps: Positive = 1e-8
    """AdamW's epsilon."""
    momentum: ShareValue = 0.95
    """Muon's momentum."""
    adamw_share: Positive = 1.0
    """Learning rate of leaves that AdamW updates beside Muon, as a factor of `learning_rate`."""
    weight_decay: Amount = 0.1
    """Decoupled weight decay of all leaves; each step multiplies it by the learning rate."""
    clip_norm: Amount = 1.0
    """Largest global norm of a gradient; 0 turns clipping off."""
    loss_scale: Annotated[LossScale, BeforeValidator(loss_scale_value)] = 1.0
    """Factor of gradients within the backward pass, for float16; "dynamic": it adapts itself."""
    loss_scale_steps: Count = 2000
    """Good steps after which a dynamic scale is doubled; an overflow halves it."""


class OuterConfig(Table):
    """SGD with momentum on the outer gradient (arXiv:2311.08105), or an optax transformation."""

    learning_rate: Annotated[Rate, BeforeValidator(rate_value)] = 1.0
    """Outer learning rate eta; "auto" makes each step as long as the merged delta."""
    momentum: ShareValue = 0.0
    """Outer momentum mu."""
    nesterov: bool = True
    """Use Nesterov momentum."""
    target: Annotated[str, Field(pattern=TARGET)] | None = None
    """Optax transformation in place of SGD, as module:attribute, for example "optax:adam"."""
    options: dict[str, OptionValue] = Field(default={})
    """Keyword arguments of `target`."""


LEAST_OVERLAP = 1
"""The least overlap of "auto", in steps: a learner that trains on adopts at its next boundary."""


class SyncConfig(Table):
    """The table `[sync]`: when and how fragments are merged and exchanged."""

    every: IntervalValue = 8
    """H: syncer steps between two merges of a fragment; or [[from_step, H], ...] to change it.

    "auto": chosen with P once, before the start, from the measured links and step.
    """
    fragments: Count = 8
    """P: number of fragments; at most H. every = "auto" chooses it, too."""
    fragmenting: Annotated[str, Field(pattern=TARGET)] | None = None
    """Function that assigns pieces of the model to fragments, as module:attribute.

    Default: balanced fragments, the largest piece first.
    """
    fragmenting_options: dict[str, OptionValue] = Field(default={})
    """Keyword arguments of `fragmenting`."""
    step_s: Positive | None = None
    """Seconds of a step, for every = "auto"; the default is to measure a few before the start."""
    force: bool = False
    """Start even if a measured link cannot carry one fragment within H steps."""
    overlap: Annotated[Overlap, BeforeValidator(overlap_value)] = "auto"
    """Inner steps that a learner may train while a round is under way (tau).

    "auto": as many as the round takes; 0: learners wait for each adoption.
    """
    quorum: Count = 1
    """K: minimum quorum, the contributions of different islands that a merge needs."""
    grace: Annotated[Grace, BeforeValidator(grace_value)] = "auto"
    """Grace window after the quorum, in seconds.

    "auto": adaptive, at most one step of the slowest learner that keeps pace.
    """
    max_staleness: Annotated[int, Field(ge=0)] = 8
    """Largest staleness of a contribution, in versions; older ones are discarded."""
    merge: Annotated[str, BeforeValidator(merge_value)] = "mean"
    """Merge rule: "mean", "rda", or a function of the user's as module:attribute.

    "mean" is the token-weighted mean, and "rda" radial-directional averaging.
    """
    merge_options: dict[str, OptionValue] = Field(default={})
    """Keyword arguments of the user's merge rule."""
    merge_sha256: Annotated[str, Field(pattern=SHORT_SHA256)] | None = None
    """Digest of the source of the user's merge rule; a run that starts fills it in."""
    gate: Annotated[str, Field(pattern=TARGET)] | None = None
    """Function that refuses contributions when they arrive, as module:attribute."""
    gate_options: dict[str, OptionValue] = Field(default={})
    """Keyword arguments of `gate`."""
    kappa: Annotated[float, Field(gt=0, le=1)] | None = None
    """Damping exponent of "rda": 1, the default, is full RDA; towards 0 it becomes the mean."""
    anchor: Literal["base", "current"] = "base"
    """Reference point of a delta.

    The learner's own base version ("base"), or the public fragment at the merge ("current", as in
    the paper).
    """
    adopt: Literal["overwrite", "carry", "blend"] = "carry"
    """Adoption of a new version.

    "overwrite" the local fragment, "carry" the local progress since the hand-in over, or "blend"
    the two.
    """
    blend: Annotated[float, Field(gt=0, lt=1)] | None = None
    """alpha: share of the local fragment in "blend"."""
    wire_options: dict[str, OptionValue] = Field(default={})
    """Keyword arguments of the user's codec in `wire_up`, `wire_down` or both."""
    wire_sha256: Annotated[str, Field(pattern=SHORT_SHA256)] | None = None
    """Digest of the source of the user's codecs; a run that starts fills it in."""
    wire_up: FragmentWire = Wire.BF16
    """Encoding of the deltas that learners send.

    f32, bf16, int8, int4, int2, e3m0, or a codec of the user's as module:attribute.
    """
    wire_down: FragmentWire = Wire.BF16
    """Encoding of the differences that learners receive; the values are those of `wire_up`."""
    moments: Literal["own", "mean"] = "own"
    """First moments of the inner optimizer.

    Each island keeps its "own", or merges share the "mean".
    """
    moments_every: Count = 1
    """Interval at which moments = "mean" shares moments, in merges of a fragment."""
    wire_moments: WireName = Wire.INT8
    """Encoding of shared moments in both directions."""
    direction: Literal["quarantine", "report", "off"] = "quarantine"
    """Reaction to an island whose deltas point against all others, merge after merge.

    Quarantine it, only report it, or "off", which does not even measure directions.
    """
    keep_differences: Annotated[int, Field(ge=0)] = 16
    """Largest number R of recent differences of a fragment to keep for lagging learners.

    No more are kept than together are smaller than the fragment: none in f32, two in bf16, four
    in int8, eight in int4, fifteen in int2.
    """
    shards: Count = 1
    """Processes that share the fragments between them; at most P."""
    shard_labels: dict[str, str] | None = None
    """Ray labels of the nodes of the shards, in turn (`in(a,b)`: a, b, a); default: the fleet's."""
    outer: OuterConfig = OuterConfig()
    """The outer optimizer: table [sync.outer]."""

    @property
    def fragment_wires(self) -> dict[str, Wire | OwnWire]:
        """The wires of fragments by their keys: `wire_up` and `wire_down`."""
        return {"wire_up": self.wire_up, "wire_down": self.wire_down}

    @property
    def stretches(self) -> tuple[tuple[int, int], ...]:
        """Pairs of a first syncer step and the H from there on; "auto" has none yet."""
        assert self.every != AUTO, "the launcher replaces auto before the layout is cut"
        return ((0, self.every),) if isinstance(self.every, int) else self.every

    @property
    def least_overlap(self) -> int:
        """The overlap tau in steps, or the least one of "auto"."""
        return LEAST_OVERLAP if self.overlap == "auto" else self.overlap

    @property
    def lasting_every(self) -> int:
        """The H of the last stretch, which has no end."""
        return self.stretches[-1][1]
