"""The actor that conducts rings, as islands call it.

`allreduce.ring` decides, and `allreduce.shell` carries its decisions out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from ray.exceptions import RayError

from cluster.actors.bring_up import BringUp
from cluster.actors.directory import setup_logging
from cluster.actors.fault_injection import Breakable
from cluster.actors.restart import code_changed, source_differs, start_over
from cluster.actors.ring.ray_ports import RayRingPorts
from cluster.allreduce.accounts import RingAccounts
from cluster.allreduce.records import come_back
from cluster.allreduce.ring import Rules
from cluster.allreduce.ring_messages import START, RingDecision, TrainingPosition
from cluster.allreduce.saved_state import RingComeback, RingState, read_back, save_state
from cluster.allreduce.shell import RingShell
from cluster.allreduce.store import DepotStore
from cluster.config.admission import reason_to_refuse
from cluster.config.schema import Config
from cluster.config.values import Mode
from cluster.failures import Failure, Reason, raised
from cluster.names import Seat, group_name
from cluster.storage.layout import load_layout, save_layout
from cluster.storage.open_depot import depot_of
from cluster.storage.ownership import Fence
from cluster.syncer.clock import Clock
from cluster.syncer.measures import Measures
from cluster.tasks import watch_process
from coordinator.errors import RunFailed
from coordinator.fragments import Flat, Layout, sew
from coordinator.protocol import Fragment, Join, Life, Refused, Report, Vitals
from islands.own_wire import built_in

PASSES = (OSError, RayError, RunFailed, MemoryError)
"""Transient errors, after which the process starts over: a new process may succeed.

