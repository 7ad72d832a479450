"""Tests of the syncer, its ports and the shard against islands that raise in calls, without Ray.

Whatever an island raises, the others merge on, and `status` shows the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray.exceptions import (
    ActorDiedError,
    GetTimeoutError,
    ObjectLostError,
    OutOfDiskError,
    OutOfMemoryError,
    RayActorError,
    RaySystemError,
    RayTaskError,
    UnserializableException,
)

from cluster.actors.call_errors import message_of
from cluster.actors.shard.actor import ShardActor
from cluster.actors.syncer.actor import SyncerActor
from cluster.config.load import load
from cluster.failures import Failure, Reason, Unjudged
from cluster.names import Seat, island_actor, seat_of
from cluster.source import source_sha256
from coordinator.errors import Malformed
from coordinator.protocol import (
    Adopted,
    ContributionId,
    Fragment,
    Granted,
    HandIn,
    Island,
    Join,
    Known,
    Lease,
    LeaseWanted,
    Left,
    Life,
    Progress,
    Publication,
    Report,
    Version,
    Vitals,
)
from tests.cluster.played import CONFIG, LAYOUT

WAIT_S = 20.0
"""A timeout in seconds for operations that take milliseconds."""
STEP_S = 1e-6
"""Seconds of a reported step. Steps only count here; no time passes in them."""
A, B = Island("local-0"), Island("local-1")
QUIET = Vitals(loss=1.0)
Does = Callable[..., Any]


def remotely(cause: BaseException) -> RayTaskError:
    """Return the error in the form in which a caller gets it from an actor's method."""
    told = RayTaskError("it", "Traceback: over there", cause, "ray::it", 1, "192.0.2.1")
    return told.as_instanceof_cause()


def raises(error: BaseException) -> Does:
    def does(*_: object) -> None:
        raise error.with_traceback(None)  # otherwise the traceback would grow each time

    return does


class Handle:
    """A stand-in for Ray's handle of an actor."""

    def __init__(self, actor: object) -> None:
        self._actor = actor

    def __getattr__(self, method: str) -> SimpleNamespace:
        async def called(*arguments: object) -> object:
            await asyncio.sleep(0)
            answer = getattr(self._actor, method)(*arguments)
            return await answer if isinstance(answer, Awaitable) else answer

        return SimpleNamespace(remote=called)


class Hands:
    """An island's actor that hands in its steps, unless `does` replaces a method."""

    def __init__(self, does: dict[str, Does]) -> None:
        self.does, self.steps = does, 0
        self.lease = 0  # the first granted lease; it reads no other
        self.given: dict[Fragment, int] = {}
        self.versions: dict[Fragment, Version] = {}
        self.offers: list[tuple[Publication, int]] = []
        self.told: list[tuple[str, object]] = []

    def hand_in(self, life: Life, p: Fragment, known: Known) -> Any:
        if "hand_in" in self.does:
            return self.does["hand_in"](self, life, p)
        return self.sound(life, p)

    def sound(self, life: Life, p: Fragment) -> tuple[HandIn, Any] | None:
        start, stop = self.given.get(p, 0), self.steps
        if start == stop:
            return None
        self.given[p] = stop
        said = ContributionId(life, p, start, stop)
        base = self.versions.get(p, Version(0, 0))
        tokens = 100 * (stop - start)
        facts = HandIn(said, base, start, tokens, LAYOUT.fingerprint, self.progress)
        return facts, np.ones(LAYOUT.sizes[p], np.uint16)

    @property
    def progress(self) -> Progress:
        return Progress(self.steps, 100 * self.steps, Lease(self.lease, self.steps))

    def offer(self, life: Life, said: Publication, boxed: list[Any]) -> Failure | None:
        self.offers.append((said, len(boxed)))
        self.versions[said.fragment] = said.version
        return self.does["offer"](self) if "offer" in self.does else None

    async def watch(self, life: Life) -> str:
        if "watch" in self.does:
            self.does["watch"](self)
        return await asyncio.get_running_loop().create_future()

    def __ray_ready__(self) -> bool:
        return True

    def __getattr__(self, method: str) -> Does:
        def told(*arguments: object) -> object:
            if method in self.does:
                return self.does[method](self)
            self.told.append((method, arguments[-1] if arguments else None))
            return self.progress

        return told


