"""Tests of the syncer's shell in an in-memory world: actions, their order, and failures."""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cluster.actors.syncer.records import SyncerRecords
from cluster.actors.syncer.snapshot_writer import SnapshotWriter
from cluster.failures import Answered, Failure, Reason
from cluster.storage.folder import Folder
from cluster.storage.tape import Tape
from cluster.syncer.clock import Clock
from cluster.syncer.durability_text import durability_text, fragment_subject
from cluster.syncer.journal import Notes
from cluster.syncer.measures import Measures
from cluster.syncer.ports import Ports
from cluster.syncer.shell import Syncer
from coordinator.codec import Wire
from coordinator.membership import Status
from coordinator.protocol import (
    Answer,
    Arrived,
    Contribution,
    Discard,
    Effect,
    Event,
    Fate,
    Fragment,
    Granted,
    Island,
    Join,
    LeaseGranted,
    LeaseWanted,
    Life,
    Merge,
    Merged,
    Missing,
    Progress,
    Publish,
    Reached,
    Refused,
    Report,
    Store,
    Version,
    Vitals,
    Void,
)
from coordinator.state import Phase, Rule, State, initial, validate
from coordinator.tape import replay
from tests.coordinator.given import LAYOUT, contribution, rule

WAIT_S = 20.0
"""A timeout in seconds for operations that take milliseconds."""
A, B = Island("a"), Island("b")
QUIET = Vitals(loss=1.0)


@dataclass
class World(Ports):
    """Learners, a shard and a disk that follow the test's script.

    `log` records every action in order. `broken` maps an action to the exception of its next call.
    """

    log: list[str] = field(default_factory=list[str])
    tape: list[tuple[float, Event]] = field(default_factory=list[tuple[float, Event]])
    broken: dict[str, Exception] = field(default_factory=dict[str, Exception])
    steps: dict[Life, int] = field(default_factory=dict[Life, int])
    handed_in: dict[tuple[Life, Fragment], int] = field(
        default_factory=dict[tuple[Life, Fragment], int]
    )
    deaths: dict[Life, asyncio.Future[str]] = field(default_factory=dict[Life, asyncio.Future[str]])
    norm: float = 1.0
    shard_lives: bool = True
    durable: bool = True
    refused: dict[Fragment, str] = field(default_factory=dict[Fragment, str])
    slow: bool = False
    tells: Reached | None = None
    losses: list[tuple[Life | None, Failure]] = field(
        default_factory=list[tuple[Life | None, Failure]]
    )
    failures: dict[Life, Failure | str] = field(default_factory=dict[Life, "Failure | str"])
    flushes: list[Future[None]] = field(default_factory=list["Future[None]"])
    slowly: asyncio.Event | None = None  # hand-ins wait for this event
    ends_first: bool = False  # the watch over a learner that leaves ends before its answer arrives

    def did(self, what: str, *more: object) -> None:
        self.log.append(" ".join(map(str, (what, *more))))
        if what in self.broken:
            raise self.broken.pop(what)

    # the tape

    def append(self, now_s: float, event: Event, effects: Sequence[Effect]) -> None:
        self.did("write", type(event).__name__)
        self.tape.append((now_s, event))

    def flush(self) -> Future[None] | None:
        self.did("flush")
        if not self.slow:
            return None
        self.flushes.append(Future())
        return self.flushes[-1]

    # the ports

    async def watch(self, life: Life) -> str:
        self.did("watch", life)
        self.deaths[life] = asyncio.get_running_loop().create_future()
        return await self.deaths[life]

    async def collect(self, life: Life, fragment: Fragment) -> Contribution | Failure | str | None:
        self.did("collect", life, fragment)
        if (failure := self.failures.get(life)) is not None:
            return failure
        start, stop = self.handed_in.get((life, fragment), 0), self.steps[life]
        if start == stop:
            return None
        self.handed_in[life, fragment] = stop
        if self.slowly is not None:
            await self.slowly.wait()
        return contribution(life, fragment, (start, stop), norm=self.norm)

    async def merge(self, order: Merge) -> Merged | None:
        self.did("merge", order.fragment, order.version)
        return Merged(order.fragment, order.version) if self.shard_lives else None

    async def store(self, order: Store) -> bool | str | None:
        self.did("store", order.fragment, order.version)
        return self.refused.get(order.fragment, self.durable)

    async def publish(self, order: Publish) -> Answered:
        self.did("publish", order.fragment, order.version)
        losses, self.losses = self.losses, []
        reached, self.tells = self.tells, None
        return Answered(losses, reached)

    async def discard(self, order: Discard) -> None:
        self.did("discard", order.contribution.id, order.fate)

    async def cease(self, order: Void) -> None:
        self.did("cease", order.life)

    async def park(self, life: Life) -> None:
        self.did("park", life)

    async def leave(self, life: Life) -> Progress | None:
        self.did("leave", life)
        if self.ends_first:  # its watch ends before its answer has arrived
            self.deaths[life].set_result("its learner has ended this life")
            await asyncio.wait({self.deaths[life]})
        return progress(life, self.steps[life])

    async def break_down(self, life: Life, why: str) -> None:
        self.did("break down", life)


