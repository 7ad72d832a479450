"""Token directories: written, continued after a kill, read where they are, and refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coordinator.errors import UserMistake
from coordinator.protocol import Lease
from islands import token_files
from islands.corpus import Corpus, Stream
from islands.data import token_index
from islands.data.inspection import inspected
from islands.data.joined_tokens import JoinedTokens, TokenPart
from islands.data.token_index import TokenIndex
from islands.data.token_writer import TokenizeProgress, unfinished, written
from islands.data.tokenize_plan import TokenizeOptions, plan_of
from islands.sources import DataSpec
from tests.given import data_spec
from tests.given import one_corpus as read_corpus

SHARD = 1500
COMMAND = [sys.executable, "-m", "archipelago", "data", "tokenize"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(token_files.FOLDER, str(tmp_path / "cache"))


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Write eight files of JSON lines."""
    there = tmp_path / "lines"
    there.mkdir()
    for number in range(8):
        rows = (
            {"text": f"<{number}> document {row} is {'long and ' * (row % 9)}written ü"}
            for row in range(100)
        )
        (there / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return there


def spec(source: Path | str, column: str | None = "text", **more: object) -> DataSpec:
    plain = data_spec(str(source), column, heldout_percent=20, window=8, lease_windows=16)
    return replace(plain, **more)


def tokenized(
    data: DataSpec,
    out: Path,
    options: TokenizeOptions | None = None,
    report: Callable[[TokenizeProgress], None] = lambda _: None,
) -> TokenIndex:
    options = options or TokenizeOptions(shard_tokens=SHARD)
    return written(plan_of(data, options, out), out, report)


def batches(corpus: Corpus, leases: int) -> list[np.ndarray]:
    stream = Stream(corpus, 8, seed=1)
    for number in range(leases):
        stream.add(Lease(number))
    return [stream.next() for _ in range(stream.remaining // 8)]


def content(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


# --- writing --------------------------------------------------------------------------------------


def test_directory_has_the_tokens_of_the_tokenizer_in_order(lines: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    options = TokenizeOptions(train_vocabulary=290, shard_tokens=SHARD)
    index = tokenized(spec(lines), tmp_path / "out", options)
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    texts = [
        json.loads(row)["text"]
        for path in sorted(lines.iterdir())
        for row in path.read_text().splitlines()
    ]
    wanted = [
        [*tokenizer.encode(text).ids, tokenizer.token_to_id("<|endoftext|>")] for text in texts
    ]
    found = np.concatenate(
        [np.fromfile(tmp_path / "out" / shard.file, index.dtype) for shard in index.shards]
    )
    assert found.tolist() == [number for row in wanted for number in row]
    assert index.documents == len(texts) == 800
    assert index.tokens == len(found)
    assert len(index.shards) >= 4
    begins, ends = 0, list[int]()
    for shard in index.shards:
        places = np.fromfile(tmp_path / "out" / shard.ends, "<i8")
        assert len(places) == shard.documents
        ends += (places + begins).tolist()
        begins += shard.tokens
    assert ends == np.cumsum([len(row) for row in wanted]).tolist()
    assert not unfinished(tmp_path / "out").exists()


@pytest.mark.long
def test_a_killed_call_continues_and_makes_the_same_directory(lines: Path, tmp_path: Path) -> None:
    """The process is killed when it has written its first shards."""
    source = tmp_path / "many"
    source.mkdir()
    text = (lines / "0.jsonl").read_text() * 10
    for number in range(12):
        (source / f"{number}.jsonl").write_text(text.replace("<0>", f"<{number}>"))
    size = ["--shard-tokens", "8000", "--json"]
    options = ["--column", "text", "--train-vocab", "500", *size]
    environment = {**os.environ, "RAYON_NUM_THREADS": "1"}
    whole, out = tmp_path / "whole", tmp_path / "out"
    done = subprocess.run(
        [*COMMAND, source, whole, *options],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    shards = json.loads(done.stdout)["shards"]
    assert shards > 6
    with subprocess.Popen(
        [*COMMAND, source, out, *options], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("2 shards"):
                process.kill()
                break
    assert not out.exists()
    kept = {path.name: path.stat().st_ino for path in unfinished(out).glob("*.bin")}
    assert 2 <= len(kept) < shards
    subprocess.run([*COMMAND, source, out, *options], env=environment, check=True)
    assert {name: (out / name).stat().st_ino for name in kept} == kept, "they are not made again"
    assert content(out) == content(whole)


@pytest.mark.parametrize("stop_after", [1, 2, 5])
def test_an_error_in_between_loses_nothing(lines: Path, tmp_path: Path, stop_after: int) -> None:
    class Stopped(Exception):
        pass

    def report(progress: TokenizeProgress) -> None:
        if len(progress.shards) == stop_after:
            raise Stopped

    options = TokenizeOptions(shard_tokens=SHARD)
    with pytest.raises(Stopped):
        tokenized(spec(lines), tmp_path / "out", options, report)
    resumed = tokenized(spec(lines), tmp_path / "out", options)
    assert resumed == tokenized(spec(lines), tmp_path / "whole", options)
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_a_long_text_spans_shards_and_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some words in a line\n" * 200_000)
    index = tokenized(spec(tmp_path / "a.txt", None), tmp_path / "out")
    assert len(index.shards) > 2
    assert index.documents == 1
    assert index.tokens == 200_000 * 21 + 1
    assert inspected(spec(tmp_path / "out", None), everything=True).longest_document == index.tokens


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(UserMistake) as caught:
        call()
    return str(caught.value)


def test_nothing_is_overwritten_and_nothing_else_is_continued(lines: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("mine")
    assert "is a folder that is not empty" in refused(lambda: tokenized(spec(lines), out))
    assert content(out) == {"precious": b"mine"}
    other = tmp_path / "other"
    unfinished(other).mkdir()
    (unfinished(other) / "progress.json").write_text(
        '{"digest": "of something else", "shards": []}'
    )
    assert "beginning of another source" in refused(lambda: tokenized(spec(lines), other))


def test_options_that_cannot_be_are_refused_at_once(lines: Path, tmp_path: Path) -> None:
    options = TokenizeOptions(train_vocabulary=500, vocabulary=7, shard_tokens=1)
    data = spec(lines, None, tokens=True, tokenizer="t.json")
    message = refused(lambda: plan_of(data, options, tmp_path / "out"))
    assert len(message.splitlines()) == 4
    small = TokenizeOptions(train_vocabulary=200)
    assert "must be at least 257" in refused(lambda: plan_of(spec(lines), small, tmp_path / "out"))
    assert not unfinished(tmp_path / "out").exists()


def test_source_without_any_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n' * 3)
    message = refused(lambda: tokenized(spec(tmp_path / "a.jsonl"), tmp_path / "out"))
    assert "3 empty documents" in message
    assert not unfinished(tmp_path / "out").exists()


# --- reading --------------------------------------------------------------------------------------


def test_windows_are_those_of_the_joined_tokens(lines: Path, tmp_path: Path) -> None:
    index = tokenized(spec(lines), tmp_path / "out")
    corpus = read_corpus(spec(tmp_path / "out", None))
    train, heldout, end = list[np.ndarray](), list[np.ndarray](), np.zeros(1, np.uint8)
    for shard in index.shards:
        tokens = np.fromfile(tmp_path / "out" / shard.file, np.uint8)
        cut = round(0.8 * len(tokens))
        train += [tokens[:cut], end]  # the end of a document that the cut may be in
        heldout += [tokens[cut:], end]
    plain = Corpus(corpus.spec, np.concatenate(train), np.concatenate(heldout))
    assert corpus.windows == plain.windows > 100
    numbers = np.arange(corpus.windows)
    np.testing.assert_array_equal(corpus.cut(numbers), plain.cut(numbers))
    for mine, theirs in zip(batches(corpus, 20), batches(plain, 20), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for mine, theirs in zip(corpus.heldout_batches(4), plain.heldout_batches(4), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_no_segment_joins_the_halves_of_two_documents(lines: Path, tmp_path: Path) -> None:
    """Every shard is cut within a document; its first half is no part of the next shard's."""
    index = tokenized(spec(lines), tmp_path / "out")
    corpus = read_corpus(spec(tmp_path / "out", None, separate_documents=True))
    batch = corpus.cut(np.arange(corpus.windows))
    places, first = list[int](), 0
    for shard in index.shards[:-1]:
        first += round(0.8 * shard.tokens) + 1
        places.append(first)
    for place in places:  # the first token of a shard, behind the cut of the one before
        row, column = divmod(place, 8)
        if column and row < corpus.windows:
            segments = batch["segments"][row]
            assert segments[column] == segments[column - 1] + 1
    assert sum(place % 8 != 0 for place in places) > 2


@pytest.mark.parametrize("counts", [[1], [1, 1, 1], [3, 0, 20, 1, 2], [40], [0, 7, 33]])
@pytest.mark.parametrize("ending", [None, 9])
def test_joined_parts_equal_one_array(
    tmp_path: Path, counts: list[int], ending: int | None
) -> None:
    parts, whole = list[TokenPart](), list[int]()
    for number, count in enumerate(counts):
        path = tmp_path / f"{number}.bin"
        np.arange(100, dtype="<u2").tofile(path)
        parts.append(TokenPart(path, 10, count, ending))
        whole += [*range(10, 10 + count), *([] if ending is None else [ending])]
    joined = JoinedTokens(parts, np.dtype("<u2"))
    assert len(joined) == len(whole)
    for window in (1, 2, 5):
        last = (len(whole) - 1) // window
        numbers = np.arange(last)[::-1].copy()
        found = joined.windows(numbers, window)
        wanted = [whole[n * window : n * window + window + 1] for n in numbers.tolist()]
        assert found.tolist() == wanted


def test_large_texts_are_read_where_they_are_with_the_same_windows(tmp_path: Path) -> None:
    there = tmp_path / "texts"
    there.mkdir()
    for number in range(9):
        (there / f"{number}.txt").write_text(f"<{number}> once upon a time\n" * (20 * number))
    kept = read_corpus(spec(there, None))
    far = read_corpus(spec(there, None, prepare_gb=1e-9))
    assert isinstance(far.train, JoinedTokens)
    for mine, theirs in zip(batches(far, 10), batches(kept, 10), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(far.heldout_batches(4)[0], kept.heldout_batches(4)[0])


def test_a_large_source_of_rows_names_the_command(lines: Path) -> None:
    message = refused(lambda: read_corpus(spec(lines, prepare_gb=1e-9)))
    assert "more than data.prepare_gb = 1e-09 is not tokenized at the start" in message
    assert f"`archipelago data tokenize {lines} OUT --column text`" in message


def test_vocabulary_is_checked_with_both_numbers(lines: Path, tmp_path: Path) -> None:
    options = TokenizeOptions(train_vocabulary=290, shard_tokens=SHARD)
    tokenized(spec(lines), tmp_path / "out", options)
    message = refused(lambda: read_corpus(spec(tmp_path / "out", None), 289))
    assert "ids from 0 to 289" in message
    assert "a vocabulary of 290, and the task has one of 289" in message
    read_corpus(spec(tmp_path / "out", None), 290)
    tokenizer = str(tmp_path / "out" / "tokenizer.json")
    message = refused(lambda: read_corpus(spec(lines, tokenizer=tokenizer), 289))
    assert "a vocabulary of 290, and the task has one of 289" in message
    found = read_corpus(spec(lines, tokenizer=tokenizer), 290)
    assert found.end_token == 0


def test_tokens_of_text_at_the_start_are_those_of_the_command(lines: Path, tmp_path: Path) -> None:
    options = TokenizeOptions(train_vocabulary=290, shard_tokens=SHARD)
    index = tokenized(spec(lines), tmp_path / "out", options)
    corpus = read_corpus(spec(lines, tokenizer=str(tmp_path / "out")), 290)
    assert len(corpus.train) + len(corpus.heldout) == index.tokens
    assert corpus.train.dtype == np.uint16


def test_another_tokenizer_than_the_directory_has_is_refused(lines: Path, tmp_path: Path) -> None:
    for name, vocabulary in (("a", 290), ("b", 270)):
        tokenized(spec(lines), tmp_path / name, TokenizeOptions(train_vocabulary=vocabulary))
    data = spec(tmp_path / "a", None, tokenizer=str(tmp_path / "b" / "tokenizer.json"))
    assert "was made with another tokenizer" in refused(lambda: read_corpus(data, 290))
    same = spec(tmp_path / "a", None, tokenizer=str(tmp_path / "a"))
    read_corpus(same, 290)


def test_end_token_that_ends_no_document_is_refused(lines: Path, tmp_path: Path) -> None:
    tokenized(spec(lines), tmp_path / "bytes")
    tokenized(spec(lines), tmp_path / "own", TokenizeOptions(train_vocabulary=290))
    for name in ("bytes", "own"):
        message = refused(lambda name=name: read_corpus(spec(tmp_path / name, None, end_token=5)))
        assert "end with the token 0: leave that key out" in message
    read_corpus(spec(tmp_path / "own", None, end_token=0), 290)
    ids = tmp_path / "ids.jsonl"
    ids.write_text('{"ids": [1, 2, 3, 4, 5, 6, 7, 8]}\n' * 400)
    numbers = spec(ids, "ids", tokens=True, end_token=300)
    assert "ids run from 0 to 255" in refused(lambda: read_corpus(numbers))
    read_corpus(replace(numbers, end_token=8))
    options = TokenizeOptions(vocabulary=100, shard_tokens=SHARD)
    message = refused(lambda: tokenized(replace(numbers, end_token=100), tmp_path / "no", options))
    assert "--end-token 100: must be less than --vocabulary 100" in message
    tokenized(replace(numbers, end_token=None), tmp_path / "numbers", options)
    later = spec(tmp_path / "numbers", None, end_token=8)
    assert read_corpus(later).end_token == 8
    message = refused(lambda: read_corpus(replace(later, end_token=100)))
    assert "ids run from 0 to 99" in message


def test_damaged_directories_are_refused(lines: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    index = tokenized(spec(lines), out)
    shard = out / index.shards[1].file
    tokens = shard.read_bytes()
    shard.write_bytes(tokens[:-1])
    message = refused(lambda: read_corpus(spec(out, None)))
    assert f"{len(tokens) - 1:,} bytes, and the index wants {len(tokens):,} bytes" in message
    shard.write_bytes(bytes([tokens[0] ^ 1]) + tokens[1:])
    assert inspected(spec(out, None)).problems == []
    (problem,) = inspected(spec(out, None), everything=True).problems
    assert shard.name in problem
    shard.unlink()
    assert "there is no such file" in refused(lambda: read_corpus(spec(out, None)))
    shard.write_bytes(tokens)
    text = (out / token_index.INDEX).read_text()
    for change in (('"version": 1', '"version": 9'), (f'"tokens": {index.tokens}', '"tokens": 5')):
        (out / token_index.INDEX).write_text(text.replace(*change))
        assert "index" in refused(lambda: read_corpus(spec(out, None)))
    (out / token_index.INDEX).write_text("{}")
    assert token_index.opened(str(out)) is None, "an index.json of something else"


OPENS = """
import sys, time
from pathlib import Path
from islands.corpus import Stream
from islands.corpus_reader import read_corpus
from coordinator.protocol import Lease
from tests.given import data_spec
began_s = time.perf_counter()
corpus = read_corpus(data_spec(sys.argv[1]), 65536)
took_s = time.perf_counter() - began_s
stream = Stream(corpus, 32, seed=1)
for number in range(20):
    stream.add(Lease(number * 1000))
    for _ in range(8):
        stream.next()
assert len(corpus.heldout_batches(8)[17]) == 8
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(len(corpus.train), took_s, int(status["RssAnon"].split()[0]))
"""


def opened(path: Path) -> tuple[int, float, int]:
    """Return tokens, seconds to open, and KiB of private memory of a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", OPENS, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    tokens, took_s, kib = done.stdout.split()
    return int(tokens), float(took_s), int(kib)


@pytest.mark.long
def test_500_links_to_a_shard_open_as_fast_and_as_small_as_one(tmp_path: Path) -> None:
    """The corpus has 50 GB: a shard of 100 MB, hard-linked 500 times."""
    from islands.data.token_index import TokenShard

    rng = np.random.default_rng(1)
    shard = rng.integers(0, 2**16, 50_000_000, np.uint16).tobytes()
    for count in (1, 500):
        there = tmp_path / str(count)
        there.mkdir()
        first = tmp_path / "1" / "shard-00000.bin"
        if count == 1:
            first.write_bytes(shard)
        shards = [TokenShard(f"shard-{n:05}.bin", 50_000_000, 1000, "0" * 64) for n in range(count)]
        for each in shards[count == 1 :]:
            os.link(first, there / each.file)
        tokens = 50_000_000 * count
        index = TokenIndex("uint16", 2**16, 0, None, None, 1000, tokens, 1, {}, tuple(shards))
        (there / token_index.INDEX).write_text(index.text())
    small, large = opened(tmp_path / "1"), opened(tmp_path / "500")
    assert large[0] == 500 * small[0] == 500 * 47_500_001
    assert large[1] < 5, "it takes seconds at most"
    assert large[2] < small[2] + 16 * 1024
