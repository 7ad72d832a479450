"""Tests of the queue around its rule: the desk, a job's place, quotas, and fleets that give way."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from archipelago.cli.main import main
from cluster.actors.start import NODE_ID
from cluster.config.schema import Config
from cluster.fleet.controller import Fleet
from cluster.fleet.placement import Node
from cluster.fleet.queue_message import (
    OPTIONAL,
    HeldSeat,
    RunMessage,
    is_takeable,
    run_message,
)
from cluster.fleet.withheld import VALID_S, WithheldIslands
from cluster.names import Seat, namespace_of
from cluster.queue.desk import EMPTY_LOOKS, SILENT_S, AnswerMessage, QueueCluster, QueueDesk
from cluster.queue.facts import SOMEWHERE, Applicant, ClusterFacts, queue_facts
from cluster.queue.place import QueueLine, QueuePlace
from cluster.queue.quotas import Quota, Quotas, read_quotas
from coordinator.errors import Unreachable, UserMistake
from coordinator.protocol import Island
from coordinator.queue_claims import QueueVerdict, Standing
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
WHY = "taken by the queue: run big (priority 10) needs the machines"


def asked(
    run: str, count: int, *, priority: int = 0, opportunistic: bool = False, **tables: Any
) -> Config:
    return config_of(
        count,
        islands={"resources": {"CPU": 1.0}, "opportunistic": opportunistic},
        run={"name": run, "owner": "ada", "priority": priority},
        **tables,
    )


def message(
    config: Config, *seats: str, withheld: Mapping[Island, str] | None = None
) -> RunMessage:
    """Return the message of a run whose first islands hold these seats."""
    held = [HeldSeat(Seat(seat), is_placed=True) for seat in seats]
    islands = {
        island: held[number] if number < len(held) else None
        for number, island in enumerate(config.island_names)
    }
    run = config.run.name
    assert run is not None
    return run_message(config, run, "ada", 0.0, islands, withheld or {})


@dataclass
class FakeQueueCluster(QueueCluster):
    """Two nodes with two CPUs each, and the fleets that a test puts there."""

    quotas: Quotas = field(default_factory=Quotas)
    fleets: dict[str, RunMessage | None] = field(default_factory=dict[str, RunMessage | None])
    placed: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    told: list[tuple[str, dict[Island, str]]] = field(
        default_factory=list[tuple[str, dict[Island, str]]]
    )
    broken: bool = False

    def facts(self) -> ClusterFacts:
        if self.broken:
            raise OSError("the head is away")
        nodes = [Node(n, {"CPU": 2.0, "memory": 1e9}, {NODE_ID: n, "zone": n}) for n in ("a", "b")]
        free = {
            node.name: {
                **node.total,
                "CPU": 2.0 - sum(place.count(node.name) for place in self.placed.values()),
            }
            for node in nodes
        }
        return ClusterFacts(self.quotas, nodes, free, dict(self.placed), dict(self.fleets))

    def withhold(self, run: str, islands: Mapping[Island, str]) -> None:
        self.told.append((run, dict(islands)))

    def put(self, config: Config, *nodes: str, **changes: Any) -> None:
        """Have a fleet hold islands on these nodes."""
        run = config.run.name
        assert run is not None
        islands = config.island_names[: len(nodes)]
        self.fleets[run] = message(config, *islands, **changes)
        for island, node in zip(islands, nodes, strict=True):
            self.placed[f"{namespace_of(run)}/{island}"] = (node,)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def told(answer: AnswerMessage) -> tuple[str, str]:
    return answer["verdict"], answer["why"]


# --- the desk -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("why", "kept"), [(OPTIONAL, 0), ("taken by the queue: run big needs the machines", 1)]
)
def test_island_that_a_run_began_without_may_wait_at_ray(why: str, kept: int) -> None:
    """Ray's autoscaler reads of it there. One that was taken is asked back by the queue."""
    config = asked("crawl", 5, opportunistic=True)
    cluster, fifth = FakeQueueCluster(), config.island_names[4]
    cluster.put(config, "a", "a", "b", "b", withheld={fifth: why})
    desk = QueueDesk(cluster)
    for _ in range(3):
        desk.look()
    run, withheld = cluster.told[-1]
    assert (run, len(withheld)) == ("crawl", kept)