def progress(life: Life, steps: int) -> Progress:
    """Return the progress of a life that reads one window a step.

    The lease is the one that the life reads if none came back before it joined.
    """
    return contribution(life, span=(0, steps)).progress


class Stage:
    """A syncer in the in-memory world, with a clock that the test moves."""

    def __init__(self, **rules: Any) -> None:
        self.world, self.now_s = World(), 0.0
        self.failed: list[BaseException] = []
        self.rule: Rule = rule(**rules)
        sizes = [10] * self.rule.schedule.fragments
        self.syncer = Syncer(
            self.rule,
            initial(self.rule),
            self.world,
            now_s=lambda: self.now_s,
            tape=self.world,
            measures=Measures("run", {A: "g", B: "g"}, sizes, Wire.F32, now_s=0.0),
            failed=self.failed.append,
        )

    @property
    def state(self) -> State:
        return self.syncer.state

    @property
    def not_durable(self) -> str:
        status = self.syncer.measures.status(self.rule, self.state, self.now_s)
        assert status["figures"] is not None
        return status["figures"]["not_durable"]

    def joins(self, island: Island) -> Life:
        granted = self.syncer.join(Join(island, "g", LAYOUT))
        assert isinstance(granted, Granted)
        self.world.steps[granted.life] = 0
        return granted.life

    def steps(self, life: Life, steps: int) -> Answer | Void:
        self.world.steps[life] = steps
        return self.syncer.report(Report(life, progress(life, steps), step_s=1.0), QUIET)

    async def comes_to(self, what: str) -> None:
        """Wait until this is the last action in the log."""
        await until(lambda: self.world.log[-1:] == [what])

    async def calms_down(self) -> None:
        """Wait until the syncer only watches lives."""
        watching = self.world.deaths.values()
        await until(lambda: len(self.syncer._tasks) == sum(not life.done() for life in watching))


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not happened():
            await asyncio.sleep(0)


def plays(scene: Callable[[Stage], Awaitable[None]], **rules: Any) -> Stage:
    """Run a scene on an event loop of its own, and wait until no other task is left."""

    async def play() -> Stage:
        stage = Stage(**rules)
        await scene(stage)
        stage.syncer.close()
        await until(lambda: len(asyncio.all_tasks()) == 1)
        return stage

    return asyncio.run(play())


# --- answers to a request for a hand-in -----------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        (None, False),
        ("ObjectLostError: lost on its way", True),
        (Failure(Reason.STORE, "the object store had no room", ends=False), True),
    ],
)
def test_lost_hand_in_is_distinguished_from_a_missing_one(
    said: Failure | str | None, lost: bool
) -> None:
    async def scene(stage: Stage) -> None:
        a = stage.joins(A)
        await stage.comes_to("watch a#1")
        stage.world.handed_in[a, Fragment(0)] = 4
        if said is not None:
            stage.world.failures[a] = said
        stage.steps(a, 4)
        await stage.calms_down()

    stage = plays(scene, every=4)
    (missing,) = (event for _, event in stage.world.tape if isinstance(event, Missing))
    assert missing.lost == lost


