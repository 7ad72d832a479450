"""The queue of a cluster: examples of each rule, and properties of whole histories.

In a history a small world plays the cluster: runs arrive and end, islands take some looks to hand
in, and free machines are given to waiting islands in any order, as Ray does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.cluster_queue import (
    NO_NODES_YET,
    NO_ROOM_YET,
    UNCONFIRMED,
    confirmed,
    decide,
)
from coordinator.machine_room import ISLANDS, IslandNodes, MachineRoom, Need
from coordinator.protocol import Island
from coordinator.queue_claims import (
    UNDECIDED,
    ClaimedIsland,
    Decision,
    QueueAnswer,
    QueueVerdict,
    RunClaim,
    Standing,
)

Decide = Callable[..., Decision]
NODES = frozenset({"n0", "n1"})
CPU = Need({"CPU": 1.0}, nodes=NODES)


def claim(
    run: str,
    *holds: str,
    priority: int = 0,
    firm: int = 0,
    takeable: int = 0,
    since_s: float = 0.0,
    standing: Standing = Standing.QUEUED,
    owner: str = "ada",
    need: Need = CPU,
    withheld: frozenset[str] = frozenset(),
    least: int = 1,
) -> RunClaim:
    """Return a run whose first islands hold these nodes; its firm islands come first."""
    islands = tuple(
        ClaimedIsland(
            Island(name := f"{run}-{number}"),
            need,
            takeable=number >= firm,
            holds=(holds[number],) if number < len(holds) and holds[number] else (),
            withheld=name in withheld,
        )
        for number in range(firm + takeable)
    )
    standing = Standing.LIVE if holds else standing
    return RunClaim(run, owner, priority, since_s, standing, islands, least)


def decided(
    *claims: RunClaim, cpus: float = 2.0, quotas: Mapping[str, Mapping[str, float]] | None = None
) -> Decision:
    """Decide on two nodes with this many CPUs each, of which the islands use theirs."""
    total = {node: {"CPU": cpus} for node in NODES}
    free = MachineRoom.of(total, {})
    for each in claims:
        for island in each.islands:
            free.take(island.holds, island.need)
    return decide(claims, quotas or {}, total, free.nodes)


# --- examples -------------------------------------------------------------------------------------


def test_run_starts_where_there_is_room() -> None:
    decision = decided(claim("new", firm=4))
    assert decision.answers["new"] == QueueAnswer(
        QueueVerdict.START, "there is room for 4 islands of 1 CPU"
    )


def test_run_without_room_waits_and_reads_for_what() -> None:
    decision = decided(claim("old", "n0", "n0", "n1", firm=3), claim("new", firm=2, since_s=1.0))
    assert decision.answers["new"] == QueueAnswer(
        QueueVerdict.WAIT, "no room for 2 islands of 1 CPU; such machines are held by old"
    )
    assert decision.withheld == {"old": {}}


def test_later_run_does_not_overtake_one_that_waits_for_the_same_machines() -> None:
    old, first = claim("old", "n0", "n0", "n1", firm=3), claim("first", firm=2, since_s=1.0)
    small = claim("small", firm=1, since_s=2.0)
    assert decided(old, small).answers["small"].verdict is QueueVerdict.START
    assert decided(old, first, small).answers["small"] == QueueAnswer(
        QueueVerdict.WAIT, "waits behind run first (priority 0)"
    )
    elsewhere = claim("elsewhere", firm=2, since_s=1.0, need=replace(CPU, nodes=frozenset({"n0"})))
    on_n1 = claim("small", firm=1, since_s=2.0, need=replace(CPU, nodes=frozenset({"n1"})))
    assert decided(old, elsewhere, on_n1).answers["small"].verdict is QueueVerdict.START


def test_run_whose_islands_can_be_taken_back_may_overtake() -> None:
    old, first = claim("old", "n0", "n0", "n1", firm=3), claim("first", firm=2, since_s=1.0)
    decision = decided(old, first, claim("crawl", takeable=3, since_s=2.0))
    assert decision.answers["crawl"].verdict is QueueVerdict.START


def test_higher_priority_takes_as_few_islands_as_it_needs_the_last_ones_first() -> None:
    crawl = claim("crawl", "n0", "n0", "n1", "n1", takeable=4)
    decision = decided(crawl, claim("big", firm=1, priority=1, since_s=1.0))
    assert decision.withheld["crawl"] == {
        "crawl-3": "taken by the queue: run big (priority 1) needs the machines"
    }
    assert decision.answers["big"] == QueueAnswer(
        QueueVerdict.WAIT, "takes crawl-3 of crawl; they hand in their work first"
    )


@pytest.mark.parametrize("lower", [{"takeable": 4, "priority": 1}, {"firm": 4, "priority": 0}])
def test_no_island_is_taken_that_is_as_important_or_not_opportunistic(
    lower: dict[str, Any],
) -> None:
    live = claim("live", "n0", "n0", "n1", "n1", **lower)
    decision = decided(live, claim("big", firm=1, priority=1, since_s=1.0))
    assert decision.withheld["live"] == {}
    assert decision.answers["big"].verdict is QueueVerdict.WAIT


def test_nothing_is_taken_if_it_would_not_be_enough() -> None:
    firm = claim("firm", "n0", "n0", "n1", firm=3)
    crawl = claim("crawl", "n1", takeable=1)
    decision = decided(firm, crawl, claim("big", firm=2, priority=1, since_s=1.0))
    assert decision.withheld["crawl"] == {}
    assert decision.answers["big"].verdict is QueueVerdict.WAIT


def test_least_important_run_gives_first_and_only_what_helps() -> None:
    low, high = claim("low", "n0", "n0", takeable=2), claim("high", "n1", takeable=1, priority=1)
    big = claim("big", firm=1, priority=2, since_s=1.0)
    assert decided(low, high, big, cpus=2.0).withheld == {"low": {}, "high": {}}, "there is room"
    full = claim("high", "n1", "n1", takeable=2, priority=1)
    assert [*decided(low, full, big).withheld["low"]] == ["low-1"]
    on_n1 = replace(CPU, nodes=frozenset({"n1"}))
    beside = decided(low, full, claim("big", firm=1, priority=2, since_s=1.0, need=on_n1))
    assert (beside.withheld["low"], [*beside.withheld["high"]]) == ({}, ["high-1"])


def test_large_machine_is_freed_on_one_node() -> None:
    crawl = claim("crawl", "n0", "n1", "n0", "n1", takeable=4)
    large = Need({"CPU": 2.0}, nodes=NODES)
    decision = decided(crawl, claim("big", firm=1, priority=1, since_s=1.0, need=large))
    assert [*decision.withheld["crawl"]] in (["crawl-2", "crawl-0"], ["crawl-3", "crawl-1"])


def test_islands_that_are_leaving_are_enough() -> None:
    """While an island hands in, no further one is taken for the same need."""
    gone = frozenset({"crawl-3"})
    crawl = claim("crawl", "n0", "n0", "n1", "n1", takeable=4, withheld=gone)
    decision = decided(crawl, claim("big", firm=1, priority=1, since_s=1.0))
    assert [*decision.withheld["crawl"]] == ["crawl-3"]
    assert decision.answers["big"].why == (
        "takes islands that are leaving; they hand in their work first"
    )


def test_room_of_a_starting_run_is_not_given_away() -> None:
    starting = claim("starting", firm=3, standing=Standing.STARTING)
    crawl = claim("crawl", "", "", takeable=2, since_s=-1.0)
    decision = decided(starting, crawl, claim("next", firm=1, since_s=1.0))
    assert [*decision.withheld["crawl"]] == ["crawl-1"], "one of the two has room"
    assert decision.answers["next"].verdict is QueueVerdict.WAIT


def test_taken_island_comes_back_when_there_is_room() -> None:
    crawl = claim("crawl", "n0", "", takeable=2, withheld=frozenset({"crawl-1"}))
    busy = claim("big", "n0", "n1", "n1", firm=3, priority=1)
    assert decided(crawl, busy).withheld["crawl"] == {Island("crawl-1"): NO_ROOM_YET}
    assert decided(crawl).withheld["crawl"] == {}


def test_island_that_waits_for_new_machines_may_ask_ray_for_them() -> None:
    """An island that was never taken is not withheld: the autoscaler must read of it."""
    crawl = claim("crawl", "n0", "n0", "n1", "n1", "", takeable=5)
    assert decided(crawl).withheld["crawl"] == {}


def test_taken_island_that_no_node_can_hold_any_more_asks_ray_for_one() -> None:
    """The node that it had is gone: nothing would ever be free for it."""
    need = Need({"GPU": 1.0})
    crawl = claim("crawl", "", takeable=1, need=need, withheld=frozenset({"crawl-0"}))
    assert decided(replace(crawl, standing=Standing.LIVE)).withheld["crawl"] == {}


def test_run_that_the_cluster_has_no_machines_for_keeps_nobody_waiting() -> None:
    decision = decided(claim("huge", firm=9, priority=5), claim("new", firm=1))
    assert decision.answers["huge"].why == (
        "the cluster has no machines for 9 islands of 1 CPU at once"
    )
    assert decision.answers["new"].verdict is QueueVerdict.START


def test_run_whose_takeable_islands_need_new_nodes_starts_without_them() -> None:
    """Otherwise Ray's autoscaler would never read of them."""
    need = Need({"GPU": 1.0})
    decision = decided(claim("scavenger", takeable=2, need=need, priority=1), claim("new", firm=1))
    assert decision.answers["scavenger"] == QueueAnswer(QueueVerdict.START, NO_NODES_YET)
    assert decision.answers["new"].verdict is QueueVerdict.START
    decision = decided(claim("mixed", firm=1, takeable=9, least=9))
    assert decision.answers["mixed"].why == "there is room for 1 island of 1 CPU"