def test_run_starts_after_two_looks_that_agree() -> None:
    desk, new = QueueDesk(FakeQueueCluster()), message(asked("new", 2))
    assert told(desk.ask(new, False)) == ("wait", "the queue has not looked at it yet")
    desk.look()
    assert desk.ask(new, False)["verdict"] == "wait"
    desk.look()
    assert told(desk.ask(new, False)) == ("start", "there is room for 2 islands of 1 CPU")
    assert desk.show()["runs"][0]["state"] == "queued", "as of the last look"
    desk.look()
    assert desk.show()["runs"] == [
        {
            "run": "new", "owner": "ada", "priority": 0, "state": "starting", "held": 0,
            "wanted": 2, "withheld": [], "why": "",
        }
    ]  # fmt: skip


def test_admitted_run_keeps_its_room_when_the_actor_dies() -> None:
    """The next process of the actor takes the word of the job, and no other run gets the room."""
    cluster = FakeQueueCluster()
    desk = QueueDesk(cluster)
    first, second = message(asked("first", 3)), message(asked("second", 2))
    desk.ask(second, False)
    assert told(desk.ask(first, True)) == ("start", "it was admitted")
    for _ in range(3):
        desk.look()
    verdict, why = told(desk.ask(second, False))
    assert (verdict, why) == ("wait", "no room for 2 islands of 1 CPU")


def test_job_that_is_silent_has_left_and_others_move_up() -> None:
    clock = Clock()
    desk = QueueDesk(FakeQueueCluster(), clock)
    gone, new = message(asked("gone", 3)), message(asked("new", 4))
    desk.ask(gone, True)
    desk.ask(new, False)
    for _ in range(2):
        desk.look()
    assert desk.ask(new, False)["verdict"] == "wait"
    clock.now_s += SILENT_S + 1
    desk.ask(new, False)
    for _ in range(2):
        desk.look()
    assert [each["run"] for each in desk.show()["runs"]] == ["new"]
    assert desk.ask(new, False)["verdict"] == "start"
    desk.leave("new")
    desk.look()
    assert desk.show()["runs"] == []


def test_queue_is_idle_after_looks_that_find_no_run() -> None:
    cluster = FakeQueueCluster()
    desk = QueueDesk(cluster)
    for _ in range(EMPTY_LOOKS - 1):
        desk.look()
    assert not desk.is_idle
    desk.ask(message(asked("new", 1)), False)
    desk.look()
    desk.leave("new")
    cluster.put(asked("live", 1), "a")
    for _ in range(EMPTY_LOOKS):
        desk.look()
    assert not desk.is_idle, "a run is live"
    cluster.fleets["live"] = None
    cluster.placed.clear()
    for _ in range(EMPTY_LOOKS):
        desk.look()
    assert not desk.is_idle, "its fleet is there, but does not answer"
    cluster.fleets.clear()
    for _ in range(EMPTY_LOOKS):
        assert not desk.is_idle
        desk.look()
    assert desk.is_idle
    desk.ask(message(asked("late", 1)), False)
    assert not desk.is_idle, "a job has asked since the last look"


def test_island_is_taken_by_telling_its_fleet_and_given_back() -> None:
    cluster = FakeQueueCluster()
    desk = QueueDesk(cluster)
    crawl = asked("crawl", 4, opportunistic=True)
    cluster.put(crawl, "a", "a", "b", "b")
    big = message(asked("big", 1, priority=10))
    desk.ask(big, False)
    desk.look()
    assert cluster.told == [], "one look is not enough"
    desk.look()
    last = crawl.island_names[-1]
    assert cluster.told == [("crawl", {last: WHY})]
    assert told(desk.ask(big, False)) == (
        "wait", f"takes {last} of crawl; they hand in their work first"
    )  # fmt: skip
    row = desk.show()["runs"][1]
    assert (row["run"], row["held"], row["withheld"], row["why"]) == ("crawl", 4, [last], WHY)

    # It hands in, the run starts on its machine, and the word is repeated for as long.
    cluster.put(crawl, "a", "a", "b", "b", withheld={last: WHY})
    desk.look()
    cluster.placed.pop(f"{namespace_of('crawl')}/{last}")
    cluster.fleets["crawl"] = message(crawl, *crawl.island_names[:3], withheld={last: WHY})
    for _ in range(2):
        desk.look()
    assert desk.ask(big, False)["verdict"] == "start"
    cluster.put(asked("big", 1, priority=10), "b")
    desk.leave("big")
    desk.look()
    assert cluster.told[-1] == ("crawl", {last: "taken by the queue: there is no room for it yet"})
    assert desk.show()["runs"][1]["why"] == WHY, "the first reason stays"

    # The run ends, and the island may come back.
    cluster.placed.pop(f"{namespace_of('big')}/{asked('big', 1).island_names[0]}")
    del cluster.fleets["big"]
    desk.look()
    assert cluster.told[-1] == ("crawl", {})


