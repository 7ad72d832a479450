"""The reading of a tape, from a position on and row by row: one segment at a time is in memory.

Damaged rows are refused with the place and the reason; everything before them is used.
"""

from __future__ import annotations

import itertools
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
"""Errors of pyarrow for a stream with a wrong bit; a wrong length may ask for terabytes."""


class TornEnd(Damaged):
    """A segment ends in the middle of a write, as after a crash."""


class TapeRow(NamedTuple):
    """One event of the tape."""

    seq: int
    """The number of the event in the run."""
    now_s: float
    """The time at which the rules received it, in seconds of the syncer's clock."""
    event: Event
    answer: int
    """The `checksum` of the effects that it had."""


class Playback:
    """The rows of all generations in order, each generation up to its first damaged row.

    A generation continues where the readable part of those before it ends. One that begins after
    that point is left out: rows were damaged after it had begun. One that begins before it replaces
    the rows from there on: an earlier syncer, cut off with its node, still wrote when it could not
    be reached any more.

    Iterate over it once. Then `length` is the number of events in the run, and `damage` names what
    could not be read, None if everything could. An end that was cut off by a crash is damage too,
    but costs nothing.
    """

    def __init__(
        self, depot: Depot, layout: str, start: int = 0, place: TapePosition | None = None
    ) -> None:
        """Open the tape of a depot.

        `start`: skip all events before this one, and do not decode their batches. `place`: the
        position of `start` on the tape, if known. The caller has the state at `place`. So a tape
        without this place, or without everything before it, counts as damaged, not as unusable: a
        later generation may continue from there.

        Errors: `Damaged` if there is no tape and no place, or if a later generation continued from
        a point before the place.
        """
        self._depot, self._layout, self._start, self._place = depot, layout, start, place
        self._segments = segments(depot)
        self._ahead: Grown | None = None  # the rest of the segment, from `place` on
        self._damage: list[str] = []
        self._torn = 0
        self._firsts: dict[int, float] = {}
        if not self._segments and place is None:
            raise Damaged(f"{depot} has no tape: is it a run directory?")
        self.length = 0
        if place is not None:
            self._segments = [each for each in self._segments if each >= place.segment]
            self._ahead = self._at(place)
            self.length = start

    def _at(self, place: TapePosition) -> Grown | None:
        """Return the rest of the segment from `place` on.

        If the segment does not reach that far, return None and leave it out.
        """
        if (void := self._void_from(place.segment.generation)) < self._start:
            raise Damaged(f"a later syncer continued from event {void:g}, not from {self._start}")
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
        """The number of generations from the start on."""
        return len({each.generation for each in self._segments})

    @property
    def damage(self) -> str | None:
        """The parts that could not be read; None if there are none."""
        return "; ".join(self._damage) or None

    @property
    def is_torn_only(self) -> bool:
        """Whether all damage consists of ends that a crash cut off, which cost nothing."""
        return self._torn == len(self._damage)

    def replaced(self) -> Iterator[tuple[int, int | None, Iterator[TapeRow]]]:
        """Yield each generation whose end a later one replaces, its first such event, and the rows.

        A damaged row ends them. The syncer of that generation did answer these events, in the state
        before the event; None: it began after it, in a state that the rows do not give.
        """
        for generation in sorted({each.generation for each in self._segments}):
            void = self._void_from(generation)
            rows = self._of(generation, void)
            if (first := next(rows, None)) is not None:
                begins = first.seq if first.seq == void else None
                yield generation, begins, itertools.chain([first], rows)

    def _of(self, generation: int, start: float) -> Iterator[TapeRow]:
        """Yield the rows of a generation from an event on, up to its first damage."""
        try:
            for segment in self._segments:
                if segment.generation == generation:
                    yield from (row for _, row in self._rows(segment) if row and row.seq >= start)
        except Foreign:
            raise
        except Damaged:
            return

    def __iter__(self) -> Iterator[TapeRow]:
        """Yield the rows that are not skipped.

        Errors: `Damaged` if nothing can be read; `Foreign` if it is of another run.
        """
        broken: int | None = None
        for segment in self._segments:
            if segment.generation == broken:
                continue  # a generation ends at its first damage
            try:
                yield from self._played(segment)
            except Foreign:
                raise
            except Damaged as error:
                self._damage.append(str(error))
                broken = segment.generation
                is_last = segment == max(s for s in self._segments if s.generation == broken)
                self._torn += isinstance(error, TornEnd) and is_last
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
        """Return the event from which a later generation replaces the rows of this one."""
        later = {each.generation for each in self._segments if each.generation > generation}
        return min(map(self._first, later), default=math.inf)

    def _first(self, generation: int) -> float:
        """Return the first event of a generation; infinity if none can be read."""
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
        """Yield each event with its row, and each skipped batch with None."""
        file, chain = segment.name, 0
        if self._place is not None and segment == self._place.segment:
            chain, grown = self._place.chain, self._ahead
        else:
            grown = None
        schema = None if grown is None else ROW
        content, hole = grown or self._depot.grown(file)
        with pa.BufferReader(content) as buffer:
            reader = pa.ipc.MessageReader.open_stream(buffer)
            if schema is None:
                schema = _begun(reader, file, self._layout)
            while True:
                try:
                    batch = pa.ipc.read_record_batch(reader.read_next_message(), schema)
                    batch.validate(full=True)  # first: no value may be used or read past its end
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
                    raise TornEnd(f"{file}: ends in the middle of a write: {error}") from error
                for seq, now_s, kind, text, answer, recorded_chain in zip(*columns, strict=True):
                    chain = link(chain, seq, now_s, kind, text, answer)
                    if chain != recorded_chain:
                        raise Damaged(f"{file}: event {seq} ({kind}) is not as it was written")
                    span = range(seq, seq + 1)
                    if seq < self._start:
                        yield span, None
                        continue
                    try:
                        yield span, TapeRow(seq, now_s, recall(kind, json.loads(text)), answer)
                    except UnknownRecord as error:
                        raise Foreign(f"{file} is of another version: {error}") from error


