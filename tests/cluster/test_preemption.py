"""Tests of preemptions: the rule, the watch in a process, the clouds' notices, and the fleet."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cluster.config.fault_kinds import FaultKind
from cluster.config.modes import misfit
from cluster.config.schema import FailurePolicy, FaultsConfig, Harm, PreemptionConfig
from cluster.fleet.draining_nodes import DrainRequests
from cluster.fleet.inbox import ON_PURPOSE
from cluster.fleet.preemption import DRAINING, deadlines
from cluster.fleet.reconcile import Action, Hold, Holding, Notice, reconcile
from cluster.names import Seat
from cluster.status import IslandState
from cluster.view import View
from cluster.workers.cloud_notices import MachineNotice, NoticeCloud, ask, notice_in
from cluster.workers.notice_watch import SIGTERM_WHY, NoticeWatch
from coordinator.errors import UserMistake
from tests.cluster.test_controller import (
    FINISHED,
    A,
    B,
    FakeCluster,
    at_once,
    config_of,
    fleet_of,
    seen,
)

assert at_once, "a fixture that is used by its name alone"
POLICY = FailurePolicy()
NOTICE = Notice("preempted: SIGTERM of its process", 30.0)


def decided(hold: Hold, learner: IslandState, now_s: float, *, wanted: bool = True) -> list[Action]:
    actual = {A: Holding(A, hold, 0.0, learner)}
    return reconcile([A] if wanted else [], actual, now_s, POLICY, {A: NOTICE})


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize(
    ("hold", "learner", "now_s", "deed"),
    [
        (Hold.PLACED, "starting", 0.0, "give back"),
        (Hold.RUNNING, "starting", 0.0, "give back"),
        (Hold.RUNNING, "lost", 0.0, "give back"),
        (Hold.RUNNING, "joining", 0.0, "drain"),
        (Hold.RUNNING, "live", 0.0, "drain"),
        (Hold.DRAINING, "draining", 29.0, None),
        (Hold.DRAINING, "draining", 31.0, "give back"),
        (Hold.DRAINING, "left", 1.0, "give back"),
    ],
)
def test_preempted_island_hands_in_and_leaves_within_its_seconds(
    hold: Hold, learner: IslandState, now_s: float, deed: str | None, wanted: bool
) -> None:
    actions = decided(hold, learner, now_s, wanted=wanted)
    assert [action.kind.value for action in actions] == ([] if deed is None else [deed])
    if learner != "left":
        assert all(action.why.startswith(NOTICE.why) for action in actions)


def test_waiting_island_keeps_its_place_in_the_queue() -> None:
    assert decided(Hold.WAITING, "starting", 0.0) == []


def test_only_the_island_with_the_notice_is_drained() -> None:
    actual = {each: Holding(each, Hold.RUNNING, 0.0, "live") for each in (A, B)}
    actions = reconcile([A, B], actual, 0.0, POLICY, {B: NOTICE})
    assert [(each.kind.value, each.island, each.why) for each in actions] == [
        ("drain", B, NOTICE.why)
    ]


def test_deadline_of_a_node_is_the_first_one_seen() -> None:
    first = deadlines({}, {"a": 30.0, "b": None, "c": -4.0}, 100.0, 60.0)
    assert first == {"a": 130.0, "b": 160.0, "c": 100.0}
    assert deadlines(first, {"a": 29.0, "b": None}, 102.0, 60.0) == {"a": 130.0, "b": 160.0}


# --- the clouds' notices --------------------------------------------------------------------------

AZURE = (
    '{"DocumentIncarnation": 3, "Events": [{"EventId": "1", "EventType": "%s", '
    '"ResourceType": "VirtualMachine", "Resources": ["pool_0", "pool_7"], '
    '"EventStatus": "Scheduled", "NotBefore": "%s"}]}'
)
AT, AT_UNIX_S = "Mon, 19 Sep 2022 18:29:47 GMT", 1663612187.0
NOT_PREEMPTED: list[tuple[NoticeCloud, int, str]] = [
    (NoticeCloud.GCE, 200, "FALSE"),
    (NoticeCloud.AWS, 404, ""),
    (NoticeCloud.AZURE, 200, '{"DocumentIncarnation": 0, "Events": []}'),
    (NoticeCloud.AZURE, 200, AZURE % ("Freeze", AT)),
    (NoticeCloud.AZURE, 200, AZURE.replace("pool_7", "pool_8") % ("Preempt", AT)),
]
PREEMPTED: list[tuple[NoticeCloud, str, float]] = [
    (NoticeCloud.GCE, "TRUE\n", 30.0),
    (NoticeCloud.AWS, '{"action": "terminate", "time": "2022-09-18T08:22:00Z"}', 120.0),
    (NoticeCloud.AZURE, AZURE % ("Preempt", AT), 20.0),
    (NoticeCloud.AZURE, AZURE % ("Terminate", ""), 30.0),
]
NOW_S = {NoticeCloud.GCE: 0.0, NoticeCloud.AWS: 1663489200.0, NoticeCloud.AZURE: AT_UNIX_S - 20.0}


@pytest.mark.parametrize(("cloud", "status", "body"), NOT_PREEMPTED)
def test_machine_that_stays_has_no_notice(cloud: NoticeCloud, status: int, body: str) -> None:
    assert notice_in(cloud, status, body, "pool_7", 0.0) is None


@pytest.mark.parametrize(("cloud", "body", "within_s"), PREEMPTED)
def test_notice_names_the_seconds_that_are_left(
    cloud: NoticeCloud, body: str, within_s: float
) -> None:
    notice = notice_in(cloud, 200, body, "pool_7", NOW_S[cloud])
    assert notice is not None
    assert notice.within_s == within_s
    assert notice.why.startswith(f"preempted: notice of {cloud}")


@pytest.mark.parametrize(
    ("cloud", "body"), [(NoticeCloud.GCE, "<html>"), (NoticeCloud.AZURE, "[]")]
)
def test_answer_in_another_format_is_refused(cloud: NoticeCloud, body: str) -> None:
    with pytest.raises(ValueError, match=r"preempted is|no list of events"):
        notice_in(cloud, 200, body, "pool_7", 0.0)


@contextmanager
def metadata_server(
    answer: Callable[[str, str, Mapping[str, str]], tuple[int, str]],
) -> Generator[str]:
    """Serve a cloud's metadata on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self.command, self.path, dict(self.headers))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        do_PUT = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def as_the_cloud_does(method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
    """Answer like all three clouds: each refuses a request without its own header."""
    lower = {name.lower(): value for name, value in headers.items()}
    if path == "/computeMetadata/v1/instance/preempted":
        return (200, "TRUE") if lower.get("metadata-flavor") == "Google" else (403, "")
    if path == "/latest/api/token":
        known = method == "PUT" and lower.get("x-aws-ec2-metadata-token-ttl-seconds")
        return (200, "secret") if known else (405, "")
    if path == "/latest/meta-data/spot/instance-action":
        known = lower.get("x-aws-ec2-metadata-token") == "secret"
        return (200, PREEMPTED[1][1]) if known else (401, "")
    if lower.get("metadata") != "true":
        return 400, ""
    if path.startswith("/metadata/instance/compute/name?"):
        return 200, "pool_7"
    return 200, AZURE % ("Preempt", AT)


