"""What a shard decides and keeps: which bytes, of which version, for which syncer.

It decides nothing about the training. Per fragment it knows the public version and the one that is
*staged*: merged, but not seen by anybody before it is published, so that nothing is seen before it
is durable; the last differences, for learners that missed some; and what was handed in for merges
to come. The arrays and the files are behind `Arithmetic` and `Files`, which is all that the
simulator replaces: what it plays is this module.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from cluster.shard.arithmetic import Arithmetic, D, Files, P, S, W
from cluster.shard.inbox import Inbox
from cluster.shard.retention import Retention
from cluster.shard.shard_fragment import ShardFragment
from coordinator.errors import NoModel, Outdated
from coordinator.protocol import (
    Contribution,
    Fragment,
    HandIn,
    Merge,
    Merged,
    Publication,
    Publish,
    Reference,
    Unsound,
    Version,
)

T = TypeVar("T")
NO_MODEL = "the shard has just begun and has no model yet"


class Shard(Generic[P, D, W, S]):
    """Some fragments of a model, or all; none until it is told to `seed` or to `recover`.

    One thread at a time may call; `whole`, `shared` and `missed` may be called from any. `store`
    may be called beside calls for other fragments; once it has its copy, it may go on beside all
    but `seed`. `generation`: of the newest syncer that was heard; of an earlier one no order is
    taken. `inbox`: what was handed in and neither merged nor dropped.
    """

    def __init__(
        self, means: Callable[[], tuple[Arithmetic[P, D, W, S], Files[S]]], retention: Retention
    ) -> None:
        """`means`: called once, when there is a model."""
        self.generation = 0
        self._means, self._retention = means, retention
        self._arithmetic: Arithmetic[P, D, W, S]
        self._files: Files[S]
        self._fragments: dict[Fragment, ShardFragment[P, D, W, S]] = {}
        self.inbox = Inbox[P]()
        self._publishing = threading.Lock()

    @property
    def has_model(self) -> bool:
        return bool(self._fragments)

    def obey(self, generation: int) -> None:
        """Errors: `Outdated` if a later generation has been heard: a syncer may live on where Ray
        has lost sight of it."""
        if generation < self.generation:
            other = f"that of {self.generation} is"
            raise Outdated(f"the syncer of generation {generation} is not heard any more, {other}")

    def _fragment(self, p: Fragment) -> ShardFragment[P, D, W, S]:
        if not self._fragments:  # this process is not the one that was meant
            raise NoModel(NO_MODEL)
        return self._fragments[p]

    # --- beginnings -------------------------------------------------------------------------------

    def seed(self, fragments: Mapping[Fragment, S]) -> None:
        """Take in these fragments of the initial model, and make them durable.

        Errors: `OSError` if that is not to be had.
        """
        if not self._fragments:
            self._arithmetic, self._files = self._means()
        for p, stored in fragments.items():
            self._arithmetic.put(p, stored)
            self._files.save(p, functools.partial(fragments.__getitem__, p), first=True)
            self._fragments[p] = self._public_at(p, stored.version)

    def recover(
        self, wanted: Mapping[Fragment, Version], generation: int
    ) -> dict[Fragment, Version]:
        """Go back to these published versions, as they are in memory, or to the newest before them
        that are stored; and take orders of this generation, or a later one, from now on.

        What was handed in is void, and so is every life that began from a version before. Returns
        the versions that were to be had.

        Errors: `Outdated`; `Damaged` if a fragment is not to be had at all.
        """
        self.obey(generation)
        self.generation = generation
        if not self._fragments:
            self._arithmetic, self._files = self._means()
        back = {p: self._files.newest(p, v) for p, v in wanted.items() if not self._has(p, v)}
        found = {p: back[p].version if p in back else v for p, v in wanted.items()}
        with self._publishing:
            for p, stored in back.items():
                self._arithmetic.put(p, stored)
            self._fragments |= {p: self._public_at(p, version) for p, version in found.items()}
        self.inbox.forget(found.keys())
        for p, version in found.items():
            self._files.forget_after(p, version)
        return found

    def _has(self, p: Fragment, version: Version) -> bool:
        return p in self._fragments and self._fragments[p].is_at(version)

    def _public_at(self, p: Fragment, version: Version) -> ShardFragment[P, D, W, S]:
        return ShardFragment(p, version, self._arithmetic, self._files, self._retention)

    # --- contributions ----------------------------------------------------------------------------

    def receive(self, hand_in: HandIn, payload: P) -> Contribution:
        """Hold what was handed in, measured (`Inbox.receive`).

        Errors: `NoModel`.
        """
        self._fragment(hand_in.id.fragment)
        return self.inbox.receive(hand_in, payload, self._arithmetic)

    def drop(self, reference: Reference) -> None:
        """Free what will not be merged; unknown references are free already."""
        self.inbox.drop(reference)

    def payloads(self, order: Merge) -> list[P]:
        """Return what an order would merge, as it was encoded.

        Errors: `NoModel`; `Misordered` if one is not held.
        """
        self._fragment(order.fragment)
        return [self.inbox.payload(item.contribution.reference) for item in order.items]

    # --- versions ---------------------------------------------------------------------------------

    def merge(self, order: Merge) -> Merged | Unsound:
        """Merge the contributions named, in their order; stage the next version if its step is
        finite and no longer than the order's limit, else go back and hold on to them.

        To go back, the public version is had again from the files, if it is stored; else what a
        merge changes is copied first (8 bytes an element until this returns).

        Errors: `NoModel`; `Misordered`; what `Files.load` has, and then the fragment is not sound.
        """
        return self._fragment(order.fragment).merge(order, self.inbox)

    def store(
        self, p: Fragment, version: Version, copied: Callable[[], None] = lambda: None
    ) -> bool:
        """Make the staged version durable, if it is its turn; else False.

        `copied`: called once there is a copy of it, and the version may be published and merged
        into.

        Errors: `OSError` if that is not to be had; `Misordered`.
        """
        return self._fragment(p).store(version, copied)

    def publish(self, order: Publish) -> tuple[Publication, D] | None:
        """Make the staged version public; what to send to every learner. None if this process has
        come back with that version: learners take it with the next one.

        Errors: `NoModel`; `Misordered`.
        """
        return self._fragment(order.fragment).publish(order, self._publishing)

    # --- what it has ------------------------------------------------------------------------------

    def version(self, p: Fragment) -> Version:
        """The public one."""
        return self._fragment(p).version

    def arrays(self, p: Fragment) -> S:
        """The fragment as it is; not to be called while a version is staged."""
        return self._fragment(p).as_public()

    def staged(self, p: Fragment) -> S:
        """A copy of the merged version that is not public yet, to be made durable.

        Errors: `Misordered` if there is none.
        """
        return self._fragment(p).copy_staged()

    def whole(self, fragments: Sequence[Fragment]) -> list[tuple[Version, W]]:
        """Copies of public fragments, with their present versions."""
        with self._publishing:
            return [(self._fragment(p).version, self._arithmetic.whole(p)) for p in fragments]

    def read(self, p: Fragment, copied: Callable[[W], T]) -> tuple[Version, T]:
        """Return the public version and what `copied` takes of the fragment, which it must not
        keep: nothing is published meanwhile."""
        with self._publishing:
            return self._fragment(p).version, copied(self._arithmetic.public(p))

    def shared(self, fragments: Sequence[Fragment]) -> list[D | None]:
        """Return the mean of the islands' first moments of each fragment, None where there is none.

        It waits for no copy of a fragment: a mean is replaced as a whole, and never changed.
        """
        return [self._arithmetic.shared(p) for p in fragments]

    def missed(self, p: Fragment, older: Version, newer: Version) -> list[D] | tuple[Version, W]:
        """Return what `links` does; the public fragment as it is now, if that is None."""
        found = self.links(p, older, newer)
        return self.whole([p])[0] if found is None else found

    def links(self, p: Fragment, older: Version, newer: Version) -> list[D] | None:
        """Return the differences from one version to another, in order; None if they are gone."""
        return self._fragment(p).links(older, newer)

    @property
    def bytes_held(self) -> int:
        """Of all arrays, the differences kept, and what was handed in and is not merged yet."""
        fragments = [*self._fragments.values()]
        former = [each for fragment in fragments for each in fragment.former.values()]
        differences = sum(fragment.difference_bytes for fragment in fragments)
        return self._arithmetic.nbytes(*former) + differences + self.inbox.nbytes
