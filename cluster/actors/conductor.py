"""Conducts rings: what islands call, and what follows from it. All of it is decided by
`allreduce.ring`; here it is carried out, on an event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import replace
from pathlib import Path

import ray
from ray.exceptions import RayActorError, RayError

from cluster.actors.again import code_changed, start_over
from cluster.actors.directory import Directory, setup_logging
from cluster.actors.inject import Breakable
from cluster.allreduce.keeping import (
    Journal,
    Memory,
    RingState,
    come_back,
    save_state,
)
from cluster.allreduce.meeting import Meetings
from cluster.allreduce.ring import (
    Effect,
    Event,
    Finish,
    Form,
    Held,
    Kept,
    Lost,
    Pause,
    Ready,
    Release,
    Resume,
    Ring,
    Rules,
    Turn,
    Turned,
    advance,
)
from cluster.allreduce.wire import wire_bytes
from cluster.config.admission import stranger
from cluster.config.schema import Config
from cluster.config.values import Mode
from cluster.failures import Failure
from cluster.names import Seat, group_name, island_actor
from cluster.source import source_sha256
from cluster.storage.layout import load_layout, save_layout
from cluster.storage.open import depot_of
from cluster.storage.ownership import Fence
from cluster.syncer.clock import Clock
from cluster.syncer.counts import Watched
from cluster.syncer.measures import RECENT_MERGES, Measures
from coordinator.errors import RunFailed
from coordinator.fragments import Flat, Layout, sew
from coordinator.protocol import (
    Fragment,
    Incarnation,
    Island,
    Join,
    Life,
    Refused,
    Report,
    Vitals,
)

STUCK_S = 15.0
"""After a death the others leave their ring at once; who has not by then does not hear of it."""
WAIT_S = 10.0
"""An island that waits for a place is answered by then, and asks again."""


class Conductor(Breakable):
    """Conducts one ring after another. A process that finds a memory in the depot is a restart: the
    run goes on from the last snapshot."""

    def __init__(
        self, config: str, run: str, namespace: str, run_dir: str, code: str = "", owner: int = 0
    ) -> None:
        """`code`: of the task, when the run began (`user_sha256`). `owner`: for its `Fence`."""
        setup_logging()
        self._config = config_ = Config.model_validate_json(config, strict=False)
        self._run, self._code = run, code
        self._depot = depot_of(config_, Path(run_dir))
        self._fence = Fence(self._depot, owner)
        self._rules = Rules(
            config_.run.mode is Mode.ELASTIC, len(config_.island_names), config_.run.steps
        )
        self._ring = Ring()
        self._actors = Directory(namespace)
        self._seats: dict[Island, Seat] = {}
        self._waiting: dict[Life, asyncio.Future[Turn | None]] = {}
        self._watching: set[asyncio.Task[None]] = set()
        self._meetings: Meetings
        self._seen: tuple[float, RingState] | None = None
        self._snapshot: RingState | None = None
        self._opening = asyncio.Lock()
        self._ready_to_go = False
        self._formed_at = 0  # step of the ring that turns
        self._members: tuple[Life, ...] = ()  # of that ring, whoever has left it since
        self._finished = False
        self._lives = 0
        self._seed: dict[Fragment, Flat] = {}
        self._now_s: Clock
        self._layout: Layout
        self._measures: Measures

    # --- begin, and begin again -------------------------------------------------------------------

    async def seed(self, layout: Layout, p: Fragment, flat: Flat) -> tuple[list[Fragment], str]:
        """A fragment of the initial model; returns those that this process has."""
        del layout
        self._seed[p] = flat
        return [*self._seed], ""

    async def open(self, layout: Layout) -> None:
        """Begin: from here on islands may come."""
        self._fence.check()
        save_layout(self._depot, layout)
        await self._open()

    async def _open(self) -> None:
        async with self._opening:
            if self._ready_to_go:
                return
            self._fence.check()
            config, self._layout = self._config, load_layout(self._depot)
            groups = {island: group_name(island) for island in config.island_names}
            self._measures = Measures(
                self._run, groups, self._layout.sizes, config.sync.wire_down, now_s=time.time()
            )
            memory, self._snapshot, damage = come_back(self._depot)
            self._now_s = Clock(0.0 if memory is None else memory.now_s)
            events = 0 if memory is None else memory.events
            self._journal = Journal(self._depot, events, self._fence.check)
            if self._snapshot is None:
                if len(self._seed) < len(self._layout.fragments):
                    raise RunFailed("the conductor has neither a snapshot nor an initial model")
                leaves = sew(self._layout, [self._seed[p] for p in sorted(self._seed)])
                self._snapshot = RingState(Held(0), leaves, None)
                save_state(self._depot, self._snapshot, config.durability.keep_snapshots)
            if memory is not None:
                self._measures.came_back(memory.measures, damage)
                self._lives = memory.lives
                self._ring = replace(memory.ring, kept=self._snapshot.held)
                logging.warning("back, at the snapshot of step %d", self._snapshot.held.step)
                self._feed(Resume(memory.ring.generation + 1))
            else:
                self._measures.began(self._now_s())
            self._meetings = Meetings()
            self._ready_to_go = True
            self._remember()

    # --- islands ----------------------------------------------------------------------------------

    async def enter(self, event: Join, source: str, seat: Seat, code: str = "") -> Life | Refused:
        """A process asks for a life. `source` and `code`: ours, and the user's, that it runs."""
        await self._open()
        why = stranger(self._config, event)
        if why is None and source != source_sha256():
            why = f"its source is {source}, the conductor's is {source_sha256()}: update its node"
        if why is None and code != self._code:
            why = code_changed("task.target", self._config.task.target, self._code, code)
        if why is not None:
            logging.warning("refused: %s", why)
            self._measures.refused(event.island, why)
            return Refused(event.island, why)
        self._lives += 1
        life = Life(event.island, Incarnation(self._lives))
        self._seats[event.island] = seat
        watched = self._measures.counts.islands.setdefault(event.island, Watched(event.group))
        watched.lives, watched.refused, watched.rejected = watched.lives + 1, "", False
        known = self._ring.members.get(event.island)
        if known is not None:
            self._feed(Lost(known.life, "its process has begun anew"))
        task = asyncio.create_task(self._watch(life))
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)
        return life

    async def _end_who_is_stuck(self, ring: int) -> None:
        """A ring has broken: whoever has not noticed after a while waits for nobody."""
        await asyncio.sleep(STUCK_S)
        if self._ring.ring == ring:
            for life in self._ring.turning:
                logging.warning("%s has not left ring %d: its process is ended", life, ring)
                self._tell(life, "kill")

    async def _watch(self, life: Life) -> None:
        try:
            actor = await self._actors.reach(island_actor(self._seats[life.island]))
            why = await actor.watch.remote(life)
        except RayError as error:
            self._actors.forget(island_actor(self._seats[life.island]))
            why = f"its process ended ({type(error).__name__})"
        self._feed(Lost(life, why))

    async def ready(self, life: Life, held: Held | None, wasted: int) -> tuple[bool, Turn | None]:
        """Wait for a place in a ring: whether to ask again, and the place; None: there is none any
        more."""
        await self._open()
        if life not in self._waiting:
            self._waiting[life] = asyncio.get_running_loop().create_future()
            self._feed(Ready(life, held, wasted))
        waiting = self._waiting[life]
        done, _ = await asyncio.wait({waiting}, timeout=WAIT_S)
        if not done:
            return True, None
        if self._waiting.get(life) is waiting:
            del self._waiting[life]
        return False, waiting.result()

    async def turned(self, life: Life, ring: int, held: Held) -> None:
        """What is said of another ring is passed over."""
        if self._ready_to_go and ring == self._ring.ring and life in self._members:
            self._feed(Turned(ring, held))

    def _count(self, steps: int) -> None:
        """So many more steps of the ring are known."""
        now_s, counts, members = self._now_s(), self._measures.counts, self._members
        each = wire_bytes(self._leaf_sizes, len(members), self._config.sync.wire_up)
        counts.up_bytes += each * len(members) * steps
        counts.down_bytes += each * len(members) * steps
        for member in members:
            counts.islands[member.island].contributions += steps - 1
            self._measures.delivered(member, now_s)
        counts.recent = [*counts.recent, len(members)][-RECENT_MERGES:]
        if not math.isnan(counts.merged_s):
            gap_s = (now_s - counts.merged_s) / steps
            counts.max_gap_s = max(counts.max_gap_s, gap_s)
        counts.merged_s = now_s

    @property
    def _leaf_sizes(self) -> list[int]:
        return [math.prod(leaf.shape) for leaf in self._layout.leaves]

    async def report(self, report: Report, vitals: Vitals) -> None:
        if self._ready_to_go:
            self._measures.reported(report, self._now_s())
            self._measures.heard(report.life, vitals)

    async def keep(self, life: Life, state: RingState) -> None:
        """A snapshot; kept unless a newer one is."""
        if not self._ready_to_go or self._snapshot is None or self._finished:
            return
        if state.held > self._snapshot.held:
            await self._keep(state)

    async def _keep(self, state: RingState, *, final: bool = False) -> None:
        """`final`: the result, which is served from memory if the depot will not have it."""
        loop = asyncio.get_running_loop()
        keep = self._config.durability.keep_snapshots
        try:
            self._fence.check()
            await loop.run_in_executor(None, save_state, self._depot, state, keep)
        except RunFailed as error:
            start_over(str(error))
        except OSError as error:
            self._measures.trouble("snapshot", str(error))
            self._snapshot = state if final else self._snapshot
            return
        self._measures.trouble("snapshot", None)
        if self._snapshot is None or state.held > self._snapshot.held:
            self._snapshot = state
        self._feed(Kept(state.held))

    async def snapshot(self) -> RingState:
        await self._open()
        assert self._snapshot is not None
        self._measures.counts.down_bytes += self._snapshot.bytes
        return self._snapshot

    async def broke(self, seat: Seat, failure: Failure) -> None:
        """Whoever is there ends its process, with what it raised."""
        if self._ready_to_go:
            lives = [m.life for i, m in self._ring.members.items() if self._seats.get(i) == seat]
            self._measures.failed(lives[0] if lives else None, failure)

    # --- deciding and doing -----------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        before = self._ring
        self._ring, effects = advance(self._rules, before, event)
        if (steps := self._ring.held.step - before.held.step) > 0 and self._members:
            self._count(steps)
        if not isinstance(event, Turned) or effects:
            self._journal.note(self._now_s(), event, effects)
        now_s, counts = self._now_s(), self._measures.counts
        if before.stopping is None and self._ring.stopping is not None:
            counts.stopping_s = now_s
        if isinstance(event, Lost) and self._ring is not before:
            self._gone(event.life, before)
        if self._ring.broken and not before.broken and self._ring.turning:
            task = asyncio.create_task(self._end_who_is_stuck(self._ring.ring))
            self._watching.add(task)
            task.add_done_callback(self._watching.discard)
        for effect in effects:
            self._carry_out(before, effect)
        self._remember(always=bool(effects))

    def _gone(self, life: Life, before: Ring) -> None:
        """A member is gone. Of a ring that has not turned yet the others wait for each other inside
        the library, which only ends with their meeting point."""
        logging.warning("%s is gone", life)
        if (waiting := self._waiting.pop(life, None)) is not None and not waiting.done():
            waiting.set_result(None)
        if life in before.turning and not self._has_turned:
            self._meetings.end_ring()

    @property
    def _has_turned(self) -> bool:
        return self._ring.held.step > self._formed_at

    def _carry_out(self, before: Ring, effect: Effect) -> None:
        match effect:
            case Form():
                self._form(before, effect)
            case Pause(ring, why):
                logging.info("ring %d pauses: %s", ring, why)
                for life in self._ring.turning:
                    self._tell(life, "pause", ring)
            case Release(life, why):
                logging.info("%s is let go: %s", life, why)
                if (waiting := self._waiting.get(life)) is not None and not waiting.done():
                    waiting.set_result(None)
            case Finish(donor):
                task = asyncio.create_task(self._finish(donor))
                self._watching.add(task)

    def _form(self, before: Ring, form: Form) -> None:
        address = self._meetings.next(ray.util.get_node_ip_address(), len(form.members))
        self._formed_at = form.held.step
        self._members = form.members
        back = before.held.step - form.held.step
        self._measures.counts.merges_lost += max(0, back)
        names = ", ".join(life.island for life in form.members)
        logging.info("ring %d from step %d: %s; %s", form.ring, form.held.step, names, form.why)
        counts = self._measures.counts
        for rank, life in enumerate(form.members):
            held = before.members[life.island].held if life.island in before.members else None
            if form.donor is not None and held != form.held and self._snapshot is not None:
                counts.down_bytes += 3 * sum(leaf.nbytes for leaf in self._snapshot.params)
            turn = Turn(form.ring, address, rank, len(form.members), form.held, form.donor)
            waiting = self._waiting.get(life)
            if waiting is not None and not waiting.done():
                waiting.set_result(turn)

    def _tell(self, life: Life, method: str, *arguments: object) -> None:
        async def tell() -> None:
            try:
                actor = await self._actors.find(island_actor(self._seats[life.island]))
                await getattr(actor, method).remote(*arguments)
            except RayError as error:  # whoever watches it hears of its end
                logging.info("%s does not hear: %s", life, type(error).__name__)

        task = asyncio.create_task(tell())
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    async def _finish(self, donor: Life | None) -> None:
        """Have the final state, which is the result; then the run is over for everybody."""
        try:
            if donor is not None:
                actor = await self._actors.find(island_actor(self._seats[donor.island]))
                state: RingState | None = await actor.state_of.remote(donor)
                if state is not None:
                    await self._keep(state, final=True)
        except RayActorError as error:
            logging.error("the final state went with %s: %s", donor, type(error).__name__)
            held = Held(0) if self._snapshot is None else self._snapshot.held
            ring = self._ring
            self._ring = replace(ring, held=held, lost=ring.trained - held.tokens)
        self._measures.counts.ended_s = self._now_s()
        self._finished = True
        for life, waiting in self._waiting.items():
            if not waiting.done():
                logging.info("%s: the run is over", life)
                waiting.set_result(None)

    def _remember(self, *, always: bool = False) -> None:
        now_s = self._now_s()

        def memory() -> Memory:
            measures, events = self._measures.memory(), self._journal.events
            return Memory(self._ring, now_s, measures, self._lives, events)

        if not self._ready_to_go:
            return
        try:
            self._journal.remember(memory, now_s, always=always)
        except RunFailed as error:
            start_over(str(error))
        except OSError as error:
            self._measures.trouble("memory", str(error))
