"""The states of a run, computed again from its tape: the rules receive the same events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cluster.storage.playback import TapeRow
from cluster.storage.tape import checksum
from coordinator.advance import advance
from coordinator.errors import RunFailed
from coordinator.protocol import Effect, Event
from coordinator.state import Rule, State, initial


class OtherRules(RunFailed):
    """The present rules answer an event differently than those that wrote the tape."""


class ReplayedEvent(NamedTuple):
    """An event that was replayed, with the states around it."""

    before: State
    event: Event
    after: State
    effects: tuple[Effect, ...]
    now_s: float


def relive(
    rule: Rule, rows: Iterable[TapeRow], state: State | None = None
) -> Iterator[ReplayedEvent]:
    """Replay the events of a tape, from its beginning or from `state`.

    Errors: the errors of `rows`; `OtherRules` at the first event that the rules answer differently
    than they did then.
    """
    state = initial(rule) if state is None else state
    for seq, now_s, event, answer in rows:
        before, (state, effects) = state, advance(rule, state, event, now_s)
        if checksum(effects) != answer:
            raise OtherRules(
                f"event {seq} of the tape, {type(event).__name__} at {now_s:.3f} s, was answered "
                f"otherwise when it was written than by the rules that run here ({len(effects)} "
                "effects): use the source that the run began with, or begin a new run"
            )
        yield ReplayedEvent(before, event, state, effects, now_s)
