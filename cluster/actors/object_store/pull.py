"""How a learner pulls what is large: bit by bit, for as long as something comes.

Nothing here has a number of seconds. What is pulled at once is what the link carries in a few, by
the rate that was measured; whatever arrives is progress, and is told to whoever waits for a sign of
life.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from threading import Event
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from cluster.actors.fault_injection import Cable
from cluster.actors.object_store.publish import PART_S, PROBE_BYTES, PROBE_GROWS, Probe, Shared
from coordinator.errors import Unreachable

AHEAD_S = PART_S / 2
"""So many seconds of its link a learner has on the way, of more than one object: what else is on
that link has as much again before Ray sends anything anew."""
PULLS = 8
"""Objects on their way at once, at most."""
PROBE_S = 1.0
RECENT = 3
LOOK_S = 1.0
"""A thread that waits for an object looks so often whether it is wanted still."""


class Lot(NamedTuple):
    """An object to be pulled, and about how many bytes it has."""

    reference: ray.ObjectRef
    nbytes: float


def lots_of(stored: Probe | Shared) -> list[Lot]:
    """Return the objects in which it lies in the object store."""
    return [Lot(reference, stored.nbytes / len(stored.parts)) for reference in stored.parts]


class Fetching:
    """Pulls objects for one learner, on any of its threads."""

    def __init__(
        self,
        cable: Cable,
        now_s: Callable[[], float] = time.monotonic,
        get: Callable[[ray.ObjectRef], Any] | None = None,
        there: Callable[[ray.ObjectRef], bool] | None = None,
    ) -> None:
        """`get`: pulls an object; None: Ray does. `there`: waits for one for a moment, and says
        whether it has come; None: Ray does, unless `get` is given."""
        self._cable, self._now_s = cable, now_s
        self._get: Callable[[ray.ObjectRef], Any] = get or ray.get
        self._is_there = there or (_is_there if get is None else None)
        self._threads = ThreadPoolExecutor(PULLS, "pull")
        self._rates = deque[float](maxlen=RECENT)

    @property
    def bytes_s(self) -> float | None:
        """The best of the last few rates, since a busy machine makes a link look slower, and
        nothing makes it look quicker; None before anything was pulled."""
        return max(self._rates, default=None)

    @property
    def window_bytes(self) -> float:
        """How much is pulled at once."""
        return AHEAD_S * max(self._rates, default=0.0)

    def measure(
        self, probed: Callable[[int], Probe], came: Callable[[], None] = lambda: None
    ) -> float:
        """Bytes a second of the link, for whoever knows nothing of it; infinite where all that
        there is to pull is small. `probed`: asks for an object of so many bytes. `came`: as in
        `pull`.

        An object that takes a second says what a link carries; a smaller one, how long it takes to
        answer.

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
        """Return the objects, in order; mapped, not copied, where they are arrays.

        `came`: called for each that has come; what it raises ends the pull. However that ends, no
        thread goes on waiting for an object.
        Errors: `Unreachable` if one is not to be had any more.
        """
        todo, flying = deque(enumerate(lots)), dict[Future[Any], tuple[int, Lot]]()
        found: dict[int, Any] = {}
        began_s, came_bytes, over = self._now_s(), 0.0, Event()
        try:
            while todo or flying:
                self._cable.passes()
                for number, lot in self._next(todo, [lot for _, lot in flying.values()]):
                    pulled = self._threads.submit(self._pull, lot.reference, over)
                    flying[pulled] = number, lot
                for done in wait(flying, return_when=FIRST_COMPLETED).done:
                    number, lot = flying.pop(done)
                    try:
                        found[number] = done.result()
                    except RayError as error:
                        raise Unreachable(f"lost on its way: {type(error).__name__}") from error
                    came_bytes += lot.nbytes
                    came()
        finally:
            over.set()
        if came_bytes:
            self._rates.append(came_bytes / max(self._now_s() - began_s, 1e-6))
        return [found[number] for number in sorted(found)]

    def _pull(self, reference: ray.ObjectRef, over: Event) -> Any:
        """Wait for an object until its pull is over; then it has no result that anybody reads."""
        while not over.is_set():
            if self._is_there is None or self._is_there(reference):
                return self._get(reference)
        return None

    def _next(
        self, todo: deque[tuple[int, Lot]], flying: Sequence[Lot]
    ) -> Iterator[tuple[int, Lot]]:
        """What is to be asked for beside what is on its way: one object at least."""
        count, nbytes = len(flying), sum(lot.nbytes for lot in flying)
        while todo and count < PULLS:
            lot = todo[0][1]
            if count and nbytes + lot.nbytes > self.window_bytes:
                return
            count, nbytes = count + 1, nbytes + lot.nbytes
            yield todo.popleft()


def _is_there(reference: ray.ObjectRef) -> bool:
    """Wait until an object is on this node, for a moment; Ray goes on fetching it after that."""
    return bool(ray.wait([reference], timeout=LOOK_S)[0])
