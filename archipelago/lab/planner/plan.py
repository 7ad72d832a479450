"""`archipelago plan CLUSTER.toml`: how to train on a cluster, and why.

The chips layer plays every number of learners; what that leaves is reckoned for every interval and
wire. The best three are played again by the rounds layer, with the coordinator's own rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np

from archipelago.lab.planner import loss_cost as loss
from archipelago.lab.planner import rounds
from archipelago.lab.planner.cluster_model import YEAR_S
from archipelago.lab.planner.objective import PLANNED, QUICK, Simulator, Worth, target_loss
from archipelago.lab.planner.settings import INTERVALS, SLACK, WIRES, settings
from cluster.config.machines import ClusterFile
from cluster.config.toml import table_block
from coordinator.errors import UserMistake
from islands.learner_state import HEARTBEAT_S

EQUAL = 0.005
"""Settings whose objective differs by less are equal: then the shorter interval, the wider wire and
fewer learners are taken."""
REPLAYED, REPLAY_EVENTS, WINDOWS = 3, 5_000, 100
"""Settings that the rules play, events of each, and windows from which one is taken."""
QUORUM = 1
OTHER_TRACES = 1_000_003
"""A seed that the choice has not seen."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A window of one of the best settings, by both layers, in per cent."""

    learners: int
    every: int
    wire: str
    failures: int
    events: int
    chips_goodput: float
    rounds_goodput: float
    merged: float


@dataclass(frozen=True, slots=True)
class Change:
    """What the choice would be if something were otherwise."""

    given: str
    learners: int
    every: int
    wire: str
    same: bool


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    best: Worth
    runner_up: Worth | None
    tried: int
    replays: tuple[Replay, ...]
    reasons: tuple[str, ...]
    changes: tuple[Change, ...]
    toml: str
    step_s: float
    target_loss: float

    def as_json(self) -> dict[str, object]:
        """What `--json` prints; goodput and uptime in per cent."""
        return {
            **figures(self.best),
            "step_s": self.step_s,
            "target_loss": self.target_loss,
            "runner_up": None if self.runner_up is None else figures(self.runner_up),
            "settings_tried": self.tried,
            "replays": [asdict(each) for each in self.replays],
            "reasons": list(self.reasons),
            "changes": [asdict(each) for each in self.changes],
            "toml": self.toml,
        }


def figures(worth: Worth) -> dict[str, object]:
    """One setting with what comes of it."""
    setting, moving, holding = worth.setting, worth.moving, worth.holding
    return {
        "learners": setting.total,
        "learners_by_group": list(setting.learners),
        "quorum": QUORUM,
        "fragments": setting.fragments,
        "every": setting.every,
        "overlap": moving.overlap,
        "wire": setting.wire,
        "moments": "own",
        "spares": setting.spares,
        "shards": holding.count,
        "shard_memory_gb": holding.memory_gb / holding.count,
        "store_every": holding.store_every,
        "syncer_region": moving.syncer,
        "goodput": 100 * worth.goodput,
        "goodput_interval": 100 * worth.interval,
        "uptime": 100 * worth.uptime,
        "merged": 100 * worth.merged,
        "tokens_per_s": worth.tokens_per_s,
        "tokens": worth.tokens,
        "gbit_s_per_island": moving.island_gbit_s,
        "gbit_s_by_region": moving.gbit_s,
        "egress_gb": moving.egress_gb_per_hour * worth.hours,
        "egress_usd": moving.egress_usd_per_hour * worth.hours,
        "hours": worth.hours,
        "usd": worth.usd,
        "objective": worth.objective,
    }


def plan(cluster: ClusterFile, seed: int) -> TrainingPlan:
    """Choose; refuses with the nearest that can, where nothing works (`UserMistake`)."""
    simulator = Simulator(cluster, seed, PLANNED)
    worths = sorted((simulator.worth(s) for s in settings(cluster)), key=lambda w: w.objective)
    works = [worth for worth in worths if not worth.why]
    if not works:
        raise UserMistake(nearest_that_can(cluster, worths))
    best = chosen(works)
    others = [worth for worth in works if worth.setting.learners != best.setting.learners]
    runner_up = others[0] if others else None
    three = [best, *(worth for worth in works if worth is not best)][:REPLAYED]
    return TrainingPlan(
        best,
        runner_up,
        len(worths),
        tuple(_replay(simulator, worth, seed) for worth in three),
        tuple(_reasons(cluster, best, works)),
        tuple(_changes(cluster, seed, best)),
        to_paste(cluster, best),
        simulator.step_s,
        target_loss(cluster),
    )


