"""The keys that are pressed in a terminal, without a wait for the end of a line."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from types import TracebackType
from typing import IO, Self

NAMES = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down",
    "\x1b[5~": "page up", "\x1b[6~": "page down",
    "\x1b[H": "home", "\x1b[F": "end", "\x1b[1~": "home", "\x1b[4~": "end",
    "\x1bOH": "home", "\x1bOF": "end",
}  # fmt: skip
"""The sequences that terminals send for keys without a character."""
READ_BYTES = 64


class TerminalKeys:
    """The keys of this process's terminal; it is a context manager that restores the terminal.

    Ctrl-C stays a signal. If standard input is no terminal, no key is ever pressed.
    """

    def __init__(self, stream: IO[str] | None = None) -> None:
        """Read from this stream; None: from standard input."""
        given = sys.stdin if stream is None else stream
        self._input = given.fileno() if given is not None and given.isatty() else None

    def __enter__(self) -> Self:
        if self._input is not None:
            self._before = termios.tcgetattr(self._input)
            tty.setcbreak(self._input)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if self._input is not None:
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)

    @property
    def readable(self) -> bool:
        """Whether there is a terminal to read keys from."""
        return self._input is not None

    def within(self, for_s: float) -> list[str]:
        """Return the keys that were pressed; wait up to `for_s` seconds for the first one."""
        ready, _, _ = select.select([] if self._input is None else [self._input], [], [], for_s)
        if not ready or self._input is None:
            return []
        return keys_in(os.read(self._input, READ_BYTES).decode(errors="ignore"))


def keys_in(text: str) -> list[str]:
    """Return the keys in what a terminal has sent; sequences that are not known are left out."""
    keys: list[str] = []
    while text:
        if not text.startswith("\x1b"):
            keys.append(text[0])
            text = text[1:]
        elif (found := next(filter(text.startswith, NAMES), None)) is not None:
            keys.append(NAMES[found])
            text = text[len(found) :]
        else:
            text = text[1:].lstrip("[O0123456789;~")
    return keys
