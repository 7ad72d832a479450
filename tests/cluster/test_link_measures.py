"""Tests of the measures of links: rates, what is usual, slow and down links, and what waits."""

from __future__ import annotations

import math
import random

import pytest

from archipelago.cli.link_lines import troubles
from cluster.fleet.trouble_events import link_events
from cluster.status import LinkStatus
from cluster.syncer.link_counts import (
    DOWN_S,
    INTERVAL_S,
    KEPT,
    KNOWN_INTERVALS,
    SLOW_INTERVALS,
    LinkCounts,
    carried,
    is_down,
    is_lagging,
    is_slow,
    utilisation,
)
from cluster.syncer.link_measures import LOST_S, LinkWatch
from cluster.syncer.measures import Measures
from cluster.transfers import Prepared, Upload, unpacked
from coordinator.advance import advance
from coordinator.codec import Wire
from coordinator.frozen import replace
from coordinator.membership import Status
from coordinator.protocol import (
    Arrived,
    Event,
    Fragment,
    Incarnation,
    Island,
    Join,
    Lease,
    Life,
    Lost,
    Merged,
    Progress,
    Publish,
    Reached,
    Region,
    Report,
    Resume,
    ShardBack,
    ShardLost,
    Stored,
    Version,
)
from coordinator.state import State, initial
from tests.cluster.test_progress import a_status
from tests.coordinator.given import LAYOUT, contribution, life, rule

BYTES, EVERY_S = 10_000_000, 5.0


def fed(counts: LinkCounts, now_s: float, for_s: float, seconds: float) -> float:
    """Count a transfer of `BYTES` every `EVERY_S` seconds, and return the time after them."""
    for _ in range(int(for_s / EVERY_S)):
        now_s += EVERY_S
        carried(counts, BYTES, seconds, allowed_s=2.0, now_s=now_s)
    return now_s


def test_link_at_a_third_of_its_usual_rate_is_slow_within_two_minutes_and_not_at_once() -> None:
    counts = LinkCounts()
    now_s = fed(counts, 0.0, 600, seconds=1.0)
    assert not is_slow(counts)
    now_s = fed(counts, now_s, INTERVAL_S, seconds=3.0)
    assert not is_slow(counts), "after a quarter of a minute"
    now_s = fed(counts, now_s, 105, seconds=3.0)
    assert is_slow(counts)
    fed(counts, now_s, 60, seconds=1.0)
    assert not is_slow(counts), "it is as usual again"


@pytest.mark.parametrize(
    ("usual_s", "later_s"),
    [(1.0, 1.9), (0.02, 0.09), (1.0, 0.2)],
    ids=["not under half", "too short to matter", "faster"],
)
def test_link_that_varies_a_little_is_not_slow(usual_s: float, later_s: float) -> None:
    counts = LinkCounts()
    now_s = fed(counts, 0.0, 600, usual_s)
    fed(counts, now_s, 600, later_s)
    assert not is_slow(counts)


def test_new_link_is_not_slow_before_its_usual_rate_is_known() -> None:
    counts = LinkCounts()
    now_s = fed(counts, 0.0, KNOWN_INTERVALS * INTERVAL_S / 2, seconds=0.2)
    fed(counts, now_s, SLOW_INTERVALS * INTERVAL_S, seconds=5.0)
    assert not is_slow(counts)


