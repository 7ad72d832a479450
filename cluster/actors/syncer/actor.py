"""The actor of the syncer: an event loop that learners, fleet and people call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.actors.directory import setup_logging
from cluster.actors.fault_injection import Breakable
from cluster.actors.syncer.admission import Admission
from cluster.actors.syncer.process import SyncerProcess
from cluster.config.schema import Config
from cluster.failures import Failure, Reason, Unjudged, raised
from cluster.names import Seat
from cluster.status import RunStatus
from cluster.storage.open_depot import depot_of
from cluster.syncer.journal import Notes
from cluster.syncer.shell import Syncer
from cluster.tasks import watch_process
from cluster.view import ProcessStarts, View
from coordinator.fragments import Layout
from coordinator.message_checks import check_report, check_word
from coordinator.protocol import (
    Adopted,
    Answer,
    Granted,
    Island,
    Join,
    LeaseGranted,
    LeaseWanted,
    Left,
    Refused,
    Report,
    Vitals,
    Void,
)


class SyncerActor(Breakable):
    """The syncer on Ray: it checks each call of learners, fleet and people, and passes it on.

    A process that finds a tape in the depot is a restart and continues as a new generation.
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
        parsed_config = Config.model_validate_json(config, strict=False)
        self._admission, self._fragments = (
            Admission(parsed_config, code),
            parsed_config.sync.fragments,
        )
        depot = depot_of(parsed_config, Path(run_dir))
        self.process = SyncerProcess(parsed_config, run, namespace, depot, owner)

    async def _syncer(self) -> Syncer:
        return (await self.process.up.ready()).syncer

    async def _notes(self) -> Notes:
        return (await self.process.up.ready()).notes

    async def open(self, layout: Layout) -> None:
        """Begin the run; from here on learners may join."""
        await self.process.open(layout)

    async def progress(self) -> int | None:
        """Return the last event that was replayed, as a sign of life during recovery.

        Return None after recovery: callers then have no more reason to wait.
        """
        return self.process.heard if self.process.up.made is None else None

    async def join(
        self, event: Join, source: str, seat: Seat, code: str = ""
    ) -> tuple[Granted | Refused, Mapping[Island, Seat]]:
        """Answer a join, and return the seats of all islands with it.

        `seat`: where the process can be reached from now on. `source` and `code`: the digests of
        our source and of the user's code that it runs.
        """
        syncer, seats = await self._syncer(), self.process.ports.seats
        refused = self._admission.refusal(event, source, code, syncer.measures)
        if refused is not None:
            return refused, seats
        if isinstance(answer := syncer.join(event), Granted):
            seats[event.island] = seat
        await syncer.durable()
        return answer, seats

    async def report(
        self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]
    ) -> Answer | Void:
        """Apply a learner's report, and return what has changed for it.

        Errors: `Malformed`.
        """
        records = await self.process.up.ready()
        check_report(event, vitals, adopted, self._fragments)
        answer = records.syncer.report(event, vitals, adopted)
        if isinstance(answer, Answer):
            records.notes.vitals(event.life, vitals)
        return answer

    async def lease(self, event: LeaseWanted) -> LeaseGranted | Void:
        """Grant a lease of data, once the grant is durable.

        Errors: `Malformed`.
        """
        syncer = await self._syncer()
        check_word(event, LeaseWanted)
        answer = syncer.lease(event)
        await syncer.durable()
        return answer

    async def left(self, event: Left) -> None:
        """Record that a life has ended for good.

        Errors: `Malformed`.
        """
        syncer = await self._syncer()
        check_word(event, Left)
        syncer.left(event)

    async def broke(self, seat: Seat, failure: Failure) -> None:
        """Record the failure of the process in this seat, which is ending."""
        syncer = await self._syncer()
        lives = [member.life for member in syncer.state.members.values()]
        syncer.broke(self.process.ports.life_at(seat, lives), failure)

    def _unheard(self, error: BaseException) -> None:
        """Count an exception that ended a thread, or that a callback of the event loop raised."""
        if (records := self.process.up.made) is not None:
            records.syncer.broke(None, raised(Reason.UNHEARD, error))

    async def stop(self, why: str) -> None:
        """Stop the run gracefully; return once the order is durable."""
        syncer = await self._syncer()
        syncer.stop(why)
        await syncer.durable()

    async def drain(self, island: Island, why: str) -> None:
        """Drain an island; return once the order is durable."""
        syncer = await self._syncer()
        syncer.drain(island, why)
        await syncer.durable()

    async def fault(self, island: Island) -> None:
        """Count an injected fault."""
        (await self._notes()).fault(island)

    async def evaluated(self, t: int, loss: float) -> None:
        """Record the held-out loss of the model at syncer step `t`."""
        (await self._notes()).evaluated(t, loss)

    async def unjudged(self, why: Unjudged) -> None:
        """Count an evaluation of the model that failed."""
        (await self._notes()).unjudged(why)

    async def look(
        self, held: Mapping[Island, str] | None, processes: ProcessStarts | None = None
    ) -> tuple[View, RunStatus]:
        """Return the view for the fleet's decisions, and the status for people.

        `held`: the islands that have devices according to the fleet, with their groups; None: as
        before. `processes`: the starts of their processes.
        """
        records = await self.process.up.ready()
        if held is not None:
            records.notes.held(held)
        records.syncer.measures.looked(processes, records.now_s())
        return records.syncer.measures.view(records.syncer.state), records.status()

    async def status(self) -> RunStatus:
        """Return the status of the run.

        Errors: the error that ends the run.
        """
        return (await self.process.up.ready()).status()

    async def close(self) -> dict[str, object]:
        """End the tape, write a last snapshot, and return the summary of the run.

        The summary is returned even if the depot no longer answers; the log then lists what is not
        durable.
        """
        records = await self.process.up.ready()
        records.syncer.close()
        await records.close()
        return records.syncer.measures.summary(records.syncer.state, records.now_s())
