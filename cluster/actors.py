"""The only `ray.remote`: actors around the plain classes, and typed handles around untyped Ray.

Constructors take small plain values and cannot fail, since an actor whose constructor raises is
never restarted, and large arguments may be gone by then. No call is retried by Ray: a request made
of one life must not run on the next (docs/protocol.md).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast
from uuid import uuid4

import ray
from numpy.typing import NDArray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.attendance import Attendance, Away
from cluster.calls import STORE_FULL, failure_of
from cluster.clock import Clock
from cluster.comeback import come_back, rules_sha256
from cluster.config import Config, Harm, IslandGroup
from cluster.depot import PATIENCE_S, depot_of
from cluster.failures import Failure, Losses, Reason, Unjudged, in_short, origin_of
from cluster.fates import Fates
from cluster.faults import Breakable, Cable
from cluster.fleet import group_name
from cluster.gather import Answers, Asker, Gatherer, Handed
from cluster.handed import check_report, check_word, flaw, moments_of
from cluster.judging import Judged
from cluster.meaning import (
    first_of,
    load_layout,
    rule_of,
    save_layout,
    shard_of,
    shards_come_back_alone,
    stranger,
)
from cluster.measures import Measures
from cluster.names import (
    CALL_TIMEOUT_S,
    EVALUATOR,
    FLEET,
    SYNCER,
    Seat,
    island_actor,
    seat_of,
    shards_of,
)
from cluster.notes import Notes
from cluster.ownership import Fence
from cluster.placement import NODE_ID
from cluster.process import IslandProcess
from cluster.shard import Shard, warm_up
from cluster.source import source_sha256, user_sha256
from cluster.status import Status
from cluster.store import (
    STATE,
    Arrays,
    Damaged,
    FragmentStore,
    Snapshot,
    Tape,
    save_contribution,
    save_snapshot,
    tape_name,
)
from cluster.syncer import Ports, Syncer, done
from coordinator.codec import Payload
from coordinator.errors import (
    ArchipelagoError,
    Malformed,
    NoModel,
    Outdated,
    Relieved,
    RunFailed,
    Unreachable,
)
from coordinator.fragments import Flat, Layout
from coordinator.protocol import (
    Adopted,
    Answer,
    ContributionId,
    Discard,
    Fragment,
    Granted,
    HandIn,
    Island,
    Join,
    Known,
    LeaseGranted,
    LeaseWanted,
    Left,
    Life,
    Merge,
    Merged,
    Progress,
    Publication,
    Publish,
    Refused,
    Report,
    Resume,
    Store,
    Unsound,
    Version,
    Vitals,
    Void,
)
from coordinator.state import initial

if TYPE_CHECKING:
    from cluster.evaluate import Evaluator
    from cluster.steward import Outcome
    from islands.learner import Learner

AGAIN_S = 0.5
"""Between two attempts to be heard."""
SNAPSHOT_EVERY_S = 10.0
"""What a syncer that comes back has to hear again at most."""
DONOR_TIMEOUT_S = 10.0
"""A learner that joins waits no longer for a donor's moments."""
LAST_WORDS_S = 5.0
"""A process that breaks waits no longer for the syncer to hear of it; its death will be seen."""
THREADS = {"asking": 16, "offering": 4, "control": 4, "watching": 8, "breaking": 4}
"""Threads of an island for calls of each kind, so that none waits behind another kind."""

FLEET_THREADS = 16
"""Of the fleet's process: none of its answers takes long, but many may ask at once."""

SEEKERS = 8
"""Threads of an event loop's process that ask the head where actors are: as many look-ups at once,
while it is slow."""
INLINE_BYTES = 90_000
"""Ray sends arguments of up to 100 kB, words included, with the call; below it the store's two
round trips cost more than the bytes."""
PASSING = (RayActorError, *STORE_FULL)
"""What another process meets, too, and will not meet for ever."""
Actor = Any
"""A handle of an actor: Ray gives it no type."""
Wanted = Mapping[Fragment, Version]
"""Which version of each of these fragments."""
Order = TypeVar("Order", Merge, Publish)
S = TypeVar("S")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def setup_logging() -> None:
    """Lines for people, on standard error: Ray keeps them with the actor's logs."""
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname).1s %(message)s",
        force=True,
    )
    logging.getLogger("jax").setLevel(logging.WARNING)


