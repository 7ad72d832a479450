"""A tape, read from a place on and row by row: in memory is one segment at a time.

What is damaged is refused with the place and the reason, and everything before it is used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from cluster.storage.depot import Depot, Grown
from cluster.storage.format import READABLE, Damaged, Foreign
from cluster.storage.segments import Segment, TapePosition, segments
from cluster.storage.tape import ROW, link
from coordinator.protocol import Event
from coordinator.state import EDITION
from coordinator.tape import UnknownRecord, recall

UNREADABLE = (pa.ArrowException, OSError, EOFError, KeyError, ValueError, MemoryError)
"""What pyarrow raises for a stream with a wrong bit; a wrong length may ask for terabytes."""


class TapeRow(NamedTuple):
    """One event; `seq` counts them over the run, `answer` is the `checksum` of its effects."""

    seq: int
    now_s: float
    event: Event
    answer: int


class Playback:
    """The rows of all generations in order, each up to the first that is not as it was written.

    A generation goes on where the readable part of those before it ends. One that begins behind
    that (rows were damaged after it had begun) is left out; one that begins before it is believed:
    an earlier syncer, cut off with its node, then wrote on when nobody heard it any more.

    To be iterated once. Then `length` is how many events the run has heard, and `damage` says what
    could not be read, None if everything could. The end that a crash takes away is damage too, but
    costs nothing.
    """

    def __init__(
        self, depot: Depot, layout: str, start: int = 0, place: TapePosition | None = None
    ) -> None:
        """`start`: events before this one are passed over, unread where they were written in one
        batch; from its `place` on, if that is known.

        A state is known at this place, so a tape that lacks it, or all that was before it, is
        damage and no reason to refuse: a later generation may go on from there.

        Errors: `Damaged` if there is no tape and no place, or if a later generation went on from
        before the place.
        """
        self._depot, self._layout, self._start, self._place = depot, layout, start, place
        self._segments = segments(depot)
        self._ahead: Grown | None = None  # the segment of the place, from there on
        self._damage: list[str] = []
        self._firsts: dict[int, float] = {}
        if not self._segments and place is None:
            raise Damaged(f"{depot} has no tape: is it a run directory?")
        self.length = 0
        if place is not None:
            self._segments = [each for each in self._segments if each >= place.segment]
            self._ahead = self._at(place)
            self.length = start

    def _at(self, place: TapePosition) -> Grown | None:
        """What the segment of a place has from there on; None if it does not reach so far, and
        then it is left out."""
        if (void := self._void_from(place.segment.generation)) < self._start:
            raise Damaged(f"a later syncer went on from event {void:g}, not from {self._start}")
        name = place.segment.name
        try:
            return self._depot.grown(name, place.offset)
        except FileNotFoundError:
            self._damage.append(f"{name} is not there")
        except EOFError:
            self._damage.append(f"{name} ends before event {self._start}")
        self._segments = [each for each in self._segments if each != place.segment]
        return None

    @property
    def generations(self) -> int:
        """How many there are, from the start on."""
        return len({each.generation for each in self._segments})

    @property
    def damage(self) -> str | None:
        return "; ".join(self._damage) or None

    def __iter__(self) -> Iterator[TapeRow]:
        """Errors: `Damaged` if nothing can be read; `Foreign` if it is of another run."""
        broken: int | None = None
        for segment in self._segments:
            if segment.generation == broken:
                continue  # it cannot go on where it is damaged
            try:
                yield from self._played(segment)
            except Foreign:
                raise
            except Damaged as error:
                self._damage.append(str(error))
                broken = segment.generation
        if self._damage and not self.length:
            raise Damaged("; ".join(self._damage))

    def _played(self, segment: Segment) -> Iterator[TapeRow]:
        void = self._void_from(segment.generation)
        for span, row in self._rows(segment):
            if span.start >= void:
                return
            if span.start != self.length:
                where = f"event {span.start} where {self.length} should be"
                raise Damaged(f"{segment.name}: {where}")
            self.length = int(min(span.stop, void))
            if row is not None:
                yield row

    def _void_from(self, generation: int) -> float:
        """From which event on a later generation went on in its own way."""
        later = {each.generation for each in self._segments if each.generation > generation}
        return min(map(self._first, later), default=math.inf)

    def _first(self, generation: int) -> float:
        """The first event of a generation; infinite if it has none that can be read."""
        if generation not in self._firsts:
            self._firsts[generation] = next(self._starts(generation), math.inf)
        return self._firsts[generation]

    def _starts(self, generation: int) -> Iterator[int]:
        for segment in self._segments:
            if segment.generation == generation:
                try:
                    yield from (span.start for span, _ in self._rows(segment))
                except Foreign:
                    raise
                except Damaged:
                    return

    def _rows(self, segment: Segment) -> Iterator[tuple[range, TapeRow | None]]:
        """The row of each event, or the events of a batch that was passed over."""
        file, chain = segment.name, 0
        if self._place is not None and segment == self._place.segment:
            chain, grown = self._place.chain, self._ahead
        else:
            grown = None
        schema = None if grown is None else ROW
        content, hole = grown or self._depot.grown(file)
        with pa.BufferReader(content) as opened:
            reader = pa.ipc.MessageReader.open_stream(opened)
            if schema is None:
                schema = self._begun(reader, file)
            while True:
                try:
                    batch = pa.ipc.read_record_batch(reader.read_next_message(), schema)
                    batch.validate(full=True)  # before anything is believed, or read past its end
                    if batch.num_rows and batch.column("seq")[-1].as_py() < self._start:
                        chain = batch.column("chain")[-1].as_py()
                        first = batch.column("seq")[0].as_py()
                        yield range(first, first + batch.num_rows), None
                        continue
                    columns = [batch.column(name).to_pylist() for name in ROW.names]
                except StopIteration:
                    if hole is not None:
                        raise Damaged(f"{file}: {hole}") from None
                    return
                except UNREADABLE as error:
                    raise Damaged(f"{file}: ends in the middle of a write: {error}") from error
                for seq, now_s, kind, text, answer, said in zip(*columns, strict=True):
                    chain = link(chain, seq, now_s, kind, text, answer)
                    if chain != said:
                        raise Damaged(f"{file}: event {seq} ({kind}) is not as it was written")
                    span = range(seq, seq + 1)
                    if seq < self._start:
                        yield span, None
                        continue
                    try:
                        yield span, TapeRow(seq, now_s, recall(kind, json.loads(text)), answer)
                    except UnknownRecord as error:
                        raise Foreign(f"{file} is of another version: {error}") from error

    def _begun(self, reader: pa.ipc.MessageReader, file: str) -> pa.Schema:
        """The header of a segment."""
        try:
            schema = pa.ipc.read_schema(reader.read_next_message())
            told = {k.decode(): v.decode() for k, v in (schema.metadata or {}).items()}
        except (StopIteration, *UNREADABLE) as error:
            raise Damaged(f"{file}: no readable beginning: {error}") from error
        if told.get("format") not in READABLE:
            known = " or ".join(READABLE)
            raise Foreign(f"{file} is of another format: {told.get('format')}, not {known}")
        if told.get("layout") != self._layout:
            raise Foreign(f"{file} is of another layout: {told.get('layout')}, not {self._layout}")
        return schema


def edition_of(depot: Depot) -> int:
    """Return the edition of the rules that answer in this run: that of its newest readable segment,
    0 if that does not say, and the newest edition of all if there is no tape yet."""
    for segment in reversed(segments(depot)):
        content, _ = depot.grown(segment.name)
        try:
            with pa.BufferReader(content) as opened:
                reader = pa.ipc.MessageReader.open_stream(opened)
                schema = pa.ipc.read_schema(reader.read_next_message())
        except (StopIteration, *UNREADABLE):
            continue
        return int((schema.metadata or {}).get(b"rules", b"0"))
    return EDITION


@dataclass(frozen=True, slots=True)
class Recording:
    """A tape as a whole, for whoever has room for it; see `Playback`."""

    events: list[TapeRow]
    generations: int
    damage: str | None
    length: int


def read_tape(depot: Depot, layout: str, start: int = 0) -> Recording:
    """All rows from an event on.

    Errors: `Damaged` if there is no tape, or one of another format or layout.
    """
    played = Playback(depot, layout, start)
    events = [*played]
    return Recording(events, played.generations, played.damage, played.length)