def test_quota_is_held_and_says_what_is_left() -> None:
    quotas = {"ada": {ISLANDS: 2.0, "CPU": 8.0}}
    old = claim("old", "n0", firm=1)
    decision = decided(
        old,
        claim("two", firm=2, since_s=1.0),
        claim("one", firm=1, since_s=2.0),
        claim("bob", firm=3, since_s=3.0, owner="bob"),
        claim("never", firm=3, since_s=4.0),
        quotas=quotas,
    )
    assert decision.answers["two"] == QueueAnswer(
        QueueVerdict.WAIT, "quota of ada: 1 of islands left, 2 needed"
    )
    assert decision.answers["one"].why == "waits behind run two (priority 0)"
    assert decision.answers["bob"].verdict is QueueVerdict.START, "it has another owner"
    assert decision.answers["never"] == QueueAnswer(
        QueueVerdict.REFUSE,
        "the quota of ada can never cover 3 islands of 1 CPU: 2 of islands left, 3 needed",
    )


def test_runs_that_start_at_one_look_share_the_quota() -> None:
    one, two = claim("one", firm=2), claim("two", firm=2, since_s=1.0)
    decision = decided(one, two, quotas={"ada": {ISLANDS: 3.0}})
    assert decision.answers["one"].verdict is QueueVerdict.START
    assert decision.answers["two"].why == "quota of ada: 1 of islands left, 2 needed"


