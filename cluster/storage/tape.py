"""The tape, a write-ahead log of the events that the rules took in, in segments.

Every row carries a checksum over itself and those before it in its segment. `playback` reads it.
"""

from __future__ import annotations

import io
import json
import logging
import threading
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from cluster.storage.depot import Depot
from cluster.storage.format import FORMAT
from cluster.storage.segments import SEGMENT_BYTES, Place, Segment, tape_name
from coordinator.protocol import Effect, Event
from coordinator.state import EDITION
from coordinator.tape import record

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
FLUSH_EVENTS = 512
"""So many events are written together at the latest."""
SILENCE_S = 5.0
"""A slow depot that takes longer for a flush is not waited for; pyarrow gives up much later."""


def checksum(effects: Sequence[Effect]) -> int:
    """crc32 of what the rules answered to one event; 2 to 60 us, 0 if that was nothing."""
    return zlib.crc32(repr(effects).encode()) if effects else 0


class Tape:
    """A write-ahead log of one generation: `append` costs nothing, `flush` makes it durable.

    A depot that will not take it is no reason to stop: what is written down waits in memory, with
    `trouble` saying why, and goes there with the first flush that is taken.
    """

    def __init__(
        self,
        depot: Depot,
        generation: int,
        layout: str,
        *,
        first_seq: int = 0,
        edition: int = EDITION,
    ) -> None:
        """`edition`: of the rules that answer. Errors: `OSError` if there cannot even be a file."""
        self._depot, self._closed = depot, False
        self._segment = Segment(generation, -1)  # which rows go to ...
        self._open = self._segment  # ... and which bytes are written to
        self._file = depot.grow(tape_name(generation))
        self._waiting: list[tuple[Segment, bytes]] = []
        self._lock = threading.Lock()  # for `_waiting`, if there is a thread
        self._thread = ThreadPoolExecutor(1, "tape") if depot.slow else None
        self._last: Future[None] | None = None
        self._heard_s = 0.0  # when the thread was last known not to hang
        self.trouble: str | None = None
        self._told = {"format": FORMAT, "layout": layout, "generation": str(generation)}
        self._told["rules"] = str(edition)
        self._rows: list[tuple[int, float, str, str, int, int]] = []
        self.seq, self._chain = first_seq, 0
        self._begin()
        self._to_the_depot()

    def _begin(self) -> None:
        """Have a stream for the present segment; its header is there with the next flush."""
        self._sink, self._length, self._chain = io.BytesIO(), 0, 0
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        schema = ROW.with_metadata(self._told)
        self._writer = pa.ipc.new_stream(self._sink, schema, options=options)
        self._writer.write_batch(pa.RecordBatch.from_pylist([], schema=ROW))  # the header, now
        self._take()

    def seal(self) -> bool:
        """End the segment if it is long enough, and begin another one; whether that was so."""
        if self._rows:
            self._encode()
        if self._length < SEGMENT_BYTES:
            return False
        self._writer.close()
        self._take()
        self._segment = Segment(self._segment.generation, self.seq)
        self._begin()
        return True

    @property
    def place(self) -> Place:
        """Behind everything that was appended before the last flush or seal."""
        assert not self._rows, "what is not encoded has no place"
        return Place(self._segment, self._length, self._chain)

    def append(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        kind, fields = record(event)
        text, answer = json.dumps(fields, separators=(",", ":")), checksum(effects)
        self._chain = link(self._chain, self.seq, now_s, kind, text, answer)
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
        content = self._sink.getvalue()
        with self._lock:
            self._waiting.append((self._segment, content))
        self._length += len(content)
        self._sink.seek(0)
        self._sink.truncate()

    def _to_the_depot(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        while waiting:
            segment = waiting[0][0]
            content = b"".join(part for of, part in waiting if of == segment)
            later = [each for each in waiting if each[0] != segment]
            try:
                self._write(segment, content)
            except OSError as error:
                with self._lock:
                    self._waiting = [(segment, content), *later, *self._waiting]
                if self.trouble is None:
                    log.error("the tape is not durable: %s", error)
                self.trouble = error.strerror or str(error)
                return
            waiting = later
            if self.trouble is not None:
                log.warning("the tape is durable again")
            self.trouble, self._heard_s = None, time.monotonic()

    def _write(self, segment: Segment, content: bytes) -> None:
        if segment != self._open:
            opened = self._depot.grow(segment.name)
            self._file.close()
            self._file, self._open = opened, segment
        if content:
            self._file.write(content)

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


def link(chain: int, seq: int, now_s: float, kind: str, text: str, answer: int) -> int:
    """The chain of checksums after this row."""
    return zlib.crc32(f"{seq}\0{now_s!r}\0{kind}\0{text}\0{answer}".encode(), chain)
