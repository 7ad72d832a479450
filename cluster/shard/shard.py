"""The state machine of a shard: which bytes of which version it has, and for which syncer.

A shard decides nothing about the training. For each fragment it keeps the public version; the
*staged* one, which is merged but stays invisible until `publish`, so that no learner sees a
version before it is durable; the last differences, for learners that missed some; and the
contributions to later merges. The arrays and the files are behind `Arithmetic` and `Files`. The
simulator replaces only these two, and runs this module as it is.
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
"""The message of `NoModel`."""


class Shard(Generic[P, D, W, S]):
    """A shard: some or all fragments of a model; none before `seed` or `recover` is called.

    One thread at a time may call; `whole`, `shared` and `missed` may be called from any thread.
    `store` may be called beside calls for other fragments; once it has its copy, it may run
    beside all calls but `seed`. `generation`: that of the newest syncer that has called; orders of
    an earlier one are refused. `inbox`: contributions that are neither merged nor dropped.
    """

    def __init__(
        self, means: Callable[[], tuple[Arithmetic[P, D, W, S], Files[S]]], retention: Retention
    ) -> None:
        """Create a shard without a model. `means` is called once, when there is one."""
        self.generation = 0
        self._means, self._retention = means, retention
        self._arithmetic: Arithmetic[P, D, W, S]
        self._files: Files[S]
        self._fragments: dict[Fragment, ShardFragment[P, D, W, S]] = {}
        self.inbox = Inbox[P]()
        self._publishing = threading.Lock()

    @property
    def has_model(self) -> bool:
        """Whether the shard has any fragment."""
        return bool(self._fragments)

    def obey(self, generation: int) -> None:
        """Check the fencing token of a syncer: it may live on where Ray has lost sight of it.

        Errors: `Outdated` if a later generation has called.
        """
        if generation < self.generation:
            other = f"that of {self.generation} is in charge"
            raise Outdated(f"the syncer of generation {generation} is refused, {other}")

    def _fragment(self, p: Fragment) -> ShardFragment[P, D, W, S]:
        if not self._fragments:  # this process has replaced the one that was called
            raise NoModel(NO_MODEL)
        return self._fragments[p]

    # --- beginnings -------------------------------------------------------------------------------

    def seed(self, fragments: Mapping[Fragment, S]) -> None:
        """Take over these fragments of the initial model, and make them durable.

        Errors: `OSError` if they cannot be stored.
        """
        if not self._fragments:
            self._arithmetic, self._files = self._means()
        for p, stored in fragments.items():
            self._arithmetic.put(p, stored)
            self._files.save(p, functools.partial(fragments.__getitem__, p), first=True)
            self._fragments[p] = self._public_at(p, stored.version)

    def recover(
        self, targets: Mapping[Fragment, Version], generation: int
    ) -> dict[Fragment, Version]:
        """Go back to these published versions, or to the newest stored ones before them.

        Returns the versions found. From now on only orders of this generation or a later one are
        taken. Contributions to these fragments are void, and so is every life that began from an
        earlier version.

        Errors: `Outdated`; `Damaged` if no version of a fragment can be loaded.
        """
        self.obey(generation)
        self.generation = generation
        if not self._fragments:
            self._arithmetic, self._files = self._means()
        restored = {p: self._files.newest(p, v) for p, v in targets.items() if not self._has(p, v)}
        versions = {p: restored[p].version if p in restored else v for p, v in targets.items()}
        with self._publishing:
            for p, stored in restored.items():
                self._arithmetic.put(p, stored)
            self._fragments |= {p: self._public_at(p, version) for p, version in versions.items()}
        self.inbox.forget(versions.keys())
        for p, version in versions.items():
            self._files.forget_after(p, version)
        return versions

    def _has(self, p: Fragment, version: Version) -> bool:
        return p in self._fragments and self._fragments[p].is_at(version)

    def _public_at(self, p: Fragment, version: Version) -> ShardFragment[P, D, W, S]:
        return ShardFragment(p, version, self._arithmetic, self._files, self._retention)

    # --- contributions ----------------------------------------------------------------------------

    def receive(self, hand_in: HandIn, payload: P) -> Contribution:
        """Measure a contribution and hold it (`Inbox.receive`).

        Errors: `NoModel`.
        """
        flaw = self._fragment(hand_in.id.fragment).cannot_count_from(hand_in.base)
        return self.inbox.receive(hand_in, payload, self._arithmetic, flaw)

    def drop(self, reference: Reference) -> None:
        """Free a contribution that will not be merged; an unknown reference is a no-op."""
        self.inbox.drop(reference)

    def payloads(self, order: Merge) -> list[P]:
        """Return the contributions that an order would merge, encoded.

        Errors: `NoModel`; `Misordered` if one is not held.
        """
        self._fragment(order.fragment)
        return [self.inbox.payload(item.contribution.reference) for item in order.items]

    # --- versions ---------------------------------------------------------------------------------

    def merge(self, order: Merge) -> Merged | Unsound:
        """Merge the named contributions in their order and stage the next version.

        If the step is not finite or longer than the order's limit, the merge is undone and the
        contributions stay. To undo it, the public version is loaded from the files if it is stored
        there; else the merge first copies what it changes (8 bytes an element until this returns).

        Errors: `NoModel`; `Misordered`; the errors of `Files.load`, after which the fragment is not
        sound.
        """
        return self._fragment(order.fragment).merge(order, self.inbox)

    def store(
        self, p: Fragment, version: Version, copied: Callable[[], None] = lambda: None
    ) -> bool:
        """Make the staged version durable and return True; return False if it is not its turn.

        `copied`: called once a copy exists, so that the version may be published and merged into.

        Errors: `OSError` if it cannot be stored; `Misordered`.
        """
        return self._fragment(p).store(version, copied)

    def publish(self, order: Publish) -> tuple[Publication, D] | None:
        """Make the staged version public; return what to send to every learner.

        Returns None if this process has come back with that version: learners get it with the next.

        Errors: `NoModel`; `Misordered`.
        """
        return self._fragment(order.fragment).publish(order, self._publishing)

    # --- what it has ------------------------------------------------------------------------------

    def version(self, p: Fragment) -> Version:
        """Return the public version of a fragment."""
        return self._fragment(p).version

    def arrays(self, p: Fragment) -> S:
        """Return the fragment, not copied; must not be called while a version is staged."""
        return self._fragment(p).as_public()

    def staged(self, p: Fragment) -> S:
        """Return a copy of the staged version, to be made durable.

        Errors: `Misordered` if there is none.
        """
        return self._fragment(p).copy_staged()

    def whole(self, fragments: Sequence[Fragment]) -> list[tuple[Version, W]]:
        """Return copies of public fragments, with their versions."""
        with self._publishing:
            return [(self._fragment(p).version, self._arithmetic.whole(p)) for p in fragments]

    def read(self, p: Fragment, copied: Callable[[W], T]) -> tuple[Version, T]:
        """Return the public version, and what `copied` makes of the fragment.

        `copied` must not keep the fragment itself; nothing is published while it runs.
        """
        with self._publishing:
            return self._fragment(p).version, copied(self._arithmetic.public(p))

    def shared(self, fragments: Sequence[Fragment]) -> list[D | None]:
        """Return the mean of the islands' first moments of each fragment, None where there is none.

        This takes no lock: a mean is replaced as a whole, and never changed in place.
        """
        return [self._arithmetic.shared(p) for p in fragments]

    def missed(self, p: Fragment, older: Version, newer: Version) -> list[D] | tuple[Version, W]:
        """Return the differences (`links`), or the whole public fragment if some are gone."""
        found = self.links(p, older, newer)
        return self.whole([p])[0] if found is None else found

    def links(self, p: Fragment, older: Version, newer: Version) -> list[D] | None:
        """Return the differences from `older` to `newer`, oldest first; None if some are gone."""
        return self._fragment(p).links(older, newer)

    @property
    def bytes_held(self) -> int:
        """Bytes of all arrays, kept differences and contributions that are not merged yet."""
        fragments = [*self._fragments.values()]
        former = [each for fragment in fragments for each in fragment.former.values()]
        differences = sum(fragment.difference_bytes for fragment in fragments)
        return self._arithmetic.nbytes(*former) + differences + self.inbox.nbytes
