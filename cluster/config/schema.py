"""The whole configuration, `Config`, with the tables of durability and monitoring.

The other tables are in modules by subject, and can be imported from here as well. A default value
is written once, in the class of its table. The comment above a key is its documentation.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from cluster.config.data_tables import DataConfig, MixtureConfig
from cluster.config.fault_tables import (
    Attack,
    FailurePolicy,
    FaultsConfig,
    Harm,
    PlannedFault,
    PreemptionConfig,
)
from cluster.config.machine_tables import EvaluatorConfig, IslandGroup, Machines, MeshConfig
from cluster.config.monitor_tables import LossLaw
from cluster.config.region_tables import Leaving, RegionConfig
from cluster.config.run_table import RunBudget, RunConfig
from cluster.config.table import Table
from cluster.config.toml import table_block
from cluster.config.tracker_names import tracker_name
from cluster.config.training_tables import (
    LEAST_OVERLAP,
    OptimizerConfig,
    OuterConfig,
    SyncConfig,
    TaskConfig,
)
from cluster.config.values import (
    MERGE_RULES,
    SCHEDULES,
    Count,
    Every,
    GroupName,
    Positive,
    every_value,
    with_a_rate,
)
from coordinator.protocol import Island
from islands.own_wire import OwnWire

__all__ = [
    "LEAST_OVERLAP",
    "Attack",
    "Config",
    "DataConfig",
    "DurabilityConfig",
    "EvaluatorConfig",
    "FailurePolicy",
    "FaultsConfig",
    "Harm",
    "IslandGroup",
    "Leaving",
    "LossLaw",
    "Machines",
    "MeshConfig",
    "MixtureConfig",
    "MonitorConfig",
    "OptimizerConfig",
    "OuterConfig",
    "PlannedFault",
    "PreemptionConfig",
    "RegionConfig",
    "RunBudget",
    "RunConfig",
    "SyncConfig",
    "Table",
    "TaskConfig",
]


class DurabilityConfig(Table):
    """The durable state of a run: its place, its extent, and the reaction to hangs."""

    every: Annotated[Every, BeforeValidator(every_value)] = "auto"
    """Merges of a fragment from one stored version to the next.

    "auto": 1, or so many that storing takes at most a quarter of a shard's time.
    """
    snapshot_steps: Count = 25
    """Steps between two snapshots, in the modes that sum gradients."""
    dir: Annotated[str, Field(min_length=1)] | None = None
    """Durable store.

    An absolute path that every node sees, or a bucket. Default: the run directory.
    """
    keep_snapshots: Annotated[int, Field(ge=2)] = 2
    """Stored versions to keep of each fragment.

    In the modes that sum gradients: snapshots to keep.
    """
    keep_segments: Annotated[int, Field(ge=0)] = 0
    """Sealed segments of the tape to keep, at least 2; 0 keeps all of them, which replay needs."""
    keep_hourly: Annotated[int, Field(ge=0)] = 0
    """States of the last hours to keep, one of each, for `--resume --from T`."""
    keep_daily: Annotated[int, Field(ge=0)] = 0
    """States of the last days to keep, one of each, for `--resume --from T`."""
    keep_contributions: bool = False
    """Keep merged contributions, so that a replay rebuilds the fragments bit for bit."""
    hang_s: Positive = 60.0
    """Seconds without a heartbeat after which a hung syncer, shard or evaluator is restarted."""
    restarts: Count = 10
    """Restarts of a hanging syncer or shard, without progress in between, until the run fails."""

    @property
    def counted(self) -> int:
        """The interval of the version numbers that may be stored: 1 if `every` is "auto"."""
        return 1 if self.every == "auto" else self.every


class MonitorConfig(Table):
    """The table `[monitor]`: evaluation, metrics and status."""

    dashboard: bool = False
    """Start Ray's dashboard with a local cluster."""
    evaluate_every_s: Positive = 10.0
    """Seconds between two evaluations of the global model."""
    contribution_effects: bool = True
    """Measure the effect of single contributions on the held-out loss, in idle time."""
    evaluator: EvaluatorConfig = EvaluatorConfig()
    """Machines of the evaluator: table [monitor.evaluator]."""
    expected: Annotated[str, Field(min_length=1)] | None = None
    """Expected held-out loss: a CSV file, a run (its directory or name), or "law"."""
    expected_band: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Half the width of the band around the expected loss, as a share of it."""
    law: LossLaw | None = None
    """The law of `expected = "law"`: table [monitor.law]. Default: a published law for text."""
    refresh_s: Positive = 0.5
    """Seconds between two looks at the status of the run."""
    metrics_mb: Count = 64
    """Largest size of metrics.jsonl, in MB; when it is full, its older half is thinned out."""
    metrics: bool = True
    """Serve metrics for Prometheus."""
    metrics_host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Address that the metrics server listens on."""
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port that the metrics server listens on; 0 is any free port."""
    ray_metrics: bool = False
    """Send the metrics through Ray's metrics agents too, and write no Prometheus target file."""
    track: Annotated[
        tuple[Annotated[str, AfterValidator(tracker_name)], ...], Field(strict=False)
    ] = ()
    """Trackers that keep the curves: "tensorboard", "wandb", or your own "module:attribute"."""
    targets: Annotated[str, Field(min_length=1)] = "~/.archipelago/targets"
    """Folder for the Prometheus target files, one for each live run of this machine."""


