"""`state.json`: state of the rules and measures of a moment, and its place on the tape.

    states/tape-0-000000041000.json    such a moment, where a segment of the tape begins

The newest of these are there in case `state.json` cannot be used; and where old segments have gone,
a replay begins with the oldest one.
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
KEPT = 2
"""Beginnings of segments of which the state is kept, at least."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where a restart goes on: what `seq` events have led to, so that they need not be heard again.

    `now_s`: when it was taken. `measures`: plain data. `notes`: bytes of notes that are in them.
    `rules`: what has answered the events. `place`: behind the last of them on the tape; None if
    that is of format 4 or before.
    """

    state: State
    seq: int
    now_s: float
    measures: Any
    notes: int
    rules: str
    place: TapePosition | None = None


def save_snapshot(depot: Depot, snapshot: Snapshot, layout: str, name: str = STATE) -> None:
    """Keep it in place of what has this name.

    Errors: `OSError` if the depot will not have it.
    """
    plain = {f.name: getattr(snapshot, f.name) for f in fields(snapshot)}
    text = json.dumps({**plain, "state": freeze(snapshot.state)}, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    told = {"format": FORMAT, "layout": layout, "sha256": digest, "snapshot": text}
    depot.write(name, json.dumps(told).encode())


def load_snapshot(depot: Depot, layout: str, name: str = STATE) -> Snapshot | None:
    """The one kept last, or under this name; None if there is none.

    Errors: `Damaged`.
    """
    try:
        told = json.loads(depot.read(name))
        text, digest, of = told["snapshot"], told["sha256"], (told["format"], told["layout"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{name} cannot be read: {error!r}") from error
    if of[0] not in READABLE or of[1] != layout:
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
    if name != STATE and place is not None and name != name_of(place.segment):
        raise Damaged(f"{name} is another file under this name: {name_of(place.segment)}")
    return kept


def beginnings(depot: Depot) -> list[Segment]:
    """The segments whose beginning was kept as a state, in order."""
    named = (segment_named(f"{name.removesuffix('.json')}.arrow") for name in depot.names(STATES))
    return sorted(each for each in named if each is not None)


def name_of(segment: Segment) -> str:
    """Where the state is kept that a segment begins with."""
    return f"{STATES}/{segment.name.removesuffix('.arrow')}.json"


def forget_before(depot: Depot, keep_segments: int) -> Segment | None:
    """Let go of what is not needed any more: states of the beginning of a segment, but for the
    newest; and, unless all are kept (0), segments before the oldest state that is left then.

    Returns the oldest segment that is left, if any has gone. Errors: `OSError`.
    """
    known, kept = beginnings(depot), max(KEPT, keep_segments)
    for segment in known[:-kept]:
        depot.remove(name_of(segment))
    if keep_segments == 0 or len(known) < kept:
        return None
    oldest = known[-kept]
    gone = [segment for segment in segments(depot) if segment < oldest]
    for segment in gone:
        depot.drop(segment.name)
    return oldest if gone else None


def beginning_of(depot: Depot, layout: str) -> Snapshot | None:
    """The state that the tape begins with; None if that is the beginning of the run.

    Errors: `Damaged` if it is not there, or not as it was written.
    """
    there = segments(depot)
    if not there or there[0] == Segment(0, -1):
        return None
    for segment in beginnings(depot):
        if segment >= there[0] and (kept := load_snapshot(depot, layout, name_of(segment))):
            return kept
    raise Damaged(f"the tape begins with {there[0].name}, and {STATES}/ does not say where that is")
