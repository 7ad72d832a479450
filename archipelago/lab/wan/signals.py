"""Signals that end a process, raised as exceptions so that what was brought up is taken down."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a command of people, of a service manager and of a lost terminal."""


@contextmanager
def signals_raise() -> Generator[None]:
    """Let signals that end the process raise, so that `finally` clauses run."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    before = {each: signal.signal(each, end) for each in SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