class Config(Table):
    """A checked configuration, as `load` returns it."""

    run: RunConfig = RunConfig()
    """The run: [run]."""
    task: TaskConfig = TaskConfig()
    """The task to learn: [task]."""
    data: DataConfig = DataConfig()
    """The corpus: [data]."""
    optimizer: Annotated[OptimizerConfig, BeforeValidator(with_a_rate)] = OptimizerConfig()
    """The inner optimizer: [optimizer]."""
    sync: SyncConfig = SyncConfig()
    """Merging and communication: [sync]."""
    islands: Annotated[tuple[IslandGroup, ...], Field(strict=False)] = ()
    """Groups of islands, at least one: [[islands]]."""
    regions: dict[GroupName, RegionConfig] = Field(default={})
    """Regions whose data stay where they are: tables [regions.NAME]."""
    durability: DurabilityConfig = DurabilityConfig()
    """Durable state: [durability]."""
    faults: FaultsConfig = FaultsConfig()
    """Fault injection, and the reaction to failures: [faults]."""
    monitor: MonitorConfig = MonitorConfig()
    """Evaluation, metrics and status: [monitor]."""

    def group(self, name: str) -> IslandGroup:
        """Return the group of this name.

        Errors: `StopIteration` if there is none.
        """
        return next(group for group in self.islands if group.group == name)

    def region_of(self, group: IslandGroup) -> RegionConfig | None:
        """Return the table of the group's region; None if there is none."""
        return None if group.region is None else self.regions.get(group.region)

    def within(self, group: IslandGroup) -> Config:
        """Return the configuration that the group's islands use.

        `data.source` is that of their region, and `task.compute_dtype` that of the group.
        """
        changed: dict[str, Table] = {}
        if (region := self.region_of(group)) is not None:
            changed["data"] = self._data_of(region)
        if (dtype := group.compute_dtype) is not None:
            own_dtype = None if dtype == "float32" else dtype
            changed["task"] = self.task.model_copy(update={"compute_dtype": own_dtype})
        return self.model_copy(update=changed) if changed else self

    @property
    def evaluated_regions(self) -> tuple[str, ...]:
        """The regions on whose held-out text the global model is evaluated."""
        return tuple(name for name, region in self.regions.items() if region.evaluate)

    def evaluated_in(self, region: str) -> Config:
        """Return the configuration of the evaluator of a region, whose corpus it reads."""
        return self.model_copy(update={"data": self._data_of(self.regions[region])})

    def group_in(self, region: str) -> IslandGroup:
        """Return the first group of a region.

        Errors: `StopIteration` if there is none.
        """
        return next(group for group in self.islands if group.region == region)

    def _data_of(self, region: RegionConfig) -> DataConfig:
        return self.data.model_copy(update={"source": region.data, "mixture": ()})

    @property
    def learner_code(self) -> dict[str, str]:
        """The keys that name the user's code in a learner, with their targets."""
        optimizer, schedule = self.optimizer, self.optimizer.schedule
        found = {
            "task.target": self.task.target,
            "task.loop": self.task.loop,
            "optimizer.target": optimizer.target,
            "optimizer.schedule": None if schedule in SCHEDULES else schedule,
            "sync.fragmenting": self.sync.fragmenting,
            **self.codecs,
        }
        return {key: target for key, target in found.items() if target is not None}

    @property
    def codecs(self) -> dict[str, str]:
        """The keys that name the user's codecs, with their targets."""
        wires = self.sync.fragment_wires.items()
        return {f"sync.{key}": wire.target for key, wire in wires if isinstance(wire, OwnWire)}

    @property
    def shard_code(self) -> dict[str, str]:
        """The keys that name the user's code in a shard, with their targets."""
        merge = self.sync.merge
        found = {
            "sync.outer.target": self.sync.outer.target,
            "sync.merge": None if merge in MERGE_RULES else merge,
            "sync.gate": self.sync.gate,
            **self.codecs,
        }
        return {key: target for key, target in found.items() if target is not None}

    @property
    def pickled_code(self) -> dict[str, str]:
        """The keys of `learner_code` whose targets are only names, with the pickled functions."""
        found = {"task.target": self.task.pickled, "optimizer.target": self.optimizer.pickled}
        return {key: pickled for key, pickled in found.items() if pickled is not None}

    @property
    def island_names(self) -> tuple[Island, ...]:
        """The names of all islands that the run starts with."""
        return tuple(name for group in self.islands for name in group.names)

    @property
    def sha256(self) -> str:
        """A digest of all values; it does not depend on how the file is written."""
        plain = self.model_dump(mode="json")
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def toml(self) -> str:
        """Return all values, defaults included, as a TOML file that `load` reads back."""
        tables = self.model_dump(mode="json", exclude_none=True)
        blocks = [
            block
            for name, table in tables.items()
            if table != {}
            for block in (
                [table_block(f"[[{name}]]", each) for each in table]
                if isinstance(table, list)
                else [table_block(f"[{name}]", table)]
            )
        ]
        return "\n".join(blocks)
