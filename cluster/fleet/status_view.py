"""The status that people see: the syncer's, with the fleet's knowledge of the islands on top."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.config.schema import Config
from cluster.failures import in_short
from cluster.fleet.contribution_effects import EffectHistory, IslandEffects
from cluster.fleet.island_table import HeldIsland
from cluster.fleet.reconcile import Hold
from cluster.names import group_name
from cluster.status import EvaluationStatus, IslandStatus, RunStatus
from coordinator.protocol import Island

NO_EFFECTS = EffectHistory()
"""No effect of a contribution is measured."""


def overlay_islands(
    seen: RunStatus,
    held: Mapping[Island, HeldIsland],
    *,
    wanted: int,
    spares: int,
    evaluation: EvaluationStatus | None = None,
    effects: EffectHistory = NO_EFFECTS,
) -> RunStatus:
    """Return the syncer's status with the fleet's view of the islands.

    `wanted`: islands that the run should have. `spares`: warm ones. `evaluation`: cost and progress
    of evaluations of the model. `effects`: measured effects of contributions.
    """
    statuses = {each["island"]: each for each in seen["islands"]}
    islands = [
        _with_effects(_overlaid(statuses.get(island), it), effects.by_island.get(island))
        for island, it in held.items()
    ]
    overlaid: RunStatus = {**seen, "islands": islands, "wanted": wanted, "spares": spares}
    overlaid["evaluation"] = evaluation
    return overlaid


def _last_line(words: str) -> str:
    """Return the last line of a traceback, which names the exception."""
    lines = words.strip().splitlines()
    return f": {in_short(lines[-1])}" if lines else ""


def _overlaid(status: IslandStatus | None, it: HeldIsland) -> IslandStatus:
    island = it.holding.island
    base = status or IslandStatus(
        island=island,
        group=group_name(island),
        state="starting",
        incarnation=0,
        life=0,
        steps=0,
        tokens_per_s=0.0,
        loss=None,
        why="its process starts",
        contributions=0,
        cosine=None,
        restarts=0,
    )
    shown = base.copy()
    shown["group"] = group_name(island)
    match it.holding.hold:
        case Hold.WAITING | Hold.PLACED:
            shown["state"], shown["why"] = "waiting", it.why
        case Hold.ASIDE:
            shown["state"], shown["why"] = "set aside", it.why + _last_line(it.last_words)
        case Hold.DRAINING if base["state"] == "live":
            shown["state"], shown["why"] = "draining", it.why
        case _:
            pass
    of_this_life = it.broke_as in (None, shown["incarnation"]) or it.holding.hold is Hold.ASIDE
    if it.traceback and of_this_life:
        shown["why"] += f"; traceback in {it.traceback}"
    return shown


def _with_effects(status: IslandStatus, effects: IslandEffects | None) -> IslandStatus:
    if effects is not None:
        status["contribution_effect"] = effects.recent[-1]
        status["harmful_contributions"] = effects.harmful
    return status


def starting_status(run: str, config: Config) -> RunStatus:
    """Return the status of a run at which the keeper has not looked yet."""
    return RunStatus(
        run=run, t=0, steps=config.run.steps, elapsed_s=0.0, left_s=None, phase="starting",
        islands=[], fragments=[], participants=0.0, alive=0, merges=0, tokens_trained=0,
        tokens_per_s=0.0, heldout=[], faults=0,
        wanted=len(config.island_names), spares=0, refusals={}, failures={}, unjudged={},
        figures=None,
    )  # fmt: skip
