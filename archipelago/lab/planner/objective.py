"""The value of a setting: simulated goodput, link and loss, and the hours and dollars they give."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from archipelago.lab.planner import loss_cost as loss
from archipelago.lab.planner.cluster_model import DAY_S, YEAR_S, Cluster, Grow, Recovery, Returns
from archipelago.lab.planner.configurations import mean_and_interval, together
from archipelago.lab.planner.learner_timeline import Course, elastic, merged_share, rigid
from archipelago.lab.planner.setting_traffic import SettingTraffic, ShardNodes, shards, traffic
from archipelago.lab.planner.settings import SLACK, Setting, step_s, tokens_per_s
from archipelago.lab.planner.trace import Trace, draw
from cluster.config.machines import ClusterFile

LONGEST_S = 30 * DAY_S
"""The longest simulated trace, in seconds."""
SHORTEST_S = DAY_S / 4
"""The shortest simulated trace, in seconds."""


@dataclass(frozen=True, slots=True)
class SimulationEffort:
    """The size of a simulation."""

    seeds: int
    """The number of traces, each from its own seed."""
    failures: int
    """The mean number of failures of each trace, within the limits on its length."""


PLANNED, QUICK = SimulationEffort(3, 6_000), SimulationEffort(1, 2_000)


@dataclass(frozen=True, slots=True)
class Worth:
    """The value of a setting; shares are of 1."""

    setting: Setting
    goodput: float
    """The share of the chips' time that is in completed steps."""
    interval: float
    """Half of the 95 % confidence interval of `goodput` over seeds."""
    uptime: float
    """The share of the time in which at least one learner advances."""
    merged: float
    """The share of trained tokens that is in the model when their learner rebuilds."""
    used: float
    """The share of the chips that learners have, weighted by the groups' throughput."""
    tokens_per_s: float
    """The throughput of merged tokens."""
    tokens: float
    """The tokens needed to reach the target loss; infinite if it cannot be reached."""
    hours: float
    """The time to the target loss."""
    usd: float
    """The cost to the target loss: chips, syncer nodes and egress."""
    moving: SettingTraffic
    """The traffic of the setting."""
    holding: ShardNodes
    """The nodes of the syncer and the shards."""
    objective: float
    """The hours or dollars to minimise; infinite if the setting does not work."""
    why: str
    """The reason why the setting does not work; empty if it works."""


def recovery_of(cluster: ClusterFile) -> Recovery:
    """Return the recovery times of a cluster file, with learners that grow under `Grow.WHOLE`."""
    table = cluster.recovery
    return Recovery(
        table.shrink_s,
        table.grow_s,
        table.return_s,
        table.restart_s,
        Returns(table.returns),
        table.spread,
        Grow.WHOLE,
    )


def target_loss(cluster: ClusterFile) -> float:
    """Return the target loss, by default that of data-parallel training on the given tokens."""
    training = cluster.training
    return training.target_loss or loss.data_parallel(training.parameters, training.tokens)


@dataclass(frozen=True, slots=True)
class PlayedSetting:
    """The chips layer's results for one number of learners, in shares of 1."""

    goodput: float
    interval: float
    """Half of the 95 % confidence interval of `goodput` over seeds."""
    uptime: float
    used: float
    """The share of the chips that learners have, weighted by the groups' throughput."""
    courses: tuple[tuple[Course, ...], ...]
    """The courses of all learners, group by group, for each seed."""


