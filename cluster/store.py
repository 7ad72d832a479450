"""What a run leaves in its depot to come back from, each with checksums; and its model.

    tape-0.arrow         the events that the rules heard, one file a generation
    state.json           rules' state and measures of a moment, and its place on the tape
    fragments/           the newest versions of each fragment: master, momentum, public
    contributions/       what was merged, if durability.keep_contributions

Every file says what run it belongs to and carries a checksum; a damaged one is refused with the
place and the reason, and the newest good one is used.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import re
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from cluster.depot import Depot
from coordinator.codec import Payload
from coordinator.errors import ArchipelagoError
from coordinator.fragments import Flat, Layout, sew
from coordinator.protocol import ContributionId, Effect, Event, Fragment, Version
from coordinator.state import State
from coordinator.tape import UnknownRecord, freeze, recall, record, thaw

log = logging.getLogger("archipelago.store")

FORMAT, READABLE = "4", ("3", "4")
"""Of tape, snapshots and fragments: what is written, and what can be read. 4 has what a shard says
of a merge (norm, cosines), of unsound ones, and parts and kind of a contribution; another number is
refused."""
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


class Damaged(ArchipelagoError):
    """A file of the run is not what was written: truncated, altered, or of another version."""


class Foreign(Damaged):
    """... it is whole, but of another format, layout or version."""


# --- the model ------------------------------------------------------------------------------------


def fingerprint(flats: Sequence[Flat]) -> str:
    """sha256 of the fragments in order, little-endian f32: `global_sha256` of a summary."""
    digest = hashlib.sha256()
    for flat in flats:
        digest.update(np.ascontiguousarray(flat, "<f4").tobytes())
    return digest.hexdigest()


def model_bytes(layout: Layout, flats: Sequence[Flat], versions: Sequence[Version]) -> bytes:
    """The model as safetensors, tensors named by their paths in the tree."""
    names = [leaf.path for leaf in layout.leaves]
    metadata = {
        "layout": layout.fingerprint,
        "versions": json.dumps(versions),
        "global_sha256": fingerprint(flats),
    }
    return save(dict(zip(names, sew(layout, flats), strict=True)), metadata)


# --- the tape -------------------------------------------------------------------------------------


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


class Row(NamedTuple):
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

    events: list[Row]
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
    events: list[Row] = []
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


def _rows(depot: Depot, file: str, layout: str, start: int) -> Iterator[tuple[range, Row | None]]:
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
                    yield span, Row(seq, now_s, recall(kind, json.loads(text)), answer)
                except UnknownRecord as error:
                    raise Foreign(f"{file} is of another version: {error}") from error


def _link(chain: int, seq: int, now_s: float, kind: str, text: str, answer: int) -> int:
    return zlib.crc32(f"{seq}\0{now_s!r}\0{kind}\0{text}\0{answer}".encode(), chain)


# --- the rules' state -----------------------------------------------------------------------------

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


# --- arrays ---------------------------------------------------------------------------------------

FRAGMENTS, SUFFIX = "fragments", ".safetensors"


@dataclass(frozen=True, slots=True)
class Arrays:
    """One fragment of a shard, each [size] f32."""

    version: Version
    master: Flat
    momentum: Flat
    public: Flat


class FragmentStore:
    """The newest versions of each fragment, one file each."""

    def __init__(self, depot: Depot, layout: Layout, *, keep: int) -> None:
        self._depot, self._layout, self._keep = depot, layout, keep

    def save(self, p: Fragment, arrays: Arrays, first: bool = False) -> None:
        """Write a version, then let go of the oldest; the `first` one of a run is kept for replay.

        Errors: `OSError` if the depot will not have it.
        """
        parts = {"master": arrays.master, "momentum": arrays.momentum, "public": arrays.public}
        self._depot.write(_fragment_name(p, arrays.version), _seal(parts, self._layout.fingerprint))
        if not first:
            for old in self._files(p)[1 : -self._keep]:
                self._depot.remove(old)

    def forget_after(self, p: Fragment, version: Version) -> None:
        """Let go of what was stored later and never published, which would take the places of what
        may be wanted back, and of what was begun.

        Errors: `OSError` if the depot will not.
        """
        for name in self._files(p):
            if _version_of(name) > version:
                self._depot.remove(name)
        self._depot.tidy(f"{FRAGMENTS}/f{p:04}-")
        self._depot.tidy(f"{_contributions(p)}/")

    def newest(self, p: Fragment, upto: Version | None = None) -> Arrays:
        """The newest version there that is as it was written.

        Errors: `Damaged` if there is none.
        """
        for name in reversed(self._files(p)):
            if upto is not None and _version_of(name) > upto:
                continue
            try:
                return self._load(name)
            except Damaged as error:
                log.error("%s; the version before is used", error)
        raise Damaged(f"{self._depot} has no good version of fragment {p}")

    def has(self, p: Fragment, version: Version) -> bool:
        """Whether this version was stored."""
        return _fragment_name(p, version) in self._files(p)

    def load(self, p: Fragment, version: Version) -> Arrays:
        """Return this version.

        Errors: `Damaged` if it is not there, or not as it was written.
        """
        return self._load(_fragment_name(p, version))

    def oldest(self, p: Fragment) -> Arrays:
        """The first version kept.

        Errors: `Damaged`.
        """
        files = self._files(p)
        if not files:
            raise Damaged(f"{self._depot} has no version of fragment {p}")
        return self._load(files[0])

    def _load(self, name: str) -> Arrays:
        parts = _unseal(self._depot, name, self._layout.fingerprint)
        return Arrays(_version_of(name), parts["master"], parts["momentum"], parts["public"])

    def _files(self, p: Fragment) -> list[str]:
        """Names of its versions, in order."""
        there = self._depot.names(FRAGMENTS)
        mine = (n for n in there if n.startswith(f"f{p:04}-") and n.endswith(SUFFIX))
        return sorted((f"{FRAGMENTS}/{name}" for name in mine), key=_version_of)


def _fragment_name(p: Fragment, version: Version) -> str:
    return f"{FRAGMENTS}/f{p:04}-g{version.generation}-v{version.number:08}{SUFFIX}"


def _version_of(name: str) -> Version:
    _, generation, number = PurePosixPath(name).stem.split("-")
    return Version(int(generation[1:]), int(number[1:]))


def save_contribution(depot: Depot, said: ContributionId, payload: Payload, layout: str) -> None:
    """Keep what was handed in, as it was encoded."""
    depot.write(_contribution_name(said), _seal({"payload": payload}, layout))


def load_contribution(depot: Depot, said: ContributionId, layout: str) -> Payload:
    """What was handed in.

    Errors: `Damaged` if it was not kept, or is not as it was written.
    """
    return _unseal(depot, _contribution_name(said), layout)["payload"]


def _contribution_name(said: ContributionId) -> str:
    life, fragment, start, stop = said
    name = f"{life.island}.{life.incarnation}-{start}-{stop}{SUFFIX}"
    return f"{_contributions(fragment)}/{name}"


def _contributions(p: Fragment) -> str:
    return f"contributions/f{p:04}"


def _seal(parts: dict[str, NDArray[Any]], layout: str) -> bytes:
    return save(parts, {"format": FORMAT, "layout": layout, "sha256": _digest(parts)})


def _unseal(depot: Depot, name: str, layout: str) -> dict[str, NDArray[Any]]:
    try:
        content = depot.read(name)
        parts = load(content)
        length = int.from_bytes(content[:8], "little")
        told = json.loads(content[8 : 8 + length])["__metadata__"]
        of, digest = (told["format"], told["layout"]), told["sha256"]
    except FileNotFoundError as error:
        raise Damaged(f"{name} is not there") from error
    except (SafetensorError, ValueError, KeyError) as error:
        raise Damaged(f"{name} cannot be read: {error}") from error
    if of[0] not in READABLE or of[1] != layout:
        raise Damaged(f"{name} is of another format or layout")
    if digest != _digest(parts):
        raise Damaged(f"{name} is not as it was written")
    return parts


def _digest(parts: dict[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(parts):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(parts[name]).data)
    return digest.hexdigest()
