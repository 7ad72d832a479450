"""Where a syncer that comes back goes on: snapshot, then the tape from there, from the depot.

What that costs follows what happened since the snapshot, however long the run is.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cluster.source import source_sha256
from cluster.storage.depot import Depot
from cluster.storage.format import Damaged
from cluster.storage.history import relive
from cluster.storage.playback import Playback, TapeRow
from cluster.storage.segments import generations
from cluster.storage.snapshots import (
    STATE,
    Snapshot,
    beginning_of,
    beginnings,
    load_snapshot,
    name_of,
)
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


def come_back(
    depot: Depot,
    rule: Rule,
    measures: Measures,
    hears: Callable[[int], None] = lambda seq: None,
) -> Comeback | None:
    """What the run had come to, also in `measures`; None if it has no tape yet. `hears` is told of
    each event that is heard again.

    A snapshot that cannot be used costs time and nothing else: the one before it is taken, or the
    whole tape is heard again.
    Errors: `Damaged` if the tape is not this run's, `OtherRules` if it is answered otherwise now.
    """
    if not (known := generations(depot)):
        return None
    kept, played = _start(depot, rule, measures)
    if kept is None:
        state, last_s, notes = initial(rule), 0.0, read_notes(depot)
    else:
        state, last_s, notes = kept.state, kept.now_s, read_notes(depot, kept.notes, kept.now_s)
    history = relive(rule, _counted(played, hears), state)
    if (last := retell(measures, history, notes)) is not None:
        state, last_s = last.after, last.now_s
    heard = played.length - (0 if kept is None else kept.seq)
    return Comeback(state, played.length, last_s, known[-1] + 1, heard, played.damage)


def _counted(played: Playback, hears: Callable[[int], None]) -> Iterator[TapeRow]:
    for row in played:
        hears(row.seq)
        yield row


def _start(depot: Depot, rule: Rule, measures: Measures) -> tuple[Snapshot | None, Playback]:
    """The newest snapshot that one can go on from, and the tape from there; `measures` are then
    those of its moment."""
    for name in (STATE, *map(name_of, reversed(beginnings(depot)))):
        try:
            if (kept := load_snapshot(depot, rule.fingerprint, name)) is None:
                continue
            if kept.rules != rules_sha256(rule):  # the tape will tell whether that matters
                raise Damaged(f"{name} is of other rules")
            return _from(depot, rule, measures, kept)
        except (Damaged, ValueError) as error:
            log.warning("%s", error)
    if (kept := beginning_of(depot, rule.fingerprint)) is not None:
        log.warning("all of the tape that is left is heard again, from event %d on", kept.seq)
        return _from(depot, rule, measures, kept)
    log.warning("the whole tape is heard again")
    return None, Playback(depot, rule.fingerprint)


def _from(
    depot: Depot, rule: Rule, measures: Measures, kept: Snapshot
) -> tuple[Snapshot, Playback]:
    """Errors: `Damaged` if the tape does not reach so far; `ValueError` for the measures."""
    layout = rule.fingerprint
    if kept.place is None:
        passed = Playback(depot, layout, kept.seq)
        for _ in passed:
            pass
        if passed.length < kept.seq:
            raise Damaged(f"the tape ends at event {passed.length}, a snapshot is of {kept.seq}")
    played = Playback(depot, layout, kept.seq, kept.place)
    measures.remember(kept.measures)
    return kept, played
