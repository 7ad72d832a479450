"""Tests of the hosts of an island: orders arrive in order, and the loss of a host is noticed."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import replace
from itertools import islice
from multiprocessing import AuthenticationError
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from cluster.config.schema import IslandGroup
from cluster.fleet.placement import Node, impossible, room, wish
from cluster.hosts import gang
from cluster.hosts.gang import First, Other
from cluster.hosts.held_port import HeldPort
from cluster.hosts.news_threads import NewsThreads
from coordinator.codec import Wire, encode
from coordinator.errors import HostLost
from coordinator.protocol import (
    ContributionId,
    Fragment,
    Incarnation,
    Island,
    Life,
    Publication,
    Version,
)
from islands.exchange import Downlink
from islands.hosts.lead import Lead, agreed
from islands.hosts.orders import (
    CatchUp,
    Coming,
    FateNotice,
    Fetched,
    InnerStep,
    News,
    Order,
    Placed,
    Start,
)
from islands.thread_tasks import Offer

WAIT_S = 60.0
LIFE = Life(Island("a-0"), Incarnation(2))
P, Q = Fragment(0), Fragment(1)


class Hosts:
    """A first host and two others, in threads of one process."""

    def __init__(self) -> None:
        self.lost: list[tuple[int, str]] = []
        self.changed = threading.Condition()
        self.first = First("127.0.0.1", 3, b"secret", self._lost(0))
        self.words: list[Any] = []
        self.first.hear(self.hear)
        self.others = [Other[Order](self.first.meeting, n, self._lost(n)) for n in (1, 2)]
        self.beside: list[Any] = []

    def _lost(self, number: int) -> Callable[[HostLost], None]:
        def lost(error: HostLost) -> None:
            with self.changed:
                self.lost.append((number, str(error)))
                self.changed.notify_all()

        return lost

    def hear(self, word: object) -> None:
        with self.changed:
            self.words.append(word)
            self.changed.notify_all()

    def until(self, what: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(what, WAIT_S)


@pytest.fixture
def hosts() -> Generator[Hosts]:
    made = Hosts()
    yield made
    made.first.entered()
    for each in made.others:
        with suppress(OSError):
            each.close()


def test_orders_arrive_in_order_and_replies_come_back(hosts: Hosts) -> None:
    def beside(said: object) -> None:
        with hosts.changed:
            hosts.beside.append(said)
            hosts.changed.notify_all()

    for each in hosts.others:
        each.start(beside)
        each.say(Placed(LIFE, P, Version(0, 1), mean=False))
    hosts.until(lambda: len(hosts.words) == 2)
    fate = FateNotice(ContributionId(LIFE, P, 0, 1))
    for clock in range(100):
        hosts.first.send(InnerStep(clock))
    hosts.first.send(fate)
    for each in hosts.others:
        assert [*islice(each.orders(), 100)] == [InnerStep(clock) for clock in range(100)]
    hosts.until(lambda: len(hosts.beside) == 2)
    assert hosts.beside == [fate, fate]
    assert hosts.lost == []


def test_lost_host_is_reported_once(hosts: Hosts) -> None:
    for each in hosts.others:
        each.start(lambda said: None)
        each.say(Placed(LIFE, P, Version(0, 1), mean=False))
    hosts.until(lambda: len(hosts.words) == 2)
    hosts.others[1].close()
    hosts.until(lambda: any(number == 0 for number, _ in hosts.lost))
    (why,) = (why for number, why in hosts.lost if number == 0)
    assert (
        "host 2 of this island has ended" in why or "a host of this island cannot be reached" in why
    )


def test_silent_host_counts_as_hung(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped host keeps its connection."""
    monkeypatch.setattr(gang, "SILENCE_S", 2.5)
    monkeypatch.setattr(gang, "BEAT_S", 0.1)
    hosts.others[0].start(lambda said: None)
    hosts.until(lambda: any(number == 0 for number, _ in hosts.lost))
    assert "host 2 of this island has sent nothing for 2.5 s" in dict(hosts.lost)[0]


