"""The place of a submitted job in the queue of its cluster, from its question to its start."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from cluster.config.schema import Config
from cluster.fleet.queue_message import OPTIONAL, RunMessage, owner_of, run_message
from cluster.queue.desk import AnswerMessage
from cluster.queue.facts import claim_of
from coordinator.errors import Unreachable, UserMistake
from coordinator.protocol import Island
from coordinator.queue_claims import QueueVerdict, Standing

ASK_S = 2.0
"""Seconds between two questions."""
END_S = 15.0
"""Seconds that the end of a place waits for a question that is under way."""


class QueueLine(Protocol):
    """The connection to the queue."""

    def ask(self, message: RunMessage, admitted: bool) -> AnswerMessage:
        """Ask whether a run may start.

        Errors: `Unreachable` if the queue does not answer.
        """
        ...

    def leave(self, run: str) -> None:
        """Leave the queue; do nothing if it does not answer."""
        ...


class QueuePlace:
    """The place of one run, as a context manager; `wait` returns once the run may start.

    The place is kept until the context ends. By then the run's fleet must answer, or the queue
    would give its machines to the next run.
    """

    def __init__(self, config: Config, run: str, line: QueueLine, every_s: float = ASK_S) -> None:
        """Create the place. `every_s`: seconds between two questions."""
        islands = dict.fromkeys(config.island_names)
        self._message = run_message(config, run, owner_of(config), time.time(), islands, {})
        self._line, self._every_s = line, every_s
        self._over = threading.Event()
        self._keeping: threading.Thread | None = None

    @property
    def since_s(self) -> float:
        """The time of the submission, in seconds since 1970."""
        return self._message["since_s"]

    @property
    def optional(self) -> dict[Island, str]:
        """The islands that the run starts without, with the reason; the queue grants them later."""
        claim = claim_of(self._message, Standing.STARTING, {}, {})
        return dict.fromkeys(claim.optional, OPTIONAL)

    def __enter__(self) -> QueuePlace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the queue."""
        self._over.set()
        if self._keeping is not None:
            self._keeping.join(END_S)
        self._line.leave(self._message["run"])

    def wait(self, say: Callable[[str], None], check: Callable[[], None]) -> None:
        """Wait until the run may start; `say` prints each new reason, `check` may raise.

        Errors: `UserMistake` if the run can never start under the quota of its owner.
        """
        shown = ""
        while True:
            check()
            verdict, why = self._ask(admitted=False)
            if verdict is QueueVerdict.START:
                break
            if verdict is QueueVerdict.REFUSE:
                raise UserMistake(
                    f"{why}; ask for fewer islands, or see `archipelago queue` for all quotas"
                )
            if why != shown:
                say(f"queued: {why}")
                shown = why
            self._over.wait(self._every_s)
        self._keeping = threading.Thread(target=self._keep, name="place in the queue", daemon=True)
        self._keeping.start()

    def _keep(self) -> None:
        """Repeat that the run is about to start."""
        while not self._over.wait(self._every_s):
            self._ask(admitted=True)

    def _ask(self, *, admitted: bool) -> tuple[QueueVerdict, str]:
        try:
            answer = self._line.ask(self._message, admitted)
        except Unreachable as error:
            return QueueVerdict.WAIT, f"the queue does not answer ({error})"
        return QueueVerdict(answer["verdict"]), answer["why"]
