"""Ctrl-C and SIGTERM, heard and passed on."""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass, field
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class Interrupts:
    """Ctrl-C and SIGTERM: the first one asks for a graceful end, a second Ctrl-C ends at once.

    On a thread other than the main one, Python cannot handle signals, and none is handled here.
    """

    asked: str | None = None
    urgent: bool = False
    _before: dict[int, object] = field(default_factory=dict)

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.getsignal(number) for number in SIGNALS}
        self.listen()
        return self

    def listen(self) -> None:
        """Hear the signals; to be said again once Ray is up, which puts handlers of its own."""
        for number in self._before:
            signal.signal(number, self._heard)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None and number == signal.SIGINT:
            signal.signal(number, signal.SIG_IGN)  # for good: nothing shall stop the cleaning up
            self._before.pop(number)
            self.urgent = True
            raise KeyboardInterrupt
        self.asked = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"

    def check(self) -> None:
        """Raise again what a finalizer or a callback of Ray, interrupted, has swallowed."""
        if self.urgent:
            raise KeyboardInterrupt