def test_host_that_stops_reading_is_noticed_during_a_send(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket of such a host is full, and a send to it blocks forever."""
    monkeypatch.setattr(gang, "SILENCE_S", 2.5)
    monkeypatch.setattr(gang, "BEAT_S", 0.1)
    hosts.others[0].start(lambda said: None)
    much = CatchUp({Fragment(p): Version(0, p) for p in range(500_000)})

    def send() -> None:
        with suppress(OSError):  # in the end the connection is closed
            hosts.first.send(much)

    threading.Thread(target=send, daemon=True).start()
    hosts.until(lambda: any(number == 0 for number, _ in hosts.lost))
    assert "host 2 of this island has sent nothing for 2.5 s" in dict(hosts.lost)[0]


def test_host_with_a_wrong_key_is_refused(hosts: Hosts) -> None:
    first = First("127.0.0.1", 2, b"key", hosts.hear)
    with pytest.raises((AuthenticationError, OSError)):
        Other(replace(first.meeting, key=b"else"), 1, print)
    Other[Order](first.meeting, 1, print).close()  # the right one is still let in
    first.entered()


def test_silent_strangers_delay_no_host_and_are_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Port scanners and health checks connect and wait."""
    monkeypatch.setattr(gang, "LET_IN_S", 0.5)
    lost: list[HostLost] = []
    first = First("127.0.0.1", 2, b"key", lost.append)
    strangers = [socket.create_connection(first.meeting.orders, WAIT_S) for _ in range(5)]
    words = queue.SimpleQueue[Any]()
    first.hear(words.put)
    with closing(Other[Order](first.meeting, 1, print)) as other:
        other.say(Placed(LIFE, P, Version(0, 1), mean=False))
        assert words.get(timeout=WAIT_S) == Placed(LIFE, P, Version(0, 1), mean=False)
        assert lost == []
        for each in strangers:
            with each:
                while each.recv(4096):
                    pass  # the first host sends a challenge, then hangs up
        assert lost == [], "no host depends on a stranger"
    first.entered()


def test_host_that_connects_twice_is_admitted_once(hosts: Hosts) -> None:
    first = First("127.0.0.1", 3, b"key", hosts.hear)
    first.entered()
    words = queue.SimpleQueue[Any]()
    first.hear(words.put)
    one = Other[Order](first.meeting, 1, print)
    one.say(Fetched({P: Version(0, 1)}))
    assert words.get(timeout=WAIT_S).versions[P].number == 1
    again, two = (Other[Order](first.meeting, number, print) for number in (1, 2))
    two.say(Fetched({P: Version(0, 2)}))
    assert words.get(timeout=WAIT_S).versions[P].number == 2
    for each in (one, again, two):
        each.close()


def test_message_that_cannot_be_handled_ends_the_island_with_the_reason(hosts: Hosts) -> None:
    def hear(word: object) -> None:
        raise ValueError(f"what is {type(word).__name__}")

    hosts.first.hear(hear)
    for each in hosts.others:
        each.start(lambda said: None)
    hosts.others[0].say(Placed(LIFE, P, Version(0, 1), mean=False))
    hosts.until(lambda: any(number == 0 for number, _ in hosts.lost))
    assert (
        "a message of host 1 could not be read: ValueError('what is Placed')" in dict(hosts.lost)[0]
    )


def test_held_port_is_free_only_for_its_server() -> None:
    held = HeldPort()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", held.port))
    with socket.socket() as server:  # gRPC opens it like this
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", held.port))
        server.listen()
        with socket.create_connection(("127.0.0.1", held.port), WAIT_S):
            server.accept()[0].close()
    held.close()


# --- news -----------------------------------------------------------------------------------------


def published(number: int, fragment: Fragment = P, life: Life = LIFE) -> News:
    merged = (ContributionId(life, fragment, number - 1, number),)
    version, before = Version(0, number), Version(0, number - 1)
    return News(life, Publication(fragment, version, before, merged))


class SlowLink:
    """A link that records the news that it takes, and blocks until `let_go` is set."""

    def __init__(self) -> None:
        self.taken: list[News | FateNotice] = []
        self.begun = threading.Semaphore(0)
        self.let_go = threading.Event()
        self.changed = threading.Condition()

    def take(self, said: News | FateNotice) -> None:
        self.begun.release()
        assert self.let_go.wait(WAIT_S)
        with self.changed:
            self.taken.append(said)
            self.changed.notify_all()

    def until(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.taken) == count, WAIT_S)


