"""`archipelago plan CLUSTER.toml`: the best way to train on a cluster, and the reasons.

The chips layer simulates every number of learners. The rest is computed from that for every
interval and wire format. The rounds layer plays the best three again, with the coordinator's own
rules.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from archipelago.lab.planner.cluster_model import YEAR_S
from archipelago.lab.planner.objective import PLANNED, Simulator, Worth, target_loss
from archipelago.lab.planner.plan_choice import QUORUM, chosen, nearest_that_can
from archipelago.lab.planner.plan_reasons import Change, changes, reasons
from archipelago.lab.planner.plan_replay import Replay, replayed
from archipelago.lab.planner.setting_traffic import auto_interval
from archipelago.lab.planner.settings import settings
from cluster.config.machines import ClusterFile
from cluster.config.toml import table_block
from coordinator.errors import UserMistake
from coordinator.interval import Interval

REPLAYED = 3
"""The number of settings that the rounds layer plays."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The chosen setting, the alternatives and the reasons."""

    best: Worth
    runner_up: Worth | None
    """The best setting with other numbers of learners; None if no other works."""
    tried: int
    """The number of settings that were evaluated."""
    replays: tuple[Replay, ...]
    reasons: tuple[str, ...]
    changes: tuple[Change, ...]
    toml: str
    """The tables to paste into a run file."""
    step_s: float
    target_loss: float
    auto: Interval
    """The H and P that `sync.every = "auto"` would choose for the best setting."""

    def as_json(self) -> dict[str, object]:
        """Return what `--json` prints; goodput and uptime are in per cent."""
        return {
            **figures(self.best),
            "step_s": self.step_s,
            "auto": asdict(self.auto),
            "target_loss": self.target_loss,
            "runner_up": None if self.runner_up is None else figures(self.runner_up),
            "settings_tried": self.tried,
            "replays": [asdict(each) for each in self.replays],
            "reasons": list(self.reasons),
            "changes": [asdict(each) for each in self.changes],
            "toml": self.toml,
        }


def figures(worth: Worth) -> dict[str, object]:
    """Return one setting and its results as JSON values; shares are in per cent."""
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
        "shard_regions": list(moving.shard_regions),
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
    """Choose a setting for a cluster.

    Errors: `UserMistake` if no setting works; it names the nearest one that could.
    """
    simulator = Simulator(cluster, seed, PLANNED)
    worths = sorted((simulator.worth(s) for s in settings(cluster)), key=lambda w: w.objective)
    works = [worth for worth in worths if not worth.why]
    if not works:
        raise UserMistake(nearest_that_can(cluster, worths))
    best = chosen(works)
    others = [worth for worth in works if worth.setting.learners != best.setting.learners]
    runner_up = others[0] if others else None
    candidates = [best, *(worth for worth in works if worth is not best)][:REPLAYED]
    return TrainingPlan(
        best,
        runner_up,
        len(worths),
        tuple(replayed(simulator, worth, seed) for worth in candidates),
        tuple(reasons(cluster, best, works)),
        tuple(changes(cluster, seed, best)),
        to_paste(cluster, best),
        simulator.step_s,
        target_loss(cluster),
        auto_interval(best.setting, cluster),
    )


def to_paste(cluster: ClusterFile, best: Worth) -> str:
    """Return `[sync]`, `[durability]` and `[[islands]]` in the form of a run's file."""
    setting, moving = best.setting, best.moving
    sync: dict[str, object] = {
        "every": setting.every,
        "fragments": setting.fragments,
        "overlap": moving.overlap,
        "quorum": QUORUM,
        "wire_up": setting.wire,
        "wire_down": setting.wire,
        "shards": best.holding.count,
    }
    durable = ""
    if moving.spread:
        sync["shard_labels"] = {"region": f"in({','.join(moving.shard_regions)})"}
        durable = '# dir = "s3://..." is needed here: a store that every region reaches\n'
    blocks = [
        f"# the syncer's node: in {moving.syncer}\n" + table_block("[sync]", sync),
        durable + table_block("[durability]", {"every": best.holding.store_every}),
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
    """Return the interruptions of all of a cluster's chips per day."""
    return sum(g.chips / g.mtbi_years / YEAR_S for g in cluster.groups) * 86400
