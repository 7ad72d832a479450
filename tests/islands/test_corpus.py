"""The corpus: the held-out part, the leases, and cursors that restore a place."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.errors import UserMistake
from coordinator.protocol import Lease
from islands.corpus import Corpus, Starved, Stream
from islands.sources import DataSpec
from tests.given import data_spec
from tests.given import one_corpus as read_corpus

WINDOW = 4
LEASE = 6  # windows
ORDER_OF_LEASE_0 = [57, 108, 248, 122, 86, 229]  # of 250 windows with seed 7
ORDER_OF_LEASE_41 = [0, 25, 184, 217, 22, 226]  # crosses from epoch 0 to epoch 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write forty small, named texts in three folders."""
    for number in range(40):
        place = tmp_path / "texts" / f"{number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.txt").write_text(f"<{number:02d}> once upon a time\n" * 20)
    return tmp_path / "texts"


def counting(windows: int = 250, window: int = WINDOW) -> Corpus:
    """Return a corpus whose token at place i is i, so that a window shows its own place."""
    data = data_spec(window=window, lease_windows=LEASE, seed=5)
    tokens = np.arange(windows * window + 1, dtype=np.uint16)
    return Corpus(data, tokens, tokens)


def starts(batches: list[np.ndarray]) -> list[int]:
    """Return the numbers of the windows in the order in which they were read."""
    return [int(row[0]) // WINDOW for batch in batches for row in batch]


def read(corpus: Corpus, leases: list[Lease], batch_size: int) -> list[np.ndarray]:
    stream = Stream(corpus, batch_size, seed=7)
    for lease in leases:
        stream.add(lease)
    return [stream.next() for _ in range(stream.remaining // batch_size)]


def mistake(data: DataSpec, vocabulary: int = 256) -> str:
    with pytest.raises(UserMistake) as caught:
        read_corpus(data, vocabulary)
    return str(caught.value)


# --- the held-out part ------------------------------------------------------------------------


def names(tokens: np.ndarray) -> set[str]:
    return set(re.findall(r"<\d\d>", bytes(tokens.astype(np.uint8)).decode()))


def test_files_are_held_out_whole(folder: Path) -> None:
    corpus = read_corpus(data_spec(str(folder), heldout_percent=25, lease_windows=8))
    trained, heldout = names(corpus.train), names(corpus.heldout)
    assert not trained & heldout
    assert len(trained | heldout) == 40
    assert 4 <= len(heldout) <= 16
    texts = bytes(corpus.heldout).split(b"\0")[:-1]
    assert len(texts) == len(heldout)
    assert all(len(names(np.frombuffer(text, np.uint8))) == 1 for text in texts)


def test_new_file_does_not_change_which_others_are_held_out(folder: Path) -> None:
    data = data_spec(str(folder), heldout_percent=25, lease_windows=8)
    before = names(read_corpus(data).heldout)
    (folder / "new.txt").write_text("<99> something else\n" * 20)
    assert names(read_corpus(data).heldout) - {"<99>"} == before
    other_seed = data_spec(str(folder), heldout_percent=25, lease_windows=8, seed=1)
    assert names(read_corpus(other_seed).heldout) - {"<99>"} != before


@pytest.mark.parametrize("percent", [0.001, 99.999])
def test_one_of_two_files_is_held_out(tmp_path: Path, percent: float) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name[0] * 100)
    data = data_spec(str(tmp_path), heldout_percent=percent, window=WINDOW, lease_windows=LEASE)
    corpus = read_corpus(data)
    assert len(corpus.train) == len(corpus.heldout) == 101


def test_tail_of_a_single_file_is_held_out(tmp_path: Path) -> None:
    text = bytes(range(1, 201))
    (tmp_path / "one.txt").write_bytes(text)
    data = data_spec(str(tmp_path / "one.txt"), heldout_percent=10, window=4, lease_windows=LEASE)
    corpus = read_corpus(data)
    assert bytes(corpus.train) == text[:180]
    assert bytes(corpus.heldout) == text[180:]


def test_heldout_batches_are_fixed_and_cover_each_window_once() -> None:
    corpus = counting()
    batches = corpus.heldout_batches(10)
    assert len(batches) == 25
    assert sorted(starts(list(batches))) == list(range(250))
    assert starts(list(batches)) != list(range(250)), "shuffled, so that a few stand for all"
    again = corpus.heldout_batches(10)
    assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))
    assert np.array_equal(batches[-1], batches[24])
    assert [len(part) for part in (batches[:3], batches[20:])] == [3, 5]
    with pytest.raises(IndexError):
        batches[25]