def _begun(reader: pa.ipc.MessageReader, file: str, layout: str) -> pa.Schema:
    """Read the header of a segment."""
    try:
        schema = pa.ipc.read_schema(reader.read_next_message())
        metadata = {k.decode(): v.decode() for k, v in (schema.metadata or {}).items()}
    except (StopIteration, *UNREADABLE) as error:
        raise Damaged(f"{file}: no readable beginning: {error}") from error
    if metadata.get("format") not in READABLE:
        known = " or ".join(READABLE)
        raise Foreign(f"{file} is of another format: {metadata.get('format')}, not {known}")
    if metadata.get("layout") != layout:
        raise Foreign(f"{file} is of another layout: {metadata.get('layout')}, not {layout}")
    return schema


def edition_of(depot: Depot) -> int:
    """Return the edition of the rules that answer in this run.

    That is the edition of the newest readable segment, 0 if it names none, and the newest edition
    of all if there is no tape yet.
    """
    for segment in reversed(segments(depot)):
        content, _ = depot.grown(segment.name)
        try:
            with pa.BufferReader(content) as buffer:
                reader = pa.ipc.MessageReader.open_stream(buffer)
                schema = pa.ipc.read_schema(reader.read_next_message())
        except (StopIteration, *UNREADABLE):
            continue
        return int((schema.metadata or {}).get(b"rules", b"0"))
    return EDITION


@dataclass(frozen=True, slots=True)
class Recording:
    """A whole tape in memory; see `Playback`."""

    events: list[TapeRow]
    """The rows."""
    generations: int
    """The number of generations."""
    damage: str | None
    """The parts that could not be read; None if there are none."""
    length: int
    """The number of events in the run."""


def read_tape(depot: Depot, layout: str, start: int = 0) -> Recording:
    """Return all rows from an event on.

    Errors: `Damaged` if there is no tape, or one of another format or layout.
    """
    played = Playback(depot, layout, start)
    events = [*played]
    return Recording(events, played.generations, played.damage, played.length)
