"""The tape, a write-ahead log of the events that the rules took in: one file for each generation.

Every row carries a checksum over itself and those before; what is damaged is refused with the place
and the reason, and everything before it is used.
"""

from __future__ import annotations

import io
import json
import logging
import re
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from cluster.storage.depot import Depot
from cluster.storage.format import FORMAT, READABLE, Damaged, Foreign
from coordinator.protocol import Effect, Event
from coordinator.tape import UnknownRecord, recall, record

log = logging.getLogger("archipelago.store")
ROW = pa.schema(
    [
        ("seq", pa.int64()),
        ("now_s", pa.float64()),
        ("kind", pa.string()),
        ("event", pa.string()),
        ("answer", pa.uint32()),
        ("chain", pa.uint32()),
    ]
)
"""One row an event, in the order heard. `event`: its fields as JSON; `answer`: `checksum` of the
effects; `chain`: crc32 of the row and of the chain before it, so that no row can be changed, lost
or moved unnoticed."""
TAPE = re.compile(r"tape-([0-9]+)\.arrow")
FLUSH_EVENTS = 512
"""So many events are written together at the latest."""
SILENCE_S = 5.0
"""A slow depot that takes longer for a flush is not waited for; pyarrow gives up much later."""
UNREADABLE = (pa.ArrowException, OSError, EOFError, KeyError, ValueError, MemoryError)
"""What pyarrow raises for a stream with a wrong bit; a wrong length may ask for terabytes."""


def checksum(effects: Sequence[Effect]) -> int:
    """crc32 of what the rules answered to one event; 2 to 60 us, 0 if that was nothing."""
    return zlib.crc32(repr(effects).encode()) if effects else 0


