"""The thread of a training loop of the user's own; the loop and its island's learner take turns.

The learner gives the loop a turn for each step, and waits for its answer. So the loop has the
parameters during a step, and the learner has them between two steps. Only one of the two threads
runs at any time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from queue import SimpleQueue
from typing import NamedTuple, assert_never

import jax
import numpy as np
from numpy.typing import NDArray

from coordinator.errors import UserMistake
from coordinator.protocol import Island
from islands.task import Batch, Params

log = logging.getLogger("archipelago.loop")


class LoopTurn(NamedTuple):
    """One step that the loop may take."""

    params: Params
    """The parameters: those of the loop's last answer, with a `jax.Array` for each changed leaf."""
    batch: Batch
    clock: int
    """The clock of the learning rate."""
    draw: NDArray[np.uint32]
    """The words of the step's random key, [4]."""


class LoopOver(NamedTuple):
    """The end of the island's run, in place of a turn."""

    params: Params


class LoopAnswer(NamedTuple):
    """A step that the loop has taken."""

    params: Params
    """The parameters after the step; they belong to the loop again with the next turn."""
    tokens: int
    loss: jax.Array | float


@dataclass(frozen=True, slots=True)
class LoopSeat:
    """The place of a loop in its run."""

    island: Island
    group: str
    steps: int
    """Length of the run, in syncer steps (`run.steps`)."""


class _Joined(NamedTuple):
    """The loop has called `join`."""


class _Ended(NamedTuple):
    """The loop has returned, or raised."""

    error: BaseException


CURRENT: ContextVar[LoopThread | None] = ContextVar("archipelago_loop", default=None)
"""The thread of the loop whose code is running; None outside of a loop."""


class LoopThread:
    """A user's loop on a thread of its own.

    The learner calls `prepare`, `step` and `end`; the loop calls `join` and `answer`.
    """

    def __init__(self, loop: Callable[[], object], name: str, shapes: Params) -> None:
        """Create it without starting the thread.

        `name`: of the loop in messages. `shapes`: the parameters as `jax.ShapeDtypeStruct`.
        """
        self._loop, self.name, self.shapes = loop, name, shapes
        self.seat = LoopSeat(Island(""), "", 0)
        self._turns = SimpleQueue[LoopTurn | LoopOver]()
        self._answers = SimpleQueue[LoopAnswer | _Joined | _Ended]()
        self._steps, self._joined, self._over = 0, False, False

    # --- the learner's side -----------------------------------------------------------------------

    def prepare(self) -> None:
        """Start the loop, and wait until it calls `join`.

        Errors: what it raises before that; `UserMistake` if it returns.
        """
        threading.Thread(target=self._run, name="loop", daemon=True).start()
        if isinstance(answer := self._answers.get(), _Ended):
            raise answer.error

    def step(self, turn: LoopTurn) -> LoopAnswer:
        """Let the loop take a step.

        Errors: what it raises; `UserMistake` if it returns.
        """
        self._turns.put(turn)
        match answer := self._answers.get():
            case LoopAnswer():
                self._steps += 1
                return answer
            case _Ended(error):
                self._answers.put(answer)  # no later step can be taken either
                raise error
            case _Joined():
                raise AssertionError("a loop joins once")
            case _:
                assert_never(answer)

    def end(self, params: Params) -> None:
        """End the turns of the loop, since the run of its island is over; do not wait for it."""
        self._over = True
        self._turns.put(LoopOver(params))

    # --- the loop's side --------------------------------------------------------------------------

    def join(self) -> LoopTurn | LoopOver:
        """Wait until the island has joined the run, and return the first turn."""
        self._joined = True
        self._answers.put(_Joined())
        return self._turns.get()

    def answer(self, answer: LoopAnswer) -> LoopTurn | LoopOver:
        """Give back a step, and wait for the next turn."""
        self._answers.put(answer)
        return self._turns.get()

    def _run(self) -> None:
        CURRENT.set(self)
        try:
            self._loop()
            ended: BaseException = UserMistake(self._why())
        except BaseException as error:  # noqa: BLE001 - raised on the learner's thread
            ended = error
            if self._over:
                log.warning("%s raised after the end of its run: %s", self.name, error)
        self._answers.put(_Ended(ended))

    def _why(self) -> str:
        """Return what is wrong with a loop that returns before the end of the run."""
        if not self._steps and not self._joined:
            return f"{self.name} returned without a call of archipelago.join()"
        return (
            f"{self.name} returned after {self._steps} steps, and the run goes on: loop until "
            "island.running is False"
        )
