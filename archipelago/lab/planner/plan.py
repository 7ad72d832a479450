"""`archipelago plan CLUSTER.toml`: how to train on a cluster, and why.

The chips layer plays every number of learners; what that leaves is reckoned for every interval and
wire. The best three are played again by the rounds layer, with the coordinator's own rules.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from archipelago.lab.planner.cluster_model import YEAR_S
from archipelago.lab.planner.objective import PLANNED, Simulator, Worth, target_loss
from archipelago.lab.planner.plan_choice import QUORUM, chosen, nearest_that_can
from archipelago.lab.planner.plan_reasons import Change, changes, reasons
from archipelago.lab.planner.plan_replay import Replay, replayed
from archipelago.lab.planner.settings import settings
from cluster.config.machines import ClusterFile
from cluster.config.toml import table_block
from coordinator.errors import UserMistake

REPLAYED = 3
"""Settings that the rules play."""


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
        tuple(replayed(simulator, worth, seed) for worth in three),
        tuple(reasons(cluster, best, works)),
        tuple(changes(cluster, seed, best)),
        to_paste(cluster, best),
        simulator.step_s,
        target_loss(cluster),
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