Any other exception is a bug, and ends the run.
"""


class Conductor(Breakable):
    """An actor that conducts one ring after another.

    If the depot has a memory, this process is a restart: it continues from the last snapshot.
    """

    def __init__(
        self, config: str, run: str, namespace: str, run_dir: str, code: str = "", owner: int = 0
    ) -> None:
        """Prepare the process; it recovers from the depot on the first call that needs it.

        `code`: the digest of the user's code of learners when the run began. `owner`: the
        number of the run's owner, for its `Fence`.
        """
        setup_logging()
        watch_process(self._unheard)
        self._config = Config.model_validate_json(config, strict=False)
        self._run, self._code = run, code
        self._depot = depot_of(self._config, Path(run_dir))
        self._fence = Fence(self._depot, owner)
        self._ports = RayRingPorts(namespace)
        self._up = BringUp("the conductor", self._bring_up)
        self._seed: dict[Fragment, Flat] = {}
        self._now_s: Clock
        self._store: DepotStore
        self._layout: Layout

    # --- start and recovery -----------------------------------------------------------------------

    async def seed(self, layout: Layout, p: Fragment, flat: Flat) -> tuple[list[Fragment], str]:
        """Take a fragment of the initial model; return the fragments that this process has."""
        del layout
        self._seed[p] = flat
        return [*self._seed], ""

    async def open(self, layout: Layout) -> None:
        """Begin the run; from here on islands may come."""

        def begin() -> None:
            self._fence.check()
            save_layout(self._depot, layout)

        await asyncio.to_thread(begin)
        await self._open()

    async def _open(self) -> RingShell:
        """Return the shell, recovered if necessary; errors as of `BringUp.ready`."""
        return await self._up.ready()

    async def _bring_up(self) -> RingShell:
        """Recover the shell from memory and snapshot, or start with the initial model."""
        memory, snapshot, damage = await asyncio.to_thread(self._found)
        assert snapshot is not None
        config, layout = self._config, self._layout
        groups = {island: group_name(island) for island in config.island_names}
        wire_down = config.sync.wire_down
        measures = Measures(self._run, groups, layout.sizes, wire_down, now_s=time.time())
        self._now_s = Clock(0.0 if memory is None else memory.now_s)
        events, lives = 0, 0
        if memory is not None:
            measures.came_back(memory.measures, damage)
            events, lives = memory.events, memory.lives
        ring, resume = come_back(memory, snapshot)
        keep = config.durability.keep_snapshots
        self._store = await asyncio.to_thread(
            DepotStore, self._depot, events, self._fence.check, keep
        )
        await self._ports.prepare()
        shell = RingShell(
            Rules(config.run.mode is Mode.ELASTIC, len(config.island_names), config.run.steps),
            ring,
            snapshot,
            self._ports,
            self._store,
            measures,
            RingAccounts(measures, layout, built_in(config.sync.wire_up)),
            now_s=self._now_s,
            lives=lives,
            failed=self._failed,
        )
        if memory is None:
            measures.began(self._now_s())
        if resume is not None:
            logging.warning("back, at the snapshot of step %d", snapshot.held.step)
            shell.feed(resume)
        shell.remember()
        return shell

    def _found(self) -> RingComeback:
        """Return what the depot has; without a snapshot, the initial model becomes the first one.

        Errors: `RunFailed` if there is neither a snapshot nor an initial model.
        """
        self._fence.check()
        self._layout = load_layout(self._depot)
        found = read_back(self._depot)
        if found.state is not None:
            return found
        if len(self._seed) < len(self._layout.fragments):
            raise RunFailed("the conductor has neither a snapshot nor an initial model")
        leaves = sew(self._layout, [self._seed[p] for p in sorted(self._seed)])
        snapshot = RingState(START, leaves, None)
        save_state(self._depot, snapshot, self._config.durability.keep_snapshots)
        return found._replace(state=snapshot)

    # --- islands ----------------------------------------------------------------------------------

    async def enter(self, event: Join, source: str, seat: Seat, code: str = "") -> Life | Refused:
        """Grant a life to a process, or refuse it.

        `source` and `code`: the digests of our source and of the user's code that it runs.
        """
        shell = await self._open()
        why = reason_to_refuse(self._config, event) or source_differs(source, "the conductor's")
        if (why := why or code_changed(self._config.learner_code, self._code, code)) is not None:
            logging.warning("refused: %s", why)
            shell.measures.refused(event.island, why)
            return Refused(event.island, why)
        self._ports.seats[event.island] = seat
        return shell.enter(event.island)

    async def ready(
        self, life: Life, held: TrainingPosition | None, wasted: int
    ) -> tuple[bool, RingDecision | None]:
        """Wait for a place in a ring; return whether to ask again, and the place.

        The place is None if this life gets none any more.
        """
        shell = await self._open()
        return await shell.ready(life, held, wasted)

    async def turned(self, life: Life, ring: int, held: TrainingPosition) -> None:
        """Record the progress of a ring, from its first member."""
        if self._up.made is not None:
            self._up.made.turned(life, ring, held)

    async def report(self, report: Report, vitals: Vitals) -> None:
        """Record an island's progress, and how it has spent its time."""
        if self._up.made is not None:
            self._up.made.measures.reported(report, self._now_s())
            self._up.made.measures.heard(report.life, vitals, self._now_s())

    async def keep(self, life: Life, state: RingState) -> None:
        """Keep a snapshot, unless a newer one is kept."""
        del life
        if self._up.made is not None:
            self._up.made.keep(state)

    async def snapshot(self) -> RingState:
        """Return the last snapshot, for an island that starts from it."""
        shell = await self._open()
        shell.measures.counts.down_bytes += shell.snapshot.bytes
        return shell.snapshot

    async def broke(self, seat: Seat, failure: Failure) -> None:
        """Record the failure of the process in this seat, which is ending."""
        if (shell := self._up.made) is not None:
            members = shell.ring.members
            lives = [m.life for island, m in members.items() if self._ports.seat(island) == seat]
            shell.measures.failed(lives[0] if lives else None, failure)

    # --- failures that must not go unnoticed ------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        """Start over if that may help.

        Otherwise `status` raises the error, and the fleet ends the run.
        """
        if isinstance(error, PASSES):
            start_over(f"{type(error).__name__}: {error}")

    def _unheard(self, error: BaseException) -> None:
        """Count an exception that ended a thread, or that a callback of the event loop raised."""
        if (shell := self._up.made) is not None:
            shell.measures.failed(None, raised(Reason.UNHEARD, error))
