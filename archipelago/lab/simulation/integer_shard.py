"""The stand-in for a shard's arrays and files: integers that count merged tokens.

All other code of the shard is `cluster.shard.shard` itself. The public fragment is the sum of the
tokens in it, which the ledger calls merged. A difference is the number of tokens added.
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
"""Differences kept of even and of odd fragments, so that learners catch up in both ways."""
MEASURED = 10_000
"""The number of elements that a cosine is reported to be measured from."""


class Saved(NamedTuple):
    """The stand-in for a stored fragment."""

    version: Version
    value: int


SimShard: TypeAlias = Shard[Parcel, SimDifference, int, Saved]


class SimArithmetic(Arithmetic[Parcel, SimDifference, int, Saved]):
    """Integers: a master value, which runs ahead while a version is staged, and a public one."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._master, self._public = rng, dict[Fragment, int](), dict[Fragment, int]()

    def put(self, p: Fragment, stored: Saved) -> None:
        """Set both values of a fragment to the stored one."""
        self._master[p] = self._public[p] = stored.value

    def stored(self, p: Fragment, version: Version, staged: SimDifference | None) -> Saved:
        """Return the public value with the staged difference, if any, as a stored version."""
        return Saved(version, self._public[p] + (0 if staged is None else staged.tokens))

    def whole(self, p: Fragment) -> int:
        """Return the public value."""
        return self._public[p]

    def public(self, p: Fragment) -> int:
        """Return the public value."""
        return self._public[p]

    def shared(self, p: Fragment) -> None:
        """Return None: there are no moments."""
        return

    def flaw(self, p: Fragment, payload: Parcel) -> str:
        """Return no flaw: every parcel is accepted."""
        return ""

    def hold(self, p: Fragment, payload: Parcel) -> Held[Parcel]:
        """Wrap a parcel with the norms that it came with."""
        return Held(p, payload, (payload.norm,), payload.moments)

    def norms(self, held: Held[Parcel]) -> Sequence[float]:
        """Return the norm as it is now; NaN if the parcel is rotten."""
        return (math.nan,) if held.payload.rotten else held.norms

    def undo(self, p: Fragment) -> Callable[[], None]:
        """Return a function that restores the present master value."""
        old_value = self._master[p]
        return lambda: self._master.update({p: old_value})

    def put_back(self, p: Fragment, stored: Saved) -> None:
        """Restore the master value from a stored version."""
        self._master[p] = stored.value

    def merge(
        self,
        order: Merge,
        parts: Sequence[Weighed[Parcel, int]],
        trial: Sequence[Weighed[Parcel, int]] | None,
    ) -> Staging[SimDifference]:
        """Add the parts' tokens to the master value; the norm is NaN if a part is rotten."""
        merging, p = [(each.weight, each.held.payload) for each in parts], order.fragment
        self._master[p] += sum(parcel.tokens for _, parcel in merging)
        norm = sum(w * parcel.norm for w, parcel in merging)
        if any(parcel.rotten for _, parcel in merging):
            norm = math.nan
        trial_payloads = None if trial is None else [each.held.payload for each in trial]
        cosines = () if trial_payloads is None else cosines_of(merging, trial_payloads, self._rng)
        difference = SimDifference(self._master[p] - self._public[p])
        measured = MEASURED if cosines else 0
        aligned = aligned_of(merging, self._rng) if cosines else ()
        return Staging(difference, norm, cosines, measured, None, None, aligned)

    def publish(self, p: Fragment, difference: SimDifference) -> SimDifference:
        """Add the difference to the public value."""
        self._public[p] += difference.tokens
        return difference

    def links(self, p: Fragment) -> int:
        """Return how many differences of this fragment are kept."""
        return KEEP_DIFFERENCES[p % 2]

    def nbytes(self, *former: int) -> int:
        """Return the bytes of all values, and of the former public ones: 8 for each."""
        return 8 * (2 * len(self._master) + len(former))


class SimDisk(Files[Saved]):
    """A disk that never fails: its failures are simulated before it is called."""

    def __init__(self) -> None:
        self._there: dict[Fragment, dict[Version, Saved]] = {}

    def save(self, p: Fragment, arrays: Callable[[], Saved], *, first: bool) -> None:
        """Store a version."""
        stored = arrays()
        self._there.setdefault(p, {})[stored.version] = stored

    def has(self, p: Fragment, version: Version) -> bool:
        """Return whether a version is stored."""
        return version in self._there[p]

    def load(self, p: Fragment, version: Version) -> Saved:
        """Return a stored version."""
        return self._there[p][version]

    def newest(self, p: Fragment, upto: Version) -> Saved:
        """Return the newest stored version that is not later than `upto`.

        Errors: `Damaged` if there is none.
        """
        if (found := max((v for v in self._there[p] if v <= upto), default=None)) is None:
            raise Damaged(f"no version of fragment {p} up to {upto}")
        return self._there[p][found]

    def forget_after(self, p: Fragment, version: Version) -> None:
        """Delete all versions later than this one."""
        self._there[p] = {v: saved for v, saved in self._there[p].items() if v <= version}
