"""The course of a run's loss against its expectation, seen at each look of the keeper."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

from cluster.config.schema import Config
from cluster.fleet.expected_loss import Expectation, judged
from cluster.fleet.expected_source import expectation_of
from cluster.fleet.metrics_row import status_of_row
from cluster.status import ExpectedStatus, RunStatus
from cluster.storage.limited_calls import LimitedCalls
from cluster.storage.metrics_log import LOOKS, last_look
from coordinator.errors import UserMistake

log = logging.getLogger("archipelago.fleet")
SOURCE_S = 60.0
"""The timeout of reading the source of the expectation, in seconds."""


class LossCourse:
    """The comparison of each evaluation with the expectation; only the keeper's thread calls it.

    It reads files before the fleet is up, so each read has a timeout: a run directory that hangs
    costs the comparison, and not the run.
    """

    def __init__(self, config: Config, run_dir: Path, limit_s: float | None = None) -> None:
        """Read nothing yet; `limit_s`: the timeout of each read, in seconds.

        By default it is `SOURCE_S` for the source, and that of `LimitedCalls` for the last row.
        """
        self._config, self._run_dir = config, run_dir
        self._source = LimitedCalls(SOURCE_S if limit_s is None else limit_s)
        self._storage = LimitedCalls(limit_s)
        self._expectation: Expectation | None = None
        self._t, self._last = -1, None
        self.trouble: str | None = None
        """The reason why the expectation is not known; None if it is, or none is configured."""

    def begin(self, parameters: int) -> None:
        """Read the expectation, and continue from the last row of an earlier fleet.

        The check before the start has read the source; if it is gone by now, that is an alert.
        """
        if self._config.monitor.expected is None:
            return
        try:
            read = partial(expectation_of, self._config, parameters)
            self._expectation = self._source.call(read)
            self.trouble = None
        except (UserMistake, TimeoutError) as error:
            self.trouble = f"the loss is not compared with the expected one: {error}"
            log.error("%s", self.trouble)
        self._remember()

    def judged(self, status: RunStatus) -> RunStatus:
        """Return a status with the comparison of its newest evaluation.

        A run that went back to an earlier state is compared from there.
        """
        if self._expectation is None:
            return status
        if status["t"] < self._t:
            self._t, self._last = -1, None
        if status["heldout"] and (newest := status["heldout"][-1])[0] > self._t:
            self._t, loss = newest
            self._last = judged(self._expectation, self._t, status["tokens_trained"], loss)
        return {**status, "expected": self._last}

    def _remember(self) -> None:
        try:
            text = self._storage.call(partial(last_look, self._run_dir / LOOKS))
            row: Any = {} if text is None else status_of_row(text)
            known: ExpectedStatus | None = row.get("expected")
            if known is not None:
                self._t, self._last = known["t"], known
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("the last line of %s is ignored: %r", LOOKS, error)
