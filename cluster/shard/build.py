"""A shard, and its outer optimizer, as a configuration has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cluster.config.schema import Config
from cluster.shard.outer_optax import OptaxOuter
from cluster.shard.shard import Shard, first
from cluster.storage.fragments import Arrays
from coordinator.fragments import Flat, Layout
from coordinator.merge import MergeRule, Spread
from coordinator.outer import OuterRule
from coordinator.protocol import Anchor, Fragment


def outer_of(config: Config) -> OuterRule | OptaxOuter:
    """Errors: `UserMistake` if the target of the user's is not to be had."""
    outer = config.sync.outer
    if outer.target is not None:
        return OptaxOuter(outer.target, outer.options)
    return OuterRule(outer.learning_rate, outer.momentum, outer.nesterov)


def first_of(config: Config, flat: Flat) -> Arrays:
    """Number 0 of a fragment, with nothing remembered by the outer optimizer."""
    arrays, outer = first(flat), outer_of(config)
    return arrays if isinstance(outer, OuterRule) else replace(arrays, momentum=outer.fresh(flat))


def shard_of(
    config: Config, layout: Layout, arrays: Mapping[Fragment, Arrays], spread: Spread = map
) -> Shard:
    sync = config.sync
    return Shard(
        layout,
        arrays,
        merge_rule=MergeRule(sync.merge),
        outer=outer_of(config),
        wire_up=sync.wire_up,
        wire_down=sync.wire_down,
        anchor=Anchor(sync.anchor),
        max_staleness=sync.max_staleness,
        keep_differences=sync.keep_differences,
        spread=spread,
    )
