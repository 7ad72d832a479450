"""The event of a run as data: one line of `events.jsonl`, of the page and of a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cluster.fleet.run_identity import SCHEMA
from cluster.status import EventStatus, RunStatus

EventKind = Literal[
    "phase", "join", "loss", "quarantine", "set aside", "drain", "leave", "scale", "fault",
    "failure", "alert", "alert over", "durability", "link", "band", "spike",
]  # fmt: skip
"""The kinds of events.

`phase`: the run starts, runs, stops or has finished. `join`: a learner is live, or back as a new
life. `loss`: a life has ended. `set aside`: an island failed too often and is given up. `drain`: an
island hands in its work. `leave`: it is gone. `scale`: another number of islands is wanted.
`fault`: a fault was injected on purpose. `failure`: an exception, a useless message or a full
object store. `durability`: writes are refused, or work again. `link`: a link is slow, late, down or
back. `band`: the held-out loss leaves the band of the expected loss, or returns. `spike`: the
training loss of an island has spikes.
"""


@dataclass(frozen=True, slots=True)
class RunEvent:
    """An event of a run: one line of `events.jsonl`."""

    kind: EventKind
    """The kind of event."""
    why: str
    """The reason; empty if it is not known."""
    text: str
    """The event in one line, for people, with its reason."""
    island: str | None = None
    """The island that the event is about; None: the run."""
    group: str | None = None
    """The group of the island, or the group that is scaled; None: the run."""
    link: str | None = None
    """The link that the event is about, as in `LinkStatus`; None: no link."""
    for_s: float | None = None
    """Seconds for which an injected fault lasts; None: not a fault, or one without an end."""

    def seen(self, status: RunStatus, unix_s: float) -> EventStatus:
        """Return the event with its time and place: a line of events.jsonl."""
        return EventStatus(
            schema=SCHEMA,
            unix_s=unix_s,
            elapsed_s=status["elapsed_s"],
            run=status["run"],
            t=status["t"],
            kind=self.kind,
            island=self.island,
            group=self.group,
            link=self.link,
            for_s=self.for_s,
            why=self.why,
            text=self.text,
        )


EVENT_FIELDS = {
    "schema": "Version of these keys.",
    "unix_s": "Time at which the fleet saw the event, in seconds since 1970.",
    "elapsed_s": "The same time, in seconds since the start of the run.",
    "run": "Name of the run.",
    "t": "The syncer's clock.",
    "kind": "Kind of event: phase, join, loss, quarantine, set aside, drain, leave, scale, fault, "
    "failure, alert, alert over, durability, link, band or spike.",
    "island": "The island that the event is about; null: the whole run.",
    "group": "The group of the island, or the group that is scaled; null: the whole run.",
    "link": "The link that the event is about: the region or group of its islands; null: none.",
    "for_s": "Seconds for which an injected fault lasts; null: not a fault, or one without an end.",
    "why": "The reason; empty if it is not known.",
    "text": "The event in one line, for people, with its reason.",
}
"""The keys of a line of `events.jsonl`, and their meaning."""