def test_quota_of_the_cluster_holds_and_is_shown() -> None:
    cluster = FakeQueueCluster(Quotas(owners={"ada": Quota(islands=2)}))
    desk = QueueDesk(cluster)
    cluster.put(asked("old", 1), "a")
    desk.ask(message(asked("new", 2)), False)
    desk.ask(message(asked("never", 3)), False)
    for _ in range(2):
        desk.look()
    states = {each["run"]: (each["state"], each["why"]) for each in desk.show()["runs"]}
    assert states["new"] == ("queued", "quota of ada: 1 of islands left, 2 needed")
    assert states["never"][0] == "refused"
    assert desk.show()["quotas"] == [{"owner": "ada", "name": "islands", "used": 1.0, "limit": 2.0}]


def test_look_that_fails_is_shown_and_the_next_one_works() -> None:
    cluster = FakeQueueCluster(broken=True)
    desk = QueueDesk(cluster)
    with pytest.raises(OSError, match="away"):
        desk.look()
    desk.trouble("OSError: the head is away")
    assert desk.show()["trouble"] == "OSError: the head is away"
    cluster.broken = False
    desk.look()
    assert desk.show() == {"runs": [], "quotas": [], "trouble": None}


def test_job_gets_the_reason_while_looks_fail() -> None:
    cluster = FakeQueueCluster(broken=True)
    desk, new, admitted = QueueDesk(cluster), message(asked("new", 5)), message(asked("old", 1))
    assert desk.ask(new, False)["why"] == "the queue has not looked at it yet"
    desk.trouble("ValueError: the stored quotas cannot be read: 1 problem; set them again")
    answer = desk.ask(new, False)
    assert answer["verdict"] == QueueVerdict.WAIT.value
    assert answer["why"].startswith("the queue cannot look at the cluster: ValueError: the stored")
    assert desk.ask(admitted, True)["verdict"] == QueueVerdict.START.value
    cluster.broken = False
    desk.leave("old")
    desk.look()
    assert desk.ask(new, False)["why"].startswith("the cluster has no machines for")
    desk.trouble("OSError: the head is away")
    assert desk.ask(new, False)["why"].endswith("OSError: the head is away"), "not an old reason"


# --- facts ----------------------------------------------------------------------------------------


def test_claims_have_the_nodes_that_suit_their_labels_and_sizes() -> None:
    labelled = config_of(1, islands={"label_selector": {"zone": "b"}}, run={"name": "labelled"})
    large = config_of(1, islands={"resources": {"CPU": 8.0}}, run={"name": "large"})
    applicants = {
        name: Applicant(message(config), admitted=False)
        for name, config in (("labelled", labelled), ("large", large))
    }
    facts = queue_facts(FakeQueueCluster().facts(), applicants)
    nodes = {claim.run: claim.islands[0].need.nodes for claim in facts.claims}
    assert nodes == {"labelled": frozenset("b"), "large": frozenset()}


def test_fleet_counts_before_its_job_and_a_silent_fleet_as_starting() -> None:
    cluster = FakeQueueCluster()
    config = asked("run", 2)
    cluster.put(config, "a")
    applicants = {"run": Applicant(message(config), admitted=True)}
    (claim,) = queue_facts(cluster.facts(), applicants).claims
    assert (claim.standing, [each.holds for each in claim.islands]) == (
        Standing.LIVE, [("a",), ()],
    )  # fmt: skip
    cluster.fleets["run"] = None
    (claim,) = queue_facts(cluster.facts(), applicants).claims
    assert claim.standing is Standing.STARTING
    assert queue_facts(cluster.facts(), {}).claims == []
    cluster.placed.clear()
    cluster.fleets["run"] = message(config, "run-0")
    (claim,) = queue_facts(cluster.facts(), {}).claims
    assert claim.islands[0].holds == (SOMEWHERE,), "the fleet has it, Ray's table does not name it"


