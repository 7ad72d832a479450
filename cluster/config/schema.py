"""The configuration as a whole, `Config`, with the tables of durability and monitoring.

The other tables are in modules by subject, and can be imported from here as well. A default value
is written once, in the class of its table.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated

from pydantic import BeforeValidator, Field

from cluster.config.fault_tables import Attack, FailurePolicy, FaultsConfig, Harm, PlannedFault
from cluster.config.machine_tables import EvaluatorConfig, IslandGroup, Machines, MeshConfig
from cluster.config.table import Table
from cluster.config.toml import table_block
from cluster.config.training_tables import (
    LEAST_OVERLAP,
    DataConfig,
    OptimizerConfig,
    OuterConfig,
    RunConfig,
    SyncConfig,
    TaskConfig,
)
from cluster.config.values import Count, Every, Positive, every_value, with_a_rate
from coordinator.protocol import Island

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
    "Machines",
    "MeshConfig",
    "MonitorConfig",
    "OptimizerConfig",
    "OuterConfig",
    "PlannedFault",
    "RunConfig",
    "SyncConfig",
    "Table",
    "TaskConfig",
]


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
