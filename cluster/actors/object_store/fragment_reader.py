"""Reading of public fragments from the shards, whole or by range, by a learner or an evaluator.

The shards answer where the bytes are, and `Fetching` pulls them. There are no timeouts here: the
caller's `came` is called for each answer and each object that arrives.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from cluster.actors.directory import AGAIN_S
from cluster.actors.object_store.publish import Boxed, Encoded, Shared
from cluster.actors.object_store.pull import Fetching, Lot, lots_of
from cluster.actors.object_store.ranges import Range
from coordinator.codec import Payload, Sent, joined
from coordinator.errors import Unreachable
from coordinator.fragments import Flat
from coordinator.protocol import Fragment, Version

Came = Callable[[], None]
"""A callback for progress; an exception that it raises ends the call."""


class _Parcel(NamedTuple):
    """An encoded difference: the payload itself, or the numbers of objects to pull for it."""

    here: Sent | None
    """The payload, if it came with the answer."""
    difference: int = 0
    """Objects of the difference."""
    moments: int | None = None
    """Objects of its moments; None if there are no moments."""


class FragmentReader:
    """One process's access to the public fragments; usable on any thread."""

    def __init__(
        self,
        ask: Callable[..., Any],
        ask_once: Callable[..., Any],
        fetching: Fetching,
        holder: Mapping[Fragment, str],
    ) -> None:
        """Read fragments from the shards.

        `ask`: calls a method of a shard, with retries until it answers. `ask_once`: calls it once,
        and raises `Unreachable` instead. `holder`: the name of the shard that holds each fragment.
        """
        self._ask, self._ask_once = ask, ask_once
        self._fetching, self._holder = fetching, holder
        self._asking = ThreadPoolExecutor(1, "ask")
        self.ranges: Mapping[Fragment, slice] | None = None  # only on hosts that hold ranges

    def whole(
        self, fragments: Sequence[Fragment], least: Mapping[Fragment, Version], came: Came
    ) -> list[tuple[Version, Flat]]:
        """Return public fragments, none older than its version in `least`.

        Each request is for as many fragments as are pulled at once, and the next request is made
        while these are pulled. A fragment in one part is mapped from this node's object store, not
        copied.
        """
        found: dict[Fragment, tuple[Version, Flat]] = {}
        pending = deque(fragments)
        locations = self._shared(_some(pending, 1), least, came)
        while locations:
            largest = max(shared.nbytes for shared in locations.values())
            next_fragments = _some(pending, self._fetching.window_bytes / max(1, largest))
            next_locations = self._asking.submit(self._shared, next_fragments, least, came)
            found |= self._pulled(locations, least, came)
            locations = next_locations.result()
        return [found[p] for p in fragments]

    def mean_moments(self, fragments: Sequence[Fragment], came: Came) -> dict[Fragment, Payload]:
        """Return the mean of the islands' first moments, for those fragments that have one.

        Objects that were lost with their shard are requested again.
        """
        found: dict[Fragment, Payload] = {}
        for name in dict.fromkeys(self._holder[p] for p in fragments):
            pending = [p for p in fragments if self._holder[p] == name]
            while pending:
                bytes_s = self._rate(pending[0], came)
                answers = self._until(
                    came, name, "mean_moments", pending, bytes_s, self._owns(pending)
                )
                available = {
                    p: each for p, each in zip(pending, answers, strict=True) if each is not None
                }
                boxed = {p: each[0] for p, each in available.items() if each}
                try:
                    means = self._opened([*boxed.values()], came)
                except Unreachable as error:
                    self._renew([*boxed], error)
                    continue
                found |= dict(zip(boxed, cast("list[Payload]", means), strict=True))
                pending = [p for p in pending if p not in available]
                came()
        return found

    def missed(
        self, p: Fragment, older: Version, newer: Version, came: Came
    ) -> list[Sent] | tuple[Version, Flat]:
        """Return the differences from one version to another, or the public fragment if not kept.

        The shard is asked only once, since the caller decides whether the answer is still needed.

        Errors: `Unreachable` if the shard is away or has nothing yet, or if its objects are lost.
        """
        arguments = p, older, newer, self._rate(p, came), self._owns([p]).get(p)
        answer = self._ask_once(self._holder[p], "missed", *arguments)
        if answer is None:
            came()  # the shard has answered
            raise Unreachable(f"the {self._holder[p]} has no difference to {newer} of f{p} yet")
        try:
            if isinstance(answer, Shared):
                return answer.version, _sewn(self._fetching.pull(lots_of(answer), came))
            return self._opened(answer, came)
        except Unreachable:
            with suppress(Unreachable):  # a shard that is away has no objects to renew
                self._ask_once(self._holder[p], "renew", [p])
            raise

    def _owns(self, fragments: Sequence[Fragment]) -> dict[Fragment, Range]:
        """Return this host's ranges of these fragments; empty if it holds them whole."""
        if (ranges := self.ranges) is None:
            return {}
        return {p: (ranges[p].start, ranges[p].stop) for p in fragments}

    def _shared(
        self, fragments: Sequence[Fragment], least: Mapping[Fragment, Version], came: Came
    ) -> dict[Fragment, Shared]:
        """Return where public fragments are in the object store, as soon as all are put."""
        found: dict[Fragment, Shared] = {}
        for name in dict.fromkeys(self._holder[p] for p in fragments):
            pending = [p for p in fragments if self._holder[p] == name]
            while pending:
                arguments = pending, self._rate(pending[0], came), self._owns(pending), dict(least)
                answers = self._until(came, name, "shared", *arguments)
                found |= {
                    p: each for p, each in zip(pending, answers, strict=True) if each is not None
                }
                pending = [p for p in pending if p not in found]
                if pending:
                    came()  # the shard is alive, and puts them
        return found

    def _pulled(
        self, asked: Mapping[Fragment, Shared], least: Mapping[Fragment, Version], came: Came
    ) -> dict[Fragment, tuple[Version, Flat]]:
        """Return these fragments; request them again if they were lost with their shard."""
        while True:
            try:
                lots = [lot for shared in asked.values() for lot in lots_of(shared)]
                parts = iter(self._fetching.pull(lots, came))
            except Unreachable as error:
                self._renew([*asked], error)
                asked = self._shared([*asked], least, came)
                continue
            return {
                p: (shared.version, _sewn([*islice(parts, len(shared.parts))]))
                for p, shared in asked.items()
            }

    def _renew(self, fragments: Sequence[Fragment], error: Unreachable) -> None:
        """Have the shards answer the next requests with other objects: these did not arrive."""
        logging.info("%s; asking for other objects", error)
        for name in dict.fromkeys(self._holder[p] for p in fragments):
            self._ask(name, "renew", [p for p in fragments if self._holder[p] == name])

    def _opened(self, boxed: Sequence[Boxed], came: Came) -> list[Sent]:
        """Return encoded differences, and pull those that did not come with the answer.

        Errors: `Unreachable`.
        """
        parcels, lots = list[_Parcel](), list[Lot]()
        for each in boxed:
            if not isinstance(each, Encoded):
                parcels.append(_Parcel(each))
                continue
            moment_parts = None if each.moments is None else len(each.moments)
            parcels.append(_Parcel(None, len(each.difference), moment_parts))
            references = [*each.difference, *(each.moments or ())]
            lots += [Lot(reference, each.nbytes / len(references)) for reference in references]
        parts = iter(self._fetching.pull(lots, came))
        return [_opened(parcel, parts) for parcel in parcels]

    def _rate(self, p: Fragment, came: Came) -> float:
        """Return this process's pull rate in bytes a second; measure it on first use.

        The measurement is retried for as long as the holder of the fragment is unreachable.
        """
        while (bytes_s := self._fetching.bytes_s) is None:
            try:
                return self._fetching.measure(
                    lambda nbytes: self._until(came, self._holder[p], "probe", nbytes), came
                )
            except Unreachable as error:
                self._renew([p], error)
        return bytes_s

    def _until(self, came: Came, shard: str, method: str, *arguments: object) -> Any:
        """Ask with retries until the shard has a model and has put what is wanted."""
        while (found := self._ask(shard, method, *arguments)) is None:
            came()  # the shard has answered
            time.sleep(AGAIN_S)
        return found


def _some(todo: deque[Fragment], count: float) -> list[Fragment]:
    """Take the next `count` fragments off the queue; at least one if there is one."""
    return [todo.popleft() for _ in range(int(min(len(todo), max(1.0, count))))]


def _opened(parcel: _Parcel, parts: Iterator[NDArray[Any]]) -> Sent:
    """Return one encoded difference, made of the next parts if it was not in the answer."""
    if parcel.here is not None:
        return parcel.here
    difference = _sewn([*islice(parts, parcel.difference)])
    if parcel.moments is None:
        return difference
    return joined(difference, _sewn([*islice(parts, parcel.moments)]))


def _sewn(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Join the parts of an array; without parts the array is empty."""
    if not parts:
        return np.zeros(0, np.float32)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