# --- the order of actions -------------------------------------------------------------------------


def test_version_is_logged_and_stored_before_it_is_published() -> None:
    async def scene(stage: Stage) -> None:
        a = stage.joins(A)
        await stage.comes_to("watch a#1")
        stage.world.log.clear()
        stage.steps(a, 4)
        await stage.comes_to("publish 0 v1")

    stage = plays(scene, every=4)
    assert stage.world.log == [
        "write Report",
        "collect a#1 0",
        "write Arrived",
        "merge 0 v1",
        "write Merged",
        "store 0 v1",
        "write Stored",
        "flush",
        "publish 0 v1",
    ]


def test_slow_flush_delays_effects_in_order_but_not_reports() -> None:
    async def scene(stage: Stage) -> None:
        world = stage.world
        a = stage.joins(A)
        await stage.comes_to("watch a#1")
        world.log.clear()
        world.slow = True
        b = stage.joins(B)
        said = asyncio.create_task(stage.syncer.durable())
        assert stage.steps(a, 4) == Answer(4, 0, False)  # this requests the fragment of a
        for _ in range(100):
            await asyncio.sleep(0)
        assert world.log == ["write Join", "flush", "write Report"]
        assert not said.done()
        world.slow = False
        world.flushes[0].set_result(None)
        await said
        await until(lambda: "publish 0 v1" in world.log or "collect b#2 0" in world.log)
        assert world.log.index(f"watch {b}") < world.log.index("collect a#1 0")
        world.deaths[b].set_result("enough")
        await stage.comes_to("publish 0 v1")

    plays(scene, every=4, grace_s=0.0)


def test_grants_are_durable_before_they_are_answered() -> None:
    async def scene(stage: Stage) -> None:
        life = stage.joins(A)
        assert stage.world.log == ["write Join", "flush"]
        stage.world.log.clear()
        answer = stage.syncer.lease(LeaseWanted(life))
        assert isinstance(answer, LeaseGranted)
        assert stage.world.log == ["write LeaseWanted", "flush"]

    plays(scene)


def test_requests_of_users_are_durable_before_they_are_answered() -> None:
    async def scene(stage: Stage) -> None:
        stage.steps(stage.joins(A), 1)
        for order in (
            lambda: stage.syncer.drain(A, "why not"),
            lambda: stage.syncer.stop("enough"),
        ):
            stage.world.log.clear()
            order()
            assert stage.world.log[-1] == "flush"

    plays(scene, every=9)


def test_version_is_published_even_if_the_disk_refuses_it() -> None:
    async def scene(stage: Stage) -> None:
        stage.world.durable = False
        stage.steps(stage.joins(A), 4)
        await stage.comes_to("publish 0 v1")

    stage = plays(scene, every=4)
    (stored,) = [event for _, event in stage.world.tape if type(event).__name__ == "Stored"]
    assert "durable=False" in repr(stored)


def test_stored_fragment_does_not_hide_that_another_one_is_not_durable() -> None:
    """Fragment 1 is merged after four steps, fragment 0 after eight, and so on in turn."""
    shown = list[str]()

    async def scene(stage: Stage) -> None:
        a = stage.joins(A)
        stage.world.refused[Fragment(1)] = "no room"
        for steps in (4, 8, 12):
            if steps == 12:
                stage.world.refused.clear()
            stage.steps(a, steps)
            await stage.calms_down()
            shown.append(stage.not_durable)

    plays(scene, every=8, fragments=2)
    assert shown == ["fragment 1: no room", "fragment 1: no room", ""]


@dataclass(frozen=True)
class FullDisk(Folder):
    """A folder without room for the files in `refused`."""

    refused: set[str] = field(default_factory=lambda: {"state.json"})

    def write(self, name: str, *content: bytes | memoryview) -> None:
        if name in self.refused:
            raise OSError(errno.ENOSPC, "no room", name)
        super().write(name, *content)


