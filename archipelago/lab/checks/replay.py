"""The replay command: rebuild a run from its tape, and compare it to the last bit.

The tape alone restores every state of the rules. With the contributions that the run kept
(`durability.keep_contributions`) it also restores the global fragments, on the same kind of
processor and with the same library versions. The judge of the simulated runs checks this run too,
event by event.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

from archipelago.lab.checks.facts import Truth, Violation
from archipelago.lab.checks.judge import InvariantJudge
from cluster.config.load import load
from cluster.config.rule import rule_of
from cluster.shard.rebuild import RebuiltFragments
from cluster.storage.format import Damaged
from cluster.storage.layout import load_layout
from cluster.storage.open_depot import contribution_store, depot_of
from cluster.storage.playback import Playback, edition_of
from cluster.storage.runs import SUMMARY
from cluster.storage.snapshots import beginning_of, load_snapshot
from cluster.storage.state_history import OtherRules, ReplayedEvent, relive
from coordinator import ledger
from coordinator.errors import UserMistake
from coordinator.state import State, initial


def replay(run_dir: Path) -> dict[str, object]:
    """Replay the run in `run_dir`, and return a report of how it compares.

    The report has these fields:

    - `exact`: whether everything that could be compared was equal, something was compared, and the
      tape is undamaged.
    - `from_event`: the first event that was replayed; 0 is the beginning of the run. It is later
      where older segments of the tape are gone (`durability.keep_segments`); the replay then starts
      from the state that the run kept.
    - `events`, `merges`: how many were replayed, and how many merges the final state counts.
    - `global_sha256`: the fingerprint of the rebuilt model; None if no contributions were kept.
    - `compared`: each comparison by name, and whether it was equal.
    - `tokens`: the token counts of the final state, as in the summary.
    - `differs`: the first event that the rules now answer differently. Later events are not
      checked.
    - `damage`: the damage to the tape, if any.
    - `violations`: 1 if an invariant was broken, else 0; None if the run was not judged, because
      the beginning of the tape is gone.
    - `violated`: the first broken invariant, in words. Later ones may only follow from it.

    Errors: `UserMistake` if there is no run, or if it sums gradients; `Damaged` if its files are
    corrupt.
    """
    config = load(run_dir / "config.toml")
    if (mode := config.run.mode).sums_gradients:
        raise UserMistake(
            f'run {run_dir} is of run.mode = "{mode}": its tape (ring.jsonl) has the members of '
            "each ring, not the gradients; only runs that merge contributions can be replayed"
        )
    depot = depot_of(config, run_dir)
    layout = load_layout(depot)
    rule = rule_of(config, layout, edition_of(depot))
    first = beginning_of(depot, layout.fingerprint)
    began, place = (0, None) if first is None else (first.seq, first.place)
    played = Playback(depot, layout.fingerprint, began, place)
    arrays = (
        RebuiltFragments(config, layout, depot, contribution_store(config, run_dir))
        if config.durability.keep_contributions
        else None
    )
    kept = load_snapshot(depot, layout.fingerprint)
    checks: dict[str, bool] = {}
    judge, violated = InvariantJudge(rule, Truth()), None
    state, differs, events = initial(rule) if first is None else first.state, None, began
    try:
        for replayed in relive(rule, played, state):
            if kept is not None and kept.seq == events:
                checks["state"] = kept.state == state
            if arrays is not None:
                arrays.follow(replayed.event, replayed.effects)
            if first is None:  # the judge must see the whole run
                violated = violated or _violated(judge, replayed)
            state, events = replayed.after, events + 1
    except OtherRules as error:
        differs = str(error)
    if events > began or differs is not None:
        checks["effects"] = differs is None
    if kept is not None and kept.seq == events:
        checks["state"] = kept.state == state
    digest = None if arrays is None else arrays.sha256()
    if digest is not None and differs is None and (run_dir / SUMMARY).exists():
        checks["fragments"] = digest == _reported(run_dir / SUMMARY).get("global_sha256")
    tokens = _tokens_of(state, layout.sizes)
    if differs is None and (run_dir / SUMMARY).exists():
        checks["tokens"] = not tokens_differ(_reported(run_dir / SUMMARY), tokens)
    return {
        "exact": bool(checks) and all(checks.values()) and played.damage is None,
        "from_event": began,
        "events": events - began,
        "merges": state.merges,
        "global_sha256": digest,
        "compared": checks,
        "tokens": tokens,
        "differs": differs,
        "damage": played.damage,
        "violations": None if first is not None else 0 if violated is None else 1,
        "violated": violated,
    }


def _violated(judge: InvariantJudge, heard: ReplayedEvent) -> str | None:
    """Return the invariant that this event broke, in words; None if all hold."""
    try:
        judge.saw(*heard)
    except Violation as error:
        return str(error)
    return None


def _tokens_of(state: State, sizes: Sequence[int]) -> dict[str, int]:
    """Return the token counts of a state, by their names in a summary."""
    totals = asdict(ledger.totals(state.ledger, sizes))
    return {f"tokens_{fate}": count for fate, count in totals.items()}


def tokens_differ(summary: Mapping[str, object], tokens: Mapping[str, int]) -> list[str]:
    """Return the token counts of a summary that differ from those of the tape, one by one.

    A count that the summary lacks, because no syncer was left to give it, does not differ.
    """
    return [
        f"{name} is {summary[name]} in {SUMMARY}, and {count} on the tape"
        for name, count in tokens.items()
        if summary.get(name) not in (None, count)
    ]


def _reported(summary: Path) -> Mapping[str, object]:
    """Return the final figures that the run itself reported.

    Errors: `Damaged` if they cannot be read.
    """
    try:
        figures: object = json.loads(summary.read_text())
    except ValueError as error:
        raise Damaged(f"{summary.name} cannot be read: {error!r}") from error
    if not isinstance(figures, Mapping):
        raise Damaged(f"{summary.name} cannot be read: it is no JSON object")
    return cast("Mapping[str, object]", figures)