def test_counters_do_not_grow_with_the_run() -> None:
    """A day of transfers, at random times and rates, keeps an hour of medians."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng, counts, now_s = random.Random(seed), LinkCounts(), 0.0
    while now_s < 86_400:
        now_s += rng.expovariate(1 / 3)
        carried(counts, rng.randrange(1, BYTES), rng.uniform(0.0, 9.0), allowed_s=2.0, now_s=now_s)
    assert len(counts.medians) == KEPT
    assert len(counts.present) < 100
    assert 0 < counts.late < counts.transfers


def test_link_is_down_when_it_is_silent_for_far_longer_than_usual() -> None:
    often, seldom = LinkCounts(), LinkCounts()
    assert not is_down(often, 1e9), "nothing has come yet"
    now_s = fed(often, 0.0, 600, seconds=1.0)
    assert not is_down(often, now_s + DOWN_S - 1)
    assert is_down(often, now_s + DOWN_S + 1)
    for number in range(20):
        carried(seldom, BYTES, 1.0, allowed_s=2.0, now_s=100.0 * number)
    assert not is_down(seldom, 1900.0 + 4 * 100)
    assert is_down(seldom, 1900.0 + 6 * 100)


@pytest.mark.parametrize("own_s", [0.25, 0.0])
def test_transfer_is_the_answer_without_the_islands_own_time(own_s: float) -> None:
    answer, took_s = unpacked(Prepared("contribution", own_s), 1.0)
    assert answer == "contribution"
    assert took_s == pytest.approx(1.0 - own_s)
    assert unpacked(Prepared("contribution", 2.0), 1.0) == ("contribution", 0.0)


@pytest.mark.parametrize("own_s", [math.nan, -1.0, math.inf, "soon", None, 3])
def test_impossible_time_of_an_island_is_not_counted(own_s: object) -> None:
    assert unpacked(Prepared("contribution", own_s), 1.0) == ("contribution", None)  # type: ignore[arg-type]
    assert unpacked(("facts", "bytes"), 1.0) == (("facts", "bytes"), None)


A, B, F0 = Island("a"), Island("b"), Fragment(0)


class RuleStory:
    """Rules and measures side by side, for two islands in two regions."""

    def __init__(self) -> None:
        self.rule = replace(rule(), min_quorum=1, grace_s=0.0)
        self.state: State = initial(self.rule)
        self.measures = Measures("run", {A: "a", B: "b"}, [1000], Wire.F32, now_s=0.0, overlap=1)
        for island, region in ((A, "eu"), (B, "us")):
            self.happens(0.0, Join(island, "group", LAYOUT, Region(region)))
        self.step(1.0, 4)

    def happens(self, now_s: float, event: Event) -> list[object]:
        before, (self.state, effects) = self.state, advance(self.rule, self.state, event, now_s)
        self.measures.saw(before, event, self.state, effects, now_s)
        return [*effects]

    def step(self, now_s: float, steps: int) -> None:
        """Report that both islands have done so many steps; each reads its region's first lease."""
        for number, name in enumerate("ab"):
            progress = Progress(steps, 100 * steps, Lease(0, steps))
            self.happens(now_s, Report(life(name, number + 1), progress, 0.5))

    def takes_over(self, now_s: float, event: Event) -> None:
        """Let a restarted conductor of a ring continue, which has no event for that."""
        del now_s, event
        self.measures.came_back(self.measures.memory(), None)

    def not_durable(self, now_s: float) -> str:
        figures = self.measures.status(self.rule, self.state, now_s)["figures"]
        assert figures is not None
        return figures["not_durable"]

    def link(self, name: str, direction: str, now_s: float) -> dict[str, object]:
        rows = self.measures.status(self.rule, self.state, now_s).get("links", [])
        return next(dict(r) for r in rows if (r["link"], r["direction"]) == (name, direction))

    def round(self, now_s: float, number: int) -> Publish:
        """Step, let island a hand in, and publish; return the publication."""
        self.step(now_s, 4 * number + 4)
        facts = contribution(life("a", 1), span=(4 * number, 4 * number + 4))
        self.happens(now_s, Arrived(facts))
        version = Version(0, number + 1)
        self.happens(now_s, Merged(F0, version, 1.0))
        published = self.happens(now_s, Stored(F0, version, durable=True))
        return next(each for each in published if isinstance(each, Publish))


def test_links_are_those_of_regions_and_sum_what_was_sent() -> None:
    story = RuleStory()
    uploads = [Upload(life("a", 1), 1000, 2.0), Upload(life("b", 2), 500, 0.1)]
    story.measures.received(story.state, uploads, 3.0)
    eu = story.link("eu", "up", 3.0)
    assert (eu["bytes"], eu["transfer_s"], eu["bits_s"]) == (1000, 2.0, 4000.0)
    assert eu["late"] == 1, "longer than one step of 0.5 s"
    assert story.link("us", "up", 3.0)["late"] == 0


def test_requests_wait_until_they_are_answered() -> None:
    story = RuleStory()
    story.measures.received(story.state, [Upload(life("a", 1), 1, 1.0)], 1.0)
    story.measures.received(story.state, [Upload(life("b", 2), 1, 1.0)], 1.0)
    assert story.link("eu", "up", 5.0)["queue_s"] == pytest.approx(4.0)
    story.round(6.0, 0)
    assert story.link("eu", "up", 7.0)["queue_s"] == 0.0
    assert story.link("us", "up", 7.0)["queue_s"] == pytest.approx(6.0), "asked at 1 s"