def test_snapshot_that_fails_is_shown_until_one_is_written(tmp_path: Path) -> None:
    depot = FullDisk(tmp_path)
    shown = list[tuple[bool, str]]()

    async def scene(stage: Stage) -> None:
        tape, clock = Tape(depot, 0, LAYOUT), Clock()
        notes = Notes(depot, stage.syncer.measures, clock)
        writer = SnapshotWriter(depot, lambda: None, 0)
        records = SyncerRecords(stage.syncer, tape, notes, clock, writer)
        for _ in range(2):
            shown.append((await records.keep_snapshot(), stage.not_durable))
            depot.refused.clear()
        await asyncio.to_thread(tape.close)
        notes.close()

    plays(scene)
    (failed, why), written = shown
    assert not failed
    assert re.fullmatch(r"snapshot: \[Errno 28\] no room: '.*'", why)
    assert written == (True, "")


def test_reasons_of_many_fragments_are_one_short_text() -> None:
    troubles = {fragment_subject(Fragment(p)): f"fragments/{p}.bin: no room" for p in range(64)}
    text = durability_text({"tape": "no room", **troubles, "fragment 70": "a bad disk"})
    assert text == (
        "tape: no room; fragment 0 and 63 others: fragments/0.bin: no room; fragment 70: a bad disk"
    )
    assert durability_text({}) == ""


def test_draining_learner_is_parked_collected_and_released() -> None:
    async def scene(stage: Stage) -> None:
        life = stage.joins(A)
        stage.steps(life, 1)
        await until(lambda: "watch a#1" in stage.world.log)
        stage.world.log.clear()
        stage.syncer.drain(A, "on request")
        await stage.comes_to("write Left")

    stage = plays(scene, every=9, fragments=2)
    assert stage.world.log == [
        "write Drain",
        "flush",
        "park a#1",
        "collect a#1 0",
        "write Arrived",
        "collect a#1 1",
        "write Arrived",
        "leave a#1",
        "write Left",
    ]
    assert stage.state.members[A].status is Status.LEFT


def test_drained_learner_has_left_although_its_watch_ends_first() -> None:
    async def scene(stage: Stage) -> None:
        life = stage.joins(A)
        stage.steps(life, 1)
        await until(lambda: "watch a#1" in stage.world.log)
        stage.world.ends_first = True
        stage.syncer.drain(A, "preempted")
        await stage.comes_to("write Left")
        await stage.comes_to("write Lost")

    stage = plays(scene, every=9, fragments=2)
    member = stage.state.members[A]
    assert (member.status, member.why) == (Status.LEFT, "preempted")


def test_learner_is_parked_once_before_the_last_requests() -> None:
    async def scene(stage: Stage) -> None:
        life = stage.joins(A)
        stage.steps(life, 1)
        await until(lambda: "watch a#1" in stage.world.log)
        stage.world.log.clear()
        stage.steps(life, 3)
        await until(stage.syncer.finished.is_set)

    stage = plays(scene, every=9, fragments=2, steps=3)
    assert [line for line in stage.world.log if line.startswith(("park", "coll", "merge"))] == [
        "park a#1",
        "collect a#1 0",
        "collect a#1 1",
        "merge 0 v1",
        "merge 1 v1",
    ]


def test_work_after_a_pending_answer_is_collected_before_leaving() -> None:
    """A shard that asks twice at once gets one answer, that to the first request."""

    async def scene(stage: Stage) -> None:
        life, stage.world.slowly = stage.joins(A), asyncio.Event()
        stage.steps(life, 2)
        await until(lambda: "collect a#1 0" in stage.world.log)
        stage.steps(life, 3)
        stage.syncer.drain(A, "on request")
        await until(lambda: "park a#1" in stage.world.log)
        for _ in range(20):
            await asyncio.sleep(0)
        assert stage.world.log.count("collect a#1 0") == 1, "one is on its way"
        stage.world.slowly.set()
        await until(lambda: "write Left" in stage.world.log)

    stage = plays(scene, every=2, fragments=1)
    asked = [line for line in stage.world.log if line.startswith(("collect", "write Arr", "leave"))]
    assert asked == [
        "collect a#1 0",
        "write Arrived",
        "collect a#1 0",
        "write Arrived",
        "leave a#1",
    ]
    assert [*stage.world.handed_in.values()] == [3]


# --- answers --------------------------------------------------------------------------------------