class _Directory:
    """Handles of a run's actors, looked up by name once each, or when one seems to be dead: an
    island that was given back and is placed again has a new actor of the same name."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._known: dict[str, Actor] = {}
        self._sought: dict[str, asyncio.Future[Actor]] = {}
        self._seekers = ThreadPoolExecutor(SEEKERS, "look up")

    def __getitem__(self, name: str) -> Actor:
        """Errors: `RayActorError` if it is not there, as a call to it would raise; `RayError` if
        the head does not answer."""
        if name not in self._known:
            self._known[name] = self._look_up(name)
        return self._known[name]

    async def find(self, name: str) -> Actor:
        """The same on an event loop, which goes on meanwhile: the head may be away for minutes, and
        is waited for. Who asks for the same name waits for the same look-up, in order.

        Errors: `RayActorError` if it is not there.
        """
        if (known := self._known.get(name)) is not None:
            return known
        if name not in self._sought:
            loop = asyncio.get_running_loop()
            sought = loop.run_in_executor(self._seekers, self._seek, name)
            sought.add_done_callback(functools.partial(self._answered, name))
            self._sought[name] = sought
        return await asyncio.shield(self._sought[name])

    def _answered(self, name: str, sought: asyncio.Future[Actor]) -> None:
        there = not sought.cancelled() and sought.exception() is None
        if self._sought.get(name) is not sought:
            return  # it was told to forget it meanwhile
        del self._sought[name]
        if there:
            self._known[name] = sought.result()

    def forget(self, name: str) -> None:
        self._known.pop(name, None)
        self._sought.pop(name, None)

    def _seek(self, name: str) -> Actor:
        while True:
            try:
                return self._look_up(name)
            except GetTimeoutError as error:
                logging.warning("the head does not answer: %s", error)

    def _look_up(self, name: str) -> Actor:
        try:
            return ray.get_actor(name, namespace=self._namespace)
        except ValueError as error:
            raise RayActorError(error_msg=f"there is no {name}") from error


def holder_of(config: Config) -> dict[Fragment, str]:
    """The shard that has it, for each fragment."""
    shards = shards_of(config.sync.shards, config.sync.fragments)
    return {p: name for name, fragments in shards.items() for p in fragments}


# --- an island ------------------------------------------------------------------------------------


class RayLink:
    """One process's way to the coordinator and to the fleet: each call waits for its answer."""

    def __init__(
        self,
        namespace: str,
        cable: Cable,
        seat: Seat,
        holder: Mapping[Fragment, str],
        *,
        relievable: bool,
        code: str = "",
    ) -> None:
        """`holder`: the shard that has it, for each fragment. `relievable`: a spare may have taken
        its island over. `code`: what its task was made of (`user_sha256`)."""
        self._actors, self._cable, self._holder = _Directory(namespace), cable, holder
        self._code = code
        self._seat, self._relievable = seat, relievable
        self._others: Mapping[Island, Seat] = {}

    def join(self, event: Join) -> Granted | Refused:
        """Errors: `Relieved` if the island is somebody else by now."""
        if self._relievable and (now := self.role(warm=False)) != event.island:
            raise Relieved(f"a spare is {event.island} now; {self._seat} is {now or 'a spare'}")
        mine = event, source_sha256(), self._seat, self._code
        answer, self._others = self._insist(SYNCER, "join", *mine)
        return answer

    def report(self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]) -> Answer | Void:
        return self._ask(SYNCER, "report", event, vitals, adopted)

    def lease(self, event: LeaseWanted) -> LeaseGranted | Void:
        return self._ask(SYNCER, "lease", event)

    def left(self, event: Left) -> None:
        self._ask(SYNCER, "left", event)

    def whole(self, fragments: Sequence[Fragment]) -> list[tuple[Version, Flat]]:
        found: dict[Fragment, tuple[Version, Flat]] = {}
        for name in {self._holder[p] for p in fragments}:
            own = [p for p in fragments if self._holder[p] == name]
            found |= dict(zip(own, self._fetch(name, "whole", own), strict=True))
        return [found[p] for p in fragments]

    def missed(
        self, p: Fragment, older: Version, newer: Version
    ) -> list[Payload] | tuple[Version, Flat]:
        return self._fetch(self._holder[p], "missed", p, older, newer)

    def _fetch(self, shard: str, method: str, *arguments: object) -> Any:
        """... once the shard has a model."""
        while (found := self._insist(shard, method, *arguments)) is None:
            time.sleep(AGAIN_S)
        return found

    def moments(self, donor: Life) -> list[NDArray[Any]] | None:
        """A donor that does not answer in time, or answers with an error, is passed over.

        Errors: `Unreachable`; `Malformed`.
        """
        name = island_actor(self._others.get(donor.island, seat_of(donor.island)))
        try:
            return moments_of(self._ask(name, "moments", donor, timeout_s=DONOR_TIMEOUT_S))
        except RayError as error:  # which is the donor's affair
            origin = origin_of(error)
            why = f"{type(origin).__name__}: {in_short(str(origin))}"
            raise Unreachable(f"{donor} could not give its moments: {why}") from error

    def starting(self) -> float:
        return self._insist(FLEET, "starting", self._seat)

    def role(self, *, warm: bool) -> Island | None:
        return self._insist(FLEET, "role", self._seat, warm)

    def broke(self, failure: Failure | None, words: str) -> None:
        try:
            if failure is not None:
                self._ask(SYNCER, "broke", self._seat, failure, timeout_s=LAST_WORDS_S)
        except (Unreachable, RayError) as error:
            logging.warning("the syncer is not told: %s", error)
        self._ask(FLEET, "broke", self._seat, words)

    def _insist(self, actor: str, method: str, *arguments: object) -> Any:
        while True:
            try:
                return self._ask(actor, method, *arguments)
            except Unreachable as error:
                logging.info("%s; trying again", error)
                time.sleep(AGAIN_S)

    def _ask(
        self, actor: str, method: str, *arguments: object, timeout_s: float = CALL_TIMEOUT_S
    ) -> Any:
        if not self._cable.passes(timeout_s):
            raise Unreachable(f"the {actor} cannot be heard: the cable is cut")
        try:
            call = getattr(self._actors[actor], method)
            return ray.get(call.remote(*arguments), timeout=timeout_s)
        except RayError as error:
            origin = origin_of(error)
            if isinstance(error, RayTaskError) and not isinstance(origin, PASSING):
                raise
            self._actors.forget(actor)
            raise Unreachable(f"the {actor} cannot be heard: {type(origin).__name__}") from error


def _its_own(group: str, reason: Reason) -> Callable[[F], F]:
    """A call of this group of threads. Whatever it raises is this island's affair, and ends its
    process: nothing of it gets to whoever called, who hears that it died.

    One decorator for both, since Ray reads its marks from the innermost function.
    """

    def fence(method: F) -> F:
        marked: Any = ray.method(concurrency_group=group)(method)

        @functools.wraps(marked)
        def fenced(self: IslandActor, *arguments: Any) -> Any:
            try:
                return method(self, *arguments)
            except BaseException as error:  # noqa: BLE001 - which ends the process
                self.process.break_down(reason, error)

        return cast("F", fenced)

    return fence


