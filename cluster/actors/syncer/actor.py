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
from cluster.view import View
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
    """The syncer on Ray: the calls of learners, fleet and people, each checked and passed on.

    A process that finds a tape in the depot is a restart: it goes on as a new generation.
    """

    def __init__(
        self, config: str, run: str, namespace: str, run_dir: str, code: str = "", owner: int = 0
    ) -> None:
        """`code`: of the task, when the run began (`user_sha256`). `owner`: for its `Fence`."""
        setup_logging()
        watch_process(self._unheard)
        plain = Config.model_validate_json(config, strict=False)
        self._admission, self._fragments = Admission(plain, code), plain.sync.fragments
        depot = depot_of(plain, Path(run_dir))
        self.process = SyncerProcess(plain, run, namespace, depot, owner)

    async def _syncer(self) -> Syncer:
        return (await self.process.up.ready()).syncer

    async def _notes(self) -> Notes:
        return (await self.process.up.ready()).notes

    async def open(self, layout: Layout) -> None:
        """Begin: from here on learners may join."""
        await self.process.open(layout)

    async def progress(self) -> int | None:
        """A sign of life while it comes back: the event that it heard again last. Afterwards None:
        whoever waits then has no reason to."""
        return self.process.heard if self.process.up.made is None else None

    async def join(
        self, event: Join, source: str, seat: Seat, code: str = ""
    ) -> tuple[Granted | Refused, Mapping[Island, Seat]]:
        """`seat`: where it can be reached from now on; answered with where all can be. `source` and
        `code`: ours, and the user's, that it runs."""
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
        up = await self.process.up.ready()
        check_report(event, vitals, adopted, self._fragments)
        answer = up.syncer.report(event, vitals, adopted)
        if isinstance(answer, Answer):
            up.notes.vitals(event.life, vitals)
        return answer

    async def lease(self, event: LeaseWanted) -> LeaseGranted | Void:
        syncer = await self._syncer()
        check_word(event, LeaseWanted)
        answer = syncer.lease(event)
        await syncer.durable()
        return answer

    async def left(self, event: Left) -> None:
        syncer = await self._syncer()
        check_word(event, Left)
        syncer.left(event)

    async def broke(self, seat: Seat, failure: Failure) -> None:
        """Whoever is there ends its process, with what it raised."""
        syncer = await self._syncer()
        lives = [member.life for member in syncer.state.members.values()]
        syncer.broke(self.process.ports.life_at(seat, lives), failure)

    def _unheard(self, error: BaseException) -> None:
        """Count what a thread has died of, or a callback of the event loop."""
        if (up := self.process.up.made) is not None:
            up.syncer.broke(None, raised(Reason.UNHEARD, error))

    async def stop(self, why: str) -> None:
        syncer = await self._syncer()
        syncer.stop(why)
        await syncer.durable()

    async def drain(self, island: Island, why: str) -> None:
        syncer = await self._syncer()
        syncer.drain(island, why)
        await syncer.durable()

    async def fault(self, island: Island) -> None:
        (await self._notes()).fault(island)

    async def evaluated(self, t: int, loss: float) -> None:
        (await self._notes()).evaluated(t, loss)

    async def unjudged(self, why: Unjudged) -> None:
        """An evaluation of the model has come to nothing."""
        (await self._notes()).unjudged(why)

    async def look(self, held: Mapping[Island, str]) -> tuple[View, RunStatus]:
        """What there is to see: for the fleet to decide from, and for people. `held`: which islands
        have devices, says the fleet, and their groups."""
        up = await self.process.up.ready()
        up.notes.held(held)
        return up.syncer.measures.view(up.syncer.state), up.status()

    async def status(self) -> RunStatus:
        """Return the run as it is now.

        Errors: what ends the run.
        """
        return (await self.process.up.ready()).status()

    async def close(self) -> dict[str, object]:
        """End the tape, keep a last snapshot, and sum up: the run is over. The summary comes also
        if the depot does not answer any more; the log says then what is not durable."""
        up = await self.process.up.ready()
        up.syncer.close()
        await up.close()
        return up.syncer.measures.summary(up.syncer.state, up.now_s())