def test_few_windows_give_one_heldout_batch() -> None:
    assert [len(batch) for batch in counting(7).heldout_batches(4)] == [4], "no ragged second one"
    assert [len(batch) for batch in counting(3).heldout_batches(4)] == [3], "but never none"


# --- windows and leases ---------------------------------------------------------------------------


def test_windows_share_one_token_and_predict_each_token_once() -> None:
    batches = read(counting(60), [Lease(number) for number in range(10)], 5)
    assert all(batch.shape == (5, WINDOW + 1) and batch.dtype == np.int32 for batch in batches)
    targets = np.concatenate([batch[:, 1:].ravel() for batch in batches])
    assert sorted(targets) == list(range(1, 60 * WINDOW + 1))


def test_each_epoch_has_its_own_order() -> None:
    corpus = counting(60)  # ten leases
    first = starts(read(corpus, [Lease(number) for number in range(10)], 6))
    second = starts(read(corpus, [Lease(number) for number in range(10, 20)], 6))
    assert sorted(first) == sorted(second) == list(range(60))
    assert len({tuple(first), tuple(second), tuple(range(60))}) == 3


def test_order_is_the_same_on_every_machine() -> None:
    """If the numbers of the permutation change, old runs cannot be resumed or replayed."""
    assert starts(read(counting(), [Lease(0)], 6)) == ORDER_OF_LEASE_0
    assert starts(read(counting(), [Lease(41)], 6)) == ORDER_OF_LEASE_41


@given(
    windows=st.integers(1, 40),
    pieces=st.lists(st.integers(1, LEASE - 1), min_size=1, max_size=6),
    batch_size=st.integers(1, 9),
)
@settings(max_examples=60, deadline=None)
def test_split_leases_partition_the_sequence(
    windows: int, pieces: list[int], batch_size: int
) -> None:
    """A lease that two learners read, one up to some place and one from there, is read once."""
    corpus = counting(windows)
    whole = starts(read(corpus, [Lease(number) for number in range(len(pieces))], 1))
    found: list[int] = []
    for number, read_by_first in enumerate(pieces):
        first = starts(read(corpus, [Lease(number)], 1))[:read_by_first]
        found += first + starts(read(corpus, [Lease(number, read_by_first)], 1))
    assert found == whole
    batches = starts(read(corpus, [Lease(number) for number in range(len(pieces))], batch_size))
    assert batches == whole[: len(whole) // batch_size * batch_size], "batches cross leases"


@pytest.mark.parametrize("batch_size", [1, 2, 4, 5, 7, 13])
def test_restored_cursor_gives_the_same_batches(batch_size: int) -> None:
    corpus, leases = counting(), [Lease(3), Lease(0), Lease(8, 2), Lease(9)]
    stream = Stream(corpus, batch_size, seed=7)
    for lease in leases:
        stream.add(lease)
    total, read_before = stream.remaining, 0
    assert total == 4 * LEASE - 2
    while stream.remaining >= batch_size:
        restored = Stream(corpus, batch_size, seed=7)
        behind = [lease.number for lease in leases].index(stream.cursor.number) + 1
        for lease in (stream.cursor, *leases[behind:]):
            restored.add(lease)
        assert restored.remaining == stream.remaining == total - read_before
        np.testing.assert_array_equal(restored.next(), stream.next())
        assert restored.cursor == stream.cursor
        assert restored.leases == stream.leases
        read_before += batch_size


def test_cursor_stays_on_a_fully_read_lease() -> None:
    stream = Stream(counting(), LEASE, seed=7)
    stream.add(Lease(2))
    stream.add(Lease(4))
    assert stream.cursor == Lease(2, 0)
    stream.next()
    assert stream.cursor == Lease(2, LEASE)
    stream.next()
    assert stream.cursor == Lease(4, LEASE)


def test_stream_reads_only_the_selected_rows() -> None:
    """The hosts of an island read different rows, and their cursors stay together."""
    whole, first, second = (Stream(counting(), 4, seed=7) for _ in range(3))
    first.rows = np.array([True, True, False, False])
    second.rows = ~first.rows
    for stream in (whole, first, second):
        stream.add(Lease(2))
        stream.add(Lease(4))
    for _ in range(3):
        batch, upper, lower = whole.next(), first.next(), second.next()
        assert np.array_equal(upper + lower, batch)
        assert not upper[2:].any()
        assert not lower[:2].any()
        assert first.cursor == second.cursor == whole.cursor


def test_starved_stream_consumes_nothing() -> None:
    stream = Stream(counting(), 5, seed=7)
    with pytest.raises(Starved, match="add a lease"):
        stream.cursor  # noqa: B018
    stream.add(Lease(1, LEASE - 3))
    with pytest.raises(Starved, match="5 windows wanted, 3 left"):
        stream.next()
    assert (stream.remaining, stream.cursor) == (3, Lease(1, LEASE - 3))
    stream.add(Lease(2))
    assert stream.next().shape == (5, WINDOW + 1)
    assert (stream.remaining, stream.cursor) == (LEASE - 2, Lease(2, 2))


@pytest.mark.parametrize("lease", [Lease(-1), Lease(0, -1), Lease(0, LEASE + 1), Lease(9, 2)])
def test_refuses_impossible_leases(lease: Lease) -> None:
    stream = Stream(counting(), 2, seed=7)
    stream.add(Lease(9))
    with pytest.raises(ValueError, match="Lease"):
        stream.add(lease)


# --- sources --------------------------------------------------------------------------------------


def test_standard_library_text_is_large_and_reproducible() -> None:
    corpus, again = read_corpus(data_spec()), read_corpus(data_spec())
    assert corpus.fingerprint == again.fingerprint
    assert corpus.train.dtype == np.uint8
    assert len(corpus.train) > 9_000_000
    assert 0.02 < len(corpus.heldout) / len(corpus.train) < 0.10
    text = bytes(corpus.train)
    assert b"def namedtuple(" in text + bytes(corpus.heldout)
    assert len(read_corpus(data_spec(seed=1)).heldout) != len(corpus.heldout)


def test_reads_only_visible_text_files_of_a_folder(folder: Path) -> None:
    data = data_spec(str(folder), heldout_percent=25, lease_windows=8)
    before = read_corpus(data).fingerprint
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0\0" * 100)
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("hidden\n" * 100)
    (folder / "empty.txt").write_text("")
    assert read_corpus(data).fingerprint == before


def test_glob_reads_the_matching_files(folder: Path) -> None:
    data = data_spec(f"{folder}/[01]/**/*.txt", heldout_percent=25, lease_windows=8)
    corpus = read_corpus(data)
    wanted = {f"<{number:02d}>" for number in range(40) if number % 3 < 2}
    assert names(corpus.train) | names(corpus.heldout) == wanted


Columns = dict[str, "pa.Array"]


@pytest.fixture
def parquet(tmp_path: Path) -> Callable[..., DataSpec]:
    """Return a function that writes a table to one file and returns its `DataSpec`."""

    def write(
        columns: Columns, file: str = "t.parquet", column: str | None = None, tokens: bool = False
    ) -> DataSpec:
        (tmp_path / "tables").mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), tmp_path / "tables" / file)
        source = str(tmp_path / "tables" / file)
        return data_spec(source, column, tokens, 20, WINDOW, lease_windows=LEASE)

    return write