class IslandActor(Breakable):
    """One island with its learner, or a spare that will be one; `hand_in` and `offer` are the two
    ends of its wire."""

    def __init__(self, config: str, group: str, seat: Seat, namespace: str) -> None:
        setup_logging()
        plain = Config.model_validate_json(config, strict=False)
        mine = plain.group(group)
        self._cable = Cable()

        def link() -> RayLink:
            relievable, code = mine.spares > 0, user_sha256(plain.task.target)
            return RayLink(
                namespace, self._cable, seat, holder_of(plain), relievable=relievable, code=code
            )

        self.process = IslandProcess(plain, mine, link, link)

    @property
    def _learner(self) -> Learner | None:
        """... for whoever called, once the call gets here."""
        self._cable.passes()
        return self.process.learner

    @_its_own("asking", Reason.HAND_IN)
    def hand_in(
        self, life: Life, fragment: Fragment, known: Known
    ) -> tuple[HandIn, Payload] | None:
        learner = self._learner
        return None if learner is None else learner.hand_in(life, fragment, known)

    @_its_own("asking", Reason.MOMENTS)
    def moments(self, life: Life) -> list[NDArray[Any]] | None:
        learner = self._learner
        return None if learner is None else learner.moments(life)

    @_its_own("offering", Reason.OFFER)
    def offer(
        self, life: Life, publication: Publication, boxed: Sequence[Payload | ray.ObjectRef]
    ) -> Failure | None:
        """`boxed`: the payload, or a reference to it; in a list, so that Ray does not fetch it
        before it calls. Empty if there was no room for it: the learner asks the shard for what it
        lacks, as it does if the payload cannot be had, which is what is returned."""
        if (learner := self._learner) is None:
            return None
        payload, failure = None, None
        try:
            for each in boxed:
                payload = ray.get(each) if isinstance(each, ray.ObjectRef) else each
        except RayError as error:
            said = failure_of(Reason.OFFER, error)
            failure = replace(said, ends=False) if isinstance(said, Failure) else None
            logging.warning("%s is not to be had: %s", publication.version, said)
        learner.offer(life, publication, payload)
        return failure

    @_its_own("control", Reason.WORDS)
    def refused(self, said: ContributionId) -> None:
        if (learner := self._learner) is not None:
            learner.refused(said)

    @_its_own("control", Reason.WORDS)
    def cease(self, over: Void) -> None:
        if (learner := self._learner) is not None:
            learner.cease(over)

    @_its_own("control", Reason.WORDS)
    def park(self, life: Life) -> None:
        if (learner := self._learner) is not None:
            learner.park(life)

    @_its_own("control", Reason.WORDS)
    def leave(self) -> Progress | None:
        learner = self._learner
        return None if learner is None else learner.leave()

    @_its_own("watching", Reason.WORDS)
    def watch(self, life: Life) -> str:
        """Return when this life is over; if the process dies, whoever called hears it from Ray."""
        learner = self._learner
        return "its process is another one" if learner is None else learner.outlive(life)

    @ray.method(concurrency_group="control")
    def break_down(self, life: Life, why: str) -> None:
        """End the process if it had this life: what came from it was of no use, says the syncer."""
        if (learner := self._learner) is not None and learner.had(life):
            self.process.break_down(Reason.SENT, Malformed(why), known=True)

    @ray.method(concurrency_group="control")
    def spoil(self, factor: float) -> None:
        """Multiply what this process hands in from now on (for fault plans)."""
        if (learner := self.process.learner) is not None:
            learner.spoil = factor

    @ray.method(concurrency_group="breaking")
    def slow(self, factor: float, for_s: float) -> None:
        """Have each step take so many times as long, for a while (for fault plans)."""
        if (learner := self.process.learner) is not None:
            learner.drag = factor
            time.sleep(for_s)
            learner.drag = 1.0

    @ray.method(concurrency_group="breaking")
    def cut(self, for_s: float) -> None:
        self._cable.cut(for_s)

    @ray.method(concurrency_group="breaking")
    def node(self) -> str:
        """On which node it is, by Ray's id."""
        return ray.get_runtime_context().get_node_id()

    @ray.method(concurrency_group="breaking")
    def kill_node(self) -> None:
        """Kill the raylet, which has started this process, and with it everything on the node."""
        os.kill(os.getppid(), signal.SIGKILL)


# --- the shard ------------------------------------------------------------------------------------


