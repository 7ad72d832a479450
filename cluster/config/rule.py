"""The conversion of a configuration to the rules of a run (`coordinator.state.Rule`)."""

from __future__ import annotations

from itertools import pairwise

from cluster.config.schema import Config, IslandGroup
from cluster.names import EVALUATOR, group_name, region_evaluator
from coordinator.codec import Wire
from coordinator.direction_gate import Watch
from coordinator.fragments import Layout
from coordinator.protocol import Anchor, Island
from coordinator.schedule import Before, Schedule
from coordinator.state import EDITION, Rule


def schedule_of(config: Config) -> Schedule:
    """Return the schedule of merges: H by stretch, and P."""
    sync = config.sync
    before = [Before(upto, every) for (_, every), (upto, _) in pairwise(sync.stretches)]
    return Schedule(sync.lasting_every, sync.fragments, tuple(before))


def wire_of_moments(config: Config) -> Wire | None:
    """Return the wire of first moments in both directions; None if islands do not share them."""
    return config.sync.wire_moments if config.sync.moments == "mean" else None


def group_of(config: Config, island: Island) -> IslandGroup:
    """Return the group of an island, also of one that was added later."""
    return config.group(group_name(island))


def measures_effects(config: Config) -> bool:
    """Return whether the evaluators of a run measure the effects of contributions, if idle."""
    return config.monitor.contribution_effects and not config.run.mode.sums_gradients


def judge_of(config: Config, island: Island) -> str | None:
    """Return the name of the evaluator that measures the contributions of an island.

    It reads held-out text of the island's region, or the common one if the region has no table.
    None: no evaluator does, because that of the region is turned off, or has several hosts.
    """
    if not measures_effects(config):
        return None
    group = group_of(config, island)
    if (region := config.region_of(group)) is not None:
        return region_evaluator(str(group.region)) if region.evaluate else None
    return EVALUATOR if config.monitor.evaluator.hosts == 1 else None


def rule_of(config: Config, layout: Layout, edition: int = EDITION) -> Rule:
    """Return the rules of a run. `edition`: the edition in its tape (`edition_of`)."""
    return rule_for(config, layout.fingerprint, edition)


def rule_for(config: Config, fingerprint: str, edition: int = EDITION) -> Rule:
    """Return the rules for a model of which only the layout's fingerprint is known.

    In lock-step learners wait for each merge, even with an overlap, so the rules' overlap is 0.
    """
    sync = config.sync
    return Rule(
        schedule=schedule_of(config),
        fingerprint=fingerprint,
        steps=config.run.steps,
        min_quorum=sync.quorum,
        grace_s=None if sync.grace == "auto" else sync.grace,
        overlap=0 if config.run.mode.lock_step else sync.least_overlap,
        max_staleness=sync.max_staleness,
        lease_windows=config.data.lease_windows,
        watch=Watch(sync.direction),
        overlap_follows=sync.overlap == "auto",
        edition=edition,
        batches=tuple((group.group, group.batch_size) for group in config.islands),
        window_tokens=0 if config.task.target or config.task.loop else config.data.window,
    )


def shards_come_back_alone(config: Config) -> bool:
    """Return whether learners can continue while a shard is dead.

    They cannot if they wait for each adoption, nor if their deltas count from older public
    fragments, which only the dead shard had.
    """
    waits = config.run.mode.lock_step or config.sync.least_overlap == 0
    return not waits and Anchor(config.sync.anchor) is Anchor.BASE
