"""What a shard has done for it: arithmetic on the arrays of its fragments, and files.

`cluster.shard.shard` decides over these two. A run has `cluster.shard.arrays` and
`cluster.shard.files`; the simulator has integers for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from coordinator.protocol import Fragment, Merge, Version


class Sized(Protocol):
    """Something of so many bytes."""

    @property
    def nbytes(self) -> int: ...


class Versioned(Protocol):
    """Something of one version of a fragment."""

    @property
    def version(self) -> Version: ...


P = TypeVar("P", bound=Sized)
"""What is handed in: an encoded delta, perhaps with first moments beside it."""
D = TypeVar("D", bound=Sized)
"""What leads from one version of a public fragment to the next: an encoded difference, perhaps with
the mean of first moments beside it."""
W = TypeVar("W")
"""A public fragment, whole."""
S = TypeVar("S", bound=Versioned)
"""A fragment as it is stored: master, momentum, public fragment and shared moments of one
version."""


class Held(NamedTuple, Generic[P]):
    """What was handed in, as it is held until it is merged; `norms`: of each piece; `moments`: the
    norm of the first moments beside the delta, None if there are none."""

    fragment: Fragment
    payload: P
    norms: Sequence[float]
    moments: float | None = None


class Weighed(NamedTuple, Generic[P, W]):
    """A contribution to a merge. `base`: the public fragment from which it counts, if that is an
    earlier one than the present and the delta is to be counted from the present one."""

    held: Held[P]
    weight: float
    base: W | None


class Staging(NamedTuple, Generic[D]):
    """What a merge has come to: the difference to the public fragment, with the mean of the first
    moments where there are some, and the norm of the difference. All else as in
    `coordinator.protocol.Merged`."""

    difference: D
    norm: float
    cosines: tuple[float | None, ...]
    measured: int
    turned: float | None
    rate: float | None
    aligned: tuple[float | None, ...] = ()


class Arithmetic(Protocol[P, D, W, S]):
    """The arrays of each fragment, and all that is computed with them."""

    def put(self, p: Fragment, stored: S) -> None:
        """Own these arrays from here on, in place of those that there may be."""
        ...

    def stored(self, p: Fragment, version: Version, staged: D | None) -> S:
        """The fragment as it is, not copied; or a copy, as it will be public with what is
        staged."""
        ...

    def whole(self, p: Fragment) -> W:
        """A copy of the public fragment."""
        ...

    def public(self, p: Fragment) -> W:
        """The public fragment itself, which `publish` may change in place."""
        ...

    def shared(self, p: Fragment) -> D | None:
        """The mean of the islands' first moments, as it was published last; None if there is none:
        nobody has handed any in since the shard began, or came back."""
        ...

    def flaw(self, p: Fragment, payload: P) -> str:
        """Why this is not of the run's wire; empty if it is."""
        ...

    def hold(self, p: Fragment, payload: P) -> Held[P]:
        """Measure what was handed in."""
        ...

    def norms(self, held: Held[P]) -> Sequence[float]:
        """The norm of each piece, as it is now."""
        ...

    def undo(self, p: Fragment) -> Callable[[], None]:
        """Copy what a merge changes; what is returned puts it back."""
        ...

    def put_back(self, p: Fragment, stored: S) -> None:
        """Have what a merge has changed again, from what was stored of the public version."""
        ...

    def merge(
        self,
        order: Merge,
        parts: Sequence[Weighed[P, W]],
        trial: Sequence[Weighed[P, W]] | None,
    ) -> Staging[D]:
        """Merge these in their order, in place; the public fragment stays as it is. `trial`: what
        is measured beside them; None if no directions are wanted."""
        ...

    def publish(self, p: Fragment, difference: D) -> D:
        """Add the difference to the public fragment, and share the moments beside it; what of it
        is of use to a learner that missed it."""
        ...

    def links(self, p: Fragment) -> int:
        """How many differences of the public fragment are worth keeping."""
        ...

    def nbytes(self, *former: W) -> int:
        """Of all its arrays, and of these public fragments beside them."""
        ...


class Files(Protocol[S]):
    """Where versions are made durable."""

    def save(self, p: Fragment, arrays: Callable[[], S], *, first: bool) -> None:
        """Make a version durable; the `first` one is kept for ever.

        Errors: `OSError` if that is not to be had; `RunFailed` if the run is another's by now.
        """
        ...

    def has(self, p: Fragment, version: Version) -> bool: ...

    def load(self, p: Fragment, version: Version) -> S:
        """Errors: `Damaged`, `OSError`."""
        ...

    def newest(self, p: Fragment, upto: Version) -> S:
        """The newest good version that is not later than this one.

        Errors: `Damaged` if there is none.
        """
        ...

    def forget_after(self, p: Fragment, version: Version) -> None:
        """Let go of what is later; what cannot be let go of stays."""
        ...
