"""The pulling of large objects in parts, for as long as there is progress.

There is no overall timeout. The objects in flight are as many as the link carries in a few seconds,
at the measured rate. Every arrival is progress, and is reported to the caller as a sign of life.

A transfer that is lost with its connection is repeated by Ray only after its own timeout, which is
minutes on thin links. So a pull without an arrival ends after its `Patience`, and the caller asks
for other objects.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from threading import Event, Lock
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from cluster.actors.fault_injection import Cable
from cluster.actors.object_store.publish import PART_S, PROBE_BYTES, PROBE_GROWS, Probe, Shared
from coordinator.errors import Unreachable

AHEAD_S = PART_S / 2
"""Seconds of its link that a learner has in flight, if that is more than one object.

Other traffic on the link then has as many seconds before Ray transfers an object again.
"""
PULLS = 8
"""The largest number of objects in flight at the same time."""
PROBE_S = 1.0
"""Seconds of a transfer that suffice to measure a link."""
RECENT = 3
"""Rates that are remembered."""
LOOK_S = 1.0
"""Seconds after which a waiting thread checks again whether its object is still wanted."""
LATE_S, LATE_TIMES = 20.0, 8.0
"""A wait is given up after `LATE_S` plus this multiple of the time that it should take.

Other learners that join at the same moment share the link.
"""
MOST_DOUBLINGS = 3
"""The largest number of doublings of the patience, after waits in a row that were in vain."""


class Lot(NamedTuple):
    """An object to be pulled."""

    reference: ray.ObjectRef
    nbytes: float
    """The approximate size, in bytes."""


def lots_of(stored: Probe | Shared) -> list[Lot]:
    """Return the objects of which it consists in the object store."""
    return [Lot(reference, stored.nbytes / len(stored.parts)) for reference in stored.parts]


class Patience:
    """The longest wait of a process for an object that does not arrive; usable on any thread.

    It doubles with each wait in vain, so that an object larger than expected arrives at last, and
    then follows the longest of the last few arrivals.
    """

    def __init__(self) -> None:
        self._doublings = 0
        self._took_s = deque[float]([0.0], maxlen=RECENT)

    def seconds(self, expected_s: float = 0.0) -> float:
        """Return how long to wait for an arrival that should take `expected_s`, in seconds."""
        longest_s = max(expected_s, *self._took_s)
        return float((LATE_S + LATE_TIMES * longest_s) * 2**self._doublings)

    def came(self, took_s: float) -> None:
        """Note an arrival after `took_s` seconds."""
        self._doublings = 0
        self._took_s.append(took_s)

    def in_vain(self) -> None:
        """Note that a wait has ended without an arrival."""
        self._doublings = min(self._doublings + 1, MOST_DOUBLINGS)


class Fetching:
    """Pulls of objects for one learner, on any of its threads."""

    def __init__(
        self,
        cable: Cable,
        now_s: Callable[[], float] = time.monotonic,
        get: Callable[[ray.ObjectRef], Any] | None = None,
        arrived: Callable[[ray.ObjectRef], bool] | None = None,
    ) -> None:
        """Pull over a cable.

        `get`: pulls an object; None: `ray.get`. `arrived`: waits briefly for an object, and returns
        whether it has arrived; None: Ray's, unless `get` is given.
        """
        self._cable, self._now_s = cable, now_s
        self._get: Callable[[ray.ObjectRef], Any] = get or ray.get
        self._is_there = arrived or (_is_there if get is None else None)
        self._threads = ThreadPoolExecutor(PULLS, "pull")
        self._rates = deque[float](maxlen=RECENT)
        self._patience = Patience()
        self._lock, self._flying_bytes = Lock(), 0.0  # of all pulls: they share the link

    @property
    def bytes_s(self) -> float | None:
        """The highest of the last few rates, in bytes a second; None before the first pull.

        A busy machine makes a link look slower, and nothing makes it look faster.
        """
        return max(self._rates, default=None)

    @property
    def window_bytes(self) -> float:
        """The bytes to have in flight at the same time."""
        return AHEAD_S * max(self._rates, default=0.0)

    def measure(
        self, probed: Callable[[int], Probe], came: Callable[[], None] = lambda: None
    ) -> float:
        """Measure the link in bytes a second, before the first pull.

        The result is infinite where everything to be pulled is small. `probed`: asks for an object
        of that many bytes. `came`: as in `pull`.

        An object that takes a second measures the rate of the link; a smaller one measures latency.

        Errors: `Unreachable`.
        """
        nbytes = PROBE_BYTES
        while (probe := probed(nbytes)).parts:
            began_s = self._now_s()
            self.pull(lots_of(probe), came)
            took_s = max(self._now_s() - began_s, 1e-6)
            if took_s >= PROBE_S or PART_S * nbytes / took_s >= PROBE_GROWS * probe.largest:
                return nbytes / took_s
            nbytes *= PROBE_GROWS
        if not self._rates:
            self._rates.append(math.inf)
        return max(self._rates)

    def pull(self, lots: Iterable[Lot], came: Callable[[], None] = lambda: None) -> list[Any]:
        """Return the objects, in order; arrays are mapped, not copied.

        `came`: called for each arrival; its exception ends the pull. However the pull ends, no
        thread keeps waiting for an object.

        Errors: `Unreachable` if an object is lost, or if none has arrived for too long. The same
        objects should not be pulled again then.
        """
        pending, flying = deque(enumerate(lots)), dict[Future[Any], tuple[int, Lot]]()
        found: dict[int, Any] = {}
        began_s, came_bytes, over = self._now_s(), 0.0, Event()
        moved_s = began_s
        try:
            while pending or flying:
                self._cable.passes()
                for number, lot in self._next(pending, [lot for _, lot in flying.values()]):
                    pulled = self._threads.submit(self._pull, lot.reference, over)
                    flying[pulled] = number, lot
                    self._flies(lot.nbytes)
                arrived = wait(flying, LOOK_S, FIRST_COMPLETED).done
                if not arrived:
                    self._require_soon(self._now_s() - moved_s, [*flying.values()])
                for done in arrived:
                    number, lot = flying.pop(done)
                    self._flies(-lot.nbytes)
                    try:
                        found[number] = done.result()
                    except RayError as error:
                        raise Unreachable(f"lost on its way: {type(error).__name__}") from error
                    came_bytes += lot.nbytes
                    self._patience.came(self._now_s() - moved_s)
                    moved_s = self._now_s()
                    came()
        finally:
            over.set()
            self._flies(-sum(lot.nbytes for _, lot in flying.values()))
        if came_bytes:
            self._rates.append(came_bytes / max(self._now_s() - began_s, 1e-6))
        return [found[number] for number in sorted(found)]

    def _flies(self, nbytes: float) -> None:
        with self._lock:
            self._flying_bytes += nbytes

    def _require_soon(self, waited_s: float, flying: Sequence[tuple[int, Lot]]) -> None:
        """Require that a pull has not been without an arrival for too long.

        Errors: `Unreachable`.
        """
        nbytes = sum(lot.nbytes for _, lot in flying)
        expected_s = self._flying_bytes / max(self._rates, default=math.inf)
        if waited_s > self._patience.seconds(expected_s):
            self._patience.in_vain()
            objects = "object" if len(flying) == 1 else "objects"
            what = f"{len(flying)} {objects} of together {nbytes / 1e6:.1f} MB"
            raise Unreachable(f"{what}: nothing has arrived for {waited_s:.0f} s")

    def _pull(self, reference: ray.ObjectRef, over: Event) -> Any:
        """Wait for an object, until its pull is over; after that the result is not needed."""
        while not over.is_set():
            if self._is_there is None or self._is_there(reference):
                return self._get(reference)
        return None

    def _next(
        self, todo: deque[tuple[int, Lot]], flying: Sequence[Lot]
    ) -> Iterator[tuple[int, Lot]]:
        """Yield the next objects to request besides those in flight; at least one if none is."""
        count, nbytes = len(flying), sum(lot.nbytes for lot in flying)
        while todo and count < PULLS:
            lot = todo[0][1]
            if count and nbytes + lot.nbytes > self.window_bytes:
                return
            count, nbytes = count + 1, nbytes + lot.nbytes
            yield todo.popleft()


def _is_there(reference: ray.ObjectRef) -> bool:
    """Wait up to `LOOK_S` for an object to be on this node; Ray keeps fetching it after that."""
    return bool(ray.wait([reference], timeout=LOOK_S)[0])
