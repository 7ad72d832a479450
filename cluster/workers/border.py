"""The border of a region: the one place where messages of its islands are checked.

An island of a region with a table `[regions.NAME]` passes each outgoing message through its
`Border`. A message of a kind that may not leave is refused. All other messages must consist of
numbers, arrays of numbers, and names of the run, so that no text can leave in one of them. The
text of an error is written to a file of this host, and its class and a code leave in its place.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import sys
import traceback
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from cluster.config.region_tables import Leaving, RegionConfig
from cluster.config.schema import Config, IslandGroup
from cluster.failures import Failure, Reason, origin_of, raised
from coordinator.errors import Malformed, UserMistake
from coordinator.protocol import Vitals

log = logging.getLogger("archipelago.border")
T = TypeVar("T")
CODE_BYTES = 4
"""Length of the random code that finds an error's text in the file of its host, in bytes."""
NUMBERS = "biuf"
"""The kinds of NumPy's types that an array may have: truth values, integers and floats."""
HARMLESS = frozenset({"its learner has ended this life", "its process is another one"})
"""Words about the end of a life that hold no text of an error."""
NOTICE = "preempted: the process was told; the words stay in its region"
"""The reason of each preemption in a region whose errors stay."""
OURS = ("coordinator.", "cluster.", "islands.")
"""Packages whose dataclasses and tuples are messages of the protocol."""