def test_slow_link_fetches_only_the_newest_version() -> None:
    link, broke = SlowLink(), list[BaseException]()
    news, before = NewsThreads(link.take, broke.append), threading.active_count()
    for p in (P, Q):
        news.tell(published(1, p))
        assert link.begun.acquire(timeout=WAIT_S)
    for number in range(2, 200):
        for p in (P, Q):
            news.tell(published(number, p))
    assert threading.active_count() <= before + 2, "one thread for each fragment"
    link.let_go.set()
    link.until(4)
    for p in (P, Q):
        first, last = [
            each for each in link.taken if isinstance(each, News) and each.publication.fragment == p
        ]
        assert first == published(1, p)
        assert last.publication.version == Version(0, 199)
        steps = [each.to_step for each in last.publication.merged]
        assert steps == [*range(2, 200)], "what was merged meanwhile is all known"
    assert not broke


def test_news_of_an_old_life_is_dropped_and_late_news_is_ignored() -> None:
    link = SlowLink()
    news = NewsThreads(link.take, print)
    newer = Life(LIFE.island, Incarnation(LIFE.incarnation + 1))
    news.tell(published(1))
    assert link.begun.acquire(timeout=WAIT_S)
    for said in (published(5), published(3, life=newer), published(2, life=newer), published(6)):
        news.tell(said)
    link.let_go.set()
    link.until(2)
    last = link.taken[-1]
    assert isinstance(last, News)
    assert (last.life, last.publication.version) == (newer, Version(0, 3))


def test_fates_do_not_wait_for_news_and_none_is_dropped() -> None:
    link, fates = SlowLink(), list[FateNotice]()
    all_taken = threading.Event()

    def take(said: News | FateNotice) -> None:
        match said:
            case FateNotice():
                fates.append(said)
                if len(fates) == 50:
                    all_taken.set()
            case News():
                link.take(said)

    news = NewsThreads(take, print)
    news.tell(published(1))
    wanted = [FateNotice(ContributionId(LIFE, P, 0, number)) for number in range(50)]
    for said in wanted:
        news.tell(said)
    assert all_taken.wait(WAIT_S)
    assert fates == wanted
    link.let_go.set()
    link.until(1)


def test_exception_of_a_news_handler_is_reported() -> None:
    broke = queue.SimpleQueue[BaseException]()

    def take(said: News | FateNotice) -> None:
        raise ValueError("no room on the device")

    NewsThreads(take, broke.put).tell(published(1))
    assert str(broke.get(timeout=WAIT_S)) == "no room on the device"


# --- waiting on the first host --------------------------------------------------------------------


def an_offer(number: int, *, mean: bool = True) -> Offer:
    """Return the arrays of a version, filled with its number."""
    placed = jnp.full(1, number, jnp.float32)
    return Offer(np.full(1, number, np.float32), placed, placed if mean else None)


def a_lead() -> tuple[Lead[Order], list[tuple[Fragment, Version, Offer]]]:
    """Return the first of three hosts, and the list of versions that all of them have placed."""
    lead, offered = Lead[Order](lambda order: None, 2), list[tuple[Fragment, Version, Offer]]()
    lead.begin(LIFE, lambda p, version, offer: offered.append((p, version, offer)))
    return lead, offered


def test_version_is_offered_with_its_arrays_once_all_hosts_have_it() -> None:
    lead, offered = a_lead()
    one, two = Version(0, 1), Version(0, 2)
    first, second = an_offer(1), an_offer(2)
    lead.placed(LIFE, P, one, first)
    lead.heard(Placed(LIFE, P, one, mean=True))
    lead.placed(LIFE, P, two, second)
    lead.heard(Placed(LIFE, P, two, mean=True))
    assert offered == []
    lead.heard(Placed(LIFE, P, two, mean=True))
    lead.heard(Placed(LIFE, P, one, mean=True))  # it is not needed any more
    lead.placed(LIFE, Q, one, first)
    ((p, version, offer),) = offered
    assert (p, version) == (P, two)
    assert offer is second


