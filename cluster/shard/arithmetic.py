"""Protocols of the arithmetic on fragments and of the files that a shard uses.

`cluster.shard.shard` makes the decisions and calls these two. A run uses `cluster.shard.arrays` and
`cluster.shard.files`; the simulator uses integers for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from coordinator.protocol import Fragment, Merge, Version


class Sized(Protocol):
    """An object with a size in bytes."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        ...


class Versioned(Protocol):
    """An object that belongs to one version of a fragment."""

    @property
    def version(self) -> Version:
        """The version of the fragment."""
        ...


P = TypeVar("P", bound=Sized)
"""A payload that is handed in: an encoded delta, perhaps with first moments beside it."""
D = TypeVar("D", bound=Sized)
"""An encoded difference from one public version to the next, perhaps with mean first moments."""
W = TypeVar("W")
"""A whole public fragment."""
S = TypeVar("S", bound=Versioned)
"""A stored fragment: master, momentum, public fragment and shared moments of one version."""


class Held(NamedTuple, Generic[P]):
    """A contribution's bytes, held until they are merged or dropped."""

    fragment: Fragment
    payload: P
    norms: Sequence[float]
    """Norm of each piece of the delta."""
    moments: float | None = None
    """Norm of the first moments beside the delta; None if there are none."""


class Weighed(NamedTuple, Generic[P, W]):
    """A contribution to a merge, with its weight."""

    held: Held[P]
    weight: float
    base: W | None
    """The earlier public fragment from which the delta counts; None if it counts as it is."""


class Staging(NamedTuple, Generic[D]):
    """The result of a merge; `cosines` and the rest are as in `coordinator.protocol.Merged`."""

    difference: D
    """The step of the public fragment, with the mean first moments if there are any."""
    norm: float
    """Norm of the step of the public fragment."""
    cosines: tuple[float | None, ...]
    measured: int
    turned: float | None
    rate: float | None
    aligned: tuple[float | None, ...] = ()


class Arithmetic(Protocol[P, D, W, S]):
    """The arrays of each fragment, and all computations on them."""

    def put(self, p: Fragment, stored: S) -> None:
        """Take over these arrays, in place of any earlier ones of the fragment."""
        ...

    def stored(self, p: Fragment, version: Version, staged: D | None) -> S:
        """Return the fragment as it is stored.

        Without a staged difference the arrays are not copied. With one the result is a copy, as the
        fragment will be once the difference is public.
        """
        ...

    def whole(self, p: Fragment) -> W:
        """Return a copy of the public fragment."""
        ...

    def public(self, p: Fragment) -> W:
        """Return the public fragment itself, which `publish` may change in place."""
        ...

    def shared(self, p: Fragment) -> D | None:
        """Return the mean of the islands' first moments, as it was published last.

        Returns None if no island has handed in any since the shard began or came back.
        """
        ...

    def flaw(self, p: Fragment, payload: P) -> str:
        """Return why this payload does not fit the run's wire; empty if it does."""
        ...

    def hold(self, p: Fragment, payload: P) -> Held[P]:
        """Measure a payload that was handed in, and return what to hold of it."""
        ...

    def norms(self, held: Held[P]) -> Sequence[float]:
        """Compute the norm of each piece again, from the bytes as they are now."""
        ...

    def undo(self, p: Fragment) -> Callable[[], None]:
        """Copy the arrays that a merge changes, and return a function that restores them."""
        ...

    def put_back(self, p: Fragment, stored: S) -> None:
        """Restore the arrays that a merge changes from the stored public version."""
        ...

    def merge(
        self,
        order: Merge,
        parts: Sequence[Weighed[P, W]],
        trial: Sequence[Weighed[P, W]] | None,
    ) -> Staging[D]:
        """Merge these contributions in their order, in place; leave the public fragment as it is.

        `trial`: contributions that are measured beside the others, and not merged; None if no
        directions are wanted.
        """
        ...

    def publish(self, p: Fragment, difference: D) -> D:
        """Add the difference to the public fragment, and share the moments beside it.

        Returns the part of the difference that a learner which missed it can use.
        """
        ...

    def links(self, p: Fragment) -> int:
        """Return how many differences of the public fragment are worth keeping."""
        ...

    def nbytes(self, *former: W) -> int:
        """Return the bytes of all arrays, and of these earlier public fragments, together."""
        ...


class Files(Protocol[S]):
    """The place where versions are made durable."""

    def save(self, p: Fragment, arrays: Callable[[], S], *, first: bool) -> None:
        """Make a version durable; the `first` one is kept forever.

        Errors: `OSError` if it cannot be made durable; `RunFailed` if another owner has the run by
        now.
        """
        ...

    def has(self, p: Fragment, version: Version) -> bool:
        """Return whether this version is stored."""
        ...

    def load(self, p: Fragment, version: Version) -> S:
        """Read one stored version.

        Errors: `Damaged`; `OSError`.
        """
        ...

    def newest(self, p: Fragment, upto: Version) -> S:
        """Return the newest good version that is not later than `upto`.

        Errors: `Damaged` if there is none.
        """
        ...

    def forget_after(self, p: Fragment, version: Version) -> None:
        """Delete all later versions; one that cannot be deleted stays."""
        ...
