"""The recovery of a restarted syncer from the depot: a snapshot, then the tape from there.

The cost depends on what happened since the snapshot, not on the length of the run. A snapshot with
a valid checksum is a starting point by itself, even if the tape is incomplete. A run never goes
back further than to what is retained: otherwise the restart is refused, and the error names what is
stored and how to continue from that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from cluster.storage.depot import Depot
from cluster.storage.fleet_file import FLEET_FILE
from cluster.storage.format import Damaged
from cluster.storage.fragments import StoredFragment, stored_versions
from cluster.storage.ladder import ASIDE, load_rung, set_aside
from cluster.storage.playback import Playback, TapeRow
from cluster.storage.rungs import Rung
from cluster.storage.segments import generations
from cluster.storage.snapshots import STATE, STATES
from cluster.storage.state_history import relive
from cluster.syncer.damage_report import joined, passed_over, refused
from cluster.syncer.journal import read_notes, retell
from cluster.syncer.measures import Measures
from cluster.syncer.resume_point import resume_point, rules_sha256, snapshots
from coordinator.protocol import Fragment, Resume, Version
from coordinator.state import Rule, State, initial

log = logging.getLogger("archipelago.comeback")
STORED = "--from-stored: each fragment continues from its newest stored version"
"""The damage noted for `--from-stored`."""


@dataclass(frozen=True, slots=True)
class Comeback:
    """The state in which a restarted syncer continues."""

    state: State
    """The rules' state after `seq` events."""
    seq: int
    """Events in this state."""
    last_s: float
    """The time of the last of them, in seconds of the syncer's clock."""
    generation: int
    """The number of the generation that begins now."""
    heard: int
    """Events that were replayed."""
    damage: str | None
    """The files that could not be used; None if all could be."""
    wanted: tuple[Version, ...] = ()
    """The version from which each fragment continues."""


Recover = Callable[[Mapping[Fragment, Version], int], Awaitable[Mapping[Fragment, Version]]]
"""A call that has all shards go back to these versions, for this generation.

It returns the versions that they have. Errors: `Damaged` if one of them has no retained version.
"""


async def restore(
    depot: Depot,
    rule: Rule,
    measures: Measures,
    recover: Recover,
    hears: Callable[[int], None] = lambda seq: None,
    *,
    from_stored: bool = False,
    rung: Rung | None = None,
) -> tuple[Comeback, Resume] | None:
    """Bring back rules and shards.

    `rung`: the kept state to which the run goes back; all newer states are then set aside.

    Returns the result of `come_back` and the event with which the new generation begins; None if
    the run has not begun. The damage is noted in the measures.

    Errors: the errors of `come_back`; `Damaged` if a version that is retained cannot be loaded.
    """

    def look() -> Comeback | None:
        if rung is not None:
            return went_back(depot, rule, measures, rung)
        candidate = come_back(depot, rule, measures, hears, from_stored=from_stored)
        if candidate is not None:
            depot.tidy(STATE)
        return candidate

    if (comeback := await asyncio.to_thread(look)) is None:
        return None
    stored = await asyncio.to_thread(stored_versions, depot)
    wanted = {Fragment(p): version for p, version in enumerate(comeback.wanted)}
    try:
        found = await recover(wanted, comeback.generation)
    except Damaged as error:
        raise refused(error, stored) from error
    if rung is not None:
        kept, _ = load_rung(depot, rung, rule.fingerprint)
        await asyncio.to_thread(set_aside, depot, rung, kept, rule.fingerprint)
    comeback = replace(comeback, damage=joined(comeback.damage, passed_over(stored, wanted, found)))
    measures.damaged(comeback.damage)
    return comeback, Resume(comeback.generation, tuple(found[p] for p in sorted(found)))