TEXTS = [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]
LISTS = [pa.list_(pa.int32()), pa.large_list(pa.uint16()), pa.list_(pa.int64(), 10)]


@pytest.mark.parametrize("kind", TEXTS)
def test_parquet_text_round_trip(parquet: Callable[..., DataSpec], kind: pa.DataType) -> None:
    rows = [f"row {number} ü" for number in range(9)] + [None]
    data = parquet({"number": pa.array(range(10)), "text": pa.array(rows, kind)}, column="text")
    corpus = read_corpus(data)
    documents = [f"row {number} ü".encode() + b"\0" for number in range(9)]
    assert bytes(corpus.train) == b"".join(documents[:7])
    assert bytes(corpus.heldout) == b"".join(documents[7:])


@pytest.mark.parametrize("kind", LISTS)
def test_parquet_ids_round_trip(parquet: Callable[..., DataSpec], kind: pa.DataType) -> None:
    rows = [list(range(number * 10, number * 10 + 10)) for number in range(10)]
    data = parquet({"ids": pa.array(rows, kind)}, column="ids", tokens=True)
    corpus = read_corpus(data, vocabulary=300)
    assert corpus.train.dtype == np.uint16
    np.testing.assert_array_equal(corpus.train, np.arange(80))
    np.testing.assert_array_equal(corpus.heldout, np.arange(80, 100))
    assert read_corpus(data, vocabulary=100).train.dtype == np.uint8


def test_several_parquet_files_are_held_out_whole(
    tmp_path: Path, parquet: Callable[..., DataSpec]
) -> None:
    for number in range(12):
        parquet({"ids": pa.array([[number] * 30, [number] * 30])}, f"{number}.parquet")
    corpus = read_corpus(data_spec(str(tmp_path / "tables"), "ids", True, 25, WINDOW, 0, LEASE))
    trained, heldout = set(corpus.train.tolist()), set(corpus.heldout.tolist())
    assert not trained & heldout
    assert trained | heldout == set(range(12))
    assert np.all(np.bincount(np.concatenate([corpus.train, corpus.heldout])) == 60)