@pytest.mark.parametrize(("mode", "takeable"), [("decoupled", True), ("diloco", False)])
def test_islands_of_modes_that_need_all_of_them_are_not_taken(mode: str, takeable: bool) -> None:
    config = config_of(islands={"opportunistic": True}, run={"mode": mode})
    assert is_takeable(config, config.islands[0]) is takeable


# --- quotas ---------------------------------------------------------------------------------------


def test_file_of_quotas_names_owners_and_a_default(tmp_path: Path) -> None:
    path = tmp_path / "quotas.toml"
    path.write_text("[default]\nislands = 4\n[owners.ada]\nresources = {GPU = 16}\n")
    quotas = read_quotas(path)
    assert quotas.of("ada") == {"GPU": 16.0}
    assert quotas.of("bob") == {"islands": 4.0}
    assert Quotas().of("bob") == {}
    assert Quotas.model_validate_json(quotas.model_dump_json()) == quotas


def test_wrong_file_of_quotas_gives_all_problems_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "quotas.toml"
    path.write_text("[defaults]\nislands = 4\n[owners.ada]\nisland = 1\nislands = -1\n")
    with pytest.raises(SystemExit) as ended:
        main(["queue", "--address", "127.0.0.1:1", "--set", str(path)])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "3 problems" in said
    assert "defaults: is not known; did you mean default?" in said
    assert "owners.ada.island: is not known; did you mean islands?" in said
    assert "owners.ada.islands: must be at least 0, given -1" in said
    with pytest.raises(UserMistake, match="cannot be read"):
        read_quotas(tmp_path / "none.toml")


def test_queue_without_a_cluster_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["queue"])
    assert ended.value.code == 2
    assert "no cluster: give --address HOST:6379" in capsys.readouterr().err


# --- the place of a job ---------------------------------------------------------------------------


class Line(QueueLine):
    """A queue that gives these answers in turn; None: it does not answer. The last one stays."""

    def __init__(self, *answers: tuple[QueueVerdict, str] | None) -> None:
        self.answers, self.asked, self.left = [*answers], list[bool](), list[str]()
        self.kept = 0

    def ask(self, message: RunMessage, admitted: bool) -> AnswerMessage:
        self.asked.append(admitted)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise Unreachable("ActorDiedError")
        return AnswerMessage(verdict=answer[0].value, why=answer[1])

    def leave(self, run: str) -> None:
        self.left.append(run)


def nothing() -> None:
    """Find no reason to stop."""


def test_job_waits_and_prints_each_new_reason_once() -> None:
    full = (QueueVerdict.WAIT, "no room")
    line, said = Line(full, full, None, full, (QueueVerdict.START, "there is room")), list[str]()
    with QueuePlace(asked("new", 1), "new", line, 0.0) as place:
        place.wait(said.append, nothing)
        assert line.left == []
    assert said == [
        "queued: no room", "queued: the queue does not answer (ActorDiedError)", "queued: no room",
    ]  # fmt: skip
    assert line.asked[:5] == [False] * 5
    assert set(line.asked[5:]) <= {True}, "it repeats that it is about to start"
    assert line.left == ["new"]


def test_job_that_can_never_start_is_refused_and_leaves() -> None:
    line = Line((QueueVerdict.REFUSE, "the quota of ada can never cover it"))
    refused = pytest.raises(UserMistake, match="can never cover it; ask for fewer islands")
    with refused, QueuePlace(asked("new", 1), "new", line, 0.0) as place:
        place.wait(print, nothing)
    assert line.left == ["new"]


def test_job_that_is_stopped_leaves_the_queue() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    line = Line((QueueVerdict.WAIT, "no room"))
    with pytest.raises(KeyboardInterrupt), QueuePlace(asked("new", 1), "new", line) as place:
        place.wait(print, stop)
    assert line.left == ["new"]


def test_run_starts_without_the_islands_that_it_does_not_require() -> None:
    config = asked("crawl", 3, opportunistic=True, sync={"quorum": 2})
    place = QueuePlace(config, "crawl", Line((QueueVerdict.START, "")))
    assert place.optional == {config.island_names[2]: OPTIONAL}
    assert QueuePlace(asked("firm", 3), "firm", Line((QueueVerdict.START, ""))).optional == {}


# --- fleets ---------------------------------------------------------------------------------------


