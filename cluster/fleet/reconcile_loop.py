"""The reconcile loop: one look at the run, and its consequences.

A look collects the syncer's view, the messages of processes and the state of Ray's devices, has
`reconcile` decide, and carries its actions out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from cluster.config.schema import Config
from cluster.fleet.backend import RayCluster
from cluster.fleet.budget import reason_to_stop
from cluster.fleet.core_actors import CoreActors
from cluster.fleet.fault_injection import Injection
from cluster.fleet.given_up import GivenUpIslands
from cluster.fleet.island_actions import IslandActions
from cluster.fleet.island_table import HeldIsland, Islands
from cluster.fleet.preemption import Preemptions
from cluster.fleet.reconcile import GONE, Hold, reconcile
from cluster.fleet.requests import DesiredState, Requests
from cluster.fleet.status_board import StatusBoard
from cluster.fleet.status_view import overlay_islands
from cluster.status import RunStatus
from cluster.view import View
from coordinator.protocol import Island
from coordinator.state import Phase

log = logging.getLogger("archipelago.fleet")


class ReconcileLoop:
    """The looks of one run; only the keeper's thread calls it."""

    def __init__(
        self,
        config: Config,
        cluster: RayCluster,
        islands: Islands,
        core: CoreActors,
        injection: Injection,
        requests: Requests,
        board: StatusBoard,
        preemptions: Preemptions,
        keep: Callable[[], None],
    ) -> None:
        """Create the loop. `keep` writes down which islands hold devices, and where."""
        self._config, self._islands, self._core = config, islands, core
        self._injection, self._requests, self._board = injection, requests, board
        self._keep = keep
        self._preemptions = preemptions
        self._given_up = GivenUpIslands(cluster)
        self._actions = IslandActions(config, cluster, islands, core, keep)
        self._told_to_stop, self._pardons, self._t = False, 0, -1
        self._has_acted = False

    def look(self) -> View:
        """Look at the run once, act, and return the syncer's view.

        Errors: `Unavailable` if the syncer does not answer; any error that ends the run.
        """
        islands = self._islands
        held = islands.with_devices() if self._has_acted else None  # the first look places them
        view, status = self._core.look(held, islands.process_starts())
        now_s = time.monotonic()
        if view.t > self._t:
            self._t = view.t
            self._core.watchdog.progressed()
        islands.note_processes()
        islands.note_learners(view)
        islands.note_devices()
        wanted = self._requests.wanted
        if wanted.pardons != self._pardons:
            self._pardons = wanted.pardons
            islands.forgive()
        stopping = wanted.stopping
        if stopping is None:
            self._given_up.note(islands)
        desired = wanted.desired if stopping is None else frozenset(islands.all())
        withheld = self._requests.withheld.notices(now_s) if stopping is None else {}
        self._requests.withheld.publish(desired, islands.all())
        desired -= withheld.keys()
        if stopping is None:
            changed = islands.use_spares(desired, now_s)
            if islands.spares.tend(islands.taken(), now_s) or changed:
                islands.post()
                self._keep()
        notices = withheld | self._preemptions.look(islands, now_s)
        desired -= self._preemptions.resting(islands.holdings(), now_s)
        policy = self._config.faults.policy
        drained = _ends_of_drains(islands)
        actions = reconcile(desired, islands.holdings(), now_s, policy, notices)
        self._actions.do_all(actions, now_s)
        self._has_acted = True
        self._publish(status, wanted, drained)
        if view.phase is Phase.RUNNING:
            self._require_quorum(wanted)
            if stopping is None and (why := reason_to_stop(self._config, status)) is not None:
                log.warning("the run ends: %s", why)
                self._requests.stop(why)
            if stopping is not None and not self._told_to_stop:
                self._core.stop(stopping)
                self._told_to_stop = True
            self._injection.inject_due_faults(view, self._keep)
            self._core.judge(view.live)
        return view

    def _require_quorum(self, wanted: DesiredState) -> None:
        """Check that enough islands are left for a quorum.

        Errors: `RunFailed`, with the last traceback of an island that was set aside, if too many
        were set aside.
        """
        aside = self._islands.aside()
        if aside and len(wanted.desired) - len(aside) < self._config.sync.quorum:
            raise max(aside, key=lambda it: bool(it.last_words)).given_up()

    def _publish(
        self, status: RunStatus, wanted: DesiredState, drained: Mapping[Island, HeldIsland]
    ) -> None:
        """Publish the syncer's status, with the fleet's knowledge of islands on top.

        `drained`: the islands of which a drain has ended; they are shown once more.
        """
        regions = self._core.regions
        warm = sum(map(len, self._islands.spares.warm(time.monotonic()).values()))
        self._board.publish(
            overlay_islands(
                {
                    **status,
                    "asked": wanted.stopping,
                    "heldout_by_region": regions.losses,
                    "heldout_by_region_t": regions.steps,
                },
                dict(sorted({**drained, **self._islands.all()}.items())),
                wanted=len(wanted.desired),
                spares=warm,
                evaluation=self._core.evaluations.progress,
                effects=self._core.effects,
            )
        )


def _ends_of_drains(islands: Islands) -> dict[Island, HeldIsland]:
    """Return the islands whose drain has ended: they have left, or were lost before.

    Such an island is given back in the same look, so no later status could show its end.
    """
    return {
        island: it
        for island, it in islands.all().items()
        if it.holding.hold is Hold.DRAINING and it.holding.learner in GONE
    }