def test_report_is_answered_with_the_clock() -> None:
    async def scene(stage: Stage) -> None:
        assert stage.steps(stage.joins(A), 3) == Answer(t=3, offset=0, stopping=False)
        assert stage.steps(stage.joins(B), 2) == Answer(t=5, offset=3, stopping=True)
        refused = stage.syncer.join(Join(Island("c"), "g", LAYOUT))
        assert isinstance(refused, Refused)

    plays(scene, every=9, steps=5)


def test_messages_of_an_ended_life_are_void() -> None:
    async def scene(stage: Stage) -> None:
        first, second = stage.joins(A), stage.joins(A)
        answer = stage.steps(first, 1)
        assert isinstance(answer, Void)
        assert answer.life == first
        assert isinstance(stage.syncer.lease(LeaseWanted(first)), Void)
        reads = progress(first, 1)  # the second life reads what the first one gave back
        said = stage.syncer.report(Report(second, reads, step_s=1.0), QUIET)
        assert isinstance(said, Answer)
        await until(lambda: "cease a#1" in stage.world.log)

    plays(scene)


def test_watched_death_is_a_loss() -> None:
    async def scene(stage: Stage) -> None:
        life = stage.joins(A)
        stage.steps(life, 1)
        await until(lambda: life in stage.world.deaths)
        stage.world.deaths[life].set_result("its process ended")
        await stage.comes_to("write Lost")

    stage = plays(scene)
    assert stage.state.members[A].status is Status.LOST
    assert stage.state.members[A].why == "its process ended"


def test_refused_contribution_is_discarded() -> None:
    async def scene(stage: Stage) -> None:
        stage.world.norm = float("nan")
        stage.steps(stage.joins(A), 4)
        await stage.comes_to(f"discard a#1/f0[0,4) {Fate.GATE}")

    plays(scene, every=4)


def test_stopped_run_finishes_after_its_last_rounds() -> None:
    async def scene(stage: Stage) -> None:
        stage.steps(stage.joins(A), 1)
        stage.syncer.stop("on request")
        assert not stage.syncer.finished.is_set()
        async with asyncio.timeout(WAIT_S):
            await stage.syncer.finished.wait()

    stage = plays(scene, every=9, fragments=2)
    assert stage.state.phase is Phase.FINISHED
    assert stage.state.merges == 2
    assert stage.syncer.failure is None


# --- the alarm ------------------------------------------------------------------------------------


def has_quorum_but_waits(stage: Stage) -> Coroutine[Any, Any, None]:
    """Open a grace window: two learners owe a fragment, and one has delivered."""
    a, b = stage.joins(A), stage.joins(B)
    stage.steps(b, 1)

    async def never(life: Life, fragment: Fragment) -> Contribution | str:
        if life == b:
            await asyncio.get_running_loop().create_future()
        return contribution(life, fragment, (0, stage.world.steps[life]))

    stage.world.collect = never  # type: ignore[method-assign]
    stage.steps(a, 4)
    return until(lambda: any("Arrived" in line for line in stage.world.log))


def test_early_alarm_is_set_again() -> None:
    """An early alarm does not close a round before its time."""

    async def scene(stage: Stage) -> None:
        await has_quorum_but_waits(stage)
        for _ in range(3):  # the loop's timers use real time; the syncer's clock stands
            stage.world.log.clear()
            await stage.comes_to("write Tick")
            assert stage.state.merges == 0
        stage.now_s = 0.02
        await stage.comes_to("publish 0 v1")

    plays(scene, every=4, grace_s=0.01)


def test_time_alone_closes_a_round() -> None:
    async def scene(stage: Stage) -> None:
        await has_quorum_but_waits(stage)
        stage.now_s = 0.01
        await stage.comes_to("publish 0 v1")
        assert stage.state.fragments[0].participants == (A,)

    plays(scene, every=4, grace_s=0.01)


# --- a shard that dies ----------------------------------------------------------------------------


