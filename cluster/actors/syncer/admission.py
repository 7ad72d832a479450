"""Admission of islands: a process joins with its name, its group, and the code that it runs."""

from __future__ import annotations

import logging

from cluster.actors.restart import code_changed, source_differs
from cluster.config.admission import reason_to_refuse
from cluster.config.schema import Config
from cluster.syncer.measures import Measures
from coordinator.protocol import Join, Refused


class Admission:
    """Admission of islands to a run; the rules decide whether there is a place."""

    def __init__(self, config: Config, code: str) -> None:
        """Admit processes whose user code has the digest `code`, that of the run's begin."""
        self._config, self._code = config, code

    def refusal(self, event: Join, source: str, code: str, measures: Measures) -> Refused | None:
        """Return the answer to a process that may not join; None if it may.

        `source` and `code`: the digests of our source and of the user's code that it runs. A
        refusal is counted in the measures, unless the run has no island of this name.
        """
        if (why := reason_to_refuse(self._config, event)) is not None:
            logging.warning("refused: %s", why)
            return Refused(event.island, why)
        why = source_differs(source, "the syncer's")
        if (why := why or code_changed(self._config.learner_code, self._code, code)) is None:
            return None
        measures.refused(event.island, why)
        return Refused(event.island, why)
