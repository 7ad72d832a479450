"""Handlers of Ctrl-C and SIGTERM for a graceful shutdown."""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass, field
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class Interrupts:
    """Handlers of Ctrl-C and SIGTERM, as a context manager.

    The first signal asks for a graceful shutdown. A second Ctrl-C ends the process at once. Python
    handles signals only on the main thread; on any other thread this does nothing.
    """

    handled: tuple[signal.Signals, ...] = SIGNALS
    """The signals that ask for a graceful shutdown; any other one keeps its handler."""
    asked: str | None = None
    """The signal that asked for a graceful shutdown; None: none did."""
    urgent: bool = False
    """Whether a second Ctrl-C came."""
    _before: dict[int, object] = field(default_factory=dict)

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.getsignal(number) for number in self.handled}
        self.listen()
        return self

    def listen(self) -> None:
        """Install the handlers; call this again once Ray is up, since Ray installs its own."""
        for number in self._before:
            signal.signal(number, self._heard)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None and number == signal.SIGINT:
            signal.signal(number, signal.SIG_IGN)  # for good: nothing may interrupt the clean-up
            self._before.pop(number)
            self.urgent = True
            raise KeyboardInterrupt
        self.asked = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"

    def check(self) -> None:
        """Raise `KeyboardInterrupt` again if a finalizer or a callback of Ray has swallowed it."""
        if self.urgent:
            raise KeyboardInterrupt