class ShardActor(Breakable):
    """A shard and its data path: it calls the learners, and the data is the answer.

    A new process has no model until it is told to `seed` or to `recover`.
    """

    def __init__(
        self, config: str, namespace: str, run_dir: str, code: str = "", owner: int = 0
    ) -> None:
        """`code`: of its outer optimizer, when the run began (`user_sha256`). `owner`: for its
        `Fence`."""
        setup_logging()
        self._config = Config.model_validate_json(config, strict=False)
        self._code = code
        self._depot = depot_of(self._config, Path(run_dir))
        self._fence = Fence(self._depot, owner)
        self._actors = _Directory(namespace)
        self._arithmetic = ThreadPoolExecutor(1, "arithmetic")
        self._arithmetic.submit(warm_up, {self._config.sync.wire_up, self._config.sync.wire_down})
        self._hands = ThreadPoolExecutor(os.cpu_count(), "hands")
        self._gatherer = Gatherer()
        self._fates = Fates()  # of what this process has heard of; on its event loop alone
        self._offers: set[asyncio.Task[None]] = set()
        self._failed: list[tuple[Life | None, Failure]] = []  # since the last publication
        self._broken: BaseException | None = None
        self._shard: Shard | None = None
        self._generation = 0
        self._stored: dict[Fragment, Version] = {}  # the newest of each that the depot has

    async def seed(self, layout: Layout, flats: Mapping[Fragment, Flat]) -> None:
        """Take in these fragments of the initial model, and make them durable."""
        self._check_code()
        arrays = {p: first_of(self._config, flat) for p, flat in flats.items()}
        self._shard = shard_of(self._config, layout, arrays, self._spread)
        for p, each in arrays.items():
            await self._compute(self._files(layout).save, p, each, True)
            self._stored[p] = each.version

    async def recover(
        self,
        wanted: Mapping[Fragment, Version],
        generation: int,
        deaths: int = 0,
        merged: Sequence[ContributionId] = (),
    ) -> dict[Fragment, Version]:
        """Go back to these published versions, or to the newest before them that are stored, and
        take orders from this generation of the syncer, or a later one, from now on.

        `deaths`: of this shard, in this generation; `merged`: contributions of the lives that go
        on, which are in these versions.

        Errors: `Outdated`; `RunFailed` if this process has another outer optimizer.
        """
        self._obey(generation)
        self._check_code()
        self._gatherer.forget()
        found = await self._compute(self._recover, wanted, generation)
        self._fates.died(deaths)
        self._fates.published(merged)
        return found

    def _recover(
        self, wanted: Mapping[Fragment, Version], generation: int
    ) -> dict[Fragment, Version]:
        self._obey(generation)
        self._fence.check()
        self._generation = generation
        layout = load_layout(self._depot)
        files = self._files(layout)
        if self._shard is None:
            arrays = {p: files.newest(p, upto=version) for p, version in wanted.items()}
            self._shard = shard_of(self._config, layout, arrays, self._spread)
        shard = self._shard
        found = {
            p: shard.recover(p, version, functools.partial(files.newest, p, version))
            for p, version in wanted.items()
        }
        self._stored |= {p: version for p, version in found.items() if files.has(p, version)}
        for p, version in found.items():
            try:
                files.forget_after(p, version)
            except OSError as error:
                logging.error("fragment %d keeps more than %s: %s", p, version, error)
        return found

    def _check_code(self) -> None:
        """Errors: `RunFailed` if the outer optimizer is another one in this process."""
        target = self._config.sync.outer.target
        if (now := user_sha256(target)) != self._code:
            raise RunFailed(_changed("sync.outer.target", target, self._code, now))

    def _obey(self, generation: int) -> None:
        """Errors: `Outdated` if a later generation has been heard: a syncer may live on where Ray
        has lost sight of it."""
        if generation < self._generation:
            raise Outdated(
                f"the syncer of generation {generation} is not heard any more, that of "
                f"{self._generation} is"
            )

    async def watch(self) -> None:
        """Never return, unless this process has no model: then it is not the one that was meant."""
        if self._shard is not None:
            await asyncio.Event().wait()

    async def collect(self, fragment: Fragment, seats: Mapping[Life, Seat]) -> Answers:
        """Have the learners in these seats hand in; returns once there is something, not when all
        is there."""

        def ask(life: Life) -> Coroutine[None, None, Handed]:
            return self._collect(life, fragment, island_actor(seats[life]))

        return await self._gatherer.gather(fragment, [*seats], ask)

    async def _collect(self, life: Life, fragment: Fragment, name: str) -> Handed:
        """Keep what the learner in this actor hands in, measured; or say why there is nothing."""
        try:
            island = await self._actors.find(name)
            known = self._fates.known(life, fragment)
            handed = await island.hand_in.remote(life, fragment, known)
        except RayError as error:
            return self._unanswered(life, name, failure_of(Reason.HAND_IN, error), error)
        if handed is None:
            return "nothing to hand in"
        if (why := flaw(handed, life, fragment)) is not None:
            logging.error("what %s handed in is of no use: %s", life, why)
            return Failure(Reason.SENT, why)
        there = await self._compute(self._there.receive, *handed)
        self._fates.arrived(there.id)
        return there

    def _unanswered(
        self, life: Life, name: str, said: Failure | str, error: RayError
    ) -> Failure | str:
        """A call of an island has come to nothing."""
        if isinstance(error, RayActorError):  # perhaps the handle is one of the past
            self._actors.forget(name)
        if isinstance(said, str):
            logging.info("%s: %s", life, said)
        else:  # `error` has the traceback from over there
            logging.error("%s failed, %s: %s", life, said.why, error)
        return said

    async def merge(self, order: Merge) -> tuple[Merged | Unsound, bool | str]:
        """Merge, and make the staged version durable, if it is sound; False if it is not its turn
        to be, else why it cannot be.

        One call for both, since the second follows in any case and a call of Ray costs more than
        the merge of a small fragment.
        """
        if self._config.durability.keep_contributions:
            await self._carry_out(order, self._keep)
        event = await self._carry_out(order, self._merge)
        if isinstance(event, Unsound) or order.version.number % self._config.durability.every:
            return event, False
        try:
            await self._carry_out(order, self._store)
        except OSError as error:
            logging.error("fragment %d %s is not durable: %s", order.fragment, order.version, error)
            return event, error.strerror or str(error)
        self._stored[order.fragment] = order.version
        return event, True

    def _merge(self, order: Merge) -> Merged | Unsound:
        """Merge; what was public before can be had again from the depot, if it is stored."""
        there, p = self._there, order.fragment
        version = there.version(p)
        if self._stored.get(p) != version:
            return there.merge(order)
        return there.merge(order, lambda: self._load(p, version))

    def _load(self, p: Fragment, version: Version) -> Arrays:
        """What is stored; a process that cannot have it again begins anew with what can be had."""
        try:
            return self._files(self._layout).load(p, version)
        except (Damaged, OSError) as error:
            _start_over(f"{version} of fragment {p} cannot be had again: {error}")

    def _keep(self, order: Merge) -> None:
        self._fence.check()
        for item in order.items:
            payload = self._there.payload(item.contribution.reference)
            layout = item.contribution.fingerprint
            try:
                save_contribution(self._depot, item.contribution.id, payload, layout)
            except OSError as error:  # replay will miss it and say so; the run need not stop
                logging.error("%s is not kept: %s", item.contribution.id, error)

    def _store(self, order: Merge) -> None:
        self._fence.check()
        self._files(self._layout).save(order.fragment, self._there.staged(order.fragment))

    @functools.cached_property
    def _layout(self) -> Layout:
        """As the syncer has written it down when the run began."""
        return load_layout(self._depot)

    async def publish(self, order: Publish, seats: Sequence[Seat]) -> Losses:
        """Put the difference into the object store once, and tell every learner where it is; a
        small one goes along with the words.

        `seats`: where those are to whom it goes. Returns which islands failed since the last one.

        Errors: what of ours broke when an earlier publication was offered.
        """
        if self._broken is not None:
            raise self._broken
        said = await self._carry_out(order, self._publish)
        self._fates.published(order.merged)
        if said is not None:
            publication, payload = said
            boxed = self._boxed(publication, payload)
            for life, seat in zip(order.to, seats, strict=True):
                task = asyncio.create_task(self._offer(life, seat, publication, boxed))
                self._offers.add(task)
                task.add_done_callback(self._offered)
        failed, self._failed = self._failed, []
        return failed

    def _boxed(self, said: Publication, payload: Payload) -> Sequence[Payload | ray.ObjectRef]:
        """Where learners find it; nothing if there is no room: then each asks for what it lacks."""
        try:
            return [payload if payload.nbytes < INLINE_BYTES else ray.put(payload)]
        except STORE_FULL as error:
            kind = type(error).__name__
            logging.error("no room to publish %s of %d: %s", said.version, said.fragment, error)
            why = f"{kind}: no room to publish fragment {said.fragment} {said.version}"
            self._failed.append((None, Failure(Reason.STORE, why, ends=False)))
            return []

    def _publish(self, order: Publish) -> tuple[Publication, Payload] | None:
        """None if this process has come back with that version: learners take it with the next."""
        there, p = self._there, order.fragment
        return None if there.version(p) == order.version else there.publish(order)

    async def _offer(
        self, life: Life, seat: Seat, said: Publication, boxed: Sequence[Payload | ray.ObjectRef]
    ) -> None:
        name = island_actor(seat)
        try:
            island = await self._actors.find(name)
            failure = await island.offer.remote(life, said, boxed)
        except RayError as error:  # a learner that is back takes the public fragments whole
            failure = self._unanswered(life, name, failure_of(Reason.OFFER, error), error)
        if isinstance(failure, Failure):
            self._failed.append((life, failure))

    def _offered(self, task: asyncio.Task[None]) -> None:
        self._offers.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken = self._broken or error

    async def discard(self, order: Discard) -> None:
        self._there.drop(order.contribution.reference)
        self._fates.freed(order.contribution.id)

    async def whole(self, fragments: Sequence[Fragment]) -> list[tuple[Version, Flat]] | None:
        """Public fragments; None while there is no model yet."""
        return None if self._shard is None else self._shard.whole(fragments)

    async def missed(
        self, p: Fragment, older: Version, newer: Version
    ) -> list[Payload] | tuple[Version, Flat] | None:
        """What leads from one version to another, or the public fragment; None as in `whole`."""
        return None if self._shard is None else self._shard.missed(p, older, newer)

    def _files(self, layout: Layout) -> FragmentStore:
        return FragmentStore(self._depot, layout, keep=self._config.durability.keep_snapshots)

    @property
    def _there(self) -> Shard:
        """Errors: `NoModel`: this process is not the one that was meant."""
        if self._shard is None:
            raise NoModel("the shard has just begun and has no model yet")
        return self._shard

    def _spread(self, work: Callable[[S], T], items: Iterable[S]) -> Iterable[T]:
        """Large fragments occupy all cores, small ones the arithmetic's own thread."""
        jobs = list(items)
        return map(work, jobs) if len(jobs) == 1 else self._hands.map(work, jobs)

    async def _carry_out(self, order: Order, call: Callable[[Order], T]) -> T:
        """... unless its syncer is outdated, which is looked up where a `recover` is done too: no
        later generation can come between.

        Errors: `Outdated`.
        """

        def obey() -> T:
            self._obey(order.version.generation)
            return call(order)

        return await self._compute(obey)

    async def _compute(self, call: Callable[..., T], *arguments: object) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._arithmetic, functools.partial(call, *arguments))


