"""Token files are memory-mapped: written once per machine, and never read as a whole."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordinator.errors import UserMistake
from coordinator.protocol import Lease
from islands import token_files
from islands.corpus import Stream
from tests.given import data_spec
from tests.given import one_corpus as read_corpus

GIB = 2**30


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(token_files.FOLDER, str(tmp_path / "cache"))
    return tmp_path / "cache" / "corpus"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    there = tmp_path / "texts"
    there.mkdir()
    for number in range(12):
        (there / f"{number}.txt").write_text(f"<{number:02d}> once upon a time\n" * 40)
    return there


def files_of(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


def test_token_files_are_written_once_per_state_of_the_source(texts: Path, cache: Path) -> None:
    data = data_spec(str(texts), lease_windows=8, window=4)
    first = read_corpus(data)
    written = {path: path.stat().st_ino for path in cache.iterdir()}
    again = read_corpus(data_spec(str(texts), lease_windows=4, window=16))
    assert {path: path.stat().st_ino for path in cache.iterdir()} == written
    assert np.array_equal(first.train, again.train)
    assert len(files_of(cache)) == 2
    (texts / "1.txt").write_text("something else, and longer than it was before\n" * 40)
    changed = read_corpus(data)
    assert len(files_of(cache)) == 4
    assert changed.fingerprint != first.fingerprint
    assert len(read_corpus(data_spec(str(texts), lease_windows=8, window=4, seed=3)).train)
    assert len(files_of(cache)) == 6


def read_in_a_process(texts: str) -> str:
    return read_corpus(data_spec(texts, lease_windows=8, window=4)).fingerprint


@pytest.mark.long
def test_concurrent_processes_share_one_set_of_files(texts: Path, cache: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        found = pool.map(read_in_a_process, [str(texts)] * 6, chunksize=1)
    assert {*found} == {read_in_a_process(str(texts))}
    assert len(files_of(cache)) == 2


def test_uses_private_tokens_if_the_cache_is_not_writable(
    texts: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = data_spec(str(texts), lease_windows=8, window=4)
    wanted = read_corpus(data).fingerprint
    for path in cache.iterdir():
        path.unlink()
    cache.rmdir()
    cache.write_text("a file where the folder should be")
    assert read_corpus(data).fingerprint == wanted
    assert "are not kept for the next time" in caplog.text


def test_failed_read_leaves_no_files(tmp_path: Path, cache: Path) -> None:
    for name in ("a", "b"):
        pq.write_table(pa.table({"ids": [[1, 2], [300]]}), tmp_path / f"{name}.parquet")
    data = data_spec(str(tmp_path), "ids", tokens=True)
    with pytest.raises(UserMistake, match="300, the vocabulary from 0 to 255"):
        read_corpus(data)
    assert files_of(cache) == []


def test_unused_token_files_are_deleted(texts: Path, cache: Path) -> None:
    read_corpus(data_spec(str(texts), lease_windows=8, window=4))
    old, recent = [*cache.glob("*.train")], data_spec(str(texts), lease_windows=8, window=4, seed=1)
    for path in cache.iterdir():
        os.utime(path, (0, path.stat().st_mtime - token_files.UNUSED_S - 9))
    read_corpus(recent)
    assert not old[0].exists()
    assert len(files_of(cache)) == 2


def test_row_groups_do_not_change_the_result(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, documents and the split are those of the whole table, for any row groups."""
    monkeypatch.setattr("islands.data.tables.BATCH_ROWS", 3)
    rows: list[str | None] = ["", "one", None, "", "two", "three", "", "four", "five", None, "six"]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": rows}), path, row_group_size=4)
    data = data_spec(str(path), "text", heldout_percent=25, window=1, lease_windows=2)
    corpus = read_corpus(data)
    there = [row.encode() for row in rows if row is not None]
    cut = round(0.75 * len(there))
    assert bytes(corpus.train) == b"\0".join(there[:cut]) + b"\0"
    assert bytes(corpus.heldout) == b"\0".join(there[cut:]) + b"\0"


def test_ignores_a_file_renamed_by_another_process(
    texts: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A temporary file of another key is listed, but gone when it is examined."""
    cache.mkdir(parents=True)
    (aside := cache / ".another.train.4711").write_bytes(b"x")
    iterdir = Path.iterdir

    def listed(self: Path) -> Iterator[Path]:
        found = [*iterdir(self)]
        if aside.exists():
            aside.replace(cache / "another.train")
        return iter(found)

    monkeypatch.setattr(Path, "iterdir", listed)
    read_corpus(data_spec(str(texts), lease_windows=8, window=4))
    monkeypatch.undo()
    assert len(files_of(cache)) == 3, "it is kept for the next time, beside the other one"


READS_A_LOT = """
import resource, sys
from coordinator.protocol import Lease
from islands.corpus import Stream
from islands.corpus_reader import read_corpus
from tests.given import data_spec
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
corpus = read_corpus(data_spec(sys.argv[1], window=128))
stream = Stream(corpus, 8, seed=1)
for number in range(20):
    stream.add(Lease(number * 1000))
    for _ in range(32):
        stream.next()
assert len(corpus.heldout_batches(8)[17]) == 8
print(corpus.windows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_does_not_grow_with_the_source(tmp_path: Path) -> None:
    """The source has 64 GiB of text: a sparse file, which needs no disk space."""
    path = tmp_path / "large.txt"
    with path.open("wb") as file:
        file.truncate(64 * GIB)
    done = subprocess.run(
        [sys.executable, "-c", READS_A_LOT, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    windows, grown_kib = map(int, done.stdout.split())
    assert windows > 500_000_000
    assert grown_kib < 512 * 1024, (
        "of pages around those that were read; the system may have them back"
    )


def test_stream_of_mapped_tokens_equals_stream_of_tokens_in_memory(texts: Path) -> None:
    data = data_spec(str(texts), lease_windows=8, window=4)
    corpus = read_corpus(data)
    assert not corpus.train.flags.owndata, "it is mapped"
    batches: list[list[np.ndarray]] = []
    for tokens in (corpus.train, np.array(corpus.train)):
        stream = Stream(type(corpus)(data, tokens, corpus.heldout), 5, seed=2)
        stream.add(Lease(3))
        batches.append([stream.next()])
        assert batches[-1][0].flags.writeable
    assert np.array_equal(batches[0][0], batches[1][0])
