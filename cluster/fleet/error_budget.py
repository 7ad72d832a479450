"""The error budget of the keeper: how many exceptions in a row it survives.

A defect in one look must not end a run of weeks: the keeper retries the step with back-off. Only a
step that fails again and again, without a success between, ends the run.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from typing import TypeVar

from coordinator.errors import ArchipelagoError

log = logging.getLogger("archipelago.fleet")

MOST = 10
"""Steps in a row that may fail."""
FIRST_S, LONGEST_S = 0.25, 30.0
"""Seconds of the first pause, and of the longest; each is twice as long as the one before."""
T = TypeVar("T")


class ErrorBudget:
    """The errors of one keeper: counted, and raised once they are too many in a row."""

    def __init__(self) -> None:
        self.total = 0
        self._row = 0
        self.trouble: str | None = None
        """The last error in words, for people; None once a step has succeeded again."""

    def count(self, error: Exception) -> float:
        """Log an error; return how many seconds to pause before the step is retried.

        Errors: the error itself if too many steps in a row have failed.
        """
        self._row, self.total = self._row + 1, self.total + 1
        log.error("the keeper broke (%d of %d in a row)", self._row, MOST, exc_info=error)
        frames = traceback.extract_tb(error.__traceback__)
        where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        self.trouble = (
            f"the keeper of the fleet broke {self._row} times in a row and continues: "
            f"{type(error).__name__}: {error}{where}"
        )
        if self._row >= MOST:
            raise error
        return min(LONGEST_S, FIRST_S * 2.0 ** (self._row - 1))

    def over(self) -> None:
        """Note that a step has succeeded."""
        self._row, self.trouble = 0, None

    def retry(self, step: Callable[[], T], broke: Callable[[], None]) -> T:
        """Return the result of this step; a step that fails is retried after a pause.

        `broke`: called after each error.

        Errors: any `ArchipelagoError` of the step; the last error if the step fails too often in a
        row.
        """
        while True:
            try:
                result = step()
            except ArchipelagoError:
                raise
            except Exception as error:  # noqa: BLE001 - counted, and raised in the end
                pause_s = self.count(error)  # raises the error if the budget is spent
                broke()
                time.sleep(pause_s)
                continue
            self.over()
            return result