class Tape:
    """A write-ahead log of one generation: `append` costs nothing, `flush` makes it durable.

    A depot that will not take it is no reason to stop: what is written down waits in memory, with
    `trouble` saying why, and goes there with the first flush that is taken.
    """

    def __init__(self, depot: Depot, generation: int, layout: str, *, first_seq: int = 0) -> None:
        """Errors: `OSError` if there cannot even be a file."""
        self._file, self._closed = depot.grow(tape_name(generation)), False
        self._waiting, self._sink = b"", io.BytesIO()
        self._lock = threading.Lock()  # for `_waiting`, if there is a thread
        self._thread = ThreadPoolExecutor(1, "tape") if depot.slow else None
        self._last: Future[None] | None = None
        self._heard_s = 0.0  # when the thread was last known not to hang
        self.trouble: str | None = None
        told = {"format": FORMAT, "layout": layout, "generation": str(generation)}
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        self._writer = pa.ipc.new_stream(self._sink, ROW.with_metadata(told), options=options)
        self._writer.write_batch(pa.RecordBatch.from_pylist([], schema=ROW))  # the header, now
        self._take()
        self._to_the_depot()
        self._rows: list[tuple[int, float, str, str, int, int]] = []
        self.seq, self._chain = first_seq, 0

    def append(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        kind, fields = record(event)
        text, answer = json.dumps(fields, separators=(",", ":")), checksum(effects)
        self._chain = _link(self._chain, self.seq, now_s, kind, text, answer)
        self._rows.append((self.seq, now_s, kind, text, answer, self._chain))
        self.seq += 1
        if len(self._rows) >= FLUSH_EVENTS:
            self.flush()

    def flush(self) -> Future[None] | None:
        """Everything appended so far survives a crash of the machine once this returns, or once
        what it returns is done, unless there is `trouble`.

        A depot that is slow is written to on a thread, so that nobody need wait who was promised
        nothing; what comes while it writes goes there together.
        """
        if self._rows:
            self._encode()
        if self._thread is None:
            self._to_the_depot()
            return None
        if (pending := self._last is not None and not self._last.done()) and self._silent():
            self.trouble = self.trouble or f"no answer for {SILENCE_S:g} s"
        if not pending:
            self._heard_s = time.monotonic()
        if self.trouble is None or not pending:
            self._last = self._thread.submit(self._to_the_depot)
        return self._last if self.trouble is None else None

    def _silent(self) -> bool:
        return time.monotonic() - self._heard_s > SILENCE_S

    def _encode(self) -> None:
        columns = [
            pa.array(column, kind)
            for column, kind in zip(zip(*self._rows, strict=True), ROW.types, strict=True)
        ]
        self._writer.write_batch(pa.record_batch(columns, names=ROW.names))
        self._rows = []
        self._take()

    def _take(self) -> None:
        """What was encoded waits to be written."""
        with self._lock:
            self._waiting += self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()

    def _to_the_depot(self) -> None:
        with self._lock:
            content, self._waiting = self._waiting, b""
        if not content:
            return
        try:
            self._file.write(content)
        except OSError as error:
            with self._lock:
                self._waiting = content + self._waiting
            if self.trouble is None:
                log.error("the tape is not durable: %s", error)
            self.trouble = error.strerror or str(error)
            return
        if self.trouble is not None:
            log.warning("the tape is durable again")
        self.trouble, self._heard_s = None, time.monotonic()

    def close(self) -> None:
        """Write what is left, and the end of the stream; doing it twice is no harm."""
        if not self._closed:
            self._closed = True
            self.flush()
            self._writer.close()
            self._take()
            if self._thread is not None:
                self._thread.shutdown()
            self._to_the_depot()
            self._file.close()


class TapeRow(NamedTuple):
    """One event; `seq` counts them over the run, `answer` is the `checksum` of its effects."""

    seq: int
    now_s: float
    event: Event
    answer: int


@dataclass(frozen=True, slots=True)
class Recording:
    """What a run's tape says, and what of it could not be read.

    `damage` is None if every file was read to its end. The end that a crash takes away is damage
    too, but costs nothing: the generation after it goes on where the readable part ends, which is
    `length` events from the beginning.
    """

    events: list[TapeRow]
    generations: int
    damage: str | None
    length: int


def tape_name(generation: int) -> str:
    return f"tape-{generation}.arrow"


def generations(depot: Depot) -> list[int]:
    """Those that have a tape, in order."""
    named = (TAPE.fullmatch(name) for name in depot.names())
    return sorted(int(found[1]) for found in named if found)


def read_tape(depot: Depot, layout: str, start: int = 0) -> Recording:
    """All generations in order, each up to the first row that is not as it was written.

    A generation goes on where the readable part of those before it ends. One that begins behind
    that (rows were damaged after it had begun) is left out; one that begins before it is believed:
    an earlier syncer, cut off with its node, then wrote on when nobody heard it any more. Events
    before `start` are passed over unread, as far as they were written in one batch.

    Errors: `Damaged` if there is no tape, or one of another format or layout.
    """
    files = [tape_name(generation) for generation in generations(depot)]
    if not files:
        raise Damaged(f"{depot} has no tape: is it a run directory?")
    events: list[TapeRow] = []
    damage: list[str] = []
    length = 0
    for file in files:
        first = True
        try:
            for span, row in _rows(depot, file, layout, start):
                if first and span.start < length:
                    length = span.start
                    events = [each for each in events if each.seq < length]
                first = False
                if span.start != length:
                    raise Damaged(f"{file}: event {span.start} where {length} should be")
                length = span.stop
                if row is not None:
                    events.append(row)
        except Foreign:
            raise
        except Damaged as error:
            damage.append(str(error))
    if damage and not length:
        raise Damaged("; ".join(damage))
    return Recording(events, len(files), "; ".join(damage) or None, length)


def _rows(
    depot: Depot, file: str, layout: str, start: int
) -> Iterator[tuple[range, TapeRow | None]]:
    """The row of each event, or the events of a batch that was passed over."""
    chain = 0
    content, hole = depot.grown(file)
    with pa.BufferReader(content) as opened:
        try:
            reader = pa.ipc.open_stream(opened)
            told = {k.decode(): v.decode() for k, v in (reader.schema.metadata or {}).items()}
        except UNREADABLE as error:
            raise Damaged(f"{file}: no readable beginning: {error}") from error
        if told.get("format") not in READABLE:
            known = " or ".join(READABLE)
            raise Foreign(f"{file} is of another format: {told.get('format')}, not {known}")
        if told.get("layout") != layout:
            raise Foreign(f"{file} is of another layout: {told.get('layout')}, not {layout}")
        while True:
            try:
                batch = reader.read_next_batch()
                batch.validate(full=True)  # before anything is believed, or read past its end
                if batch.num_rows and batch.column("seq")[-1].as_py() < start:
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
                chain = _link(chain, seq, now_s, kind, text, answer)
                if chain != said:
                    raise Damaged(f"{file}: event {seq} ({kind}) is not as it was written")
                span = range(seq, seq + 1)
                if seq < start:
                    yield span, None
                    continue
                try:
                    yield span, TapeRow(seq, now_s, recall(kind, json.loads(text)), answer)
                except UnknownRecord as error:
                    raise Foreign(f"{file} is of another version: {error}") from error


def _link(chain: int, seq: int, now_s: float, kind: str, text: str, answer: int) -> int:
    return zlib.crc32(f"{seq}\0{now_s!r}\0{kind}\0{text}\0{answer}".encode(), chain)
