"""Sources in buckets of S3 and GCS give the tokens of the same files on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from coordinator.errors import UserMistake
from coordinator.protocol import Lease
from islands import token_files
from islands.corpus import Stream
from islands.corpus_reader import read_corpus
from islands.data.buckets import BucketFile, bucket_files, connection, path_of
from islands.data.inspection import inspected
from islands.data.joined_tokens import JoinedTokens
from islands.data.token_writer import written
from islands.data.tokenize_plan import TokenizeOptions, plan_of
from islands.frozen_file import frozen_file
from islands.prefetch import Prefetched
from islands.sources import DataSpec, find_source
from tests.cluster import gcs, s3
from tests.given import data_spec

SERVERS = {"s3": s3.served, "gs": gcs.served}


@pytest.fixture(scope="module", params=SERVERS)
def bucket(request: pytest.FixtureRequest) -> Generator[str]:
    """Serve a bucket with all kinds of sources, and yield its URI."""
    served: AbstractContextManager[str] = SERVERS[request.param]()
    with served as uri:
        yield uri


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write texts, JSON lines, Parquet and a token directory, and return their folder."""
    monkeypatch.setenv(token_files.FOLDER, str(tmp_path / "cache"))
    there = tmp_path / "sources"
    for name in ("texts", "lines", "tables"):
        (there / name).mkdir(parents=True)
    for number in range(6):
        texts = [f"<{number}> document {row} is written" for row in range(80)]
        (there / "texts" / f"{number}.txt").write_text("\n".join(texts))
        rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (there / "lines" / f"{number}.jsonl").write_text(rows)
        pq.write_table(pa.table({"text": texts}), there / "tables" / f"{number}.parquet")
    data, options = data_spec(str(there / "lines"), "text"), TokenizeOptions(shard_tokens=3000)
    written(plan_of(data, options, there / "tokens"), there / "tokens", lambda _: None)
    return there


def at(uri: str, name: str) -> str:
    place, _, options = uri.partition("?")
    return f"{place}/{name}?{options}"


def spec(source: Path | str, column: str | None = None, **more: Any) -> DataSpec:
    plain = data_spec(str(source), column, heldout_percent=20, window=8, lease_windows=16)
    return replace(plain, **more)


def upload(here: Path, uri: str, *names: str) -> None:
    there = connection(uri)
    for path in sorted(path for name in names for path in (here / name).rglob("*")):
        with there.open_output_stream(f"{path_of(uri)}/{path.relative_to(here)}") as stream:
            stream.write(path.read_bytes())


def first_batches(data: DataSpec) -> list[np.ndarray]:
    stream = Stream(read_corpus(data), 8, seed=1)
    for number in range(3):
        stream.add(Lease(number))
    return [stream.next() for _ in range(6)]


def test_all_kinds_of_sources_are_read_from_a_bucket(here: Path, bucket: str) -> None:
    upload(here, bucket, "texts", "lines", "tables", "tokens")
    for name, column in (("texts", None), ("lines", "text"), ("tables", "text"), ("tokens", None)):
        far, near = spec(at(bucket, name), column), spec(here / name, column)
        for mine, theirs in zip(first_batches(far), first_batches(near), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        assert len(find_source(far)) == len(find_source(near))
    large = replace(spec(at(bucket, "texts")), prepare_gb=1e-9)
    for mine, theirs in zip(first_batches(large), first_batches(spec(here / "texts")), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    one = spec(at(bucket, "texts/3.txt"))
    for mine, theirs in zip(
        first_batches(one), first_batches(spec(here / "texts" / "3.txt")), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
    some = spec(at(bucket, "lines/*.jsonl"), "text")
    assert len(bucket_files(some.source)[1]) == 6
    assert inspected(spec(at(bucket, "tokens")), everything=True).problems == []


def test_frozen_arrays_come_from_a_bucket_with_the_right_digest(here: Path, bucket: str) -> None:
    arrays = {"base/w": np.arange(6, dtype="f4").reshape(2, 3), "scale": np.ones(2, "f4")}
    (here / "frozen").mkdir()
    save_file(arrays, file := here / "frozen" / "base.safetensors")
    upload(here, bucket, "frozen")
    uri, digest = at(bucket, "frozen/base.safetensors"), sha256(file.read_bytes()).hexdigest()
    tree = frozen_file(uri, digest)()
    np.testing.assert_array_equal(tree["base"]["w"], arrays["base/w"])
    np.testing.assert_array_equal(tree["scale"], arrays["scale"])
    with pytest.raises(UserMistake, match=rf"base.safetensors has the SHA-256 {digest}, and"):
        frozen_file(uri, "0" * 64)()
    with pytest.raises(UserMistake, match=r"frozen arrays: .*/frozen/other cannot be read: "):
        frozen_file(at(bucket, "frozen/other"), digest)()
    with pytest.raises(UserMistake, match="unknown scheme ftp://"):
        frozen_file("ftp://bucket/base", digest)()


def test_missing_things_give_one_message(bucket: str) -> None:
    with pytest.raises(UserMistake) as caught:
        read_corpus(spec(at(bucket, "nowhere")))
    assert "there is no such file or folder in the bucket" in str(caught.value)
    assert "endpoint" not in str(caught.value), "options of a URI may hold secrets"


def test_unknown_scheme_is_refused() -> None:
    with pytest.raises(UserMistake, match="unknown scheme ftp://; a corpus can be in s3://, gs://"):
        read_corpus(spec("ftp://host/path"))


class Slow:
    """A file of a bucket whose reads wait until `together` of them are under way."""

    def __init__(self, content: bytes, together: int) -> None:
        self.content, self.barrier = content, threading.Barrier(together, timeout=20)

    def read_at(self, count: int, offset: int) -> bytes:
        self.barrier.wait()
        return self.content[offset : offset + count]


class SlowFile(BucketFile):
    """A file of a bucket that does not exist, served by `Slow`."""

    slow: Slow

    def open(self, mode: str = "rb") -> Any:
        return self.slow


def test_windows_of_a_batch_are_requested_at_the_same_time() -> None:
    from islands.data.joined_tokens import TokenPart

    file = SlowFile("s3://a", "a/b", 1000, 0)
    object.__setattr__(file, "slow", Slow(bytes(range(200)) * 5, 8))
    tokens = JoinedTokens([TokenPart(file, 0, 1000)], np.dtype(np.uint8))
    found = tokens.windows(np.arange(8, dtype=np.int64), 4)
    assert found[:, 0].tolist() == [4 * number for number in range(8)]


def test_file_that_is_gone_stops_the_stream_with_a_message(here: Path, bucket: str) -> None:
    upload(here, at(bucket, "gone"), "tokens")
    data = spec(at(bucket, "gone/tokens"))
    stream = Prefetched(Stream(read_corpus(data), 8, seed=1))
    there, root = connection(data.source), path_of(data.source)
    for each in there.get_file_info(pyarrow.fs.FileSelector(root)):
        if each.base_name.endswith(".bin"):
            there.delete_file(each.path)
    stream.add(Lease(0))
    with pytest.raises(UserMistake, match="must stay as they are during a run"):
        stream.next()
