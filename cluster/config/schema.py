"""The tables of a configuration, and their defaults, which stand nowhere else."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from cluster.config import slices
from cluster.config.fault_kinds import FAULTS, SERVICES, FaultKind, possible
from cluster.config.toml import table_block
from cluster.config.values import (
    LARGEST_SEED,
    RATES,
    TARGET,
    TOPOLOGY,
    Amount,
    Count,
    Every,
    Grace,
    GroupName,
    Interval,
    MeshSize,
    Mode,
    ModeName,
    Name,
    OptionValue,
    Overlap,
    Positive,
    Rate,
    Share,
    WireName,
    every_value,
    grace_value,
    nearest,
    overlap_value,
    rate_value,
    with_a_rate,
    with_the_rest,
)
from cluster.names import island_names
from coordinator.codec import Wire
from coordinator.protocol import Island


class Table(BaseModel):
    """One table of the file: no unknown keys, no conversions between types, never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


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
    options: dict[str, OptionValue] = {}


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
    options: dict[str, OptionValue] = {}  # ... called with these


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


class MeshConfig(Table):
    """Along which axes an island's devices stand (islands/mesh.py); one may be -1, the rest."""

    data: MeshSize = 1  # parameters are repeated over these ...
    fsdp: MeshSize = -1  # ... split over these, and gathered for each step ...
    tensor: MeshSize = 1  # ... and over these the task splits its layers

    @property
    def devices(self) -> int | None:
        """How many they are; None if that is left to the machine."""
        sizes = (self.data, self.fsdp, self.tensor)
        return None if -1 in sizes else math.prod(sizes)


class Machines(Table):
    """Hosts that compute as one, an island's or the evaluator's: what each has, and where it is."""

    hosts: Count = 1
    spread: bool = False  # each on a node of its own; else on as few nodes as there is room on
    mesh: Annotated[MeshConfig, BeforeValidator(with_the_rest)] = MeshConfig()
    resources: dict[str, Amount] = {"CPU": 1.0}  # of each host, in Ray's words
    accelerator: Annotated[str, Field(min_length=1)] | None = None  # such as "H200", "TPU-V6E"
    topology: Annotated[str, Field(pattern=TOPOLOGY)] | None = None  # of a TPU slice
    label_selector: dict[str, str] | None = None  # labels that each node must have

    @property
    def on_cpu(self) -> bool:
        """Do they compute on their CPUs? Then devices are as many as the mesh says, or one each."""
        return not self.devices.get("GPU") and not self.devices.get("TPU")

    @property
    def devices(self) -> dict[str, float]:
        """The resources of one host; a slice's chips are among them."""
        if self.topology is None or self.resources.get("TPU"):
            return self.resources
        return {**self.resources, "TPU": slices.chips(self.topology) / self.hosts}


class IslandGroup(Machines):
    """Islands of one kind, each of such machines; they are named after their group."""

    group: GroupName = "local"
    count: Count = 1
    spares: Annotated[int, Field(ge=0)] = 0  # more processes, warm, on devices of their own
    batch_size: Count = 8  # windows per inner step
    region: GroupName | None = None  # its corpus: what is leased there is read there
    speed: Annotated[float, Field(gt=0, le=1)] = 1.0  # below 1 the island is slowed on purpose
    step_s: Amount = 0.0  # ... or idles so that no step takes less than this
    encode: Literal["host", "device"] = "host"  # device: 8 bytes a parameter there, fewer to copy
    opportunistic: bool = False  # may wait for devices that the cluster does not have yet

    @property
    def names(self) -> tuple[Island, ...]:
        return island_names(self.group, self.count)

    @property
    def processes(self) -> int:
        """Of all its islands and spares: one on each host."""
        return (self.count + self.spares) * self.hosts


class EvaluatorConfig(Machines):
    """Where the model is judged; a model that no host holds is judged by several."""

    resources: dict[str, Amount] = {}  # of each host: {GPU = 1}; {}: one core, shared with others

    @property
    def apart(self) -> bool:
        """Are machines reserved for it, as for an island? Else it is one process on the fleet's
        node, or wherever there is room."""
        return self.hosts > 1 or any((self.accelerator, self.topology, self.label_selector))


