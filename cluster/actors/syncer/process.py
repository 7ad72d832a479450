"""The process of the syncer: it recovers the syncer from the depot, and keeps its records.

A process that finds a tape in the depot is a restart and continues as a new generation.
"""

from __future__ import annotations

import asyncio
import logging
import time

from ray.exceptions import RayActorError, RayTaskError

from cluster.actors.bring_up import BringUp
from cluster.actors.directory import holder_of
from cluster.actors.restart import start_over
from cluster.actors.syncer.ray_ports import RayPorts
from cluster.actors.syncer.records import SyncerRecords
from cluster.actors.syncer.shard_keeper import ShardKeeper
from cluster.actors.syncer.snapshot_writer import SnapshotWriter
from cluster.config.rule import rule_of, wire_of_moments
from cluster.config.schema import Config
from cluster.names import group_name
from cluster.storage import ladder, runs
from cluster.storage.depot import Depot
from cluster.storage.layout import load_layout, save_layout
from cluster.storage.ownership import Fence
from cluster.storage.playback import edition_of
from cluster.storage.tape import Tape
from cluster.syncer.clock import Clock
from cluster.syncer.effect_queue import done
from cluster.syncer.journal import Notes
from cluster.syncer.measures import Measures
from cluster.syncer.restore import restore
from cluster.syncer.shell import Syncer
from coordinator.errors import Outdated
from coordinator.fragments import Layout
from coordinator.state import initial


class SyncerProcess:
    """The syncer of this process, over Ray's ports and the run's depot; for one event loop.

    `up`: recovers it, with its records. `heard`: the last event that was replayed, -1 before the
    first. `ports`: its access to shards and islands.
    """

    def __init__(self, config: Config, run: str, namespace: str, depot: Depot, owner: int) -> None:
        """Create a process without state; its `Fence` has the number of the run's owner."""
        self._config, self._run = config, run
        self._depot, self._owner = depot, owner
        self._fence = Fence(depot, owner)
        self.ports = RayPorts(namespace, holder_of(config))
        kept = config.durability
        policy = ladder.LadderPolicy(kept.keep_hourly, kept.keep_daily)
        self._snapshots = SnapshotWriter(depot, self._fence.check, kept.keep_segments, policy)
        self._shards = ShardKeeper(config, namespace, self.ports, self._snapshots)
        self.up = BringUp("the syncer", self._bring_up, progress=lambda: self.heard)
        self.heard = -1

    async def open(self, layout: Layout) -> None:
        """Begin the run; from here on learners may join.

        Errors: the errors of `BringUp.ready`.
        """

        def begin() -> None:
            self._fence.check()
            save_layout(self._depot, layout)

        await asyncio.to_thread(begin)
        await self.up.ready()

    async def _bring_up(self) -> SyncerRecords:
        """Recover the syncer from snapshot and tape, or make a new one if there is no tape.

        Depot calls run on other threads, so that `progress` is answered meanwhile.
        """
        await asyncio.to_thread(self._fence.check)  # on a thread: `progress` is answered meanwhile
        config, layout = self._config, await asyncio.to_thread(load_layout, self._depot)
        edition = await asyncio.to_thread(edition_of, self._depot)
        rule = rule_of(config, layout, edition)
        groups = {island: group_name(island) for island in config.island_names}
        wire_down, now_s = config.sync.wire_down, time.time()
        measures = Measures(
            self._run,
            groups,
            layout.sizes,
            wire_down,
            now_s=now_s,
            wire_moments=wire_of_moments(config),
            overlap=rule.overlap,
            state_fragment=layout.state_fragment,
        )
        from_stored = await asyncio.to_thread(runs.asked_for_stored, self._depot, self._owner)
        rung = await asyncio.to_thread(ladder.asked_to_go_back, self._depot)
        comeback = await restore(
            self._depot, rule, measures, self._shards.recover, self._hears,
            from_stored=from_stored, rung=rung,
        )  # fmt: skip
        recovered, resume = (None, None) if comeback is None else comeback
        if recovered is not None:
            logging.warning(
                "back as generation %d at event %d, %d events replayed%s",
                recovered.generation,
                recovered.seq,
                recovered.heard,
                f"; {recovered.damage}" if recovered.damage else "",
            )
        generation, seq = (0, 0) if recovered is None else (recovered.generation, recovered.seq)
        clock = Clock(0.0 if recovered is None else recovered.last_s)
        notes = await asyncio.to_thread(Notes, self._depot, measures, clock)
        notes.owned(self._owner, clock() if recovered is None else recovered.last_s)
        tape = await asyncio.to_thread(
            Tape,
            self._depot,
            generation,
            layout.fingerprint,
            first_seq=seq,
            edition=edition,
        )
        syncer = Syncer(
            rule,
            initial(rule) if recovered is None else recovered.state,
            self.ports,
            now_s=clock,
            tape=tape,
            measures=measures,
            failed=_start_over_if_useful,
            noted=notes.failed,
        )
        if resume is not None:
            syncer.feed(resume)
        requests = [runs.FROM_STORED] * from_stored + [ladder.FROM_STEP] * (rung is not None)
        if requests:
            await done(tape.flush())
            for request in requests if tape.trouble is None else ():
                await asyncio.to_thread(self._depot.remove, request)
        self._shards.keep(syncer)
        records = SyncerRecords(syncer, tape, notes, clock, self._snapshots)
        syncer.spawn(records.keep_snapshots())
        return records

    def _hears(self, seq: int) -> None:
        self.heard = seq


def _start_over_if_useful(error: BaseException) -> None:
    """Exit, to restart as a new generation, if a shard is unreachable or a newer syncer fenced us.

    Any other failure is permanent: do nothing.
    """
    if isinstance(error, RayTaskError):
        error = error.cause
    if isinstance(error, (RayActorError, Outdated)):
        start_over(str(error))
