"""A mixture has its shares exactly, is determined by seed and lease, and loses no window."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.errors import UserMistake
from coordinator.protocol import Lease
from islands.corpus import Corpus, Stream
from islands.corpus_reader import open_corpus, read_corpus
from islands.data.mixture import PATTERN, MixedCorpus, counts_of
from islands.sources import MixtureSource
from tests.given import data_spec

WINDOW, LEASE = 4, 50


def counting(windows: int, first: int) -> Corpus:
    """Return a corpus whose tokens count up from `first`."""
    tokens = np.arange(first, first + windows * WINDOW + 1, dtype=np.uint32)
    return Corpus(data_spec(window=WINDOW, lease_windows=LEASE), tokens, tokens)


def mixed(weights: list[float], sizes: list[int]) -> MixedCorpus:
    corpora = [counting(size, 100_000 * number) for number, size in enumerate(sizes)]
    return MixedCorpus(data_spec(window=WINDOW, lease_windows=LEASE), corpora, weights)


def starts(corpus: MixedCorpus, windows: int, batch: int = 10, seed: int = 3) -> np.ndarray:
    """Return the first tokens of the first windows of the stream."""
    stream = Stream(corpus, batch, seed)
    for number in range(windows // LEASE):
        stream.add(Lease(number))
    return np.concatenate([stream.next()[:, 0] for _ in range(windows // batch)])


def test_shares_are_exact_in_each_pattern_and_nearly_in_any_stretch() -> None:
    corpus = mixed([7, 2, 1], [4000, 300, 90])
    sources = starts(corpus, 5 * PATTERN) // 100_000
    for first in range(0, len(sources), PATTERN):
        assert np.bincount(sources[first : first + PATTERN]).tolist() == [700, 200, 100]
    for first in range(0, len(sources) - 200, 37):
        assert abs(np.mean(sources[first : first + 200] == 0) - 0.7) < 0.15
    assert corpus.shares == (0.7, 0.2, 0.1)


def test_each_source_goes_through_whole_epochs() -> None:
    found = starts(mixed([3, 1], [600, 50]), 2 * PATTERN)
    small = found[found >= 100_000]
    assert len(small) == 500
    for first in range(0, 500, 50):
        epoch = sorted(small[first : first + 50])
        assert epoch == [100_000 + WINDOW * number for number in range(50)]
    large = found[found < 100_000]
    assert len(set(large[:600].tolist())) == 600


def test_order_depends_on_the_seed_alone() -> None:
    corpus = mixed([1, 1], [500, 500])
    first = starts(corpus, 300)
    np.testing.assert_array_equal(first, starts(mixed([1, 1], [500, 500]), 300, batch=25))
    assert not np.array_equal(first, starts(corpus, 300, seed=4))


def test_restored_cursor_continues_at_the_exact_window() -> None:
    corpus, whole = mixed([5, 3, 2], [700, 40, 9]), Stream(mixed([5, 3, 2], [700, 40, 9]), 7, 3)
    for number in range(4):
        whole.add(Lease(number))
    while whole.remaining >= 7:
        rest = Stream(corpus, 7, seed=3)
        for lease in (whole.cursor, *(Lease(n) for n in range(whole.cursor.number + 1, 4))):
            rest.add(lease)
        np.testing.assert_array_equal(rest.next(), whole.next())


def test_heldout_windows_have_the_shares_and_no_window_twice() -> None:
    corpus = mixed([7, 3], [900, 2000])
    batches = corpus.heldout_batches(50)
    assert len(batches) == PATTERN // 50
    first = np.concatenate([batch[:, 0] for batch in batches])
    assert np.bincount(first // 100_000).tolist() == [700, 300]
    assert len(set(first.tolist())) == PATTERN
    np.testing.assert_array_equal(batches[3], corpus.heldout_batches(50)[3])


@pytest.mark.parametrize(("weights", "sizes"), [([1, 9], [90, 5000]), ([1, 1], [5, 500])])
def test_small_source_leaves_as_many_heldout_windows_as_its_share_allows(
    weights: list[float], sizes: list[int]
) -> None:
    corpus = mixed(weights, sizes)
    batches = [*corpus.heldout_batches(2)]
    first = np.concatenate([batch[:, 0] for batch in batches])
    assert len({*first.tolist()}) == len(first)
    own = np.count_nonzero(first < 100_000)
    assert own in (sizes[0] - 1, sizes[0])  # the last of an odd number may have no batch
    share = weights[0] / sum(weights)
    assert 0.7 * share < own / len(first) < 1.4 * share


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0.02, 50), min_size=1, max_size=12))
def test_counts_add_up_to_the_pattern(weights: list[float]) -> None:
    try:
        counts = counts_of(weights)
    except UserMistake:
        assert min(weights) / sum(weights) * PATTERN < 1
        return
    assert counts.sum() == PATTERN
    assert counts.min() >= 1
    assert np.all(np.abs(counts - np.array(weights) / sum(weights) * PATTERN) < 1)


@pytest.mark.parametrize("weights", [[1.0, 0.0], [1.0, -1.0], [1.0, float("nan")], [1e6, 1.0]])
def test_impossible_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(UserMistake, match=r"data\.mixture"):
        counts_of(weights)


def test_mixture_of_files_is_read(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(name * 4000)
    sources = tuple(
        MixtureSource(str(tmp_path / f"{name}.txt"), weight)
        for name, weight in (("a", 3), ("b", 1))
    )
    data = replace(data_spec(window=WINDOW, lease_windows=LEASE), mixture=sources)
    corpus = open_corpus(data)
    assert isinstance(corpus, MixedCorpus)
    assert np.mean(starts(corpus, PATTERN) == ord("a")) == 0.75
    missing = replace(data, mixture=(*sources, MixtureSource(str(tmp_path / "c"), 1.0)))
    with pytest.raises(UserMistake, match="no such file or folder"):
        open_corpus(missing)
    with pytest.raises(UserMistake, match="this task reads one source"):
        read_corpus(data)
