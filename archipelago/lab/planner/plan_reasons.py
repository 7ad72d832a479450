"""The reasons for a plan, and the choice under other conditions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from archipelago.lab.planner import gap_law
from archipelago.lab.planner import loss_cost as loss
from archipelago.lab.planner.objective import QUICK, Simulator, Worth
from archipelago.lab.planner.plan_choice import QUORUM, chosen
from archipelago.lab.planner.setting_traffic import auto_interval
from archipelago.lab.planner.settings import beside_spares, settings
from cluster.config.machines import ClusterFile


@dataclass(frozen=True, slots=True)
class Change:
    """The choice under changed assumptions."""

    given: str
    """The changed assumption."""
    learners: int
    """M, or 0 if nothing works."""
    every: int
    """H, or 0 if nothing works."""
    wire: str
    same: bool
    """Whether the choice is the plan's own."""


def reasons(cluster: ClusterFile, best: Worth, works: list[Worth]) -> list[str]:
    """Return the reason for each part of the best setting."""
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
    steps = best.tokens / training.batch_tokens
    if math.isfinite(steps):
        gap = gap_law.LAW.percent(setting.every, steps, setting.total)
        low, high = gap_law.LAW.interval(setting.every, steps, setting.total)
        found.append(
            f"this project's law of the gap to data-parallel training (docs/lab/convergence.md) "
            f"gives +{gap:.2f} % ({low:.2f} to {high:.2f}) for M = {setting.total}, "
            f"H = {setting.every} and {steps:.3g} steps; it is of 0.13M parameters and at most "
            "2,000 steps, and too small at 6,000 steps, so the choice does not use it: the "
            "tokens to the target, and with them hours and dollars, depend on M, not on H"
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
    if moving.spread:
        found.append(
            f"shards in {', '.join(moving.shard_regions)}: with all of them in one region its link "
            "could not carry this; while one of these regions is cut off, its part of the model is "
            "not merged until Ray has moved its shards"
        )
    auto = auto_interval(setting, cluster)
    found.append(
        f'sync.every = "auto" would choose H = {auto.every} and P = {auto.fragments} here: '
        f"{auto.why}"
        if auto.fits
        else f'sync.every = "auto" would refuse: {auto.why}'
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
        else "spares: none, a learner that loses a slice continues on its other slices"
        if all(
            group.chips // group.slice_chips // count > 1
            for count, group in zip(setting.learners, cluster.groups, strict=True)
        )
        else "spares: none, no slice is left for one"
        if beside_spares(setting.learners, cluster) is None
        else "spares: none, their chips train more than they would save"
    )
    return found


def changes(cluster: ClusterFile, seed: int, best: Worth) -> list[Change]:
    """Return the choice if interruptions, links or the model were different."""
    training, active = cluster.training, cluster.training.active_parameters
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
                        "active_parameters": active and active / 10,
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
    """Return the cluster with `factor` times as long between interruptions."""
    groups = tuple(
        g.model_copy(update={"mtbi_years": g.mtbi_years * factor}) for g in cluster.groups
    )
    return cluster.model_copy(update={"groups": groups})