@pytest.mark.parametrize("cloud", [*NoticeCloud])
def test_metadata_server_is_asked_as_its_cloud_requires(cloud: NoticeCloud) -> None:
    with metadata_server(as_the_cloud_does) as address:
        notice = ask(cloud, address + "/", NOW_S[cloud])
    assert notice is not None
    assert notice.within_s in (20.0, 30.0, 120.0)


# --- the watch in a process -----------------------------------------------------------------------


def faults(*, drain_s: float = 60.0, every_s: float = 0.001) -> FaultsConfig:
    return FaultsConfig(
        policy=FailurePolicy(drain_s=drain_s),
        preemption=PreemptionConfig(cloud="gce", every_s=every_s),
    )


class Ends(list[str]):
    """The reasons for which a process was ended."""

    def __call__(self, why: str) -> None:
        self.append(why)


def test_notice_is_reported_once_although_the_server_failed_before() -> None:
    answers: list[MachineNotice | Exception | None] = [
        OSError("timed out"),
        ValueError("<html>"),
        None,
        MachineNotice("preempted: notice of gce", 30.0),
    ]

    def poll(cloud: NoticeCloud, address: str | None, now_s: float) -> MachineNotice | None:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    told: list[tuple[str, float, bool]] = []
    ends = Ends()
    watch = NoticeWatch(faults(), lambda *notice: told.append(notice), ends, poll)
    watch.await_cloud()
    assert (told, answers, ends) == ([("preempted: notice of gce", 30.0, True)], [], [])