# --- the syncer -----------------------------------------------------------------------------------


class RayPorts(Ports):
    """What the syncer reaches: the shards for arrays, the islands for words.

    A version may be merged as soon as the one before is stored, and must not be staged before that
    is public: an asynchronous actor of Ray does not keep to the order in which it was called.
    """

    def __init__(self, namespace: str, holder: Mapping[Fragment, str]) -> None:
        self._actors, self._holder = _Directory(namespace), holder
        self._shards = Attendance(set(holder.values()), (RayActorError, NoModel))
        self._asker = Asker(self._ask)
        self._turns = {p: asyncio.Lock() for p in holder}
        self._durable: dict[Fragment, bool | str] = {}  # what the last merge of each has said
        self._fates = Fates()  # that a shard which comes back has to know
        self.seats: dict[Island, Seat] = {}  # of those that have joined

    async def shard_dies(self, name: str) -> None:
        """Return when it is dead, also if nothing was asked of it: who joins waits for it."""

        async def watch() -> None:
            shard = await self._actors.find(name)
            await shard.watch.remote()

        await self._shards.until_dead(name, watch)
        for p in (p for p, holder in self._holder.items() if holder == name):
            self._turns[p] = asyncio.Lock()

    async def have_back(self, name: str, wanted: Wanted, generation: int) -> Wanted:
        """Have this shard go back to these versions, as soon as Ray has restarted it; returns those
        that it has. More will be asked of it once it `is_back`.

        Errors: `RayActorError` if it does not come for `PATIENCE_S`.
        """
        end_s = time.monotonic() + PATIENCE_S
        while True:
            self._actors.forget(name)
            deaths, merged = self._shards.deaths(name), self._fates.merged(wanted.keys())
            try:
                shard = await self._actors.find(name)
                return await shard.recover.remote(wanted, generation, deaths, merged)
            except RayActorError:
                if time.monotonic() > end_s:
                    raise
                await asyncio.sleep(AGAIN_S)

    def is_back(self, name: str) -> None:
        self._shards.is_back(name)

    async def _order(self, p: Fragment, method: str, *arguments: object) -> Any:
        """Errors: `Away`."""
        name = self._holder[p]

        async def order() -> Any:
            shard = await self._actors.find(name)
            return await getattr(shard, method).remote(*arguments)

        return await self._shards.ask(name, order)

    def _seat(self, life: Life) -> Seat:
        return self.seats.get(life.island, seat_of(life.island))

    async def watch(self, life: Life) -> str:
        name = island_actor(self._seat(life))
        self._actors.forget(name)  # it has just joined: there is none newer than who did
        try:
            island = await self._actors.find(name)
            return await island.watch.remote(life)
        except RayTaskError as error:
            return in_short(f"it cannot be watched: {origin_of(error)!r}")
        except RayError as error:
            return f"its process ended ({type(error).__name__})"

    async def collect(self, life: Life, fragment: Fragment) -> Handed:
        await self._shards.until_back(self._holder[fragment])
        try:
            return await self._asker.collect(life, fragment)
        except Away as why:
            return f"{why}: {life} will be asked again"

    async def _ask(self, fragment: Fragment, lives: Sequence[Life]) -> Answers:
        seats = {life: self._seat(life) for life in lives}
        return await self._order(fragment, "collect", fragment, seats)

    async def merge(self, order: Merge) -> Merged | Unsound | None:
        try:
            async with self._turns[order.fragment]:
                event, durable = await self._order(order.fragment, "merge", order)
        except Away:
            return None
        self._durable[order.fragment] = durable
        return event

    async def store(self, order: Store) -> bool | str:
        """Done with the merge: a fragment has one version under way at a time."""
        return self._durable.pop(order.fragment)

    async def publish(self, order: Publish) -> Losses:
        self._fates.published(order.merged)
        seats = [*map(self._seat, order.to)]
        with suppress(Away):
            async with self._turns[order.fragment]:
                return await self._order(order.fragment, "publish", order, seats)
        return ()

    async def discard(self, order: Discard) -> None:
        with suppress(Away):
            await self._order(order.contribution.id.fragment, "discard", order)
        if order.returns_residual:
            await self._tell(order.contribution.id.life, "refused", order.contribution.id)

    async def cease(self, order: Void) -> None:
        await self._tell(order.life, "cease", order)

    async def park(self, life: Life) -> None:
        await self._tell(life, "park", life)

    async def leave(self, life: Life) -> Progress | None:
        return await self._tell(life, "leave")

    async def _tell(self, life: Life, method: str, *arguments: object) -> Any:
        """Say something to a learner; one that is dead need not hear it."""
        try:
            island = await self._actors.find(island_actor(self._seat(life)))
            return await getattr(island, method).remote(*arguments)
        except RayError as error:
            logging.warning("%s did not hear %r: %s", life, method, failure_of(Reason.WORDS, error))
            return None

    async def break_down(self, life: Life, why: str) -> None:
        await self._tell(life, "break_down", life, why)

    def life_at(self, seat: Seat, lives: Iterable[Life]) -> Life | None:
        """Which of these lives is lived there; None for a spare."""
        return next((life for life in lives if self._seat(life) == seat), None)


