"""Batches with segments: attention does not cross the end of a document."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from coordinator.errors import UserMistake
from coordinator.protocol import Lease
from islands import model, token_files
from islands.corpus_reader import read_corpus
from islands.data.segments import predicted, segments_of, tokens_of, with_segments
from islands.model import ModelSpec
from islands.task import language_model
from islands.trainable import of_loss, shapes_of
from tests.given import data_spec, sums

SPEC = ModelSpec(width=16, layers=2, heads=2, hidden=32)
LOGITS = jax.jit(partial(model.logits, SPEC))
LOSS = jax.jit(partial(model.loss, SPEC))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(token_files.FOLDER, str(tmp_path / "cache"))


def varied() -> model.ModelParams:
    """Return parameters of which none has its initial value; the head is initially zero."""
    params = model.init(SPEC, 0)
    rng = np.random.default_rng(1)
    return jax.tree.map(
        lambda leaf: np.asarray(leaf + 0.3 * rng.standard_normal(leaf.shape), np.float32), params
    )


def test_segments_count_the_documents_of_a_window() -> None:
    windows = np.array([[5, 0, 6, 7, 0, 0, 8], [1, 2, 3, 4, 5, 6, 7]], np.int32)
    batch = with_segments(windows, 0)
    assert segments_of(batch).tolist() == [[0, 0, 1, 1, 1, 2, 3], [0] * 7]
    assert tokens_of(batch) is windows
    assert predicted(batch) == predicted(windows) == 12
    assert segments_of(windows) is None


@pytest.mark.long
def test_no_position_sees_another_document() -> None:
    """Other tokens in one document change no score of another, and without segments they do."""
    params, length = varied(), 24
    tokens = np.array([[*range(10, 20), 0, *range(30, 38), 0, *range(50, 54)]], np.int32)
    segments = segments_of(with_segments(tokens, 0))
    scores = LOGITS(params, tokens, segments)
    plain = LOGITS(params, tokens)
    for document in range(3):
        inside = segments[0] == document
        other = np.where(inside, tokens, (tokens + 7) % 100)
        changed = LOGITS(params, other, segments)
        np.testing.assert_array_equal(changed[0, inside], scores[0, inside])
        if document:
            leaky = LOGITS(params, other)
            assert np.abs(leaky[0, inside] - plain[0, inside]).max() > 1e-3
        assert np.abs(changed[0, ~inside] - scores[0, ~inside]).max() > 1e-3
    first = np.arange(length) < 11
    np.testing.assert_allclose(scores[0, first], plain[0, first], rtol=1e-5, atol=1e-5)


def test_document_in_a_packed_window_scores_like_the_document_alone() -> None:
    """Rotary positions are relative, so the place in the window does not matter."""
    params = varied()
    tokens = np.array([[*range(10, 20), 0, *range(30, 43)]], np.int32)
    segments = segments_of(with_segments(tokens, 0))
    packed = LOGITS(params, tokens, segments)
    alone = LOGITS(params, tokens[:, 11:])
    np.testing.assert_allclose(packed[:, 11:], alone, rtol=1e-3, atol=1e-4)


def test_one_document_has_the_loss_of_a_batch_without_segments() -> None:
    params = varied()
    windows = np.arange(40, dtype=np.int32).reshape(2, 20) + 1
    whole = LOSS(params, windows)
    assert LOSS(params, with_segments(windows, 0)) == pytest.approx(float(whole), rel=1e-6)


def test_task_trains_on_segments_if_they_are_wanted(tmp_path: Path) -> None:
    data = data_spec(
        str(sums(tmp_path / "texts")), window=4096, lease_windows=4, heldout_percent=25
    )
    task = language_model("tiny", SPEC, replace(data, separate_documents=True))
    stream = task.stream(4)
    stream.add(Lease(0))
    batch = stream.next()
    assert {name: array.shape for name, array in batch.items()} == {
        "tokens": (4, 4097),
        "segments": (4, 4097),
    }
    assert batch["segments"].max() >= 1, "a window has the end of a file"
    assert task.tokens(batch) == 4 * 4096
    assert of_loss(task, shapes_of(task), task.heldout(1)[0]) == []
    plain = language_model("tiny", SPEC, data).stream(4)
    plain.add(Lease(0))
    np.testing.assert_array_equal(plain.next(), batch["tokens"])


def test_rows_of_another_host_are_zeros(tmp_path: Path) -> None:
    data = data_spec(str(sums(tmp_path / "texts")), window=64, lease_windows=8, heldout_percent=25)
    task = language_model("tiny", SPEC, replace(data, separate_documents=True))
    stream, whole = task.stream(4), task.stream(4)
    stream.rows = np.array([False, True, False, True])  # pyright: ignore[reportAttributeAccessIssue]
    for each in (stream, whole):
        each.add(Lease(0))
    batch, wanted = stream.next(), whole.next()
    for name in ("tokens", "segments"):
        np.testing.assert_array_equal(batch[name][1::2], wanted[name][1::2])
        assert not batch[name][::2].any()


def test_ids_without_an_end_are_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"ids": [[1, 2, 3, 9]] * 50}), tmp_path / "a.parquet")
    data = data_spec(str(tmp_path / "a.parquet"), "ids", True, 20, 4, 0, 4)
    with pytest.raises(UserMistake, match=r"set data\.end_token to the id that ends each one"):
        read_corpus(replace(data, separate_documents=True))
    corpus = read_corpus(replace(data, separate_documents=True, end_token=9))
    batch = corpus.heldout_batches(2)[0]
    np.testing.assert_array_equal(batch["segments"], [[0, 0, 0, 0, 1]] * 2)