# --- mistakes -------------------------------------------------------------------------------------


def test_refuses_a_missing_path(tmp_path: Path) -> None:
    assert "no such file or folder" in mistake(data_spec(str(tmp_path / "nowhere")))


def test_refuses_an_empty_folder(tmp_path: Path) -> None:
    assert "is empty: no text file" in mistake(data_spec(str(tmp_path)))
    (tmp_path / "a.txt").write_text("text")
    assert "no Parquet file" in mistake(data_spec(str(tmp_path), column="text"))


def test_refuses_compressed_files_and_reads_those_beside_them(folder: Path) -> None:
    whole = read_corpus(data_spec(str(folder), lease_windows=8)).fingerprint
    for name in ("a.txt.gz", "b.jsonl.zst"):
        (folder / name).write_bytes(b"\x1f\x8b" * 5000)  # no byte 0, as in a text
        assert f"{name} is compressed" in mistake(data_spec(str(folder / name)))
    assert "is compressed" in mistake(data_spec(str(folder / "*.gz")))
    assert read_corpus(data_spec(str(folder), lease_windows=8)).fingerprint == whole


def test_reports_unreadable_files(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).symlink_to("/proc/self/mem")  # a file that opens and cannot be read
    said = mistake(data_spec(str(folder), lease_windows=8))
    assert len(said.splitlines()) == 2


def test_reports_a_corpus_that_is_too_small(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 1000)
    said = mistake(data_spec(str(tmp_path / "a.txt"), window=128, lease_windows=100))
    assert "7 training windows of 128 tokens, 100 needed" in said
    assert "0 held-out windows of 128 tokens, 1 needed" in said


def test_reports_mistakes_in_parquet_columns(parquet: Callable[..., DataSpec]) -> None:
    columns = {
        "text": pa.array(["some text"] * 20),
        "ids": pa.array([[1, 2, 300]] * 20),
        "nulls": pa.array([[1, None]] * 20),
        "floats": pa.array([[0.5]] * 20),
        "number": pa.array(range(20)),
    }
    all_columns = "text, ids, nulls, floats, number"
    assert f"no 'body'; its columns are {all_columns}" in mistake(parquet(columns, column="body"))
    assert f"data.column is not set; its columns are {all_columns}" in mistake(parquet(columns))
    assert "set data.tokens = true" in mistake(parquet(columns, column="ids"))
    for column in ("text", "number"):
        said = mistake(parquet(columns, column=column, tokens=True))
        assert f"column {column!r} cannot be read as lists of token ids" in said
    for column in ("nulls", "floats"):
        assert "not token ids" in mistake(parquet(columns, column=column, tokens=True))
    said = mistake(parquet(columns, column="ids", tokens=True))
    assert "token ids run from 1 to 300, the vocabulary from 0 to 255" in said


def test_refuses_a_file_that_is_not_parquet(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("this is text")
    assert "cannot be read" in mistake(data_spec(str(tmp_path / "a.parquet"), column="text"))
    (tmp_path / "a.json").write_text('[{"text": "a"}]')
    said = mistake(data_spec(str(tmp_path / "a.json"), column="text"))
    assert "as which a file .json is read (for JSON lines name it .jsonl" in said


def test_reports_all_problems_at_once(tmp_path: Path) -> None:
    said = mistake(data_spec(window=0, lease_windows=0, seed=-1, heldout_percent=100, tokens=True))
    keys = ("window", "lease_windows", "seed", "heldout_percent", "column")
    assert all(f"data.{key}" in said for key in keys)
    for name in "abcdefgh":
        (tmp_path / f"{name}.parquet").write_text("this is text")
    lines = mistake(data_spec(str(tmp_path), column="text")).splitlines()
    assert len(lines) == 6
    assert lines[-1] == "... and 3 more"
    assert all(name in line for name, line in zip("abcde", lines, strict=False))


def test_text_needs_a_vocabulary_of_bytes(folder: Path) -> None:
    assert "vocabulary of 100" in mistake(data_spec(str(folder)), vocabulary=100)


def test_order_does_not_depend_on_the_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, leases = counting(), [Lease(3), Lease(0, 2), Lease(41)]
    whole = starts(read(corpus, leases, 4))
    for at_once in (1, 4, 5):
        monkeypatch.setattr("islands.corpus.AT_ONCE", at_once)
        assert starts(read(corpus, leases, 4)) == whole