def come_back(
    depot: Depot,
    rule: Rule,
    measures: Measures,
    hears: Callable[[int], None] = lambda seq: None,
    *,
    from_stored: bool = False,
) -> Comeback | None:
    """Return the state that the run had reached; None if it has not begun.

    `measures` then has the counters of that state. `hears` is called with the number of each event
    that is replayed. A snapshot that cannot be used only costs time: the one before it is taken, or
    the whole tape is replayed. `from_stored`: each fragment starts from its newest stored version,
    even if the tape does not have it, and a tape that cannot be used is tolerated.

    Errors: `Damaged` if the tape belongs to another run, or if neither it nor a snapshot can be
    used; `OtherRules` if the present rules answer an event differently.
    """
    stored = stored_versions(depot)
    if not generations(depot) and not _has_begun(depot, stored):
        return None
    try:
        comeback = _relived(depot, rule, measures, hears, stored)
    except Damaged as error:
        if not from_stored:
            raise refused(error, stored) from error
        comeback = _without_tape(depot, rule, measures, stored, str(error))
    if from_stored:
        newest = {p: files[-1].version for p, files in stored.items()}
        known = [each.version for each in comeback.state.fragments]
        wanted = tuple(newest.get(Fragment(p), v) for p, v in enumerate(known))
        comeback = replace(comeback, wanted=wanted, damage=joined(comeback.damage, STORED))
    return comeback


def went_back(depot: Depot, rule: Rule, measures: Measures, rung: Rung) -> Comeback:
    """Return a kept state for a new generation, which replaces all events after it.

    Errors: `Damaged` if the state cannot be used, or is of other rules.
    """
    kept, versions = load_rung(depot, rung, rule.fingerprint)
    if kept.rules != rules_sha256(rule):
        raise Damaged(
            f"{rung.state_name} is of other rules: use the source and the configuration that the "
            "run had then"
        )
    try:
        measures.remember(kept.measures)
    except ValueError as error:
        raise Damaged(f"{rung.state_name}: {error}") from error
    stored = stored_versions(depot)
    why = f"--from {rung.t}: the run went back to t {rung.t}; newer states are in {ASIDE}/"
    comeback = _comeback(depot, kept.state, kept.seq, kept.now_s, 0, why, stored)
    return replace(comeback, wanted=versions)


def _has_begun(depot: Depot, stored: Mapping[Fragment, list[StoredFragment]]) -> bool:
    """Return whether the depot has more than a run leaves before its syncer has opened.

    If so, a missing tape is damage.
    """
    if depot.has(STATE) or depot.names(STATES) or depot.has(FLEET_FILE):
        return True
    return any(len(files) > 1 for files in stored.values())


def _relived(
    depot: Depot,
    rule: Rule,
    measures: Measures,
    hears: Callable[[int], None],
    stored: Mapping[Fragment, list[StoredFragment]],
) -> Comeback:
    kept, played, damage = resume_point(depot, rule, measures)
    if kept is None:
        state, last_s, notes = initial(rule), 0.0, read_notes(depot)
    else:
        state, last_s, notes = kept.state, kept.now_s, read_notes(depot, kept.notes, kept.now_s)
    history = relive(rule, _counted(played, hears), state)
    if (last := retell(measures, history, notes)) is not None:
        state, last_s = last.after, last.now_s
    replayed = played.length - (0 if kept is None else kept.seq)
    damage = joined(damage, played.damage)
    return _comeback(depot, state, played.length, last_s, replayed, damage, stored)


def _without_tape(
    depot: Depot,
    rule: Rule,
    measures: Measures,
    stored: Mapping[Fragment, list[StoredFragment]],
    why: str,
) -> Comeback:
    """Return the newest snapshot alone, or the rules' initial state if there is none."""
    for kept in snapshots(depot, rule, []):
        try:
            measures.remember(kept.measures)
        except ValueError as error:
            log.warning("%s", error)
            continue
        return _comeback(depot, kept.state, kept.seq, kept.now_s, 0, why, stored)
    why = f"{why}; there is no snapshot either, t begins at 0"
    return _comeback(depot, initial(rule), 0, 0.0, 0, why, stored)


def _comeback(
    depot: Depot,
    state: State,
    seq: int,
    last_s: float,
    heard: int,
    damage: str | None,
    stored: Mapping[Fragment, list[StoredFragment]],
) -> Comeback:
    """Return this state for a new generation, later than any that has left a trace."""
    of_files = [each.version.generation for files in stored.values() for each in files]
    last = max(state.generation, *generations(depot), *of_files, -1)
    wanted = tuple(each.version for each in state.fragments)
    return Comeback(state, seq, last_s, last + 1, heard, damage, wanted)


def _counted(played: Playback, hears: Callable[[int], None]) -> Iterator[TapeRow]:
    for row in played:
        hears(row.seq)
        yield row
