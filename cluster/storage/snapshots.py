"""`state.json`: state of the rules and measures of a moment, and its place on the tape."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from typing import Any

from cluster.storage.depot import Depot
from cluster.storage.format import FORMAT, READABLE, Damaged
from coordinator.state import State
from coordinator.tape import UnknownRecord, freeze, thaw

STATE = "state.json"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where a restart goes on: what `seq` events have led to, so that they need not be heard again.

    `now_s`: when it was taken. `measures`: plain data. `notes`: bytes of notes.jsonl that are in
    them. `rules`: what has answered the events.
    """

    state: State
    seq: int
    now_s: float
    measures: Any
    notes: int
    rules: str


def save_snapshot(depot: Depot, snapshot: Snapshot, layout: str) -> None:
    """Keep it in place of the one before.

    Errors: `OSError` if the depot will not have it.
    """
    plain = {f.name: getattr(snapshot, f.name) for f in fields(snapshot)}
    text = json.dumps({**plain, "state": freeze(snapshot.state)}, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    told = {"format": FORMAT, "layout": layout, "sha256": digest, "snapshot": text}
    depot.write(STATE, json.dumps(told).encode())


def load_snapshot(depot: Depot, layout: str) -> Snapshot | None:
    """The one kept last; None if there is none.

    Errors: `Damaged`.
    """
    try:
        told = json.loads(depot.read(STATE))
        text, digest, of = told["snapshot"], told["sha256"], (told["format"], told["layout"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{STATE} cannot be read: {error!r}") from error
    if of[0] not in READABLE or of[1] != layout:
        raise Damaged(f"{STATE} is of another format or layout")
    if hashlib.sha256(text.encode()).hexdigest() != digest:
        raise Damaged(f"{STATE} is not as it was written")
    try:
        plain: dict[str, Any] = json.loads(text)
        return Snapshot(state=thaw(plain.pop("state")), **plain)
    except (UnknownRecord, KeyError, TypeError) as error:
        raise Damaged(f"{STATE} is of another version: {error}") from error