class Border:
    """The border of one process's region; without a region everything passes."""

    def __init__(
        self,
        name: str,
        region: RegionConfig | None,
        group: str,
        log_file: Path,
        others: Sequence[str] = (),
    ) -> None:
        """Create the border of the region `name`, for a process of this group.

        - `log_file`: the file of this host that gets what may not leave.
        - `others`: the other groups of the run; a report names the island that gave moments.
        """
        self._name, self._region, self._log_file = name, region, log_file
        groups = "|".join(map(re.escape, (group, *others)))
        self._island = re.compile(rf"(?:{groups})-\d+")
        self._names = {name, group}

    @property
    def log_file(self) -> Path | None:
        """The file with the texts that may not leave the region; None if texts may leave."""
        return self._log_file if self._keeps_errors else None

    @property
    def _keeps_errors(self) -> bool:
        return self._region is not None and self._region.keeps_errors

    def knows(self, fingerprint: str) -> None:
        """Add the fingerprint of the run's layout to the names that messages may hold."""
        self._names.add(fingerprint)

    def permits(self, kind: Leaving) -> bool:
        """Return whether messages of this kind may leave."""
        return self._region is None or kind in self._region.may_leave

    def passes(self, kind: Leaving, message: T) -> T:
        """Return a message that may leave.

        Errors: `Malformed` if its kind may not leave, or if it holds anything but numbers and names
        of the run. The error names types only.
        """
        if self._region is None:
            return message
        if not self.permits(kind):
            raise Malformed(f'"{kind}" may not leave region {self._name} (regions.*.may_leave)')
        if (found := self._foreign(message)) is not None:
            raise Malformed(
                f"a {kind} holds {found}, and only numbers may leave region {self._name}"
            )
        return message

    def failure(self, reason: Reason, error: BaseException) -> tuple[Failure, str]:
        """Return the failure and the traceback of an exception, as far as they may leave.

        If the text may not leave, it is written to the file of this host.
        """
        if not self._keeps_errors:
            return raised(reason, error), "".join(traceback.format_exception(error))
        reason = Reason.SENT if isinstance(origin_of(error), Malformed) else reason
        why = f"{self.error_text(error)} ({reason})"
        return Failure(reason, why), f"{why}\n"

    def stripped(self, failure: Failure) -> Failure:
        """Return a failure that this process has classified, without its text if that must stay."""
        if not self._keeps_errors:
            return failure
        code = self._written(failure.why)
        return Failure(failure.reason, f"{failure.reason}, {self._code(code)}", failure.ends)

    def text(self, words: str) -> str:
        """Return words of this process about the end of a life, as far as they may leave."""
        if not self._keeps_errors or words in HARMLESS:
            return words
        return self._code(self._written(words))

    def vitals(self, vitals: Vitals) -> Vitals:
        """Return vitals as far as they may leave: without metrics, whose names are texts."""
        return vitals if self._region is None else replace(vitals, metrics=())

    def notice(self, why: str) -> str:
        """Return the reason of a preemption as far as it may leave, without a cloud's own words."""
        return NOTICE if self._keeps_errors else why

    def error_text(self, error: BaseException) -> str:
        """Return an exception as far as it may leave: its text, or its class and a code."""
        if not self._keeps_errors:
            return f"{type(origin_of(error)).__name__}: {origin_of(error)}"
        code = self._written("".join(traceback.format_exception(error)))
        return f"{class_of(users_error(origin_of(error)))}, {self._code(code)}"

    def keep_output(self) -> None:
        """Send everything that this process prints or logs to its file, if texts may not leave.

        Ray sends the standard output of its processes to the machine that started the run. The
        descriptors are redirected, so that the output of libraries in C stays, too.
        """
        if not self._keeps_errors:
            return
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        try:
            descriptor = self._opened()
        except OSError:  # then the output is lost, but it does not leave
            descriptor = os.open(os.devnull, os.O_WRONLY)
        for number in (1, 2):
            os.dup2(descriptor, number)
        os.close(descriptor)
        for name, number in (("stdout", 1), ("stderr", 2)):
            own = os.fdopen(number, "w", buffering=1, encoding="utf-8", closefd=False)
            setattr(sys, name, own)

    def _code(self, code: str) -> str:
        return f"error code {code}; its text stays in region {self._name}"

    def _written(self, text: str) -> str:
        """Append a text to the file of this host; return the random code under which it is."""
        code = secrets.token_hex(CODE_BYTES)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            with os.fdopen(self._opened(), "a", encoding="utf-8", errors="replace") as file:
                file.write(f"{now} error code {code}\n{text.rstrip()}\n")
        except OSError as error:
            log.error("the text of error %s is not kept: %s", code, type(error).__name__)
        return code

    def _opened(self) -> int:
        """Open the file of this host for appending, readable by its owner only."""
        self._log_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return os.open(self._log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def _foreign(self, value: object) -> str | None:
        """Return the type of the first thing in a message that is no number and no name."""
        kind: type[Any] = type(value)
        is_ours = kind.__module__.startswith(OURS)
        if value is None or kind in (bool, int, float) or (is_ours and isinstance(value, Enum)):
            return None
        if kind is np.ndarray or isinstance(value, np.generic):
            array = cast("np.ndarray[Any, np.dtype[Any]]", value)
            return None if array.dtype.kind in NUMBERS else f"an array of {array.dtype.kind!r}"
        if kind is str:
            text = cast("str", value)
            is_name = text in self._names or self._island.fullmatch(text)
            return None if not text or is_name else "text"
        if is_ours and is_dataclass(value):
            return self._first(getattr(value, each.name) for each in fields(value))
        if kind in (tuple, list) or (is_ours and isinstance(value, tuple)):
            return self._first(cast("tuple[object, ...]", value))
        return "a value of another type"

    def _first(self, values: Any) -> str | None:
        return next((found for each in values if (found := self._foreign(each))), None)


OPEN = Border("", None, "", Path())
"""The border of a process without a region: everything passes."""


def border_of(config: Config, group: IslandGroup, owner: str = "") -> Border:
    """Return the border of a process of this group; `owner`: the run and the seat, for its file."""
    region = config.region_of(group)
    folder = Path("~" if region is None else region.logs).expanduser()
    name = re.sub(r"[^A-Za-z0-9._+-]", "_", owner or group.group)
    others = [each.group for each in config.islands if each is not group]
    return Border(group.region or "", region, group.group, folder / f"{name}.log", others)


def users_error(error: BaseException) -> BaseException:
    """Return the exception of the user's code that a `UserMistake` explains, or the error."""
    explained = error.__cause__ if isinstance(error, UserMistake) else None
    return error if explained is None else explained


def class_of(error: BaseException) -> str:
    """Return the name of an exception's class.

    It is a name in the code of an imported module. The name of any other class may hold data, and
    "Exception" is returned.
    """
    kind = type(error)
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return kind.__name__ if found is kind else "Exception"
