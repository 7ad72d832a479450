"""The nodes that Ray drains, and the request to drain one.

Ray's control service is asked on a thread of its own: it may be away for a minute while the head
restarts, and the keeper must go on meanwhile. Both calls are Ray's own, and not part of its public
API; `ray drain-node` and Ray's autoscaler use the same ones.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

import ray

log = logging.getLogger("archipelago.fleet")
LOOK_S = 1.0
"""Seconds between two questions."""
TIMEOUT_S = 5.0
"""The timeout of a request to drain a node, in seconds."""


class DrainingNodes:
    """The nodes that were draining at the last look; the first call of `now` starts the looks."""

    def __init__(self) -> None:
        self._lock, self._started = threading.Lock(), False
        self._deadlines_ms: Mapping[str, int] = {}

    def now(self) -> dict[str, float | None]:
        """Return Ray's id of each node that is draining, and the seconds left; None: no deadline.

        This never blocks.
        """
        with self._lock:
            if not self._started:
                self._started = True
                threading.Thread(target=self._look, name="draining nodes", daemon=True).start()
        now_ms = time.time() * 1000
        return {
            node: (deadline_ms - now_ms) / 1000 if deadline_ms > 0 else None
            for node, deadline_ms in self._deadlines_ms.items()
        }

    def _look(self) -> None:
        from ray._private.state import state

        failing = ""
        while True:
            try:
                self._deadlines_ms, failing = dict(state.get_draining_nodes()), ""
            except Exception as error:  # noqa: BLE001 - Ray names none, and the next look may work
                if str(error) != failing:
                    failing = str(error)
                    log.warning("Ray does not name the nodes that are draining: %r", error)
            time.sleep(LOOK_S)


def drain_node(node: str, why: str, left_s: float) -> None:
    """Have Ray place nothing more on a node; it ends once the node is idle, or at the deadline.

    A failure is logged only: islands leave the node in any case.
    """
    ray_internals: Any = importlib.import_module("ray._raylet")
    messages: Any = importlib.import_module("ray.core.generated.autoscaler_pb2")
    deadline_ms = int((time.time() + left_s) * 1000)
    reason = messages.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    client = ray_internals.GcsClient(address=ray.get_runtime_context().gcs_address)
    try:
        accepted, refusal = client.drain_node(node, reason, why, deadline_ms, timeout=TIMEOUT_S)
        if not accepted:
            log.warning("Ray refuses to drain the node %s: %s", node, refusal)
    except Exception as error:  # noqa: BLE001 - Ray names none
        log.warning("Ray could not be asked to drain the node %s: %r", node, error)
