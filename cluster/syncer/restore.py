"""Where a syncer that comes back goes on: snapshot, then the tape from there, from the depot."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass

from cluster.source import source_sha256
from cluster.storage.depot import Depot
from cluster.storage.format import Damaged
from cluster.storage.history import relive
from cluster.storage.snapshots import Snapshot, load_snapshot
from cluster.storage.tape import generations, read_tape
from cluster.syncer.journal import read_notes, retell
from cluster.syncer.measures import Measures
from coordinator.state import Rule, State, initial

log = logging.getLogger("archipelago.comeback")


@dataclass(frozen=True, slots=True)
class Comeback:
    """The rules' state after `seq` events, the last at `last_s`; `heard`: how many of them were
    heard again. `generation`: the number of the one that begins now."""

    state: State
    seq: int
    last_s: float
    generation: int
    heard: int
    damage: str | None


def rules_sha256(rule: Rule) -> str:
    """Of everything that the answer to an event depends on: configuration and source."""
    return hashlib.sha256(f"{rule!r} {source_sha256()}".encode()).hexdigest()


def come_back(depot: Depot, rule: Rule, measures: Measures) -> Comeback | None:
    """What the run had come to, also in `measures`; None if it has no tape yet.

    A snapshot that cannot be used costs time and nothing else: the whole tape is heard again.
    Errors: `Damaged` if the tape is not this run's, `OtherRules` if it is answered otherwise now.
    """
    if not generations(depot):
        return None
    kept = _usable(depot, rule, measures)
    state, last_s, start, noted = initial(rule), 0.0, 0, 0
    if kept is not None:
        state, last_s, start, noted = kept.state, kept.now_s, kept.seq, kept.notes
    recording = read_tape(depot, rule.fingerprint, start)
    history = relive(rule, recording.events, state)
    if (last := retell(measures, history, read_notes(depot, noted))) is not None:
        state, last_s = last.after, last.now_s
    heard = len(recording.events)
    return Comeback(state, recording.length, last_s, recording.generations, heard, recording.damage)


def _usable(depot: Depot, rule: Rule, measures: Measures) -> Snapshot | None:
    """The snapshot if one can go on from it; `measures` are then those of its moment."""
    layout = rule.fingerprint
    try:
        if (kept := load_snapshot(depot, layout)) is None:
            return None
        if kept.rules != rules_sha256(rule):  # the tape will tell whether that matters
            raise Damaged("the snapshot is of other rules")
        if (length := read_tape(depot, layout, kept.seq).length) < kept.seq:
            raise Damaged(f"the tape ends at event {length}, the snapshot is of {kept.seq}")
        measures.remember(kept.measures)
    except (Damaged, ValueError) as error:
        log.warning("%s; the whole tape is heard again", error)
        return None
    return kept