def chosen(works: list[Worth]) -> Worth:
    """The first of those that are as good as the best."""
    least = min(worth.objective for worth in works)
    equal = [worth for worth in works if worth.objective <= least * (1 + EQUAL)]
    return min(
        equal,
        key=lambda w: (w.setting.every, WIRES.index(w.setting.wire), w.setting.total, w.objective),
    )


def _replay(simulator: Simulator, worth: Worth, seed: int) -> Replay:
    """The window with the most failures among many, by both layers.

    Steps are played as of one second, with all times in proportion: the rules know no unit of time
    but a learner's beat, of which they need no more than one a step.
    """
    setting = worth.setting
    scale = 1.0 / simulator.step_s
    round_s = setting.every / setting.fragments
    events_per_s = setting.total * (1 / HEARTBEAT_S + 2 / round_s) + 4 / round_s
    lasts_s = math.ceil(REPLAY_EVENTS / events_per_s) / scale  # whole steps
    groups = simulator.traces(setting, OTHER_TRACES, WINDOWS * lasts_s)
    fails_s = np.concatenate([trace.fails_s for group in groups for trace in group])
    counts = np.bincount((fails_s / lasts_s).astype(int), minlength=WINDOWS)
    from_s = float(counts[:WINDOWS].argmax()) * lasts_s
    groups = [[trace.window(from_s, lasts_s) for trace in group] for group in groups]
    weights = [
        group.slice_chips
        for group, learners in zip(simulator.cluster.groups, groups, strict=True)
        for _ in learners
    ]
    recovery = simulator.recovery
    if setting.spares:  # what takes over is there at once
        recovery = replace(recovery, return_s=recovery.shrink_s)
    played = rounds.play(
        [trace.scaled(scale) for group in groups for trace in group],
        recovery.scaled(scale),
        1.0,
        rounds.Sync(setting.every, setting.fragments, worth.moving.overlap, QUORUM),
        f"{seed}/plan/{setting}",
        weights=weights,
    )
    by_chips = simulator.goodput_of(setting, groups, lasts_s)
    return Replay(
        setting.total,
        setting.every,
        setting.wire,
        int(counts[:WINDOWS].max()),
        played.events,
        100 * by_chips,
        100 * played.goodput,
        100 * played.merged,
    )


def _reasons(cluster: ClusterFile, best: Worth, works: list[Worth]) -> list[str]:
    setting, training = best.setting, cluster.training

    def of(total: Callable[[int], bool]) -> Worth | None:
        found = [w for w in works if total(w.setting.total) and w.setting.total != setting.total]
        return min(found, key=lambda w: w.objective) if found else None

    found: list[str] = []
    ratio = loss.ratio(training.parameters, setting.total)
    found.append(
        f"M = {setting.total}: goodput {100 * best.goodput:.2f} %, loss at equal tokens x "
        f"{ratio:.4f} of data-parallel's (arXiv:2503.09799"
        f"{'; beyond 8 an extrapolation' if setting.total > loss.MOST_FITTED else ''}), "
        f"{best.tokens:.3g} tokens to the target"
    )
    for name, other in (
        ("fewer", of(lambda total: total < setting.total)),
        ("more", of(lambda total: total > setting.total)),
    ):
        if other is not None:
            found.append(
                f"{name} learners, M = {other.setting.total}: goodput {100 * other.goodput:.2f} %, "
                f"{other.tokens:.3g} tokens, objective {other.objective / best.objective - 1:+.1%}"
            )
    found.append(
        "this project's own measured difference, +7.1 % at 0.84M parameters and M = 4 "
        "(docs/benchmarks.md, parity), is not used: the model is too small to reckon from"
    )
    found.append(
        f"K = {QUORUM}: no learner waits for a quorum, and a merge needs no more than one; the "
        "grace window catches the others"
    )
    moving = best.moving
    found.append(
        f"H = {setting.every}, {setting.wire}: the busiest link ({moving.where}) is used to "
        f"{moving.busiest:.0%}; of the tokens {100 * best.merged:.2f} % are merged before their "
        "learner rebuilds, and a longer interval loses more"
    )
    found.append(
        f"τ = {moving.overlap}: a fragment's way there and back, and a merge, in steps of "
        f"{training.batch_tokens:g} tokens"
    )
    found.append(
        f"{best.holding.count} node(s) for syncer and shards: {best.holding.why}; "
        f"{best.holding.memory_gb:.0f} GB and {best.holding.gbit_s:.1f} Gbit/s in all. Stored is "
        f"every {best.holding.store_every}. version of a fragment: half of the disk's rate"
    )
    found.append(
        "spares: one for each group, since a learner is one slice and stops with it"
        if setting.spares
        else "spares: none, learners go on with the slices they have left"
        if all(
            count < group.chips // group.slice_chips
            for count, group in zip(setting.learners, cluster.groups, strict=True)
        )
        else "spares: none, their chips train more than they would save"
    )
    return found


