"""The tape, a write-ahead log of the events that the rules took in, in segments.

Every row carries a checksum over itself and those before it in its segment. `playback` reads it.
"""

from __future__ import annotations

import io
import json
import logging
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from cluster.storage.depot import Depot, Growing
from cluster.storage.format import FORMAT
from cluster.storage.segment_queue import SegmentQueue
from cluster.storage.segments import SEGMENT_BYTES, Segment, TapePosition, tape_name
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
"""A depot that takes longer for a flush is not waited for; pyarrow gives up much later."""


def checksum(effects: Sequence[Effect]) -> int:
    """crc32 of what the rules answered to one event; 2 to 60 us, 0 if that was nothing."""
    return zlib.crc32(repr(effects).encode()) if effects else 0


class Tape:
    """A write-ahead log of one generation: `append` costs nothing, `flush` makes it durable.

    The depot is written to by one thread, so that the thread which appends never waits for storage.
    A depot that does not take the log is no reason to stop: the rows wait in memory, `trouble` says
    why, and the first flush that is taken writes them.
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
        self._waiting = SegmentQueue()
        self._thread = ThreadPoolExecutor(1, "tape")
        self._last: Future[None] | None = None
        self._heard_s = time.monotonic()  # when the thread was last known not to hang
        self.trouble: str | None = None
        self._told = {"format": FORMAT, "layout": layout, "generation": str(generation)}
        self._told["rules"] = str(edition)
        self._rows: list[tuple[int, float, str, str, int, int]] = []
        self._ended = False
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
    def place(self) -> TapePosition:
        """Behind everything that was appended before the last flush or seal."""
        assert not self._rows, "what is not encoded has no place"
        return TapePosition(self._segment, self._length, self._chain)

    def append(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        kind, fields = record(event)
        text, answer = json.dumps(fields, separators=(",", ":")), checksum(effects)
        self._chain = link(self._chain, self.seq, now_s, kind, text, answer)
        self._rows.append((self.seq, now_s, kind, text, answer, self._chain))
        self.seq += 1
        if len(self._rows) >= FLUSH_EVENTS:
            self.flush()

    def flush(self) -> Future[None] | None:
        """Have everything appended so far written. It survives a crash of the machine once the
        future is done, unless there is `trouble` then; None while there is trouble.

        Rows that come while the thread writes are written together.

        Errors: what the thread met that no storage raises, here or in the future.
        """
        if self._rows:
            self._encode()
        if (pending := self._last is not None and not self._last.done()) and self._silent():
            self.trouble = self.trouble or f"no answer for {SILENCE_S:g} s"
        if not pending:
            self._heard_s = time.monotonic()
            if self._last is not None:
                self._last.result()
        healthy = self.trouble is None  # before the thread can fail: the future says so then
        if healthy or not pending:
            self._last = self._thread.submit(self._to_the_depot)
        return self._last if healthy else None

    def sync(self) -> None:
        """Flush, and wait for it: for one that has no event loop to run meanwhile. As with `flush`,
        `trouble` says whether the rows are durable."""
        self.flush()
        if self._last is not None:
            self._last.result()

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
        """Have what was encoded wait to be written."""
        content = self._sink.getvalue()
        self._waiting.add(self._segment, content)
        self._length += len(content)
        self._sink.seek(0)
        self._sink.truncate()

    def _to_the_depot(self) -> None:
        """Write what waits now, in order. What was not written goes on waiting, whatever is raised.

        Errors: what no storage raises. It is `trouble`, too.
        """
        left = len(self._waiting)
        try:
            while left > 0:
                segment, parts = self._waiting.first(left)
                self._write(segment, b"".join(parts))
                self._waiting.remove(len(parts))
                left -= len(parts)
                self._heard_s = time.monotonic()
        except (OSError, MemoryError) as error:
            said = error.strerror if isinstance(error, OSError) else None
            self._fails(said or str(error) or repr(error))
        except BaseException as error:
            self._fails(repr(error))
            raise
        else:
            self._is_durable()

    def _is_durable(self) -> None:
        if self.trouble is not None:
            log.warning("the tape is durable again")
        self.trouble, self._heard_s = None, time.monotonic()

    def _fails(self, why: str) -> None:
        if self.trouble is None:
            log.error("the tape is not durable: %s", why)
        self.trouble = why

    def _write(self, segment: Segment, content: bytes) -> None:
        """Add to a segment, which is begun first if it is the next one.

        Errors: those of the depot. Whoever calls again gives the same content, or more.
        """
        if segment != self._open:
            opened = self._depot.grow(segment.name, again=True)
            before, self._file, self._open = self._file, opened, segment
            self._close(before)
        if content:
            self._file.write(content)

    def _close(self, file: Growing) -> None:
        try:
            file.close()
        except OSError as error:  # each of its additions was durable when it was written
            log.warning("a segment of the tape could not be closed: %s", error)

    def close(self) -> None:
        """Write what is left, and the end of the stream. `trouble` says what has become of it; if
        there is some, another call tries again.

        Errors: what no storage raises.
        """
        if not self._closed:
            self._closed = True
            if self._rows:
                self._encode()
            self._writer.close()
            self._take()
            self._thread.shutdown()
        if not self._ended:
            self._to_the_depot()
            if self.trouble is None:
                self._ended = True
                self._close(self._file)


def link(chain: int, seq: int, now_s: float, kind: str, text: str, answer: int) -> int:
    """The chain of checksums after this row."""
    return zlib.crc32(f"{seq}\0{now_s!r}\0{kind}\0{text}\0{answer}".encode(), chain)