def test_optional_island_beyond_the_quota_is_withheld_although_there_is_room() -> None:
    crawl = claim("crawl", "n0", "", takeable=2)
    assert decided(crawl, quotas={"ada": {ISLANDS: 1.0}}).withheld["crawl"] == {
        "crawl-1": "quota of ada: 0 of islands left, 1 needed"
    }


def test_required_islands_of_a_starting_run_are_its_own_also_if_they_can_be_taken_later() -> None:
    starting = claim("starting", takeable=3, least=3, standing=Standing.STARTING)
    decision = decided(starting, claim("next", firm=2, since_s=1.0, priority=1))
    assert decision.answers["next"].verdict is QueueVerdict.WAIT


def test_quota_is_freed_by_the_owners_own_less_important_islands() -> None:
    quotas = {"ada": {ISLANDS: 2.0}}
    mine, theirs = (
        claim("mine", "n0", "n0", takeable=2),
        claim("theirs", "n1", takeable=1, owner="b"),
    )
    big = claim("big", firm=1, priority=1, since_s=1.0)
    decision = decided(mine, theirs, big, quotas=quotas)
    assert [*decision.withheld["mine"]] == ["mine-1"]
    assert decision.withheld["theirs"] == {}


def test_run_that_waits_for_machines_keeps_its_quota_from_later_runs() -> None:
    quotas = {"ada": {ISLANDS: 3.0}}
    n0, n1 = (replace(CPU, nodes=frozenset({name})) for name in ("n0", "n1"))
    bob = claim("bob", "n0", firm=1, owner="bob")
    first = claim("first", firm=2, since_s=1.0, need=n0)
    second = claim("second", firm=2, since_s=2.0, need=n1)
    assert decided(bob, second, quotas=quotas).answers["second"].verdict is QueueVerdict.START
    assert decided(bob, first, second, quotas=quotas).answers["second"].verdict is QueueVerdict.WAIT