@pytest.mark.parametrize(
    ("signals", "why"), [(1, "nothing has ended it"), (2, "it was sent SIGTERM twice")]
)
def test_process_that_nothing_ends_ends_itself(signals: int, why: str) -> None:
    told = queue.SimpleQueue[tuple[str, float, bool]]()
    ends = Ends()
    watch = NoticeWatch(
        faults(drain_s=0.01 if signals == 1 else 60.0), lambda *notice: told.put(notice), ends
    )
    for _ in range(signals):
        watch.signalled()
    watch.await_signals()
    assert told.get(timeout=10.0)[::2] == (SIGTERM_WHY, False)
    assert len(ends) == 1
    assert why in ends[0]


# --- the fleet ------------------------------------------------------------------------------------


def played(
    tmp_path: Path, during: Callable[[FakeCluster, Any], None], *after: Callable[[], View]
) -> FakeCluster:
    """Keep a run of two islands in which this happens once both are live."""
    cluster = FakeCluster(config_of())
    fleet = fleet_of(cluster.config, cluster, tmp_path / "run")

    def live() -> View:
        during(cluster, fleet)
        return seen(eu_0="live", eu_1="live")()

    both = seen(eu_0="live", eu_1="live")
    cluster.script = [seen(), seen(), both, both, live, *after, FINISHED]
    fleet.keep()
    assert fleet.outcome is not None
    assert fleet.outcome.error is None
    assert (cluster.actors, cluster.places) == ({}, {}), "nothing is left"
    return cluster


LEFT = [seen(eu_0="live", eu_1="draining"), seen(eu_0="live", eu_1="left")]
BACK = [seen(eu_0="live", eu_1="left")] * 4


def test_sigterm_drains_the_island_and_starts_it_again(tmp_path: Path) -> None:
    def sigterm(cluster: FakeCluster, fleet: Any) -> None:
        fleet.notice(Seat("eu-1"), SIGTERM_WHY, 60.0, None)

    cluster = played(tmp_path, sigterm, *LEFT, *BACK)
    assert [told for _, told in cluster.heard("drain")] == [(B, SIGTERM_WHY)]
    assert cluster.reserved_once.count(Seat("eu-1")) == 2, "it has devices again"
    assert cluster.reserved_once.count(Seat("eu-0")) == 1, "the other island goes on"
    assert cluster.drains == {}, "the node stays"


def test_island_on_a_draining_node_leaves_it(tmp_path: Path) -> None:
    drains: list[dict[str, float | None]] = []

    def begins(cluster: FakeCluster, fleet: Any) -> None:
        cluster.drains["node of eu-1"] = 30.0
        drains.append(cluster.drains)

    def ends() -> View:
        drains[0].clear()
        return BACK[0]()

    cluster = played(tmp_path, begins, *LEFT, ends, *BACK)
    assert [told for _, told in cluster.heard("drain")] == [(B, DRAINING)]
    assert cluster.reserved_once.count(Seat("eu-1")) == 2


def test_notice_of_a_cloud_drains_the_node_too(tmp_path: Path) -> None:
    def announced(cluster: FakeCluster, fleet: Any) -> None:
        fleet.notice(Seat("eu-1"), "preempted: notice of gce", 30.0, "node-7")

    cluster = played(tmp_path, announced, *LEFT, *BACK)
    assert [told for _, told in cluster.heard("drain")] == [(B, "preempted: notice of gce")]
    assert [*cluster.drains] == ["node-7"], "Ray places nothing there any more"
    assert cluster.reserved_once.count(Seat("eu-1")) == 2


