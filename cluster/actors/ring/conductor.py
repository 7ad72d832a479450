"""The actor that conducts rings, as islands call it. `allreduce.ring` decides, and
`allreduce.shell` carries out what follows.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from ray.exceptions import RayError

from cluster.actors.directory import AGAIN_S, setup_logging
from cluster.actors.fault_injection import Breakable
from cluster.actors.restart import code_changed, start_over
from cluster.actors.ring.ray_ports import RayRingPorts
from cluster.allreduce.accounts import RingAccounts
from cluster.allreduce.records import come_back
from cluster.allreduce.ring import Rules
from cluster.allreduce.ring_messages import START, TrainingPosition, Turn
from cluster.allreduce.saved_state import RingComeback, RingState, read_back, save_state
from cluster.allreduce.shell import RingShell
from cluster.allreduce.store import DepotStore
from cluster.config.admission import stranger
from cluster.config.schema import Config
from cluster.config.values import Mode
from cluster.failures import Failure, Reason, raised
from cluster.names import Seat, group_name
from cluster.source import source_sha256
from cluster.storage.layout import load_layout, save_layout
from cluster.storage.open_depot import PATIENCE_S, depot_of
from cluster.storage.ownership import Fence
from cluster.syncer.clock import Clock
from cluster.syncer.measures import Measures
from cluster.tasks import watch_process
from coordinator.errors import ArchipelagoError, RunFailed
from coordinator.fragments import Flat, Layout, sew
from coordinator.protocol import Fragment, Join, Life, Refused, Report, Vitals

PASSES = (OSError, RayError, RunFailed, MemoryError)
"""After these the process starts over: the next one may find what this one could not have. Any
other exception is a defect, and ends the run."""


class Conductor(Breakable):
    """Conducts one ring after another. A process that finds a memory in the depot is a restart: the
    run goes on from the last snapshot."""

    def __init__(
        self, config: str, run: str, namespace: str, run_dir: str, code: str = "", owner: int = 0
    ) -> None:
        """`code`: of the task, when the run began (`user_sha256`). `owner`: for its `Fence`."""
        setup_logging()
        watch_process(self._unheard)
        self._config = Config.model_validate_json(config, strict=False)
        self._run, self._code = run, code
        self._depot = depot_of(self._config, Path(run_dir))
        self._fence = Fence(self._depot, owner)
        self._ports = RayRingPorts(namespace)
        self._opening = asyncio.Lock()
        self._opened: RingShell | None = None
        self._cannot: RunFailed | None = None
        self._seed: dict[Fragment, Flat] = {}
        self._now_s: Clock
        self._store: DepotStore
        self._layout: Layout

    # --- begin, and begin again -------------------------------------------------------------------

    async def seed(self, layout: Layout, p: Fragment, flat: Flat) -> tuple[list[Fragment], str]:
        """Take a fragment of the initial model, and return those that this process has."""
        del layout
        self._seed[p] = flat
        return [*self._seed], ""

    async def open(self, layout: Layout) -> None:
        """Begin: from here on islands may come."""

        def begin() -> None:
            self._fence.check()
            save_layout(self._depot, layout)

        await asyncio.to_thread(begin)
        await self._open()

    async def _open(self) -> RingShell:
        """Return the shell, brought back from the depot if this process has not done so yet.

        Errors: `RunFailed` if the depot cannot be had for `PATIENCE_S`, or if what is in it cannot
        be gone on from; once, and from then on.
        """
        async with self._opening:
            if self._cannot is not None:
                raise self._cannot
            end_s = time.monotonic() + PATIENCE_S
            while self._opened is None:
                try:
                    await self._bring_up()
                except (ArchipelagoError, OSError) as error:
                    if isinstance(error, OSError) and time.monotonic() < end_s:
                        logging.warning("trying again: %s", error)
                        await asyncio.sleep(AGAIN_S)
                        continue
                    self._cannot = RunFailed(f"the conductor cannot come back: {error}")
                    raise self._cannot from error
        return self._opened

    async def _bring_up(self) -> None:
        memory, snapshot, damage = await asyncio.to_thread(self._found)
        assert snapshot is not None
        config, layout = self._config, self._layout
        groups = {island: group_name(island) for island in config.island_names}
        down = config.sync.wire_down
        measures = Measures(self._run, groups, layout.sizes, down, now_s=time.time())
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
            RingAccounts(measures, layout, config.sync.wire_up),
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
        self._opened = shell

    def _found(self) -> RingComeback:
        """Return what is in the depot; the initial model becomes the first snapshot."""
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
        """Grant a life to a process. `source` and `code`: ours, and the user's, that it runs."""
        shell = await self._open()
        why = stranger(self._config, event)
        if why is None and source != source_sha256():
            why = f"its source is {source}, the conductor's is {source_sha256()}: update its node"
        if why is None and code != self._code:
            why = code_changed("task.target", self._config.task.target, self._code, code)
        if why is not None:
            logging.warning("refused: %s", why)
            shell.measures.refused(event.island, why)
            return Refused(event.island, why)
        self._ports.seats[event.island] = seat
        return shell.enter(event.island)

    async def ready(
        self, life: Life, held: TrainingPosition | None, wasted: int
    ) -> tuple[bool, Turn | None]:
        """Wait for a place in a ring: whether to ask again, and the place; None: there is none any
        more."""
        shell = await self._open()
        return await shell.ready(life, held, wasted)

    async def turned(self, life: Life, ring: int, held: TrainingPosition) -> None:
        """Take in how far a ring is, from its first member."""
        if self._opened is not None:
            self._opened.turned(life, ring, held)

    async def report(self, report: Report, vitals: Vitals) -> None:
        """Take in how far an island is, and what it has spent its time on."""
        if self._opened is not None:
            self._opened.measures.reported(report, self._now_s())
            self._opened.measures.heard(report.life, vitals)

    async def keep(self, life: Life, state: RingState) -> None:
        """Keep a snapshot, unless a newer one is kept."""
        del life
        if self._opened is not None:
            self._opened.keep(state)

    async def snapshot(self) -> RingState:
        """Return the last snapshot, for an island that begins from it."""
        shell = await self._open()
        shell.measures.counts.down_bytes += shell.snapshot.bytes
        return shell.snapshot

    async def broke(self, seat: Seat, failure: Failure) -> None:
        """Take in what a process has raised that ends now."""
        if (shell := self._opened) is not None:
            members = shell.ring.members
            lives = [m.life for island, m in members.items() if self._ports.seat(island) == seat]
            shell.measures.failed(lives[0] if lives else None, failure)

    # --- what must not be lost in silence ---------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        """Start over if that may help; otherwise `status` raises it, and the fleet ends the run."""
        if isinstance(error, PASSES):
            start_over(f"{type(error).__name__}: {error}")

    def _unheard(self, error: BaseException) -> None:
        """Count what a thread has died of, or a callback of the event loop."""
        if (shell := self._opened) is not None:
            shell.measures.failed(None, raised(Reason.UNHEARD, error))