def played(
    tmp_path: Path, *looks: Callable[[Any], None] | None, opportunistic: bool = True
) -> FakeCluster:
    """Keep a run of two islands; each of these is called at one look after both are live."""
    config = config_of(islands={"opportunistic": opportunistic})
    cluster = FakeCluster(config)
    fleet = fleet_of(config, cluster, tmp_path / "run")
    both = seen(eu_0="live", eu_1="live")

    def at(act: Callable[[Any], None] | None) -> Callable[[], Any]:
        def look() -> Any:
            if act is not None:
                act(fleet)
            draining = any(arguments[0] == B for _, arguments in cluster.heard("drain"))
            return seen(eu_0="live", eu_1="left")() if draining else both()

        return look

    cluster.script = [seen(), seen(), both, both, *map(at, looks), FINISHED]
    fleet.keep()
    assert fleet.outcome is not None
    assert fleet.outcome.error is None
    assert fleet.queue_report()["islands"] == [], "a run that is over wants nothing"
    assert (cluster.actors, cluster.places) == ({}, {}), "nothing is left"
    return cluster


def test_withheld_island_hands_in_and_comes_back_when_the_queue_grants_it(tmp_path: Path) -> None:
    reports: list[RunMessage] = []

    def withhold(fleet: Any) -> None:
        reports.append(fleet.queue_report())
        fleet.withhold({B: WHY})

    def grant(fleet: Any) -> None:
        reports.append(fleet.queue_report())
        fleet.withhold({})

    cluster = played(tmp_path, withhold, *[None] * 5, grant, *[None] * 5)
    assert [arguments for _, arguments in cluster.heard("drain")] == [(B, WHY)]
    assert cluster.reserved_once.count(Seat("eu-0")) == 1
    assert cluster.reserved_once.count(Seat("eu-1")) == 2, "only once it is granted"
    before, during = ({each["island"]: each for each in r["islands"]} for r in reports)
    assert (before[B]["seat"], before[B]["held"], before[B]["withheld"]) == ("eu-1", True, None)
    assert (during[B]["seat"], during[B]["held"], during[B]["withheld"]) == (None, False, WHY)
    assert during[A]["held"], "the other island goes on"


def test_withheld_island_is_not_placed_in_between(tmp_path: Path) -> None:
    cluster = played(tmp_path, lambda fleet: fleet.withhold({B: WHY}), *[None] * 20)
    assert cluster.reserved_once.count(Seat("eu-1")) == 1


def test_island_of_a_firm_group_is_never_withheld(tmp_path: Path) -> None:
    def withhold(fleet: Any) -> None:
        fleet.withhold({B: WHY})
        assert all(each["withheld"] is None for each in fleet.queue_report()["islands"])

    cluster = played(tmp_path, withhold, *[None] * 5, opportunistic=False)
    assert cluster.heard("drain") == []


def test_islands_come_back_if_the_queue_is_silent() -> None:
    withheld = WithheldIslands(config_of(islands={"opportunistic": True}))
    withheld.tell({B: WHY}, 100.0)
    withheld.tell({B: "another reason"}, 130.0)
    (notice,) = withheld.notices(130.0 + VALID_S).values()
    assert (notice.why, notice.by_s) == (WHY, 160.0), "the first reason and time stay"
    assert withheld.notices(131.0 + VALID_S) == {}


def test_call_of_the_queue_counts_more_than_the_memory() -> None:
    withheld = WithheldIslands(config_of(islands={"opportunistic": True}))
    withheld.restore({A: WHY}, 100.0)
    assert withheld.reasons == {A: WHY}
    assert withheld.notices(101.0 + VALID_S) == {}, "the queue is silent"
    withheld.tell({B: WHY}, 200.0)
    withheld.restore({A: WHY}, 201.0)
    assert withheld.reasons == {B: WHY}


def test_fleet_keeps_its_rank_by_the_time_of_the_submission(tmp_path: Path) -> None:
    """Ray gives each process of a fleet the same arguments."""
    config = config_of()
    place = QueuePlace(config, "run", Line((QueueVerdict.START, "")))
    fleets = [
        Fleet(
            config, tmp_path / "run", "there", FakeCluster(config), detached=True, auth="disabled",
            token="a", resumes=False, since_s=place.since_s,
        )
        for _ in range(2)
    ]  # fmt: skip
    assert {fleet.queue_report()["since_s"] for fleet in fleets} == {place.since_s}


def test_report_can_be_sent_as_json() -> None:
    report = message(asked("run", 2), "run-0")
    assert json.loads(json.dumps(report)) == report