@pytest.mark.parametrize(("refused", "reserved"), [(1, 2), (1000, 1)])
def test_node_is_drained_at_a_later_look_and_its_island_waits_for_that(
    tmp_path: Path, refused: int, reserved: int
) -> None:
    """A control service that is away, or refuses, must not put the island back on the node."""

    def announced(cluster: FakeCluster, fleet: Any) -> None:
        cluster.refused_drains = refused
        fleet.notice(Seat("eu-1"), "preempted: notice of gce", 30.0, "node-7")

    cluster = played(tmp_path, announced, *LEFT, *BACK)
    assert [told for _, told in cluster.heard("drain")] == [(B, "preempted: notice of gce")]
    assert ("node-7" in cluster.drains) is (reserved == 2)
    assert cluster.refused_drains < refused, "Ray was asked at each look"
    assert cluster.reserved_once.count(Seat("eu-1")) == reserved


def test_request_to_drain_a_node_never_blocks_and_is_repeated_until_ray_accepts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    away = RuntimeError("Timed out while waiting for GCS")
    answers: list[str | Exception] = [away, away, "the node is busy", ""]
    sent: list[tuple[str, str, float]] = []
    waiting: list[Callable[[], None]] = []

    def send(node: str, why: str, left_s: float) -> str:
        sent.append((node, why, left_s))
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    requests = DrainRequests(send, waiting.append)
    for left_s in (40.0, 30.0, 20.0, 10.0):
        assert not requests.ask("node-7", "preempted", left_s)
        assert not requests.ask("node-7", "preempted", left_s - 1.0), "one attempt at a time"
        (attempt,) = waiting
        waiting.clear()
        attempt()
    assert requests.ask("node-7", "preempted", 5.0)
    assert waiting == []
    assert sent == [("node-7", "preempted", left_s) for left_s in (40.0, 30.0, 20.0, 10.0)]
    texts = [record.getMessage() for record in caplog.records]
    assert ["Timed out" in text for text in texts] == [True, False], "each failure is logged once"
    assert texts[1].endswith("is asked again: the node is busy")


def test_island_on_the_node_of_the_fleet_is_not_placed_there_again(tmp_path: Path) -> None:
    def announced(cluster: FakeCluster, fleet: Any) -> None:
        fleet.notice(Seat("eu-1"), "preempted: notice of gce", 30.0, cluster.here())

    cluster = played(tmp_path, announced, *LEFT, *BACK)
    assert len(cluster.heard("drain")) == 1
    assert cluster.drains == {}, "the fleet would end with the node"
    assert cluster.reserved_once.count(Seat("eu-1")) == 1


@pytest.mark.parametrize(("for_s", "reserved"), [(1000.0, 1), (1e-6, 2)])
def test_preemption_on_purpose_keeps_the_machines_for_its_seconds(
    tmp_path: Path, for_s: float, reserved: int
) -> None:
    fault = Harm(kind=FaultKind.PREEMPT, island=B, for_s=for_s)
    cluster = played(tmp_path, lambda _, fleet: fleet.harm(fault), *LEFT, *BACK)
    assert [told for _, told in cluster.heard("drain")] == [(B, ON_PURPOSE)]
    assert cluster.drains == {}, "the node stays"
    assert cluster.reserved_once.count(Seat("eu-1")) == reserved


def test_preemption_on_purpose_is_refused_where_notices_are_ignored() -> None:
    ring = config_of(run={"mode": "data-parallel"})
    why = misfit(ring, Harm(kind=FaultKind.PREEMPT, island=B))
    assert why is not None
    assert "ignores the notice" in why


def test_notice_of_a_seat_without_an_island_changes_nothing(tmp_path: Path) -> None:
    def stray(cluster: FakeCluster, fleet: Any) -> None:
        fleet.notice(Seat("eu+9"), SIGTERM_WHY, 60.0, None)

    cluster = played(tmp_path, stray, *BACK)
    assert cluster.heard("drain") == []


def test_address_must_be_one_of_http() -> None:
    with pytest.raises(UserMistake, match="address"):
        config_of(faults={"preemption": {"cloud": "gce", "address": "metadata"}})
