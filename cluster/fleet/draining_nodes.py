"""The nodes that Ray drains, and the requests to drain more of them.

Ray's control service is asked on threads of their own: it may be away for a minute while the head
restarts, and the keeper must go on meanwhile. Both calls are Ray's own, and not part of its public
API; `ray drain-node` and Ray's autoscaler use the same ones.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
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


class DrainRequests:
    """The requests to drain nodes; each attempt runs on a thread of its own.

    Only one thread calls `ask`.
    """

    def __init__(
        self,
        send: Callable[[str, str, float], str] | None = None,
        start: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """Create the requests.

        `send`: sends one request and returns Ray's refusal, as `drain_node` does, which is the
        default. `start`: has a function run on another thread; the default starts one.
        """
        self._send, self._start = send or drain_node, start or _on_a_thread
        self._lock = threading.Lock()
        self._under_way, self._accepted = set[str](), set[str]()
        self._failures: dict[str, str] = {}

    def ask(self, node: str, why: str, left_s: float) -> bool:
        """Return whether Ray has accepted to drain a node that is gone in `left_s` seconds.

        This never blocks. It begins an attempt unless one is under way: call it until Ray accepts.
        """
        with self._lock:
            if node in self._accepted:
                return True
            if node in self._under_way:
                return False
            self._under_way.add(node)
        self._start(lambda: self._attempt(node, why, left_s))
        with self._lock:
            return node in self._accepted

    def _attempt(self, node: str, why: str, left_s: float) -> None:
        try:
            failure = self._send(node, why, left_s)
        except Exception as error:  # noqa: BLE001 - Ray names none, and the next attempt may work
            failure = repr(error)
        with self._lock:
            self._under_way.discard(node)
            if not failure:
                self._accepted.add(node)
            is_new = failure not in ("", self._failures.get(node))
            self._failures[node] = failure
        if is_new:
            log.warning("Ray does not drain the node %s yet, and is asked again: %s", node, failure)


def _on_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="drain a node", daemon=True).start()


def drain_node(node: str, why: str, left_s: float) -> str:
    """Have Ray place nothing more on a node; it ends once the node is idle, or at the deadline.

    Return why Ray refuses; empty if it accepts. `left_s`: seconds until the deadline. A control
    service that is away blocks this call for as long as Ray waits for a connection.

    Errors: `Exception` of a class that Ray does not name, if the control service does not answer.
    """
    ray_internals: Any = importlib.import_module("ray._raylet")
    messages: Any = importlib.import_module("ray.core.generated.autoscaler_pb2")
    deadline_ms = int((time.time() + left_s) * 1000)
    reason = messages.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    client = ray_internals.GcsClient(address=ray.get_runtime_context().gcs_address)
    accepted, refusal = client.drain_node(node, reason, why, deadline_ms, timeout=TIMEOUT_S)
    return "" if accepted else str(refusal) or "it names no reason"
