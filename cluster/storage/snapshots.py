"""The snapshots `state.json`: state of rules and measures at one moment, and its place on the tape.

    states/tape-0-000000041000.json    a snapshot at the beginning of a segment of the tape

The newest of these are used if `state.json` cannot be. If old segments are deleted, a replay begins
with the oldest snapshot.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from typing import Any

from cluster.storage.depot import Depot
from cluster.storage.format import FORMAT, READABLE, Damaged
from cluster.storage.segments import Segment, TapePosition, segment_named, segments
from coordinator.state import State
from coordinator.tape import UnknownRecord, freeze, thaw

STATE, STATES = "state.json", "states"
"""The name of the newest snapshot, and the folder of those at beginnings of segments."""
KEPT = 2
"""Beginnings of segments whose snapshots are kept, at least."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state from which a restart continues, so that earlier events need not be replayed."""

    state: State
    """The rules' state after `seq` events."""
    seq: int
    """The number of events in the state."""
    now_s: float
    """The time at which it was taken, in seconds of the syncer's clock."""
    measures: Any
    """The counters of the run, as plain data."""
    notes: int
    """Bytes of notes that the counters include."""
    rules: str
    """A hash of the rules that have answered the events."""
    place: TapePosition | None = None
    """The position after the last event on the tape; None if that is of format 4 or earlier."""


def save_snapshot(depot: Depot, snapshot: Snapshot, layout: str, name: str = STATE) -> None:
    """Replace the snapshot with this name.

    Errors: `OSError` if the depot does not accept it.
    """
    plain = {f.name: getattr(snapshot, f.name) for f in fields(snapshot)}
    text = json.dumps({**plain, "state": freeze(snapshot.state)}, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    envelope = {"format": FORMAT, "layout": layout, "sha256": digest, "snapshot": text}
    depot.write(name, json.dumps(envelope).encode())


def load_snapshot(depot: Depot, layout: str, name: str = STATE) -> Snapshot | None:
    """Return the snapshot with this name, by default the newest; None if there is none.

    Errors: `Damaged`.
    """
    try:
        envelope = json.loads(depot.read(name))
        text, digest, format_and_layout = (
            envelope["snapshot"],
            envelope["sha256"],
            (envelope["format"], envelope["layout"]),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{name} cannot be read: {error!r}") from error
    if format_and_layout[0] not in READABLE or format_and_layout[1] != layout:
        raise Damaged(f"{name} is of another format or layout")
    if hashlib.sha256(text.encode()).hexdigest() != digest:
        raise Damaged(f"{name} is not as it was written")
    try:
        plain: dict[str, Any] = json.loads(text)
        if (place := plain.pop("place", None)) is not None:
            place = TapePosition(Segment(*place[0]), *place[1:])
        kept = Snapshot(state=thaw(plain.pop("state")), place=place, **plain)
    except (UnknownRecord, KeyError, TypeError) as error:
        raise Damaged(f"{name} is of another version: {error}") from error
    is_named = name.startswith(f"{STATES}/")
    if is_named and place is not None and name != name_of(place.segment):
        raise Damaged(f"{name} is another file under this name: {name_of(place.segment)}")
    return kept


def beginnings(depot: Depot) -> list[Segment]:
    """Return the segments that have a snapshot of their beginning, oldest first."""
    named = (segment_named(f"{name.removesuffix('.json')}.arrow") for name in depot.names(STATES))
    return sorted(each for each in named if each is not None)


def name_of(segment: Segment) -> str:
    """Return the name of the snapshot at the beginning of a segment."""
    return f"{STATES}/{segment.name.removesuffix('.arrow')}.json"


def forget_before(depot: Depot, keep_segments: int) -> Segment | None:
    """Delete snapshots and segments that are not needed any more.

    Of the snapshots at beginnings of segments the newest `keep_segments` stay, and at least `KEPT`.
    Segments before the oldest of these are deleted too, unless `keep_segments` is 0: then all stay.

    Returns the oldest segment that stays, None if none was deleted.

    Errors: `OSError`.
    """
    known, kept = beginnings(depot), max(KEPT, keep_segments)
    for segment in known[:-kept]:
        depot.remove(name_of(segment))
    if keep_segments == 0 or len(known) < kept:
        return None
    oldest = known[-kept]
    old_segments = [segment for segment in segments(depot) if segment < oldest]
    for segment in old_segments:
        depot.drop(segment.name)
    return oldest if old_segments else None


def beginning_of(depot: Depot, layout: str) -> Snapshot | None:
    """Return the snapshot with which the tape begins; None if that is the beginning of the run.

    Errors: `Damaged` if it is not there, or has changed since it was written.
    """
    tape_segments = segments(depot)
    if not tape_segments or tape_segments[0] == Segment(0, -1):
        return None
    for segment in beginnings(depot):
        if segment >= tape_segments[0] and (kept := load_snapshot(depot, layout, name_of(segment))):
            return kept
    raise Damaged(
        f"the tape begins with {tape_segments[0].name}, and {STATES}/ does not say where that is"
    )