def test_learners_that_lack_a_publication_are_behind_until_they_get_one() -> None:
    story, sent = RuleStory(), Version(0, 0)
    reached_by = {1: "ab", 2: "a", 3: "a", 4: "b"}
    queues_s = dict[int, object]()
    for number in range(5):
        at_s = 5.0 * number + 5
        order = story.round(at_s, number)
        took_s = {"a": 0.4, "b": 0.8}
        lives = [(life(name, 1 + "ab".index(name)), took_s[name])
                 for name in reached_by.get(number, "")]  # fmt: skip
        if number:
            story.happens(at_s, Reached(F0, sent, tuple(lives)))
            queues_s[number] = story.link("us", "down", at_s)["queue_s"]
        sent = order.version
    # v2 was sent at 10 s, and b had not received it when v3 was sent at 15 s
    assert queues_s == {1: 0.0, 2: 5.0, 3: 10.0, 4: 0.0}
    us = story.link("us", "down", 30.0)
    assert us["transfer_s"] == pytest.approx(1.6)
    assert us["bytes"] == 2 * Wire.F32.bytes_of(1000)
    assert story.link("eu", "down", 30.0)["queue_s"] == 10.0, "of v4, sent at 20 s"


def test_link_of_a_lost_island_is_down_for_ten_minutes_and_not_for_ever() -> None:
    """An island that was scaled away while it was lost stays lost to the rules."""
    story = RuleStory()
    for name, number in (("a", 1), ("b", 2)):
        story.measures.received(story.state, [Upload(life(name, number), 1, 1.0)], 1.0)
    story.happens(40.0, Lost(life("b", 2), "its process ended"))
    assert story.state.members[B].status is Status.LOST
    assert not story.link("us", "up", 40.0)["down"]
    assert story.link("us", "up", 100.0)["down"]
    assert not story.link("us", "up", 1.0 + LOST_S + 60.0)["down"]


def test_link_that_is_down_or_has_no_islands_is_not_slow_or_late() -> None:
    """A slow region that was scaled to 0 was once reported until the run ended."""
    story = RuleStory()
    record = story.measures.counts.links.setdefault("us up", LinkCounts())
    now_s = fed(record, fed(record, -718.0, 600, seconds=1.0), 120, seconds=3.0)

    def troubles_at(at_s: float) -> set[str]:
        link = story.link("us", "up", at_s)
        return {each for each in ("slow", "lagging", "down") if link[each]}

    assert troubles_at(now_s) == {"slow", "lagging"}
    assert troubles_at(now_s + DOWN_S + 1) == {"down"}
    every = tuple(Fragment(p) for p in range(len(story.state.fragments)))
    story.happens(now_s, ShardLost(every))
    assert troubles_at(now_s) == {"slow", "lagging"}, "an outage of the shards ends no trouble"
    story.happens(now_s, ShardBack(every))
    story.happens(now_s, Lost(life("b", 2), "its process ended"))
    assert troubles_at(now_s + LOST_S + 1) == set()


def test_no_link_is_down_while_all_shards_are_away_or_at_once_after() -> None:
    """The links were once called down when the shard was, and operators looked at the network."""
    story = RuleStory()
    lives = [life("a", 1), life("b", 2)]
    story.measures.received(story.state, [Upload(each, 1, 1.0) for each in lives], 1.0)
    every = tuple(Fragment(p) for p in range(len(story.state.fragments)))
    story.happens(10.0, ShardLost(every))
    assert not story.link("us", "up", 200.0)["down"]
    story.happens(200.0, ShardBack(every))
    assert not story.link("us", "up", 201.0)["down"]
    assert story.link("us", "up", 201.0 + DOWN_S)["down"]


def test_restarted_syncer_begins_without_links_that_are_down_and_old_troubles() -> None:
    """A shard that hung when the last snapshot was taken was once reported until the run ended."""
    story = RuleStory()
    lives = [life("a", 1), life("b", 2)]
    story.measures.received(story.state, [Upload(each, 1, 1.0) for each in lives], 1.0)
    story.measures.trouble("shard-0", "shard-0 has not answered for 60 s")
    assert story.not_durable(200.0) == "shard-0 has not answered for 60 s"
    memory = story.measures.memory()
    for took_over in (story.happens, story.takes_over):
        story.measures.remember(memory)
        took_over(200.0, Resume(1, tuple(each.version for each in story.state.fragments)))
        assert story.not_durable(201.0) == ""
        if took_over == story.happens:
            assert not story.link("us", "up", 201.0)["down"]
            assert story.link("us", "up", 201.0 + DOWN_S)["down"]


