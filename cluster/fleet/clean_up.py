"""The clean-up at the end of a run: every step runs, whatever happens to the others."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger("archipelago.fleet")


def each_step(*steps: Callable[[], object]) -> None:
    """Run these steps in order; log the exception of one, and continue with the next."""
    for step in steps:
        try:
            step()
        except Exception:
            log.exception("a step of the clean-up has failed, and the next ones follow")
