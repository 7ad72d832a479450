"""The actor of the syncer: an event loop that learners, fleet and people call."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ray.exceptions import RayActorError, RayError, RayTaskError

from cluster.actors.directory import AGAIN_S, Directory, holder_of, setup_logging
from cluster.actors.fault_injection import Breakable
from cluster.actors.restart import code_changed, start_over
from cluster.actors.syncer.ray_ports import RayPorts
from cluster.actors.syncer.snapshot_writer import SnapshotWriter
from cluster.config.admission import stranger
from cluster.config.rule import rule_of, shards_come_back_alone, wire_of_moments
from cluster.config.schema import Config
from cluster.failures import Failure, Reason, Unjudged, raised
from cluster.names import Seat, group_name, shards_of
from cluster.source import source_sha256
from cluster.status import RunStatus
from cluster.storage import runs
from cluster.storage.format import Damaged
from cluster.storage.layout import load_layout, save_layout
from cluster.storage.open_depot import PATIENCE_S, depot_of
from cluster.storage.ownership import Fence
from cluster.storage.playback import edition_of
from cluster.storage.snapshots import Snapshot
from cluster.storage.tape import Tape
from cluster.syncer.clock import Clock
from cluster.syncer.effect_queue import done
from cluster.syncer.journal import Notes
from cluster.syncer.measures import Measures
from cluster.syncer.restore import restore
from cluster.syncer.resume_point import rules_sha256
from cluster.syncer.shell import Syncer
from cluster.tasks import Tasks, watch_process
from cluster.view import View
from coordinator.errors import ArchipelagoError, Outdated, RunFailed
from coordinator.fragments import Layout
from coordinator.message_checks import check_report, check_word
from coordinator.protocol import (
    Adopted,
    Answer,
    Fragment,
    Granted,
    Island,
    Join,
    LeaseGranted,
    LeaseWanted,
    Left,
    Refused,
    Report,
    Version,
    Vitals,
    Void,
)
from coordinator.state import initial

END_S = 30.0
"""So long the last snapshot and the end of the tape are tried again; nobody waits longer."""
SNAPSHOT_EVERY_S = 10.0
"""What a syncer that comes back has to hear again at most."""


def _said(error: Exception) -> Exception:
    """What another process said, without where it was when it said it."""
    return error.cause if isinstance(error, RayTaskError) else error


def _if_it_helps(error: BaseException) -> None:
    """Exit, to restart as a new generation, if a shard is unreachable or has been fenced by a newer
    syncer; any other failure is permanent."""
    if isinstance(error, RayTaskError):
        error = error.cause
    if isinstance(error, (RayActorError, Outdated)):
        start_over(str(error))


class SyncerActor(Breakable):
    """The syncer on Ray: an event loop that learners, shell and people call.

    A process that finds a tape in the depot is a restart: it goes on as a new generation.
    """

    def __init__(
        self, config: str, run: str, namespace: str, run_dir: str, code: str = "", owner: int = 0
    ) -> None:
        """`code`: of the task, when the run began (`user_sha256`). `owner`: for its `Fence`."""
        setup_logging()
        watch_process(self._unheard)
        self._config = Config.model_validate_json(config, strict=False)
        self._run, self._namespace, self._code = run, namespace, code
        self._depot, self._owner = depot_of(self._config, Path(run_dir)), owner
        self._fence = Fence(self._depot, owner)
        self._ports = RayPorts(namespace, holder_of(self._config))
        self._opening = asyncio.Lock()
        self._syncer: Syncer | None = None
        self._tape: Tape | None = None
        self._notes: Notes
        self._now_s: Clock
        keep_segments = self._config.durability.keep_segments
        self._snapshots = SnapshotWriter(self._depot, self._fence.check, keep_segments)
        self._cannot: ArchipelagoError | None = None
        self._heard = -1

    async def open(self, layout: Layout) -> None:
        """Begin: from here on learners may join."""

        def begin() -> None:
            self._fence.check()
            save_layout(self._depot, layout)

        await asyncio.to_thread(begin)
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
        await asyncio.to_thread(self._fence.check)  # whoever asks for `progress` is answered
        config, layout = self._config, await asyncio.to_thread(load_layout, self._depot)
        edition = await asyncio.to_thread(edition_of, self._depot)
        rule = rule_of(config, layout, edition)
        groups = {island: group_name(island) for island in config.island_names}
        down, now_s = config.sync.wire_down, time.time()
        measures = Measures(
            self._run,
            groups,
            layout.sizes,
            down,
            now_s=now_s,
            wire_moments=wire_of_moments(config),
        )
        asked = await asyncio.to_thread(runs.asked_for_stored, self._depot, self._owner)
        known = Directory(self._namespace)
        fragments_of = shards_of(config.sync.shards, config.sync.fragments)

        async def recover(
            wanted: Mapping[Fragment, Version], generation: int
        ) -> Mapping[Fragment, Version]:
            calls = [
                (await known.find(name)).recover.remote({p: wanted[p] for p in own}, generation)
                for name, own in fragments_of.items()
            ]
            try:
                return {p: v for each in await asyncio.gather(*calls) for p, v in each.items()}
            except Damaged as error:
                raise Damaged(str(_said(error))) from error

        come = await restore(self._depot, rule, measures, recover, self._hears, from_stored=asked)
        back, resume = (None, None) if come is None else come
        if back is not None:
            logging.warning(
                "back as generation %d at event %d, %d heard again%s",
                back.generation,
                back.seq,
                back.heard,
                f"; {back.damage}" if back.damage else "",
            )
        generation, seq = (0, 0) if back is None else (back.generation, back.seq)
        self._now_s = Clock(0.0 if back is None else back.last_s)
        self._notes = await asyncio.to_thread(Notes, self._depot, measures, self._now_s)
        self._tape = await asyncio.to_thread(
            Tape,
            self._depot,
            generation,
            layout.fingerprint,
            first_seq=seq,
            edition=edition,
        )
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
        if asked:
            await done(self._tape.flush())
            if self._tape.trouble is None:
                await asyncio.to_thread(self._depot.remove, runs.FROM_STORED)
        for name, own in fragments_of.items():
            syncer.spawn(self._keep_shard(syncer, name, own))
        syncer.spawn(self._keep_snapshots(syncer))
        return syncer

    def _hears(self, seq: int) -> None:
        self._heard = seq

    async def progress(self) -> int | None:
        """A sign of life while it comes back: the event that it heard again last. Afterwards None:
        whoever waits then has no reason to."""
        return self._heard if self._syncer is None else None

    async def _keep_snapshots(self, syncer: Syncer) -> None:
        """So that a restart need not hear the whole tape again."""
        while True:
            await asyncio.sleep(SNAPSHOT_EVERY_S)
            await self._keep_snapshot(syncer)

    async def _keep_snapshot(self, syncer: Syncer) -> bool:
        """Snapshot the current state, unless the tape cannot be made durable up to it. Returns
        whether the snapshot is durable."""
        tape = self._tape
        assert tape is not None
        sealed = tape.seal()
        flushed = tape.flush()
        snapshot = Snapshot(
            syncer.state,
            tape.seq,
            self._now_s(),
            syncer.measures.memory(),
            self._notes.length,
            rules_sha256(syncer.rule),
            tape.place,
        )
        await done(flushed)
        if tape.trouble is not None:
            return False
        layout = syncer.rule.fingerprint
        return await asyncio.to_thread(self._snapshots.write, snapshot, layout, self._notes, sealed)

    async def _keep_shard(self, syncer: Syncer, name: str, own: Sequence[Fragment]) -> None:
        """When it dies only its fragments are away for a moment; but all begin a new generation if
        learners cannot go on without what it had, or if something public died with it."""
        while True:
            await self._ports.shard_dies(name)
            if not shards_come_back_alone(self._config):
                start_over(f"{name} has died, and with it what learners cannot go on without")
            logging.warning("%s has died, and its fragments %s with it", name, [*own])
            wanted = syncer.shard_lost(own)
            try:
                found = await self._ports.have_back(name, wanted, syncer.state.generation)
            except RayError as error:  # a new generation has more patience
                start_over(f"{name} cannot come back: {_said(error)}")
            if found != wanted:
                start_over(f"{name} was to come back with {wanted}, and has {found}")
            self._snapshots.orphans = True
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
            why = code_changed("task.target", self._config.task.target, self._code, code)
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

    def _unheard(self, error: BaseException) -> None:
        """Count what a thread has died of, or a callback of the event loop."""
        if self._syncer is not None:
            self._syncer.broke(None, raised(Reason.UNHEARD, error))

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

    async def look(self, held: Mapping[Island, str]) -> tuple[View, RunStatus]:
        """What there is to see: for the fleet to decide from, and for people. `held`: which islands
        have devices, says the fleet, and their groups."""
        syncer = await self._ready()
        self._notes.held(held)
        status = await self.status()
        return syncer.measures.view(syncer.state), status

    async def status(self) -> RunStatus:
        syncer = await self._ready()
        if syncer.failure is not None:
            raise syncer.failure
        if (hopeless := syncer.measures.hopeless(syncer.state.phase)) is not None:
            raise hopeless
        assert self._tape is not None
        syncer.measures.trouble("tape", self._tape.trouble)
        return syncer.measures.status(syncer.rule, syncer.state, self._now_s())

    async def close(self) -> dict[str, object]:
        """End the tape, keep a last snapshot, and sum up: the run is over. The summary comes also
        if the depot does not answer any more; the log says then what is not durable."""
        syncer = await self._ready()
        syncer.close()
        ending = Tasks().spawn(self._end(syncer))
        await asyncio.wait({ending}, timeout=END_S)
        why = f"the depot has not taken the end of the run for {END_S:g} s"
        if ending.done():
            why = "" if (error := ending.exception()) is None else repr(error)
        if why:
            logging.error("the end of the run is not durable: %s", why)
        return syncer.measures.summary(syncer.state, self._now_s())

    async def _end(self, syncer: Syncer) -> None:
        """Keep the last snapshot and end the tape; again and again while the depot refuses.

        Errors: what no depot raises.
        """
        tape = self._tape
        assert tape is not None
        try:
            while not await self._keep_snapshot(syncer):
                await asyncio.sleep(AGAIN_S)
        finally:
            await asyncio.to_thread(tape.close)
            while tape.trouble is not None:
                await asyncio.sleep(AGAIN_S)
                await asyncio.to_thread(tape.close)