def _changed(key: str, target: str | None, was: str, now: str) -> str:
    return (
        f"the code of {key} = {target!r} is {now or 'gone'}, and was {was or 'none'} when the run "
        "began: put its files back, or end the run, since --resume goes on with what is there then"
    )


def _said(error: Exception) -> Exception:
    """What another process said, without where it was when it said it."""
    return error.cause if isinstance(error, RayTaskError) else error


def _if_it_helps(error: BaseException) -> None:
    """Start over, if a shard cannot be had or hears another syncer: else it is for good."""
    if isinstance(error, RayTaskError):
        error = error.cause
    if isinstance(error, (RayActorError, Outdated)):
        _start_over(str(error))


def _start_over(why: str) -> NoReturn:
    """End this process, so that Ray restarts it: the syncer as a new generation, a shard with what
    is stored; unless it is one that Ray knows of no more."""
    logging.error("this process starts over: %s", why)
    logging.shutdown()
    os._exit(1)


class SyncerActor(Breakable):
    """The syncer on Ray: an event loop that learners, shell and people call.

    A process that finds a tape in the depot is a restart: it goes on as a new generation.
    """

    def __init__(
        self, config: str, run: str, namespace: str, run_dir: str, code: str = "", owner: int = 0
    ) -> None:
        """`code`: of the task, when the run began (`user_sha256`). `owner`: for its `Fence`."""
        setup_logging()
        self._config = Config.model_validate_json(config, strict=False)
        self._run, self._namespace, self._code = run, namespace, code
        self._depot = depot_of(self._config, Path(run_dir))
        self._fence = Fence(self._depot, owner)
        self._ports = RayPorts(namespace, holder_of(self._config))
        self._opening = asyncio.Lock()
        self._syncer: Syncer | None = None
        self._tape: Tape | None = None
        self._notes: Notes
        self._now_s: Clock
        self._cannot: ArchipelagoError | None = None

    async def open(self, layout: Layout) -> None:
        """Begin: from here on learners may join."""
        self._fence.check()
        save_layout(self._depot, layout)
        await self._ready()

    async def _ready(self) -> Syncer:
        """The syncer, brought back from the tape if this process has not done so yet.

        Errors: whatever is wrong with the tape or the fragments, or with a depot that cannot be
        had for `PATIENCE_S`; once, and from then on.
        """
        async with self._opening:
            if self._cannot is not None:
                raise self._cannot
            end_s = time.monotonic() + PATIENCE_S
            while self._syncer is None:
                try:
                    self._syncer = await self._bring_up()
                except (ArchipelagoError, OSError) as error:
                    if isinstance(error, OSError) and time.monotonic() < end_s:
                        logging.warning("trying again: %s", _said(error))
                        await asyncio.sleep(AGAIN_S)
                        continue
                    self._cannot = RunFailed(f"the syncer cannot come back: {_said(error)}")
                    raise self._cannot from error
        return self._syncer

    async def _bring_up(self) -> Syncer:
        self._fence.check()
        config, layout = self._config, load_layout(self._depot)
        rule = rule_of(config, layout)
        groups = {island: group_name(island) for island in config.island_names}
        down, now_s = config.sync.wire_down, time.time()
        measures = Measures(self._run, groups, layout.sizes, down, now_s=now_s)
        back = come_back(self._depot, rule, measures)
        known = _Directory(self._namespace)
        fragments_of = shards_of(config.sync.shards, config.sync.fragments)
        shards, resume = [await known.find(name) for name in fragments_of], None
        if back is not None:
            logging.warning(
                "back as generation %d at event %d, %d heard again%s",
                back.generation,
                back.seq,
                back.heard,
                f"; {back.damage}" if back.damage else "",
            )
            self._depot.tidy(STATE)
            wanted = [fragment.version for fragment in back.state.fragments]
            asked = [
                shard.recover.remote({p: wanted[p] for p in own}, back.generation)
                for shard, own in zip(shards, fragments_of.values(), strict=True)
            ]
            found = {p: v for each in await asyncio.gather(*asked) for p, v in each.items()}
            resume = Resume(back.generation, tuple(found[p] for p in sorted(found)))
        generation, seq = (0, 0) if back is None else (back.generation, back.seq)
        self._now_s = Clock(0.0 if back is None else back.last_s)
        self._notes = Notes(self._depot, measures, self._now_s)
        self._tape = Tape(self._depot, generation, layout.fingerprint, first_seq=seq)
        syncer = Syncer(
            rule,
            initial(rule) if back is None else back.state,
            self._ports,
            now_s=self._now_s,
            tape=self._tape,
            measures=measures,
            failed=_if_it_helps,
            noted=self._notes.failed,
        )
        if resume is not None:
            syncer.feed(resume)
        for name, own in fragments_of.items():
            syncer.spawn(self._keep_shard(syncer, name, own))
        syncer.spawn(self._keep_snapshots(syncer))
        return syncer

    async def _keep_snapshots(self, syncer: Syncer) -> None:
        """So that a restart need not hear the whole tape again."""
        while True:
            await asyncio.sleep(SNAPSHOT_EVERY_S)
            await self._keep_snapshot(syncer)

    async def _keep_snapshot(self, syncer: Syncer) -> None:
        """Of this moment; not if the tape cannot be made durable up to it."""
        tape = self._tape
        assert tape is not None
        flushed = tape.flush()
        snapshot = Snapshot(
            syncer.state,
            tape.seq,
            self._now_s(),
            syncer.measures.memory(),
            self._notes.length,
            rules_sha256(syncer.rule),
        )
        await done(flushed)
        if tape.trouble is None:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._keep, snapshot, syncer.rule.fingerprint)

    def _keep(self, snapshot: Snapshot, layout: str) -> None:
        try:
            self._fence.check()
        except RunFailed as error:  # the next process says so to whoever asks, and writes nothing
            _start_over(str(error))
        try:
            if self._depot.has(tape_name(snapshot.state.generation + 1)):
                _start_over("a later generation writes the tape")
            self._notes.flush()
            save_snapshot(self._depot, snapshot, layout)
        except OSError as error:  # a restart hears the tape from the one before
            logging.error("no snapshot: %s", error)

    async def _keep_shard(self, syncer: Syncer, name: str, own: Sequence[Fragment]) -> None:
        """When it dies only its fragments are away for a moment; but all begin a new generation if
        learners cannot go on without what it had, or if something public died with it."""
        while True:
            await self._ports.shard_dies(name)
            if not shards_come_back_alone(self._config):
                _start_over(f"{name} has died, and with it what learners cannot go on without")
            logging.warning("%s has died, and its fragments %s with it", name, [*own])
            wanted = syncer.shard_lost(own)
            try:
                found = await self._ports.have_back(name, wanted, syncer.state.generation)
            except RayError as error:  # a new generation has more patience
                _start_over(f"{name} cannot come back: {_said(error)}")
            if found != wanted:
                _start_over(f"{name} was to come back with {wanted}, and has {found}")
            self._ports.is_back(name)
            syncer.shard_back(own)
            logging.warning("%s is back", name)

    async def join(
        self, event: Join, source: str, seat: Seat, code: str = ""
    ) -> tuple[Granted | Refused, Mapping[Island, Seat]]:
        """`seat`: where it can be reached from now on; answered with where all can be. `source` and
        `code`: ours, and the user's, that it runs."""
        syncer, seats = await self._ready(), self._ports.seats
        if (why := stranger(self._config, event)) is not None:
            logging.warning("refused: %s", why)
            return Refused(event.island, why), seats
        if source != source_sha256():
            why = f"its source is {source}, the syncer's is {source_sha256()}: update its node"
            syncer.measures.refused(event.island, why)
            return Refused(event.island, why), seats
        if code != self._code:
            why = _changed("task.target", self._config.task.target, self._code, code)
            syncer.measures.refused(event.island, why)
            return Refused(event.island, why), seats
        if isinstance(answer := syncer.join(event), Granted):
            seats[event.island] = seat
        await syncer.durable()
        return answer, seats

    async def report(
        self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]
    ) -> Answer | Void:
        syncer = await self._ready()
        check_report(event, vitals, adopted, self._config.sync.fragments)
        answer = syncer.report(event, vitals, adopted)
        if isinstance(answer, Answer):
            self._notes.vitals(event.life, vitals)
        return answer

    async def lease(self, event: LeaseWanted) -> LeaseGranted | Void:
        syncer = await self._ready()
        check_word(event, LeaseWanted)
        answer = syncer.lease(event)
        await syncer.durable()
        return answer

    async def left(self, event: Left) -> None:
        syncer = await self._ready()
        check_word(event, Left)
        syncer.left(event)

    async def broke(self, seat: Seat, failure: Failure) -> None:
        """Whoever is there ends its process, with what it raised."""
        syncer = await self._ready()
        lives = [member.life for member in syncer.state.members.values()]
        syncer.broke(self._ports.life_at(seat, lives), failure)

    async def stop(self, why: str) -> None:
        syncer = await self._ready()
        syncer.stop(why)
        await syncer.durable()

    async def drain(self, island: Island, why: str) -> None:
        syncer = await self._ready()
        syncer.drain(island, why)
        await syncer.durable()

    async def fault(self, island: Island) -> None:
        await self._ready()
        self._notes.fault(island)

    async def evaluated(self, t: int, loss: float) -> None:
        await self._ready()
        self._notes.evaluated(t, loss)

    async def unjudged(self, why: Unjudged) -> None:
        """An evaluation of the model has come to nothing."""
        await self._ready()
        self._notes.unjudged(why)

    async def look(self, held: Mapping[Island, str]) -> Status:
        """The fleet says which islands have devices (with their groups), and is told the rest."""
        await self._ready()
        self._notes.held(held)
        return await self.status()

    async def status(self) -> Status:
        syncer = await self._ready()
        if syncer.failure is not None:
            raise syncer.failure
        if (hopeless := syncer.measures.hopeless(syncer.state.phase)) is not None:
            raise hopeless
        assert self._tape is not None
        syncer.measures.trouble("tape", self._tape.trouble)
        return syncer.measures.status(syncer.rule, syncer.state, self._now_s())

    async def close(self) -> dict[str, object]:
        """The run is over: end the tape, keep a last snapshot, and sum up."""
        syncer = await self._ready()
        syncer.close()
        assert self._tape is not None
        await self._keep_snapshot(syncer)
        self._tape.close()
        return syncer.measures.summary(syncer.state, self._now_s())