def _changes(cluster: ClusterFile, seed: int, best: Worth) -> list[Change]:
    """What would be chosen if interruptions, links or the model were otherwise."""
    training = cluster.training
    cases = {
        "chips are interrupted four times as often": replace_groups(cluster, 0.25),
        "chips are interrupted a fourth as often": replace_groups(cluster, 4.0),
        "links carry a fourth": cluster.model_copy(
            update={
                "regions": tuple(
                    r.model_copy(update={"gbit_s": r.gbit_s / 4}) for r in cluster.regions
                )
            }
        ),
        "the model has a tenth of the parameters and the tokens": cluster.model_copy(
            update={
                "training": training.model_copy(
                    update={
                        "parameters": training.parameters / 10,
                        "tokens": training.tokens / 10,
                        "target_loss": None,
                        "days": None,
                    }
                )
            }
        ),
    }
    found: list[Change] = []
    for given, other in cases.items():
        simulator = Simulator(other, seed, QUICK)
        works = [w for s in settings(other) if not (w := simulator.worth(s)).why]
        if not works:
            found.append(Change(f"{given} (nothing works)", 0, 0, "", same=False))
            continue
        now = chosen(works).setting
        found.append(Change(given, now.total, now.every, now.wire, same=now == best.setting))
    return found


def replace_groups(cluster: ClusterFile, factor: float) -> ClusterFile:
    """The same with so many times longer between interruptions."""
    groups = tuple(
        g.model_copy(update={"mtbi_years": g.mtbi_years * factor}) for g in cluster.groups
    )
    return cluster.model_copy(update={"groups": groups})


def nearest_that_can(cluster: ClusterFile, worths: list[Worth]) -> str:
    """Why nothing works, and what would."""
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
    reached = loss.data_parallel(training.parameters, training.tokens)
    reached *= loss.ratio(training.parameters, least_tokens.setting.total)
    return (
        f"training.tokens: {training.tokens:.3g} do not reach a loss of "
        f"{target_loss(cluster):.4g}: M = {least_tokens.setting.total} needs "
        f"{least_tokens.tokens:.3g}; with the tokens given the nearest is {reached:.4g}"
    )


def to_paste(cluster: ClusterFile, best: Worth) -> str:
    """`[sync]`, `[durability]` and `[[islands]]` as `archipelago run` takes them."""
    setting = best.setting
    sync = {
        "every": setting.every,
        "fragments": setting.fragments,
        "overlap": best.moving.overlap,
        "quorum": QUORUM,
        "wire_up": setting.wire,
        "wire_down": setting.wire,
        "shards": best.holding.count,
    }
    blocks = [
        f"# the syncer's node: in {best.moving.syncer}\n" + table_block("[sync]", sync),
        table_block("[durability]", {"every": best.holding.store_every}),
    ]
    for group, count in zip(cluster.groups, setting.learners, strict=True):
        slices = group.chips // group.slice_chips // (count + setting.spares)
        blocks.append(
            f"# {group.region}: {slices} slices of {group.slice_chips} chips each\n"
            + table_block(
                "[[islands]]", {"group": group.group, "count": count, "spares": setting.spares}
            )
        )
    return "\n".join(blocks)


def interruptions_per_day(cluster: ClusterFile) -> float:
    return sum(g.chips / g.mtbi_years / YEAR_S for g in cluster.groups) * 86400
