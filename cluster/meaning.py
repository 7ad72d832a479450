"""What a configuration means to the rules and to the shard; no JAX in here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace

from cluster.config import Config, IslandGroup
from cluster.depot import Depot
from cluster.files import json_bytes
from cluster.fleet import group_name
from cluster.outer_optax import OptaxOuter
from cluster.shard import Shard, first
from cluster.store import Arrays, Damaged
from coordinator.errors import UserMistake
from coordinator.fragments import Flat, Layout
from coordinator.merge import MergeRule, Spread
from coordinator.outer import OuterRule
from coordinator.protocol import Anchor, Fragment, Island, Join
from coordinator.schedule import Schedule
from coordinator.state import Rule
from coordinator.tape import UnknownRecord, from_plain, to_plain

LAYOUT = "layout.json"
ISLAND = re.compile(r"(?P<group>[a-z0-9-]{1,40})-(0|[1-9][0-9]{0,5})(\.[0-9]{1,6})?", re.ASCII)
"""`eu-3`; `crew-3.7` is a light learner's (`names.seat_of`)."""
LONGEST_TOLD = 60
"""Characters of a name that may be anything."""


def schedule_of(config: Config) -> Schedule:
    return Schedule(config.sync.every, config.sync.fragments)


def group_of(config: Config, island: Island) -> IslandGroup:
    """Also of an island that was added to its group later."""
    return config.group(group_name(island))


def stranger(config: Config, who: Join) -> str | None:
    """Why nobody like this can be of the run, whatever islands were added to it; None if it may.

    Files and actors are called after islands: what is let in here need not be checked there.
    """
    if (named := ISLAND.fullmatch(who.island)) is None:
        return f"{who.island[:LONGEST_TOLD]!r} is no island's name, such as eu-3"
    groups = {group.group: group for group in config.islands}
    if (group := groups.get(named["group"])) is None:
        return f"{who.island} is of no group of this run, which has {', '.join(groups)}"
    if (who.group, who.region) != (group.group, group.region):
        said = f"group {who.group[:LONGEST_TOLD]!r} and region {str(who.region)[:LONGEST_TOLD]!r}"
        return f"{who.island} says {said}, but its group's region is {str(group.region)!r}"
    return None


def rule_of(config: Config, layout: Layout) -> Rule:
    return rule_for(config, layout.fingerprint)


def rule_for(config: Config, fingerprint: str) -> Rule:
    """... of a model of which no more than the layout's fingerprint matters."""
    sync = config.sync
    return Rule(
        schedule=schedule_of(config),
        fingerprint=fingerprint,
        steps=config.run.steps,
        min_quorum=sync.quorum,
        grace_s=None if sync.grace == "auto" else sync.grace,
        overlap=sync.overlap,
        max_staleness=sync.max_staleness,
        lease_windows=config.data.lease_windows,
    )


def shards_come_back_alone(config: Config) -> bool:
    """Can learners go on when a shard dies? Not if they wait for each adoption, nor if what they
    hand in counts from public fragments of before, which nobody else has."""
    return config.sync.overlap > 0 and Anchor(config.sync.anchor) is Anchor.BASE


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
        wire_down=sync.wire_down,
        anchor=Anchor(sync.anchor),
        max_staleness=sync.max_staleness,
        keep_differences=sync.keep_differences,
        spread=spread,
    )


def save_layout(depot: Depot, layout: Layout) -> None:
    plain = {"fingerprint": layout.fingerprint, "layout": to_plain(layout)}
    depot.write(LAYOUT, json_bytes(plain))


def same_layout(depot: Depot, layout: Layout) -> bool:
    """Is this the layout of the run, as far as it has come to have one?

    Errors: `Damaged` if the file is not as it was written.
    """
    return not depot.has(LAYOUT) or load_layout(depot) == layout


def load_layout(depot: Depot) -> Layout:
    """The layout of a run that was begun.

    Errors: `UserMistake` if there is no run; `Damaged` if the file is not as it was written.
    """
    try:
        told = json.loads(depot.read(LAYOUT))
        layout = from_plain(Layout, told["layout"])
    except FileNotFoundError as error:
        raise UserMistake(f"{depot} is not the directory of a run that was begun") from error
    except (ValueError, KeyError, TypeError, UnknownRecord) as error:
        raise Damaged(f"{LAYOUT} in {depot} cannot be read: {error}") from error
    if layout.fingerprint != told["fingerprint"]:
        raise Damaged(f"{LAYOUT} in {depot} is not as it was written")
    return layout