class Simulator:
    """The chips layer on one cluster; every number of learners is simulated once."""

    def __init__(self, cluster: ClusterFile, seed: int, effort: SimulationEffort) -> None:
        self.cluster, self._seed, self._effort = cluster, seed, effort
        self.recovery, self.step_s = recovery_of(cluster), step_s(cluster)
        self._played: dict[tuple[tuple[int, ...], int], PlayedSetting] = {}

    def traces(self, setting: Setting, seed: int, lasts_s: float) -> list[list[Trace]]:
        """Draw the traces by group and learner.

        Slices that cannot be shared evenly, and spare slices, are left out.
        """
        found: list[list[Trace]] = []
        for number, (group, count) in enumerate(
            zip(self.cluster.groups, setting.learners, strict=True)
        ):
            slices = group.chips // group.slice_chips
            each = max(1, slices // (count + setting.spares)) if setting.spares else slices // count
            used = Cluster(
                each * count * group.slice_chips,
                each * count,
                group.mtbi_years * YEAR_S,
                self.cluster.recovery.weibull_shape,
            )
            rng = np.random.default_rng([self._seed, seed, number])
            group_trace = draw(rng, used, self.recovery, lasts_s)
            found.append([group_trace.of_learner(m, count) for m in range(count)])
        return found

    def failures_per_s(self) -> float:
        """Return the interruptions of the whole cluster per second."""
        return sum(group.chips / group.mtbi_years / YEAR_S for group in self.cluster.groups)

    def played(self, setting: Setting) -> PlayedSetting:
        """Return the simulation of a setting's learners and spares, which is cached."""
        key = setting.learners, setting.spares
        if key not in self._played:
            self._played[key] = self._play(setting)
        return self._played[key]

    def goodput_of(self, setting: Setting, groups: list[list[Trace]], lasts_s: float) -> float:
        """Return the goodput on these traces, weighted by the chips of each learner."""
        weighted = total = 0.0
        for group, traces in zip(self.cluster.groups, groups, strict=True):
            for trace in traces:
                chips = trace.slices * group.slice_chips
                weighted += chips * self._course(trace, setting).goodput(lasts_s)
                total += chips
        return weighted / total

    def _play(self, setting: Setting) -> PlayedSetting:
        lasts_s = self._effort.failures / self.failures_per_s()
        lasts_s = min(LONGEST_S, max(SHORTEST_S, lasts_s))
        rates = [tokens_per_s(group, self.cluster) for group in self.cluster.groups]
        goodputs: list[float] = []
        uptimes: list[float] = []
        kept: list[tuple[Course, ...]] = []
        used = self._used(setting)
        for seed in range(self._effort.seeds):
            groups = [
                [self._course(trace, setting) for trace in traces]
                for traces in self.traces(setting, seed, lasts_s)
            ]
            of_group = [
                share * float(np.mean([timeline.goodput(lasts_s) for timeline in timelines]))
                for share, timelines in zip(used, groups, strict=True)
            ]
            goodputs.append(float(np.average(of_group, weights=rates)))
            all_timelines = [timeline for timelines in groups for timeline in timelines]
            uptimes.append(together(all_timelines, lasts_s).uptime)
            kept.append(tuple(all_timelines))
        mean, half = mean_and_interval(np.array(goodputs))
        used_share = float(np.average(used, weights=rates))
        return PlayedSetting(mean, half, float(np.mean(uptimes)), used_share, tuple(kept))

    def _used(self, setting: Setting) -> list[float]:
        """Return the share of each group's chips that learners have."""
        found: list[float] = []
        for group, count in zip(self.cluster.groups, setting.learners, strict=True):
            slices = group.chips // group.slice_chips
            each = max(1, slices // (count + setting.spares))
            found.append(each * count / slices)
        return found

    def _course(self, trace: Trace, setting: Setting) -> Course:
        """Play one learner on its trace.

        With spares a learner loses none of its chips: another slice takes over at once.
        """
        if setting.spares:
            return rigid(trace, self.recovery.shrink_s, self.step_s)
        return elastic(trace, self.recovery, self.step_s)

    def worth(self, setting: Setting) -> Worth:
        """Return the value of one setting."""
        cluster, played = self.cluster, self.played(setting)
        moving = traffic(setting, cluster)
        holding = shards(setting, moving, cluster)
        timelines = [timeline for each in played.courses for timeline in each]
        merged = merged_share(timelines, setting.every * self.step_s)
        rate = sum(tokens_per_s(group, cluster) for group in cluster.groups)
        effective = rate * played.goodput * merged
        training = cluster.training
        tokens = loss.tokens_to(training.parameters, setting.total, target_loss(cluster))
        hours = tokens / effective / 3600 if effective > 0 else math.inf
        hourly = (
            sum(group.chips * group.usd_per_hour for group in cluster.groups)
            + holding.count * cluster.syncer.usd_per_hour
            + moving.egress_usd_per_hour
        )
        usd = hours * hourly
        reason = self._why_not(setting, moving, holding, tokens, hours)
        wanted = hours if cluster.objective.minimise == "time" else usd
        return Worth(
            setting,
            played.goodput,
            played.interval,
            played.uptime,
            merged,
            played.used,
            effective,
            tokens,
            hours,
            usd,
            moving,
            holding,
            math.inf if reason else wanted,
            reason,
        )

    def _why_not(
        self,
        setting: Setting,
        moving: SettingTraffic,
        holding: ShardNodes,
        tokens: float,
        hours: float,
    ) -> str:
        """Return the reason why a setting is impossible; empty if it works."""
        training = self.cluster.training
        if moving.busiest > SLACK:
            return "link"
        if moving.overlap >= setting.every:
            return "latency"
        if holding.count > setting.fragments:
            return "shards"
        if math.isinf(tokens):
            return "loss"
        if training.target_loss is not None and tokens > training.tokens:
            return "tokens"
        if training.days is not None and hours > 24 * training.days:
            return "days"
        return ""