def test_dead_shard_cancels_its_merge() -> None:
    """The merge is ordered again, as the next version, when the shard is back."""

    async def scene(stage: Stage) -> None:
        f0, a = Fragment(0), stage.joins(A)
        stage.world.shard_lives = False
        stage.steps(a, 4)
        await stage.comes_to("merge 0 v1")
        assert stage.syncer.shard_lost([f0]) == {f0: Version(0, 0)}
        await stage.comes_to(f"discard a#1/f0[0,4) {Fate.LOST}")
        stage.world.shard_lives = True
        stage.steps(a, 5)
        stage.syncer.shard_back([f0])
        await stage.comes_to("publish 0 v2")

    plays(scene, every=4)


def test_merge_held_back_during_a_shards_death_is_not_ordered() -> None:
    async def scene(stage: Stage) -> None:
        world, a = stage.world, stage.joins(A)
        await stage.comes_to("watch a#1")
        world.slow = True
        b = stage.joins(B)  # b and all that follows wait until the tape is flushed
        stage.steps(a, 4)
        stage.syncer.feed(Arrived(contribution(a, Fragment(0), (0, 4))))
        assert stage.state.fragments[0].round is not None
        assert stage.state.fragments[0].round.stage == "merging"
        world.slow = False
        stage.syncer.shard_lost([Fragment(0)])
        stage.syncer.shard_back([Fragment(0)])
        world.flushes[0].set_result(None)
        await until(lambda: f"watch {b}" in world.log and "collect a#1 0" in world.log)
        await until(lambda: f"discard a#1/f0[0,4) {Fate.LOST}" in world.log)
        assert "merge 0 v1" not in world.log

    plays(scene, every=4)


def test_rules_receive_the_duration_of_a_publication() -> None:
    async def scene(stage: Stage) -> None:
        a = stage.joins(A)
        stage.world.tells = Reached(Fragment(0), Version(0, 0), ((a, 0.7),))
        stage.steps(a, 4)
        await stage.comes_to("write Reached")

    assert plays(scene, every=4).state.pace.down_s == 0.7


# --- failures -------------------------------------------------------------------------------------


class Broken(Exception):
    """An exception of something in the world."""


@pytest.mark.parametrize("what", ["watch", "collect", "merge", "store", "publish"])
def test_failure_in_a_task_fails_the_run(what: str) -> None:
    """No exception is swallowed."""

    async def scene(stage: Stage) -> None:
        stage.world.broken[what] = Broken(what)
        stage.steps(stage.joins(A), 4)
        async with asyncio.timeout(WAIT_S):
            await stage.syncer.finished.wait()

    stage = plays(scene, every=4)
    assert isinstance(stage.syncer.failure, Broken)
    assert stage.failed == [stage.syncer.failure]
    assert stage.state.phase is Phase.RUNNING


@pytest.mark.parametrize("what", ["write", "flush"])
def test_unwritable_tape_fails_the_run(what: str) -> None:
    """The caller gets the error, and no effect without an entry on the tape is carried out."""

    async def scene(stage: Stage) -> None:
        stage.world.broken[what] = OSError("no space left on device")
        with pytest.raises(OSError, match="no space"):
            stage.joins(A)
        assert stage.syncer.finished.is_set()

    stage = plays(scene)
    assert isinstance(stage.syncer.failure, OSError)
    assert not any(line.startswith("watch") for line in stage.world.log)


# --- replay ---------------------------------------------------------------------------------------


def test_replay_of_the_tape_gives_the_same_state() -> None:
    async def scene(stage: Stage) -> None:
        a, b = stage.joins(A), stage.joins(B)
        for step in range(1, 14):
            stage.now_s = float(step)
            stage.steps(a, step)
            if step % 3 == 0:
                stage.steps(b, step // 3)
            await stage.calms_down()
            if step == 7:
                stage.world.deaths[b].set_result("its process ended")
                await stage.comes_to("write Lost")
                b = stage.joins(B)
        stage.syncer.stop("enough")
        await stage.calms_down()

    stage = plays(scene, every=4, fragments=2, grace_s=0.0)
    assert stage.state.phase is Phase.FINISHED
    assert stage.state.merges == 8
    assert {type(event).__name__ for _, event in stage.world.tape} > {"Lost", "Arrived", "Stop"}
    assert replay(stage.rule, initial(stage.rule), stage.world.tape) == stage.state
    validate(stage.rule, stage.state)
