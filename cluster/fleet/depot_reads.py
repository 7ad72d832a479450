"""The keeper's reads of the depot, with retries: without a limit while the run is running."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from cluster.fleet import error_budget
from cluster.storage.open_depot import PATIENCE_S

log = logging.getLogger("archipelago.fleet")
LONGEST_S = 10.0
"""Seconds of the longest pause between two attempts; each pause is twice the one before."""
T = TypeVar("T")


class DepotReads:
    """The reads of one keeper, which cannot continue without their results."""

    def __init__(self, publish: Callable[[], None]) -> None:
        """Prepare; `publish` is called whenever `trouble` has changed."""
        self._publish = publish
        self.endless = False
        """Whether a depot that does not answer is waited for without a limit."""
        self.trouble: str | None = None
        """The reason why the depot cannot be read at present; None if it can."""

    def read(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, which is retried while it raises `OSError`.

        Errors: `OSError` if it still fails after `PATIENCE_S`, unless the reads are `endless`; any
        other exception of `call`.
        """
        end_s, pause_s = time.monotonic() + PATIENCE_S, error_budget.FIRST_S
        while True:
            try:
                result = call()
            except OSError as error:
                if not self.endless and time.monotonic() > end_s:
                    raise
                self._note(
                    f"the fleet has restarted and cannot read its depot: {error}; it tries again "
                    f"every {LONGEST_S:g} s, and the islands train on: restore the storage"
                )
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_S)
            else:
                self._note(None)
                return result

    def _note(self, trouble: str | None) -> None:
        if trouble == self.trouble:
            return
        log.warning("%s", trouble or "the depot can be read again")
        self.trouble = trouble
        self._publish()
