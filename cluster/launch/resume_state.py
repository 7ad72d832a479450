"""The state from which a run would restart, computed from its files without starting anything."""

from __future__ import annotations

import time

from cluster.config.rule import rule_of, wire_of_moments
from cluster.config.schema import Config
from cluster.names import group_name
from cluster.storage.depot import Depot
from cluster.storage.playback import edition_of
from cluster.syncer.measures import Measures
from cluster.syncer.restore import Comeback, come_back
from coordinator.fragments import Layout


def measures_for(config: Config, layout: Layout, run: str) -> Measures:
    """Return the measures of a syncer that begins, into which a restart reads its memory."""
    return Measures(
        run,
        {island: group_name(island) for island in config.island_names},
        layout.sizes,
        config.sync.wire_down,
        now_s=time.time(),
        wire_moments=wire_of_moments(config),
        overlap=rule_of(config, layout).overlap,
        state_fragment=layout.state_fragment,
    )


def resume_state(config: Config, depot: Depot, layout: Layout, run: str) -> Comeback | None:
    """Return the state in which a restart would continue; None if the run has not begun.

    Errors: the errors of `come_back`.
    """
    rule = rule_of(config, layout, edition_of(depot))
    return come_back(depot, rule, measures_for(config, layout, run))
