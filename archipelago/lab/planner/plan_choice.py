"""The choice among settings: the best that works, or the change that would make one work."""

from __future__ import annotations

import math

from archipelago.lab.planner import loss_cost as loss
from archipelago.lab.planner.objective import Worth, target_loss
from archipelago.lab.planner.settings import INTERVALS, SLACK, WIRES
from cluster.config.machines import ClusterFile

EQUAL = 0.005
"""The relative difference in the objective below which settings count as equal.

Among equals, the shorter interval, then the wider wire format, then fewer learners win.
"""
QUORUM = 1
"""K in every plan."""


def chosen(works: list[Worth]) -> Worth:
    """Return the preferred setting among those that are as good as the best."""
    least = min(worth.objective for worth in works)
    equal = [worth for worth in works if worth.objective <= least * (1 + EQUAL)]
    return min(
        equal,
        key=lambda w: (w.setting.every, WIRES.index(w.setting.wire), w.setting.total, w.objective),
    )


def nearest_that_can(cluster: ClusterFile, worths: list[Worth]) -> str:
    """Return why no setting works, and the change that would make one work."""
    training = cluster.training
    reasons = {worth.why for worth in worths}
    if reasons <= {"link", "latency", "shards"}:
        least = min(worths, key=lambda w: w.moving.busiest)
        if "shards" in reasons and least.moving.busiest <= SLACK:
            return (
                f"syncer.memory_gb, syncer.gbit_s: no setting fits its shards on "
                f"{least.setting.fragments} nodes; with M = {least.setting.total} and "
                f"{least.setting.wire} {least.holding.count} are needed"
            )
        if least.moving.busiest <= SLACK:
            return (
                f"regions: their latency is too long: an exchange takes {least.moving.overlap} "
                f"steps, and must end within H = {max(INTERVALS)}; longer steps (larger "
                "training.batch_tokens) would do"
            )
        region = cluster.region(least.moving.where)
        return (
            f"regions: no setting can live with these links. The nearest, M = "
            f"{least.setting.total}, H = {least.setting.every} and {least.setting.wire}, needs "
            f"{region.gbit_s * least.moving.busiest / SLACK:.3g} Gbit/s at {region.name}, which "
            f"has {region.gbit_s:g}; or a batch {least.moving.busiest / SLACK:.2g} times as large"
        )
    if reasons <= {"link", "latency", "shards", "loss"}:
        fewest = min(worth.setting.total for worth in worths)
        return (
            f"training.target_loss: {target_loss(cluster):.4g} is not reached by "
            f"{training.parameters:g} parameters with any number of tokens; the nearest is more "
            f"than {loss.best_loss(training.parameters, fewest):.4g}, or a larger model"
        )
    able = [w for w in worths if w.why in ("tokens", "days")]
    if any(w.why == "days" for w in able):
        fastest = min((w for w in able if w.why == "days"), key=lambda w: w.hours)
        return (
            f"training.days: {training.days:g} days are not enough: the fastest, M = "
            f"{fastest.setting.total}, takes {fastest.hours / 24:.3g}; give it so many, or "
            f"{fastest.hours / 24 / (training.days or math.inf):.3g} times the chips"
        )
    least_tokens = min(able, key=lambda w: w.tokens)
    reached_loss = loss.data_parallel(training.parameters, training.tokens)
    reached_loss *= loss.ratio(training.parameters, least_tokens.setting.total)
    return (
        f"training.tokens: {training.tokens:.3g} do not reach a loss of "
        f"{target_loss(cluster):.4g}: M = {least_tokens.setting.total} needs "
        f"{least_tokens.tokens:.3g}; with the tokens given the nearest is {reached_loss:.4g}"
    )