class DurabilityConfig(Table):
    """What is there when something dies, and where."""

    # merges of a fragment from one stored version to the next; auto: 1, or as many as it takes
    every: Annotated[Every, BeforeValidator(every_value)] = (
        "auto"  # ... to spend a quarter of a shard's time on it
    )
    snapshot_steps: Count = 25  # between two snapshots, where gradients are summed
    dir: Annotated[str, Field(min_length=1)] | None = None  # None: the run directory
    keep_snapshots: Annotated[int, Field(ge=2)] = 2  # versions of each fragment
    keep_segments: Annotated[int, Field(ge=0)] = 0  # sealed ones of the tape; 0: all, for replay
    keep_contributions: bool = False  # what was merged, so that replay gives the same fragments
    hang_s: Positive = 60.0  # syncer, shard or evaluator: killed after so long without a sign ...
    restarts: Count = 10  # ... and the run ends after so many in a row without progress between

    @property
    def counted(self) -> int:
        """Every so many versions of a fragment one may be stored, by their numbers."""
        return 1 if self.every == "auto" else self.every


class Harm(Table):
    """What is broken on purpose; `fault_kinds.FAULTS` says what each kind does, and to whom."""

    kind: Annotated[FaultKind, Field(strict=False)]
    island: str  # or one of SERVICES
    factor: Annotated[float, Field(allow_inf_nan=False)] = 1000.0  # of "scale" and "slow"
    for_s: Positive = 20.0  # of "stop", "slow", "cut" and "disk"

    def misfit(self, islands: Sequence[str]) -> str | None:
        """Why this cannot happen to a run with these islands."""
        if self.island not in (*SERVICES, *islands):
            return f'the {self.kind} of "{self.island}" names no island; ' + nearest(
                self.island, islands
            )
        if self.kind in possible(self.island):
            return None
        if self.island in SERVICES:
            hint = f"it can be {' or '.join(sorted(possible(self.island)))}"
        else:
            hint = f"that is for {' or '.join(sorted(FAULTS[self.kind].services, reverse=True))}"
        return f'"{self.island}" cannot have the fault {self.kind}; {hint}'


class PlannedFault(Harm):
    """A planned fault: it fires once t >= `at_step` and the island that it hits, if any, is
    live."""

    at_step: Count


class Attack(Harm):
    """A fault that strikes so many seconds after `archipelago chaos` began."""

    after_s: Annotated[float, Field(ge=0)]


class FailurePolicy(Table):
    """What is done about which failure of an island."""

    deaths: Count = 5  # of its processes without a contribution between ...
    exceptions: Count = 3  # ... or so many that ended with an exception of the program ...
    then: Literal["set aside", "stop"] = "set aside"  # ... and it is, or the run stops
    first_delay_s: Positive = 2.0  # before its second restart; then twice as long each time ...
    longest_delay_s: Positive = 60.0  # ... at most
    hang: Literal["replace", "wait"] = "replace"  # one that is silent and not dead ...
    hang_s: Positive = 300.0  # ... after so long
    drain_s: Positive = 60.0  # a draining one that says nothing for so long is taken for dead


class FaultsConfig(Table):
    plan: Annotated[tuple[PlannedFault, ...], Field(strict=False)] = ()
    policy: FailurePolicy = FailurePolicy()


class MonitorConfig(Table):
    dashboard: bool = False  # Ray's own
    evaluate_every_s: Positive = 10.0
    evaluator: EvaluatorConfig = EvaluatorConfig()
    refresh_s: Positive = 0.5
    metrics_mb: Count = 64  # metrics.jsonl at most: of what is older, looks are thinned out
    metrics: bool = True  # a target for Prometheus
    metrics_host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 0  # 0: a free one
    targets: Annotated[str, Field(min_length=1)] = "~/.archipelago/targets"  # where it is said


class Config(Table):
    """A checked configuration: what `load` lets in."""

    run: RunConfig = RunConfig()
    task: TaskConfig = TaskConfig()
    data: DataConfig = DataConfig()
    optimizer: Annotated[OptimizerConfig, BeforeValidator(with_a_rate)] = OptimizerConfig()
    sync: SyncConfig = SyncConfig()
    islands: Annotated[tuple[IslandGroup, ...], Field(strict=False)] = ()
    durability: DurabilityConfig = DurabilityConfig()
    faults: FaultsConfig = FaultsConfig()
    monitor: MonitorConfig = MonitorConfig()

    def group(self, name: str) -> IslandGroup:
        return next(group for group in self.islands if group.group == name)

    @property
    def island_names(self) -> tuple[Island, ...]:
        return tuple(name for group in self.islands for name in group.names)

    @property
    def sha256(self) -> str:
        """Equal for two configurations that say the same, however their files are written."""
        plain = self.model_dump(mode="json")
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def toml(self) -> str:
        """The whole configuration, defaults included, as a file that `load` reads back."""
        tables = self.model_dump(mode="json", exclude_none=True)
        blocks = [
            block
            for name, table in tables.items()
            for block in (
                [table_block(f"[[{name}]]", each) for each in table]
                if isinstance(table, list)
                else [table_block(f"[{name}]", table)]
            )
        ]
        return "\n".join(blocks)
