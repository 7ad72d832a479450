"""The fleet's table of islands: what each one holds, and its handles."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cluster.actors.directory import Actor
from cluster.fleet.placement import Place
from cluster.fleet.reconcile import Holding
from cluster.names import Seat
from coordinator.errors import RunFailed


@dataclass(slots=True)
class HeldIsland:
    """One island's holding, and the handles that go with it."""

    holding: Holding
    seat: Seat
    place: Place | None = None
    actor: Actor | None = None
    starts: int = 0  # of its process, since its last contribution
    contributions: int = 0
    last_words: str = ""
    why: str = ""


def begins(it: HeldIsland) -> None:
    """One more process of this island begins."""
    it.starts += 1
    it.holding = replace(it.holding, failures=it.starts - 1, silent_since_s=None)


def given_up(it: HeldIsland) -> RunFailed:
    words = f"; its last words:\n{it.last_words}" if it.last_words else ""
    return RunFailed(f"island {it.holding.island} {it.why}{words}")