@pytest.mark.parametrize("without", [0, 1, 2])
def test_moments_are_adopted_by_all_hosts_or_by_none(without: int) -> None:
    lead, offered = a_lead()
    version = Version(0, 1)
    lead.placed(LIFE, P, version, an_offer(1, mean=without != 0))
    for number in (1, 2):
        lead.heard(Placed(LIFE, P, version, mean=without != number))
    assert [(p, v, offer.mean) for p, v, offer in offered] == [(P, version, None)]


def test_messages_of_the_previous_life_are_ignored() -> None:
    lead, offered = a_lead()
    before = Life(LIFE.island, Incarnation(LIFE.incarnation - 1))
    version = Version(0, 1)
    for _ in range(2):
        lead.heard(Placed(before, P, version, mean=False))
    lead.placed(before, P, version, an_offer(7))
    lead.placed(LIFE, P, version, an_offer(1))
    assert offered == []
    for _ in range(2):
        lead.heard(Placed(LIFE, P, version, mean=True))
    assert [(p, v) for p, v, _ in offered] == [(P, version)]


def test_all_hosts_begin_with_the_newest_versions_of_any_host() -> None:
    told: list[Order] = []
    old, new = Version(0, 3), Version(0, 4)
    flat, step = np.zeros(64, np.float32), np.ones(64, np.float32)
    public = {P: (old, flat), Q: (new, flat)}
    downlink = Downlink(public, lambda p, older, newer: [encode(Wire.F32, step)])

    def then(order: Order) -> None:
        told.append(order)
        if isinstance(order, CatchUp):
            lead.heard(Fetched(order.versions))

    lead = Lead(then, 1)
    lead.heard(Fetched({P: new, Q: old}))
    found = agreed(lead, public, downlink, Start(7, (Q,)))
    assert {p: version for p, (version, _) in found.items()} == {P: new, Q: new}
    np.testing.assert_array_equal(found[P][1], step)
    np.testing.assert_array_equal(found[Q][1], flat)
    assert told == [CatchUp({P: new, Q: new}), Start(7, (Q,))]


def test_island_stays_alive_while_data_reaches_any_of_its_hosts() -> None:
    """The first host waits for the others, and reports their progress to the syncer."""
    lead, came = Lead[Order](lambda order: None, 2), queue.SimpleQueue[bool]()
    found = queue.SimpleQueue[Any]()
    go_on = threading.Semaphore(0)

    def said() -> None:
        came.put(True)
        lead.heard(
            Placed(LIFE, Q, Version(0, 9), mean=False)
        )  # others are handled while this takes long
        assert go_on.acquire(timeout=WAIT_S)

    lead.came = said
    threading.Thread(target=lambda: found.put(lead.fetched()), daemon=True).start()
    for _ in range(5):
        lead.heard(Coming())
        assert came.get(timeout=WAIT_S)
        go_on.release()
    versions = {P: Version(0, 1)}
    lead.heard(Fetched(versions))
    lead.heard(Fetched(versions))
    assert found.get(timeout=WAIT_S) == [versions, versions]
    assert came.empty()


# --- devices --------------------------------------------------------------------------------------


def nodes(*cpus: float) -> list[Node]:
    return [Node(f"n{i}", {"CPU": each}, {}) for i, each in enumerate(cpus)]


@pytest.mark.parametrize(
    ("cpus", "spread", "islands"),
    [
        ((8,), False, 4),
        ((8,), True, 0),
        ((3, 3), False, 3),
        ((3, 1), True, 1),
        ((4, 4, 4), True, 6),
        ((9, 1, 1), True, 2),
    ],
)
def test_room_for_islands_of_two_hosts(cpus: tuple[float, ...], spread: bool, islands: int) -> None:
    group = IslandGroup(hosts=2, spread=spread)
    assert room(group, nodes(*cpus)) == islands
    assert impossible(group, islands, nodes(*cpus)) is None
    assert "2 hosts of 1 CPU" in (impossible(group, islands + 1, nodes(*cpus)) or "")
    assert wish(group) == "2 hosts of 1 CPU" + (", on nodes of their own" if spread else "")