def test_hosts_of_an_island_fit_on_nodes_of_their_own() -> None:
    apart = Need({"CPU": 1.0}, hosts=2, nodes=NODES, apart=True)
    assert decided(claim("new", firm=1, need=apart)).answers["new"].verdict is QueueVerdict.START
    three = replace(apart, hosts=3)
    assert decided(claim("new", firm=1, need=three)).answers["new"].verdict is QueueVerdict.WAIT
    packed = replace(three, apart=False)
    assert decided(claim("new", firm=1, need=packed)).answers["new"].verdict is QueueVerdict.START


def test_decision_needs_two_looks() -> None:
    crawl, big = (
        claim("crawl", "n0", "n0", "n1", "n1", takeable=4),
        claim("big", firm=1, priority=1),
    )
    once = decided(crawl, big)
    assert confirmed(UNDECIDED, once, [crawl, big]).withheld == {"crawl": {}}
    waiting = claim("crawl", "n0", "n0", "n1", "", takeable=4)
    soon = decided(waiting, claim("big", firm=1, standing=Standing.STARTING))
    assert confirmed(UNDECIDED, soon, [waiting]) == soon, "it holds nothing that could be lost"
    assert confirmed(once, once, [crawl, big]).withheld == once.withheld
    start = decided(claim("new", firm=1))
    assert confirmed(UNDECIDED, start, []).answers["new"] == QueueAnswer(
        QueueVerdict.WAIT, UNCONFIRMED
    )
    assert confirmed(start, start, []) == start
    leaving = claim("crawl", "n0", "n0", "n1", "n1", takeable=4, withheld=frozenset({"crawl-3"}))
    assert [*confirmed(UNDECIDED, once, [leaving, big]).withheld["crawl"]] == ["crawl-3"]


# --- histories ------------------------------------------------------------------------------------

LOOKS = 20
"""Looks after the last arrival, start or end; more than any run lives or any island leaves."""
DRAIN_LOOKS = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """A run of a history."""

    owner: str
    priority: int
    firm: int
    takeable: int
    least: int
    at: int
    """The look at which it is submitted."""
    looks: int
    """The looks for which it is live; 0: to the end of the history."""


@dataclass(slots=True)
class Played:
    """A run in the world, and the state of its islands."""

    claim: RunClaim
    plan: Plan
    leaves: dict[Island, int] = field(default_factory=dict[Island, int])
    """Looks that each island still needs to hand in."""
    live_for: int = 0


PLANS = st.builds(
    Plan,
    owner=st.sampled_from("ab"),
    priority=st.integers(0, 2),
    firm=st.integers(0, 3),
    takeable=st.integers(0, 3),
    least=st.integers(1, 2),
    at=st.integers(0, 12),
    looks=st.sampled_from((0, 0, 4, 10)),
).filter(lambda plan: plan.firm + plan.takeable >= plan.least)