class Run:
    """Two islands; `does` replaces methods of B."""

    def __init__(
        self, run_dir: Path, does: dict[str, Does], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (run_dir / "config.toml").write_text(CONFIG)
        config = load(run_dir / "config.toml").model_dump_json()
        self.shard = ShardActor(config, "nowhere", str(run_dir))
        self.syncer = SyncerActor(config, "run", "nowhere", str(run_dir))
        self.hands = {A: Hands({}), B: Hands(does)}
        self.lives: dict[Island, Life] = {}
        known = {island_actor(Seat(island)): Handle(each) for island, each in self.hands.items()}
        known["shard-0"] = Handle(self.shard)
        monkeypatch.setattr("ray.get_actor", lambda name, **_: known[name])

    async def begins(self) -> None:
        flats = {Fragment(p): np.zeros(size, np.float32) for p, size in enumerate(LAYOUT.sizes)}
        for p, flat in flats.items():
            await self.shard.seed(LAYOUT, p, flat)
        await self.syncer.open(LAYOUT)
        for island in self.hands:
            await self.joins(island)

    async def ends(self) -> None:
        await self.syncer.close()
        (await self.syncer.process.up.ready()).notes.close()
        for task in self.shard._hand_ins._gatherer._asked.values():
            if task.done() and not task.cancelled():
                task.exception()
        await asyncio.sleep(0)
        self.shard.process.arithmetic.shutdown()
        self.shard.process.hands.shutdown()

    async def joins(self, island: Island) -> None:
        join = Join(island, "local", LAYOUT.fingerprint)
        granted, _ = await self.syncer.join(join, source_sha256(), Seat(island))
        assert isinstance(granted, Granted)
        self.lives[island] = granted.life
        self.hands[island].lease = granted.leases[0].number

    async def steps(self, upto: int) -> None:
        """Let both islands take single steps up to `upto`, and finish what each one causes."""
        for step in range(self.hands[A].steps + 1, upto + 1):
            for island, life in self.lives.items():
                self.hands[island].steps = step
                report = Report(life, self.hands[island].progress, STEP_S)
                await self.syncer.report(report, QUIET, [])
            for _ in range(200):
                await asyncio.sleep(0)

    async def merges(self, more: int = 2) -> None:
        """Go on until A was offered `more` further versions."""
        offers = self.hands[A].offers
        before = len(offers)
        async with asyncio.timeout(WAIT_S):
            while len(offers) < before + more:
                await self.steps(self.hands[A].steps + 1)
                await self.status()  # status raises what ends a run
                await asyncio.sleep(0.001)

    async def counts(self, reason: str, times: int = 1) -> Any:
        """Go on until this reason has `times` failures, and return the status two merges later."""
        await self.until(lambda status: status["failures"].get(reason, 0) >= times)
        await self.merges()
        return await self.status()

    async def until(self, happened: Callable[[Any], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not happened(await self.status()):
                await self.merges(1)

    async def status(self) -> Any:
        return await self.syncer.status()

    async def why(self, island: Island = B) -> tuple[str, str]:
        shown = {each["island"]: each for each in (await self.status())["islands"]}
        return shown[island]["state"], shown[island]["why"]


@pytest.fixture
def plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def play(scene: Callable[[Run], Awaitable[None]], **does: Does) -> Run:
        async def played() -> Run:
            run = Run(tmp_path, does, monkeypatch)
            try:
                await run.begins()
                await scene(run)
            finally:
                await run.ends()
            return run

        return asyncio.run(played())

    return play


def has_contributed(status: Any) -> bool:
    """Return whether B has contributed."""
    return any(e["contributions"] for e in status["islands"] if e["island"] == B)


class Device(Exception):
    """An exception of a user's code."""


UNREADABLE = RaySystemError(TypeError("cannot be rebuilt"), "Traceback: here")
FULL = remotely(OutOfDiskError("Local disk is full"))


@pytest.mark.parametrize(
    ("error", "reason", "why"),
    [
        (remotely(Device("ECC")), "hand_in", "Device in hand_in: ECC"),
        (remotely(RayActorError()), "hand_in", "RayActorError in hand_in"),
        (UnserializableException("Device: ECC"), "hand_in", "UnserializableException in hand_in"),
        (UNREADABLE, "sent", "it cannot be read: cannot be rebuilt"),
    ],
)
def test_island_that_raises_in_hand_in_is_lost_alone(
    plays: Any, error: BaseException, reason: str, why: str
) -> None:
    async def scene(run: Run) -> None:
        await run.counts(reason)
        await run.syncer.broke(seat_of(B), Failure(Reason(reason), "reported again"))
        status = await run.status()
        assert status["failures"] == {reason: 1}, "a life ends once, whatever else of it fails"
        assert status["alive"] == 1
        state, said = await run.why()
        assert (state, said[: len(why)]) == ("lost", why)
        assert ("break_down", said) in run.hands[B].told, "its process begins anew"
        assert all(p["participants"] in ([], [A]) for p in status["fragments"])

    plays(scene, hand_in=raises(error))


@pytest.mark.parametrize("error", [ActorDiedError(), ObjectLostError("00", None, "")])
def test_hand_in_lost_on_its_way_is_requested_again(plays: Any, error: BaseException) -> None:
    """The island is still alive; its watch would report a death."""

    async def scene(run: Run) -> None:
        await run.merges()
        assert (await run.status())["failures"] == {}
        assert await run.why() == ("live", "steps")
        run.hands[B].does.clear()
        await run.until(has_contributed)

    plays(scene, hand_in=raises(error))


def test_full_object_store_ends_no_life_and_is_shown_until_it_has_room(plays: Any) -> None:
    async def scene(run: Run) -> None:
        status = await run.counts("store", 2)
        assert status["failures"].keys() == {"store"}
        why = "OutOfDiskError in hand_in: the object store had no room"
        assert await run.why() == ("live", f"steps, after {why}")
        assert not run.hands[B].told
        run.hands[B].does.clear()
        await run.until(has_contributed)
        assert await run.why() == ("live", "steps")

    plays(scene, hand_in=raises(FULL))


def other_facts(**changes: Any) -> Does:
    """Return a method that hands in a valid answer with these facts changed."""

    def does(hands: Hands, life: Life, p: Fragment) -> Any:
        facts, payload = hands.sound(life, p) or (None, None)
        told = {name: getattr(facts, name) for name in HandIn.__dataclass_fields__}
        return HandIn(**told | changes), payload

    return does


def other_payload(made: Callable[[np.ndarray], Any]) -> Does:
    def does(hands: Hands, life: Life, p: Fragment) -> Any:
        facts, payload = hands.sound(life, p) or (None, np.ones(1))
        return facts, made(payload)

    return does


STRANGE: dict[str, Does] = {
    "no pair": lambda *_: 7,
    "a list of one": lambda *_: [None],
    "facts that are none": lambda *_: ("facts", np.ones(3, np.float32)),
    "another life": other_facts(id=ContributionId(Life(A, 1), Fragment(0), 0, 4)),  # type: ignore[arg-type]
    "a count of numpy": other_facts(tokens=np.int64(400)),
    "a count that no float holds": other_facts(tokens=10**30),
    "a part of a token": other_facts(tokens=0.5),
    "a base that is none": other_facts(base=(0, 0)),
    "no progress": other_facts(progress=None),
    "no payload": other_payload(lambda payload: None),
    "a payload of objects": other_payload(lambda payload: payload.astype(object)),
    "a payload of no dimension": other_payload(lambda payload: np.array(1.0)),
    "a payload of two": other_payload(lambda payload: payload[None]),
}


@pytest.mark.parametrize("strange", STRANGE)
def test_invalid_hand_in_ends_only_its_own_life(plays: Any, strange: str) -> None:
    async def scene(run: Run) -> None:
        status = await run.counts("sent")
        assert [*status["failures"]] == ["sent"]
        assert status["failures"]["sent"] <= len(LAYOUT.fragments), "what was asked for at once"
        state, why = await run.why()
        assert state == "lost"
        assert ("break_down", why) in run.hands[B].told
        assert all(p["participants"] in ([], [A]) for p in status["fragments"])

    plays(scene, hand_in=STRANGE[strange])


def test_payload_of_wrong_length_or_type_is_refused_at_the_gate(plays: Any) -> None:
    def does(hands: Hands, life: Life, p: Fragment) -> Any:
        made = [np.ones(3, np.float32), np.ones(LAYOUT.sizes[p], "S4"), np.ones(0, np.uint16)]
        facts, _ = hands.sound(life, p) or (None, None)
        return None if facts is None else (facts, made[hands.steps % 3])

    async def scene(run: Run) -> None:
        await run.until(lambda status: status["refusals"].get("gate", 0) >= 3)
        assert (await run.why())[0] == "quarantined"

    plays(scene, hand_in=does)


def test_island_that_raises_in_offer_is_lost_and_publication_continues(
    plays: Any,
) -> None:
    """The failure is reported with the answer to the next publication."""

    async def scene(run: Run) -> None:
        await run.counts("offer")
        assert await run.why() == ("lost", "Device in offer: ECC")
        assert ("break_down", "Device in offer: ECC") in run.hands[B].told
        versions = [said.version.number for said, _ in run.hands[A].offers if said.fragment == 0]
        assert versions == [*range(1, len(versions) + 1)]

    plays(scene, offer=raises(remotely(Device("ECC"))))


def test_island_that_cannot_fetch_a_version_reports_it_and_lives(plays: Any) -> None:
    full = Failure(
        Reason.STORE, "OutOfDiskError in offer: the object store had no room", ends=False
    )

    async def scene(run: Run) -> None:
        await run.counts("store")
        assert (await run.why())[0] == "live"

    plays(scene, offer=lambda _: full)


def test_version_without_room_in_the_object_store_is_still_offered(
    plays: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The box is empty, so learners ask for what they lack. Later versions are put again."""
    full = iter([OutOfDiskError("Local disk is full")])

    def put(payload: object) -> object:
        if (error := next(full, None)) is not None:
            raise error
        return payload

    monkeypatch.setattr("cluster.actors.shard.offers.INLINE_BYTES", 0)
    monkeypatch.setattr("ray.put", put)

    async def scene(run: Run) -> None:
        status = await run.counts("store")
        assert status["failures"] == {"store": 1}
        for hands in run.hands.values():
            assert [count for _, count in hands.offers][:3] == [0, 1, 1]

    plays(scene)


@pytest.mark.parametrize("word", ["cease", "refused", "park", "leave"])
def test_island_that_raises_at_an_order_does_not_end_the_run(plays: Any, word: str) -> None:
    async def scene(run: Run) -> None:
        await run.steps(2)
        if word == "cease":  # to a life that another one has replaced
            before = run.lives[B]
            await run.joins(B)
            await run.syncer.report(Report(before, run.hands[B].progress, 1.0), QUIET, [])
        elif word == "refused":
            run.hands[B].does["hand_in"] = other_payload(lambda payload: payload[:1])
        else:
            await run.syncer.drain(B, "why not")
        await run.merges(4)
        assert (await run.status())["alive"] >= 1

    plays(scene, **{word: raises(remotely(Device("ECC")))})


def test_island_that_cannot_be_watched_is_lost_alone(plays: Any) -> None:
    async def scene(run: Run) -> None:
        await run.merges()
        state, why = await run.why()
        assert state == "lost"
        assert why == "it cannot be watched: Device('ECC')"

    plays(scene, watch=raises(remotely(Device("ECC"))))


def test_island_killed_by_the_memory_monitor_is_lost(plays: Any) -> None:
    """Ray raises no `RayActorError` in this case, nor always at the end of a node."""

    async def scene(run: Run) -> None:
        await run.merges()
        assert await run.why() == ("lost", "its process ended (OutOfMemoryError)")

    plays(scene, watch=raises(OutOfMemoryError("killed")))


def test_broken_process_reports_its_failure_before_it_ends(plays: Any) -> None:
    async def scene(run: Run) -> None:
        await run.steps(1)
        broken = Failure(Reason.TRAIN, "XlaRuntimeError in train: INTERNAL")
        await run.syncer.broke(Seat(B), broken)
        assert await run.why() == ("lost", broken.why)
        assert not run.hands[B].told, "it ends by itself"
        await run.joins(B)
        assert await run.why() == ("joining", f"joined again, after {broken.why}")
        await run.syncer.broke(Seat("local+0"), broken)
        status = await run.status()
        assert status["failures"] == {"train": 2}, "that was a spare"
        assert status["alive"] == 1, "and B has not stepped yet"
        await run.until(has_contributed)
        assert await run.why() == ("live", "steps")

    plays(scene)


NINE = Progress(9, 900, Lease(0, 9))


def said(step_s: float = 1.0, vitals: Vitals = QUIET, **changes: Any) -> Any:
    return lambda life: (Report(life, replace(NINE, **changes), step_s), vitals, [])


def adopted(**changes: Any) -> Any:
    good: dict[str, Any] = {
        "fragment": Fragment(0), "version": Version(0, 1), "from_step": 9, "tokens": 0,
    }  # fmt: skip

    def word(life: Life) -> Any:
        told: dict[str, Any] = {"life": life, "progress": NINE, **good, **changes}
        each = Adopted(**told)
        return Report(life, NINE, 1.0), QUIET, [each]

    return word


MALFORMED: dict[str, Any] = {
    "tokens of numpy": said(tokens=np.int64(900)),
    "tokens that are no whole number": said(tokens=900.0),
    "steps that are negative": said(steps=-1),
    "no lease": said(lease=None),
    "a step of no time": said(step_s=float("nan")),
    "vitals that are not finite": said(vitals=Vitals(1.0, computing_s=float("inf"))),
    "metrics that are no tuple": said(vitals=Vitals(1.0, metrics={"a": 1.0})),  # type: ignore[arg-type]
    "a metric that is no number": said(vitals=Vitals(1.0, metrics=(("a", "b"),))),  # type: ignore[arg-type]
    "a metric with a long name": said(vitals=Vitals(1.0, metrics=(("a" * 65, 1.0),))),
    "many metrics": said(vitals=Vitals(1.0, metrics=(("a", 1.0),) * 33)),
    "spikes that are no number": said(vitals=Vitals(1.0, loss_spikes=-1)),
    "a life that is none": lambda _: (Report(("x", 1), NINE, 1.0), QUIET, []),  # type: ignore[arg-type]
    "no report": lambda life: (life, QUIET, []),
    "a fragment that there is not": adopted(fragment=Fragment(7)),
    "a version that is none": adopted(version=1),
    "a word that is none": lambda life: (Report(life, NINE, 1.0), QUIET, [7]),
}


@pytest.mark.parametrize("strange", MALFORMED)
def test_malformed_message_is_refused_to_its_sender(plays: Any, strange: str) -> None:
    """A malformed message never gets onto the tape, from which it could not be read back."""

    async def scene(run: Run) -> None:
        with pytest.raises(Malformed):
            await run.syncer.report(*MALFORMED[strange](run.lives[B]))
        with pytest.raises(Malformed):
            await run.syncer.lease(run.lives[B])  # type: ignore[arg-type]
        with pytest.raises(Malformed):
            await run.syncer.left(Left(run.lives[B], None))  # type: ignore[arg-type]
        await run.syncer.lease(LeaseWanted(run.lives[B]))
        await run.merges()
        assert (await run.status())["alive"] == 2

    plays(scene)


def test_failed_looks_are_counted(plays: Any) -> None:
    async def scene(run: Run) -> None:
        await run.syncer.unjudged(Unjudged.HUNG)
        await run.syncer.unjudged(Unjudged.RAISED)
        assert (await run.status())["unjudged"] == {"hung": 1, "raised": 1}

    plays(scene)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (remotely(ConnectionRefusedError(111, "Connection refused")),
         "[Errno 111] Connection refused"),
        (remotely(TimeoutError()), "TimeoutError"),
        (remotely(GetTimeoutError("\nno object within 300 s\nand more")),
         "no object within 300 s"),
        (GetTimeoutError(), "GetTimeoutError"),
        (OSError("no route"), "no route"),
    ],
)  # fmt: skip
def test_message_of_a_failed_call_is_not_its_remote_traceback(
    error: Exception, message: str
) -> None:
    assert message_of(error) == message


def test_defect_in_the_shard_ends_the_run(plays: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only exceptions of islands are tolerated; a defect of the shard is never hidden."""

    async def scene(run: Run) -> None:
        receive, defects = run.shard.process.shard.receive, [ZeroDivisionError("a defect")]

        def breaks_once(*handed: Any) -> Any:
            if defects:
                raise defects.pop()
            return receive(*handed)

        monkeypatch.setattr(run.shard.process.shard, "receive", breaks_once)
        with pytest.raises(ZeroDivisionError, match="a defect"):
            await run.merges()

    plays(scene)
