"""The replay command: rebuild a run from its tape, and compare it to the last bit.

The tape alone restores every state of the rules. With the contributions that the run kept
(`durability.keep_contributions`) it also restores the global fragments, on the same kind of
processor and with the same library versions. The judge of the simulated runs checks this run too,
event by event.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from archipelago.lab.checks.facts import Truth, Violation
from archipelago.lab.checks.judge import InvariantJudge
from cluster.config.load import load
from cluster.config.rule import rule_of
from cluster.config.schema import Config
from cluster.shard.build import shard_over
from cluster.shard.files import NoFiles
from cluster.storage.contributions import load_contribution
from cluster.storage.depot import Depot
from cluster.storage.format import Damaged
from cluster.storage.fragments import Arrays, FragmentStore
from cluster.storage.layout import load_layout
from cluster.storage.model_file import fingerprint
from cluster.storage.open_depot import depot_of
from cluster.storage.playback import Playback, edition_of
from cluster.storage.runs import SUMMARY
from cluster.storage.snapshots import beginning_of, load_snapshot
from cluster.storage.state_history import OtherRules, ReplayedEvent, relive
from coordinator.errors import UserMistake
from coordinator.fragments import Layout
from coordinator.protocol import (
    Effect,
    Event,
    Fragment,
    Merge,
    Publish,
    Resume,
    ShardBack,
    Store,
    Version,
)
from coordinator.state import initial


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
    arrays = _Arrays(config, layout, depot) if config.durability.keep_contributions else None
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
        checks["fragments"] = digest == _reported_digest(run_dir / SUMMARY)
    return {
        "exact": bool(checks) and all(checks.values()) and played.damage is None,
        "from_event": began,
        "events": events - began,
        "merges": state.merges,
        "global_sha256": digest,
        "compared": checks,
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


def _reported_digest(summary: Path) -> str:
    """Return the fingerprint of the final model that the run itself reported."""
    try:
        return json.loads(summary.read_text())["global_sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{summary.name} cannot be read: {error!r}") from error


class _Arrays:
    """The arrays of a replayed run, rebuilt from the first versions and the kept contributions."""

    def __init__(self, config: Config, layout: Layout, depot: Depot) -> None:
        self._depot, self._layout = depot, layout
        store = FragmentStore(depot, layout, keep=config.durability.keep_snapshots)
        self._fragments = [Fragment(p) for p in range(len(layout.fragments))]
        self._files = _Past(store)
        self._shard = shard_over(config, lambda: (layout, self._files), map)
        self._shard.seed({p: _first(store, p) for p in self._fragments})
        self._ordered: dict[Fragment, Merge] = {}

    def follow(self, event: Event, effects: tuple[Effect, ...]) -> None:
        """Repeat the shard's actions for this event and its effects."""
        if isinstance(event, Resume):
            versions = zip(self._fragments, event.versions, strict=True)
            self._shard.recover(dict(versions), event.generation)
        if isinstance(event, ShardBack):
            versions = {p: self._shard.version(p) for p in event.fragments}
            self._shard.recover(versions, self._shard.generation)
        for effect in effects:
            if isinstance(effect, Merge):
                self._ordered[effect.fragment] = effect
            if isinstance(effect, Store):  # only now is the merge known to have succeeded
                self._merge(self._ordered.pop(effect.fragment))
            if isinstance(effect, Publish):
                self._shard.publish(effect)

    def _merge(self, order: Merge) -> None:
        """Load the contributions of a merge, and merge them."""
        p = order.fragment
        self._files.before[p] = _copy(self._shard.arrays(p))
        for item in order.items:
            contribution_id = item.contribution.id
            payload = load_contribution(self._depot, contribution_id, self._layout.fingerprint)
            self._shard.receive(item.contribution, payload)
        self._shard.merge(order)

    def sha256(self) -> str:
        """Return the fingerprint of all public fragments."""
        return fingerprint([flat for _, flat in self._shard.whole(self._fragments)])


class _Past(NoFiles):
    """The files of a recovering shard: the state before its last merge. It writes nothing."""

    def __init__(self, store: FragmentStore) -> None:
        self._store = store
        self.before: dict[Fragment, Arrays] = {}

    def newest(self, p: Fragment, upto: Version) -> Arrays:
        """Return the fragment's arrays at exactly the version `upto`.

        Errors: `Damaged` if that version was not kept.
        """
        copied = self.before.get(p)
        if copied is not None and copied.version == upto:
            return copied
        arrays = self._store.newest(p, upto=upto)
        if arrays.version != upto:
            raise Damaged(f"fragment {p} continued from {upto}, which was not kept")
        return arrays


def _first(store: FragmentStore, p: Fragment) -> Arrays:
    """Return the fragment's first version. Errors: `Damaged` if it is gone."""
    arrays = store.oldest(p)
    if arrays.version != Version(0, 0):
        raise Damaged(
            f"fragment {p} has lost its first version, its oldest is now "
            f"{arrays.version}: the model cannot be rebuilt"
        )
    return arrays


def _copy(arrays: Arrays) -> Arrays:
    """Return a deep copy, so that later merges do not change it."""
    master, momentum = np.array(arrays.master), np.array(arrays.momentum)
    return replace(arrays, master=master, momentum=momentum, public=np.array(arrays.public))
