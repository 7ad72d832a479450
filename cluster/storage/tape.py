"""The tape, a write-ahead log of the events that the rules received, in segments.

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
"""The columns of a row; there is one row for each event, in order."""
ROW_FIELDS = {
    "seq": "Number of the event in its run, from 0.",
    "now_s": "The syncer's clock when it received the event, in seconds.",
    "kind": "The type of the event.",
    "event": "The fields of the event, as JSON.",
    "answer": "`checksum` of the effects with which the rules answered; 0 if there were none.",
    "chain": "CRC-32 of the row and of the chain before it: no row can be changed, lost or moved "
    "unnoticed.",
}
"""The meaning of each column."""
FLUSH_EVENTS = 512
"""Events after which a flush is due at the latest."""
SILENCE_S = 5.0
"""The timeout of a flush in seconds; pyarrow itself gives up much later."""


def checksum(effects: Sequence[Effect]) -> int:
    """Return the crc32 of the rules' answer to one event, 0 if that is empty; takes 2 to 60 us."""
    return zlib.crc32(repr(effects).encode()) if effects else 0


class Tape:
    """A write-ahead log of one generation: `append` costs nothing, `flush` makes it durable.

    A thread writes to the depot, so that the thread which appends never waits for storage. If the
    depot does not accept the log, the run continues: rows wait in memory, `trouble` is the reason,
    and the first flush that succeeds writes them.
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
        """Open the tape. `edition`: the edition of the rules that answer.

        Errors: `OSError` if the first file cannot be created.
        """
        self._depot, self._closed = depot, False
        self._segment = Segment(generation, -1)  # the segment of the rows that are appended
        self._open = self._segment  # the segment to which the thread writes
        self._file = depot.grow(tape_name(generation))
        self._waiting = SegmentQueue()
        self._thread = ThreadPoolExecutor(1, "tape")
        self._last: Future[None] | None = None
        self._heard_s = time.monotonic()  # when the thread last made progress
        self.trouble: str | None = None
        self._told = {"format": FORMAT, "layout": layout, "generation": str(generation)}
        self._told["rules"] = str(edition)
        self._rows: list[tuple[int, float, str, str, int, int]] = []
        self._ended = False
        self.seq, self._chain = first_seq, 0
        self._begin()
        self._to_the_depot()

    def _begin(self) -> None:
        """Begin a stream for the present segment; the next flush writes its header."""
        self._sink, self._length, self._chain = io.BytesIO(), 0, 0
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        schema = ROW.with_metadata(self._told)
        self._writer = pa.ipc.new_stream(self._sink, schema, options=options)
        self._writer.write_batch(pa.RecordBatch.from_pylist([], schema=ROW))  # emits the header
        self._take()

    def seal(self) -> bool:
        """End the segment and begin another one if it is long enough; return whether it was."""
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
        """The position after everything appended before the last flush or seal."""
        assert not self._rows, "what is not encoded has no place"
        return TapePosition(self._segment, self._length, self._chain)

    def append(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        """Append an event and the checksum of its effects; they wait for the next flush.

        Errors: the errors of `flush`.
        """
        kind, fields = record(event)
        text, answer = json.dumps(fields, separators=(",", ":")), checksum(effects)
        self._chain = link(self._chain, self.seq, now_s, kind, text, answer)
        self._rows.append((self.seq, now_s, kind, text, answer, self._chain))
        self.seq += 1
        if len(self._rows) >= FLUSH_EVENTS:
            self.flush()

    def flush(self) -> Future[None] | None:
        """Have all rows so far written; return None while there is `trouble`.

        They survive a crash of the machine once the future is done, unless there is trouble then.
        Rows that are appended while the thread writes are written together.

        Errors: an unexpected exception of the thread (not of storage), here or in the future.
        """
        if self._rows:
            self._encode()
        if (pending := self._last is not None and not self._last.done()) and self._silent():
            self.trouble = self.trouble or f"no answer for {SILENCE_S:g} s"
        if not pending:
            self._heard_s = time.monotonic()
            if self._last is not None:
                self._last.result()
        healthy = self.trouble is None  # read it now: a later failure is reported by the future
        if healthy or not pending:
            self._last = self._thread.submit(self._to_the_depot)
        return self._last if healthy else None

    def sync(self) -> None:
        """Flush and wait, for callers without an event loop; see `trouble` for the outcome."""
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
        """Move the encoded bytes to the queue."""
        content = self._sink.getvalue()
        self._waiting.add(self._segment, content)
        self._length += len(content)
        self._sink.seek(0)
        self._sink.truncate()

    def _to_the_depot(self) -> None:
        """Write what waits now, in order; on any exception the rest keeps waiting.

        Errors: an unexpected exception (not of storage); it is noted as `trouble` too.
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
            reason = error.strerror if isinstance(error, OSError) else None
            self._fails(reason or str(error) or repr(error))
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
        """Add to a segment, and begin it first if it is the next one.

        Errors: the errors of the depot; the caller retries with the same content, or with more.
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
        except OSError as error:  # harmless: each of its additions is durable already
            log.warning("a segment of the tape could not be closed: %s", error)

    def close(self) -> None:
        """Write the rest and the end of the stream; if there is `trouble` then, call it again.

        Errors: an unexpected exception, other than those of storage.
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
    """Return the chain of checksums after this row."""
    return zlib.crc32(f"{seq}\0{now_s!r}\0{kind}\0{text}\0{answer}".encode(), chain)
