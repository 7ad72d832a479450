"""What tests take where a configuration says it: a product class has no default of its own."""

from __future__ import annotations

from typing import Any

from coordinator.codec import Wire
from coordinator.outer import OuterRule
from coordinator.protocol import Anchor, Island
from coordinator.schedule import Schedule
from islands.encoder import Where
from islands.link import Habits
from islands.optimizer import OptimizerKind, OptimizerSpec
from islands.sources import STDLIB, DataSpec


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
        "learning_rate": 6e-3,
        "warmup_steps": 20,
        "floor_fraction": 0.1,
        "b1": 0.9,
        "b2": 0.99,
        "eps": 1e-8,
        "momentum": 0.95,
        "weight_decay": 0.1,
        "clip_norm": 1.0,
        "horizon_steps": 400,
    }
    return OptimizerSpec(kind=kind, **{**usual, **more})


def outer_rule(
    learning_rate: float = 1.0, momentum: float = 0.0, nesterov: bool = True
) -> OuterRule:
    return OuterRule(learning_rate, momentum, nesterov)


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
) -> Habits:
    return Habits(
        island,
        group,
        wire_up,
        schedule,
        overlap,
        lease_windows,
        speed,
        step_s,
        anchor,
        encode,
        None,
    )
