"""What stands in for a shard's arrays and files: integers, to which each token merged adds one.

All else is `cluster.shard.shard`, as it runs. The public fragment is the sum of the tokens in it,
which the ledger calls merged; a difference is how many were added.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from archipelago.lab.simulation.payloads import Parcel, SimDifference, aligned_of, cosines_of
from cluster.shard.arithmetic import Arithmetic, Files, Held, Staging, Weighed
from cluster.shard.shard import Shard
from cluster.storage.format import Damaged
from coordinator.protocol import Fragment, Merge, Version

KEEP_DIFFERENCES = (2, 0)
"""Of even fragments, and of odd ones: so that learners catch up either way."""
MEASURED = 10_000
"""From how many elements a cosine is said to be measured."""


class Saved(NamedTuple):
    """What stands for a stored fragment."""

    version: Version
    value: int


SimShard: TypeAlias = Shard[Parcel, SimDifference, int, Saved]


class SimArithmetic(Arithmetic[Parcel, SimDifference, int, Saved]):
    """Integers: a master, which runs ahead while a version is staged, and a public one."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._master, self._public = rng, dict[Fragment, int](), dict[Fragment, int]()

    def put(self, p: Fragment, stored: Saved) -> None:
        self._master[p] = self._public[p] = stored.value

    def stored(self, p: Fragment, version: Version, staged: SimDifference | None) -> Saved:
        return Saved(version, self._public[p] + (0 if staged is None else staged.tokens))

    def whole(self, p: Fragment) -> int:
        return self._public[p]

    def public(self, p: Fragment) -> int:
        return self._public[p]

    def shared(self, p: Fragment) -> None:
        return None

    def flaw(self, p: Fragment, payload: Parcel) -> str:
        return ""

    def hold(self, p: Fragment, payload: Parcel) -> Held[Parcel]:
        return Held(p, payload, (payload.norm,), payload.moments)

    def norms(self, held: Held[Parcel]) -> Sequence[float]:
        return (math.nan,) if held.payload.rotten else held.norms

    def undo(self, p: Fragment) -> Callable[[], None]:
        before = self._master[p]
        return lambda: self._master.update({p: before})

    def put_back(self, p: Fragment, stored: Saved) -> None:
        self._master[p] = stored.value

    def merge(
        self,
        order: Merge,
        parts: Sequence[Weighed[Parcel, int]],
        trial: Sequence[Weighed[Parcel, int]] | None,
    ) -> Staging[SimDifference]:
        merging, p = [(each.weight, each.held.payload) for each in parts], order.fragment
        self._master[p] += sum(parcel.tokens for _, parcel in merging)
        norm = sum(w * parcel.norm for w, parcel in merging)
        if any(parcel.rotten for _, parcel in merging):
            norm = math.nan
        beside = None if trial is None else [each.held.payload for each in trial]
        cosines = () if beside is None else cosines_of(merging, beside, self._rng)
        difference = SimDifference(self._master[p] - self._public[p])
        measured = MEASURED if cosines else 0
        aligned = aligned_of(merging, self._rng) if cosines else ()
        return Staging(difference, norm, cosines, measured, None, None, aligned)

    def publish(self, p: Fragment, difference: SimDifference) -> SimDifference:
        self._public[p] += difference.tokens
        return difference

    def links(self, p: Fragment) -> int:
        return KEEP_DIFFERENCES[p % 2]

    def nbytes(self, *former: int) -> int:
        return 8 * (2 * len(self._master) + len(former))


class SimDisk(Files[Saved]):
    """A disk that never fails: whether it is to be had is said before it is asked."""

    def __init__(self) -> None:
        self._there: dict[Fragment, dict[Version, Saved]] = {}

    def save(self, p: Fragment, arrays: Callable[[], Saved], *, first: bool) -> None:
        stored = arrays()
        self._there.setdefault(p, {})[stored.version] = stored

    def has(self, p: Fragment, version: Version) -> bool:
        return version in self._there[p]

    def load(self, p: Fragment, version: Version) -> Saved:
        return self._there[p][version]

    def newest(self, p: Fragment, upto: Version) -> Saved:
        if (found := max((v for v in self._there[p] if v <= upto), default=None)) is None:
            raise Damaged(f"no version of fragment {p} up to {upto}")
        return self._there[p][found]

    def forget_after(self, p: Fragment, version: Version) -> None:
        self._there[p] = {v: saved for v, saved in self._there[p].items() if v <= version}