class World:
    """A cluster of unit machines, played look by look."""

    def __init__(
        self,
        nodes: list[int],
        quotas: Mapping[str, float],
        plans: list[Plan],
        seed: int,
        rule: Decide = decide,
    ) -> None:
        self.total = {f"n{number}": {"CPU": float(cpus)} for number, cpus in enumerate(nodes)}
        self.need = Need({"CPU": 1.0}, nodes=frozenset(self.total))
        self.quotas = {owner: {ISLANDS: quota} for owner, quota in quotas.items()}
        self.plans, self.random, self.rule = plans, random.Random(seed), rule
        self.runs: dict[str, Played] = {}
        self.refused: set[str] = set()
        self.look_number, self.last_change = 0, 0
        self.before = UNDECIDED
        self.drains: list[tuple[int, Island]] = []

    def free(self) -> MachineRoom:
        room = MachineRoom.of(self.total, {})
        for each in self.runs.values():
            for island in each.claim.islands:
                room.take(island.holds, island.need)
        return room

    def change(self, played: Played, island: Island, **changes: Any) -> None:
        islands = tuple(
            replace(each, **changes) if each.island == island else each
            for each in played.claim.islands
        )
        played.claim = replace(played.claim, islands=islands)

    def look(self) -> None:
        self._arrive_and_end()
        claims = [each.claim for each in self.runs.values()]
        decision = self.rule(claims, self.quotas, self.total, self.free().nodes)
        decision, self.before = confirmed(self.before, decision, claims), decision
        for run, answer in decision.answers.items():
            assert answer.why
            played = self.runs[run]
            if answer.verdict is QueueVerdict.START:
                played.claim = replace(played.claim, standing=Standing.STARTING)
                for island in played.claim.optional:
                    self.change(played, island, withheld=True)
                self.last_change = self.look_number
            elif answer.verdict is QueueVerdict.REFUSE:
                self.refused.add(run)
                del self.runs[run]
        for run, islands in decision.withheld.items():
            self._withhold(self.runs[run], islands)
        self._drain()
        self._place()
        self._check()
        self.look_number += 1

    def _arrive_and_end(self) -> None:
        for number, plan in enumerate(self.plans):
            if plan.at == self.look_number:
                since_s = float(self.look_number)
                run = claim(
                    f"r{number}", priority=plan.priority, firm=plan.firm, takeable=plan.takeable,
                    since_s=since_s, owner=plan.owner, need=self.need, least=plan.least,
                )  # fmt: skip
                self.runs[run.run] = Played(run, plan)
                self.last_change = self.look_number
        for name, played in [*self.runs.items()]:
            if played.claim.standing is Standing.STARTING and self.random.random() < 0.5:
                played.claim = replace(played.claim, standing=Standing.LIVE)
            elif played.claim.standing is Standing.LIVE:
                played.live_for += 1
                if played.live_for == played.plan.looks:
                    del self.runs[name]
                    self.last_change = self.look_number

    def _withhold(self, played: Played, islands: Mapping[Island, str]) -> None:
        if played.claim.standing is not Standing.LIVE:
            assert not islands
            return
        for each in played.claim.islands:
            withheld = each.island in islands
            assert each.takeable or not withheld
            if withheld and each.holds and not each.withheld:
                played.leaves[each.island] = self.random.randint(1, DRAIN_LOOKS)
                self.drains.append((self.look_number, each.island))
            self.change(played, each.island, withheld=withheld)

    def _drain(self) -> None:
        for played in self.runs.values():
            for island in [*played.leaves]:
                played.leaves[island] -= 1
                if not played.leaves[island]:
                    del played.leaves[island]
                    self.change(played, island, holds=())

    def _place(self) -> None:
        """Give free machines to waiting islands in any order."""
        waiting = [
            (played, each)
            for played in self.runs.values()
            if played.claim.standing is Standing.LIVE
            for each in played.claim.islands
            if not each.holds and not each.withheld
        ]
        self.random.shuffle(waiting)
        room = self.free()
        for played, each in waiting:
            free = [(node,) for node, left in room.nodes.items() if left["CPU"] >= 1]
            if free:
                place: IslandNodes = self.random.choice(free)
                room.take(place, each.need)
                self.change(played, each.island, holds=place)

    def held(self, owner: str) -> int:
        return sum(
            bool(island.holds)
            for each in self.runs.values()
            if each.claim.owner == owner
            for island in each.claim.islands
        )

    def _check(self) -> None:
        for owner, quota in self.quotas.items():
            assert self.held(owner) <= quota[ISLANDS], f"{owner} holds more than its quota"

    def play(self) -> World:
        end = max((plan.at for plan in self.plans), default=0)
        while self.look_number <= max(end, self.last_change) + LOOKS:
            self.look()
        return self

    def state(self) -> object:
        return {name: each.claim for name, each in self.runs.items()}


def starved(world: World) -> str | None:
    """Return the first queued run if it could run without any island of less important runs.

    This is computed without the rule: all machines are alike, so counts are enough.
    """
    queued = [p.claim for p in world.runs.values() if p.claim.standing is Standing.QUEUED]
    if not queued:
        return None
    first = min(queued, key=lambda each: each.rank)
    kept = [
        (each.claim.owner, island)
        for each in world.runs.values()
        for island in each.claim.islands
        if island.holds and (not island.takeable or each.claim.priority >= first.priority)
    ]
    room = sum(node["CPU"] for node in world.total.values()) - len(kept)
    mine = sum(owner == first.owner for owner, _ in kept)
    left = world.quotas.get(first.owner, {ISLANDS: 1e9})[ISLANDS] - mine
    return first.run if len(first.required) <= min(room, left) else None


