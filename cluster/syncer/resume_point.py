"""The point from which a restart resumes: a snapshot, and the tape from there on."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import replace

from cluster.source import source_sha256
from cluster.storage.depot import Depot
from cluster.storage.format import Damaged
from cluster.storage.playback import Playback
from cluster.storage.segments import Segment, TapePosition, generations
from cluster.storage.snapshots import (
    STATE,
    Snapshot,
    beginning_of,
    beginnings,
    load_snapshot,
    name_of,
)
from cluster.syncer.damage_report import joined
from cluster.syncer.measures import Measures
from coordinator.state import Rule

log = logging.getLogger("archipelago.comeback")


def rules_sha256(rule: Rule) -> str:
    """Return a hash of everything on which the answer to an event depends: rule and source.

    The batches of groups are left out: no group changes its own (`binding_settings`), and one that
    is new at a resume has no events yet.
    """
    rule = replace(rule, batches=())
    return hashlib.sha256(f"{rule!r} {source_sha256()}".encode()).hexdigest()


def resume_point(
    depot: Depot, rule: Rule, measures: Measures
) -> tuple[Snapshot | None, Playback, str | None]:
    """Return the newest usable snapshot, the tape from there, and the damaged snapshots.

    `measures` then has the counters of that snapshot.

    Errors: `Damaged` if there is neither a usable snapshot nor any tape.
    """
    damaged: list[str] = []
    for kept in snapshots(depot, rule, damaged):
        try:
            return kept, _from(depot, rule, measures, kept), joined(*damaged)
        except (Damaged, ValueError) as error:
            log.warning("%s", error)
    if not generations(depot):
        raise Damaged(joined("the tape is not there, and no snapshot can be used", *damaged))
    if (kept := beginning_of(depot, rule.fingerprint)) is not None:
        log.warning("all of the remaining tape is replayed, from event %d on", kept.seq)
        return kept, _from(depot, rule, measures, kept), joined(*damaged)
    log.warning("the whole tape is replayed")
    return None, Playback(depot, rule.fingerprint), joined(*damaged)


def snapshots(depot: Depot, rule: Rule, damaged: list[str]) -> Iterator[Snapshot]:
    """Yield the snapshots of these rules, newest first; append unreadable ones to `damaged`."""
    for name in (STATE, *map(name_of, reversed(beginnings(depot)))):
        try:
            kept = load_snapshot(depot, rule.fingerprint, name)
        except Damaged as error:
            log.warning("%s", error)
            damaged.append(str(error))
            continue
        if kept is not None and kept.rules != rules_sha256(rule):
            log.warning("%s is of other rules", name)  # replaying the tape shows if that matters
        elif kept is not None:
            yield kept


def _from(depot: Depot, rule: Rule, measures: Measures, kept: Snapshot) -> Playback:
    """Return the tape from a snapshot on, as far as it exists.

    Errors: `Damaged` if a later generation resumed from a point before it; `ValueError` for the
    measures.
    """
    layout, place = rule.fingerprint, kept.place
    if place is None and generations(depot):
        passed = Playback(depot, layout, kept.seq)
        for _ in passed:
            pass
        if passed.length < kept.seq:
            log.warning("the tape ends at event %d, a snapshot is of %d", passed.length, kept.seq)
            place = _behind(kept)
    elif place is None:
        place = _behind(kept)
    played = Playback(depot, layout, kept.seq, place)
    measures.remember(kept.measures)
    return played


def _behind(kept: Snapshot) -> TapePosition:
    """Return a place after everything that the generation of an old snapshot has on the tape."""
    return TapePosition(Segment(kept.state.generation, kept.seq), 0, 0)