class EvaluatorActor(Breakable):
    """Makes the initial model; judges the syncer's model now and then, and at the end."""

    def __init__(self, config: str, namespace: str) -> None:
        setup_logging()
        self._config = Config.model_validate_json(config, strict=False)
        self._actors = _Directory(namespace)

        self._made: Evaluator | None = None

    @property
    def _evaluator(self) -> Evaluator:
        from cluster.evaluate import Evaluator  # JAX only where it is needed

        self._made = self._made or Evaluator(self._config)
        return self._made

    @ray.method(concurrency_group="asking")
    def judged(self) -> Judged:
        """How far it is, also while it judges."""
        made = self._made
        return Judged(0, 0.0) if made is None else Judged(made.judged, made.longest_s)

    def initial(self) -> tuple[Layout, list[Flat]]:
        return self._evaluator.layout, self._evaluator.initial()

    def initial_loss(self) -> float:
        return self._evaluator.initial_loss

    def loss(self, flats: list[Flat]) -> float:
        return self._evaluator.loss(flats)

    def sample(self, flats: list[Flat]) -> float:
        """Over the windows that `judge` is of."""
        return self._evaluator.sample(flats)

    def judge(self) -> None:
        """Take a consistent copy of the public fragments and tell the syncer how good they are."""
        fragments = [Fragment(p) for p in range(self._config.sync.fragments)]
        try:
            status: Status = ray.get(self._actors[SYNCER].status.remote())
            holder = holder_of(self._config)
            wholes: Any = ray.get([self._actors[holder[p]].whole.remote([p]) for p in fragments])
            if None in wholes:
                return  # a shard is just coming back
            loss = self._evaluator.sample([whole[0][1] for whole in wholes])
            ray.get(self._actors[SYNCER].evaluated.remote(status["t"], loss))
        except RayActorError as error:  # one of them is being restarted: another time
            logging.info("not judged this time: %s", type(error).__name__)


# --- the fleet ------------------------------------------------------------------------------------