WORLDS = {
    "nodes": st.lists(st.integers(1, 3), min_size=1, max_size=3),
    "quotas": st.dictionaries(st.sampled_from("ab"), st.integers(1, 6).map(float)),
    "plans": st.lists(PLANS, max_size=5),
    "seed": st.integers(0, 2**16),
}


@settings(max_examples=60, deadline=None)
@given(**WORLDS)
def test_histories(
    nodes: list[int], quotas: Mapping[str, float], plans: list[Plan], seed: int
) -> None:
    world = World(nodes, quotas, plans, seed).play()
    assert starved(world) is None, "a run waits although only less important islands are in its way"
    for name in world.refused:
        plan = plans[int(name[1:])]
        assert (
            len(claim("r", firm=plan.firm, takeable=plan.takeable, least=plan.least).required)
            > (quotas[plan.owner])
        )
    # Nothing changes any more where nothing arrives or ends: no island is taken to and fro.
    before = world.state()
    drains = len(world.drains)
    for _ in range(10):
        world.look()
    assert (world.state(), len(world.drains)) == (before, drains)
    # No machine that an island of its own quota could use stays idle.
    room = sum(node["CPU"] for node in world.free().nodes.values())
    for played in world.runs.values():
        owner = played.claim.owner
        left = world.quotas.get(owner, {ISLANDS: 1e9})[ISLANDS] - world.held(owner)
        if played.claim.standing is Standing.LIVE and room and left:
            waiting = [each.island for each in played.claim.islands if not each.holds]
            assert not waiting, f"{waiting} could have machines"


@settings(max_examples=30, deadline=None)
@given(
    crawlers=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 1)), min_size=1, max_size=3),
    firm=st.integers(1, 4),
    seed=st.integers(0, 2**16),
)
def test_taken_islands_come_back_at_the_end_of_the_run_that_took_them(
    crawlers: list[tuple[int, int]], firm: int, seed: int
) -> None:
    """A full cluster of scavengers, then a more important run that ends after a while."""
    size = max(firm, sum(count for count, _ in crawlers))
    plans = [Plan("a", priority, 0, count, 1, 0, 0) for count, priority in crawlers]
    world = World([size], {}, [*plans, Plan("a", 5, firm, 0, 1, 12, 10)], seed).play()
    taken = len(world.drains)
    assert taken == max(0, firm - (size - sum(count for count, _ in crawlers)))
    assert len({island for _, island in world.drains}) == taken, "none is taken twice"
    for played in world.runs.values():
        assert all(each.holds and not each.withheld for each in played.claim.islands)
    assert f"r{len(crawlers)}" not in world.runs, "the important run has run"


def always_waits(*arguments: Any) -> Decision:
    queued = [each for each in arguments[0] if each.standing is Standing.QUEUED]
    return Decision({each.run: QueueAnswer(QueueVerdict.WAIT, "not now") for each in queued}, {})


def starts_everything(*arguments: Any) -> Decision:
    queued = [each for each in arguments[0] if each.standing is Standing.QUEUED]
    return Decision({each.run: QueueAnswer(QueueVerdict.START, "why not") for each in queued}, {})


def takes_none(*arguments: Any) -> Decision:
    decision = decide(*arguments)
    return replace(decision, withheld={run: {} for run in decision.withheld})


def test_checks_of_histories_find_useless_rules() -> None:
    one = Plan("a", 0, 2, 0, 1, 0, 0)
    assert starved(World([2], {}, [one], 0, always_waits).play()) == "r0"
    with pytest.raises(AssertionError, match="more than its quota"):
        World([4], {"a": 3.0}, [one, one], 0, starts_everything).play()
    crawl, big = Plan("a", 0, 0, 2, 1, 0, 0), Plan("a", 1, 1, 0, 1, 5, 0)
    assert starved(World([2], {}, [crawl, big], 0, takes_none).play()) == "r1"
    assert starved(World([2], {}, [crawl, big], 0).play()) is None
