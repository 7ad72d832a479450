"""The course of a run's loss against its expectation, seen at each look of the keeper."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from cluster.config.schema import Config
from cluster.fleet.expected_loss import Expectation, judged
from cluster.fleet.expected_source import expectation_of
from cluster.fleet.metrics_row import status_of_row
from cluster.status import ExpectedStatus, RunStatus
from cluster.storage.metrics_log import LOOKS, last_look
from coordinator.errors import UserMistake

log = logging.getLogger("archipelago.fleet")


class LossCourse:
    """The comparison of each evaluation with the expectation; only the keeper's thread calls it."""

    def __init__(self, config: Config, run_dir: Path) -> None:
        self._config, self._run_dir = config, run_dir
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
            self._expectation = expectation_of(self._config, parameters)
            self.trouble = None
        except UserMistake as error:
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
            text = last_look(self._run_dir / LOOKS)
            row: Any = {} if text is None else status_of_row(text)
            known: ExpectedStatus | None = row.get("expected")
            if known is not None:
                self._t, self._last = known["t"], known
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("the last line of %s is ignored: %r", LOOKS, error)