class FleetActor(Breakable):
    """The fleet of a run: keeps it on a thread of its own, and can always answer."""

    def __init__(
        self,
        config: str,
        run_dir: str,
        namespace: str,
        detached: bool,
        auth: str,
        token: str,
        resumes: bool,
    ) -> None:
        setup_logging()
        from cluster.steward import Fleet  # which needs this module

        plain = Config.model_validate_json(config, strict=False)
        self._fleet = Fleet(
            plain,
            Path(run_dir),
            namespace,
            detached=detached,
            auth=auth,
            token=token,
            resumes=resumes,
        )
        threading.Thread(target=self._fleet.keep, name="keep", daemon=True).start()

    def status(self) -> Status:
        return self._fleet.status()

    def outcome(self) -> Outcome | None:
        """How the run ended; None while it goes on."""
        return self._fleet.outcome

    def scale(self, counts: Mapping[str, int]) -> None:
        self._fleet.scale(counts)

    def drain(self, island: Island) -> None:
        self._fleet.drain(island)

    def stop(self, why: str) -> None:
        self._fleet.stop(why)

    def starting(self, seat: Seat) -> float:
        return self._fleet.starting(seat)

    def role(self, seat: Seat, warm: bool) -> Island | None:
        return self._fleet.role(seat, warm=warm)

    def broke(self, seat: Seat, words: str) -> None:
        self._fleet.broke(seat, words)

    def harm(self, harm: Mapping[str, Any]) -> None:
        self._fleet.harm(Harm.model_validate(harm))

    def dismiss(self) -> None:
        self._fleet.dismiss()


# --- starting them --------------------------------------------------------------------------------

CPU_ENV = {"JAX_PLATFORMS": "cpu"}
KEEP_PAGES = {
    "MALLOC_TRIM_THRESHOLD_": "1000000000",
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
}
"""For glibc: XLA on a CPU frees large buffers each step, and a shard at each merge, which would be
page faults at the next."""
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


@dataclass(frozen=True, slots=True)
class Home:
    """Where a run's actors live: their namespace, and whether they outlast whoever starts them.

    They stay on the node of the fleet while it is there: they may share a directory that no other
    node sees.
    """

    namespace: str
    detached: bool

    def options(self, name: str, env: Mapping[str, str]) -> dict[str, Any]:
        own: dict[str, Any] = {"runtime_env": {"env_vars": dict(env)}} if env else {}
        if self.detached:
            own |= {"lifetime": "detached", "get_if_exists": True}
        return {
            **own,
            "name": name,
            "namespace": self.namespace,
            "max_restarts": -1,
            "max_task_retries": 0,
            "enable_task_events": False,  # Ray would keep a record of every report
        }

    def near(self) -> dict[str, Any]:
        """Options: on this process's node, or on another one if that is gone.

        By its label, since Ray 2.60 puts actors without resources anywhere if the affinity is soft.
        """
        here = {NODE_ID: ray.get_runtime_context().get_node_id()}
        return {"label_selector": here, "fallback_strategy": [{"label_selector": {}}]}


def start_fleet(
    config: Config, run_dir: Path, home: Home, auth: str, *, resumes: bool = False
) -> Actor:
    """The fleet starts everything else. One that is not detached ends with its run's process.
    `resumes`: a run that another one has begun."""
    options = home.options(FLEET, {})
    if not home.detached:
        options["max_restarts"] = 0  # what it had started has ended with it
    actor = ray.remote(FleetActor).options(
        **options, **home.near(), num_cpus=0, max_concurrency=FLEET_THREADS
    )
    token, plain = uuid4().hex, config.model_dump_json()
    return actor.remote(plain, str(run_dir), home.namespace, home.detached, auth, token, resumes)


def start_syncer(config: Config, run: str, home: Home, run_dir: Path, owner: int = 0) -> Actor:
    """`owner`: number of whom the run is; 0: nobody asks."""
    code = user_sha256(config.task.target)
    return _start(SyncerActor, SYNCER, home, {}).remote(
        config.model_dump_json(), run, home.namespace, str(run_dir), code, owner
    )


def start_shard(
    config: Config, name: str, home: Home, run_dir: Path, node: str | None = None, owner: int = 0
) -> Actor:
    """`node`: Ray's name of where it shall be, while that is there; None: the fleet's. `owner`:
    number of whom the run is; 0: nobody asks."""
    env = KEEP_PAGES | (CPU_ENV if config.sync.outer.target else {})  # an optax one needs JAX
    there: dict[str, Any] = {}
    if node is not None:
        else_ = {"label_selector": dict(config.sync.shard_labels or {})}
        there = {"label_selector": {NODE_ID: node}, "fallback_strategy": [else_]}
    code = user_sha256(config.sync.outer.target)
    return _start(ShardActor, name, home, env, there).remote(
        config.model_dump_json(), home.namespace, str(run_dir), code, owner
    )


def start_evaluator(config: Config, home: Home) -> Actor:
    env = {**CPU_ENV, "XLA_FLAGS": ONE_THREAD}
    actor = _start(EvaluatorActor, EVALUATOR, home, env, groups={"asking": 1})
    return actor.remote(config.model_dump_json(), home.namespace)


def start_island(
    config: Config,
    group: IslandGroup,
    seat: Seat,
    home: Home,
    devices: PlacementGroupSchedulingStrategy | None,
    kind: type[IslandActor] = IslandActor,
) -> Actor:
    """A process of this group on the devices that were reserved for it (None: wherever there is
    room); Ray restarts it whenever it dies."""
    resources = dict(group.devices)
    cpus, gpus = resources.pop("CPU", 0.0), resources.pop("GPU", 0.0)
    memory = resources.pop("memory", None)
    env = {
        "JAX_COMPILATION_CACHE_DIR": str(Path.home() / ".cache" / "archipelago" / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",  # the many small ones cost most
    }
    if not gpus and not resources.get("TPU"):
        env |= CPU_ENV | KEEP_PAGES
        if cpus <= 1:
            env["XLA_FLAGS"] = ONE_THREAD
    threaded: Any = ray.remote(concurrency_groups=THREADS)  # type: ignore[call-overload]
    actor = threaded(kind).options(
        **home.options(island_actor(seat), env),
        num_cpus=cpus,
        num_gpus=gpus,
        memory=memory,
        resources=resources,
        scheduling_strategy=devices,
    )
    return actor.remote(config.model_dump_json(), group.group, seat, home.namespace)


def find(name: str, namespace: str) -> Actor | None:
    """An actor that an earlier life of the fleet has started; None if it is not there."""
    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError:
        return None


def find_island(seat: Seat, namespace: str) -> Actor | None:
    return find(island_actor(seat), namespace)


def end(actor: Actor) -> None:
    """End its process for good."""
    ray.kill(actor, no_restart=True)


def _start(
    kind: type,
    name: str,
    home: Home,
    env: Mapping[str, str],
    where: Mapping[str, Any] = MappingProxyType({}),
    groups: Mapping[str, int] = MappingProxyType({}),
) -> Actor:
    """`groups`: threads for calls of these kinds, beside those for all others."""
    place = where or home.near()
    made: Any = ray.remote(concurrency_groups=dict(groups)) if groups else ray.remote  # type: ignore[call-overload]
    return made(kind).options(**home.options(name, env), **place, num_cpus=0)
