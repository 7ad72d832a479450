"""The construction of a shard, and of its outer optimizer, from a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from cluster.config.rule import wire_of_moments
from cluster.config.schema import Config
from cluster.shard.arithmetic import Files
from cluster.shard.arrays import ArrayArithmetic, ArrayShard, first
from cluster.shard.files import NoFiles
from cluster.shard.method import Method
from cluster.shard.outer_optax import OptaxOuter
from cluster.shard.own_gate import gate_of
from cluster.shard.own_merge import rule_of_merge
from cluster.shard.own_sources import source_problems
from cluster.shard.retention import Retention
from cluster.shard.shard import Shard
from cluster.storage.fragments import Arrays
from coordinator.codec import Wire
from coordinator.errors import UserMistake
from coordinator.fragments import Flat, Layout
from coordinator.outer import OuterRule
from coordinator.protocol import Anchor, Fragment
from coordinator.tiles import Spread
from islands.own_wire import OwnWire


def outer_of(config: Config) -> OuterRule | OptaxOuter:
    """Return the outer optimizer that the configuration names.

    Errors: `UserMistake` if the configured target cannot be loaded.
    """
    outer = config.sync.outer
    if outer.target is not None:
        return OptaxOuter(outer.target, outer.options)
    is_auto = outer.learning_rate == "auto"
    eta = 1.0 if outer.learning_rate == "auto" else outer.learning_rate
    return OuterRule(eta, outer.momentum, outer.nesterov, is_auto)


def wires_of(config: Config) -> set[Wire]:
    """Return all built-in encodings that a shard reads or writes; decoded values are f32."""
    wires = config.sync.wire_up, config.sync.wire_down, wire_of_moments(config)
    own = Wire.F32 if any(isinstance(wire, OwnWire) for wire in wires) else None
    return {wire for wire in (*wires, own) if isinstance(wire, Wire)}


def first_of(config: Config, layout: Layout, p: Fragment, flat: Flat) -> Arrays:
    """Return version number 0 of a fragment, with the initial state of the outer optimizer."""
    arrays, outer = first(flat), outer_of(config)
    if isinstance(outer, OuterRule) or p == layout.state_fragment:
        return arrays
    return replace(arrays, momentum=outer.fresh(flat))


def shard_over(
    config: Config, means: Callable[[], tuple[Layout, Files[Arrays]]], spread: Spread
) -> ArrayShard:
    """Build a shard that has no model yet.

    `means`: called once, when the shard gets a model; it returns the layout and the files.

    Errors: when the shard gets its model: the errors of `outer_of`, `rule_of_merge`
    and `gate_of`;
    `UserMistake` if the user's code has another source than the run.
    """
    sync = config.sync

    def have() -> tuple[ArrayArithmetic, Files[Arrays]]:
        if problems := source_problems(config):
            raise UserMistake("\n".join(problems))
        layout, files = means()
        method = Method(
            rule_of_merge(config),
            outer_of(config),
            sync.wire_up,
            sync.wire_down,
            sync.keep_differences,
            wire_of_moments(config),
            1.0 if sync.kappa is None else sync.kappa,
            gate_of(config),
        )
        return ArrayArithmetic(layout, method, spread), files

    retention = Retention(Anchor(sync.anchor), sync.max_staleness, config.durability.counted)
    return Shard(have, retention)


def shard_of(
    config: Config, layout: Layout, arrays: Mapping[Fragment, Arrays], spread: Spread = map
) -> ArrayShard:
    """Build a shard with this model and no files."""
    shard = shard_over(config, lambda: (layout, NoFiles()), spread)
    shard.seed(arrays)
    return shard