def test_troubles_of_links_are_told_once_and_ended() -> None:
    usual, slow, late = a_status(), a_status(), a_status()
    row: LinkStatus = {
        "link": "eu", "direction": "up", "bytes": 9, "transfers": 3, "transfer_s": 1.5, "late": 1,
        "bits_s": 12e6, "usual_bits_s": 80e6, "spread": 0.1, "utilisation": 0.5, "queue_s": 2.0,
        "lagging": False, "slow": False, "down": False,
    }  # fmt: skip
    usual["links"], slow["links"] = [row], [{**row, "lagging": True, "slow": True}]
    late["links"] = [{**row, "lagging": True}]
    text = "the link of eu to the shards is slow: 12.0Mbit/s, usually 80.0Mbit/s"
    assert troubles(slow) == [text]
    (begun,) = link_events(usual, slow)
    assert begun.text == "the link of eu to the shards is slow: under half of its usual rate"
    assert not [*link_events(slow, slow)]
    assert [each.text for each in link_events(slow, usual)] == [
        "the link of eu to the shards is as usual again"
    ]
    assert not troubles(usual)
    assert troubles(late) == [
        "the link of eu to the shards is late: most transfers of the last minute took longer than "
        "sync.overlap allows, and 1 of 3 in all"
    ]
    texts = [each.text for each in link_events(usual, late)]
    assert texts == ["the link of eu to the shards is late: most transfers exceed the overlap"]
    assert not [*link_events(late, late)]
    assert [each.kind for each in link_events(slow, late)] == ["link"]
    assert [each.text for each in link_events(late, usual)] == [
        "the link of eu to the shards is as usual again"
    ]


def test_link_lags_while_most_transfers_take_longer_than_the_overlap() -> None:
    counts = LinkCounts()
    now_s = fed(counts, 0.0, 600, seconds=1.0)
    assert not is_lagging(counts)
    now_s = fed(counts, now_s, 2 * INTERVAL_S, seconds=3.0)
    assert not is_lagging(counts), "half a minute of late transfers"
    now_s = fed(counts, now_s, 4 * INTERVAL_S, seconds=3.0)
    assert is_lagging(counts)
    fed(counts, now_s, 2 * INTERVAL_S, seconds=1.0)
    assert not is_lagging(counts), "it is in time again"
    assert len(counts.late_shares) == SLOW_INTERVALS


def test_link_with_some_late_transfers_does_not_lag() -> None:
    counts, now_s = LinkCounts(), 0.0
    for _ in range(100):
        now_s = fed(counts, now_s, EVERY_S, seconds=3.0)
        now_s = fed(counts, now_s, 2 * EVERY_S, seconds=1.0)
    assert counts.late == 100
    assert not is_lagging(counts)


@pytest.mark.parametrize(("seconds", "used"), [(1.0, 0.2), (4.0, 0.8), (20.0, 1.0)])
def test_utilisation_is_the_traffic_over_the_usual_rate_and_at_most_1(
    seconds: float, used: float
) -> None:
    """A transfer of 20 s every 5 s overlaps with others, and the sum of the seconds exceeds 1."""
    counts = LinkCounts()
    now_s = fed(counts, 0.0, 600, seconds)
    usual = 8 * BYTES / seconds
    assert utilisation(counts, usual, now_s) == pytest.approx(used, rel=0.25)
    assert utilisation(counts, usual, now_s + 36_000) == pytest.approx(0.0, abs=0.01), "idle"
    assert utilisation(counts, None, now_s) is None
    assert utilisation(LinkCounts(), usual, now_s) == 0.0


def test_status_has_the_utilisation_and_lateness_of_a_link() -> None:
    story = RuleStory()
    for number in range(20):
        uploads = [Upload(life("a", 1), 1000, 2.0)]
        story.measures.received(story.state, uploads, 3.0 + 5.0 * number)
    eu = story.link("eu", "up", 98.0)
    assert eu["utilisation"] == pytest.approx(0.4, rel=0.25)
    assert (eu["lagging"], eu["slow"], eu["down"]) == (True, False, False)


class Compared(str):
    """A name that counts its comparisons."""

    comparisons = 0
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return str.__eq__(self, str(other))


def test_publication_to_many_islands_takes_no_quadratic_time() -> None:
    """One to 1,000 islands once took a million comparisons on the syncer's event loop."""
    lives = [Life(Island(Compared(f"{n}")), Incarnation(n)) for n in range(1000)]
    again = [Life(Island(Compared(each.island)), each.incarnation) for each in lives]
    watch, counts, state = LinkWatch(1), dict[str, LinkCounts](), initial(rule())
    v = [Version(0, n) for n in range(3)]
    for number in (1, 2):
        order = Publish(Fragment(0), v[number], v[number - 1], tuple(lives), ())
        watch.published(order, BYTES, float(number))
    Compared.comparisons = 0
    reached = Reached(Fragment(0), v[1], tuple((each, 1.0) for each in again))
    watch.saw(counts, state, reached, (), 3.0)
    assert Compared.comparisons <= 10 * len(lives)
