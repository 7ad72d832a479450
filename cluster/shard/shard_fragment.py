"""One fragment in its shard: its public version, the staged one, and earlier ones.

A version is *staged* when it is merged and not public yet. No learner sees it before `publish`, so
that no learner sees a version before it is durable.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Generic

from cluster.shard.arithmetic import Arithmetic, D, Files, P, S, W, Weighed
from cluster.shard.inbox import Inbox
from cluster.shard.retention import Retention
from coordinator.chain import Kept, between, lengthened
from coordinator.errors import Misordered
from coordinator.protocol import (
    Anchor,
    Fragment,
    Item,
    Merge,
    Merged,
    Publication,
    Publish,
    Unsound,
    Version,
)


class ShardFragment(Generic[P, D, W, S]):
    """The state of one fragment in its shard.

    - `version`: the public version.
    - `stored`: the newest version in the files, if known.
    - `staged`: the merged version that is not public yet, with the difference that leads to it.
    - `former`: public fragments that a contribution may still count from, by version, oldest first.
    - `chain`: the last differences of the public fragment.
    """

    def __init__(
        self,
        p: Fragment,
        version: Version,
        arithmetic: Arithmetic[P, D, W, S],
        files: Files[S],
        retention: Retention,
    ) -> None:
        self._p, self._arithmetic, self._files = p, arithmetic, files
        self._retention = retention
        self.version = version
        self.stored = version if files.has(p, version) else None
        self.staged: tuple[Version, D] | None = None
        self.former: dict[Version, W] = {}
        self.chain: tuple[Kept[D], ...] = ()

    def __str__(self) -> str:
        staged = "nothing" if self.staged is None else str(self.staged[0])
        return f"{self.version} of fragment {self._p} is public and {staged} is staged"

    def is_at(self, version: Version) -> bool:
        """Return whether the fragment is at this version and no merge has changed it since."""
        return self.version == version and self.staged is None

    def merge(self, order: Merge, inbox: Inbox[P]) -> Merged | Unsound:
        """Merge as `Shard.merge` describes; contributions that are staged leave the inbox."""
        p = self._p
        if self.staged is not None or order.version <= self.version:
            raise Misordered(f"{order} while {self}")
        inbox.check(order)
        parts = [self._weighed(item, inbox) for item in order.items]
        trial = self._on_trial(order, inbox)
        stored = self.stored == self.version
        undo = None if stored else self._arithmetic.undo(p)
        staging = self._arithmetic.merge(order, parts, trial)
        norm = staging.norm
        if not norm <= order.limit or not math.isfinite(norm):
            if undo is not None:
                undo()
            else:
                self._arithmetic.put_back(p, self._files.load(p, self.version))
            return Unsound(p, order.version, norm, inbox.spoiled(order, self._arithmetic))
        self.staged = (order.version, staging.difference)
        for item in order.items:
            inbox.drop(item.contribution.reference)
        return Merged(p, order.version, *staging[1:])

    def _weighed(self, item: Item, inbox: Inbox[P]) -> Weighed[P, W]:
        contribution, held = item.contribution, inbox[item.contribution.reference]
        if self._retention.anchor is Anchor.BASE or contribution.base == self.version:
            return Weighed(held, item.weight, None)
        if (base := self.former.get(contribution.base)) is None:
            raise Misordered(
                f"{contribution.id} counts from {contribution.base}, which is not kept"
            )
        return Weighed(held, item.weight, base)

    def cannot_count_from(self, base: Version) -> str:
        """Return why a contribution cannot count from this version; empty if it can.

        A base too old or too new is left to the gate, which has its own answers for it.
        """
        if self._retention.anchor is Anchor.BASE or base >= self.version or base in self.former:
            return ""
        if self.version.number - base.number > self._retention.max_staleness:
            return ""
        return f"it counts from {base}, which fragment {self._p} never had or no longer has"

    def _on_trial(self, order: Merge, inbox: Inbox[P]) -> list[Weighed[P, W]] | None:
        """Return the contributions to measure beside a merge; None if directions are not measured.

        Directions need two contributions at least: a single one has none to point against.
        """
        too_few = len(order.items) + len(order.trial) < 2
        if too_few or not order.measure:
            return None
        return [self._weighed(Item(c, 0.0), inbox) for c in order.trial]

    def store(self, version: Version, copied: Callable[[], None]) -> bool:
        """Make the staged version durable as `Shard.store` describes."""
        if self.staged is None or self.staged[0] != version:
            raise Misordered(f"store {version} while {self}")
        if version.number % self._retention.every:
            return False

        def copy() -> S:
            staged_copy = self.copy_staged()
            copied()
            return staged_copy

        self._files.save(self._p, copy, first=False)
        self.stored = version
        return True

    def publish(self, order: Publish, publishing: threading.Lock) -> tuple[Publication, D] | None:
        """Make the staged version public as `Shard.publish` describes.

        `publishing`: a lock that is held while the public fragment changes.
        """
        p = self._p
        if self.version == order.version:
            return None
        version, difference = self.staged or (None, None)
        if version != order.version or difference is None or order.previous != self.version:
            raise Misordered(f"{order} while {self}")
        if kept_former := self._retention.former:
            self.former[self.version] = self._arithmetic.whole(p)
            for old in list(self.former)[:-kept_former]:
                del self.former[old]
        with publishing:
            missed = self._arithmetic.publish(p, difference)
            kept = Kept(self.version, order.version, missed)
            self.version, self.staged = order.version, None
        self.chain = lengthened(self.chain, kept, self._arithmetic.links(p))
        return Publication(p, order.version, order.previous, order.merged), difference

    def as_public(self) -> S:
        """Return the fragment at its public version, not copied.

        Errors: `Misordered` if a version is staged.
        """
        if self.staged is not None:
            raise Misordered(f"the arrays while {self}")
        return self._arithmetic.stored(self._p, self.version, None)

    def copy_staged(self) -> S:
        """Return a copy of the staged version.

        Errors: `Misordered` if there is none.
        """
        if self.staged is None:
            raise Misordered(f"what is staged while {self}")
        return self._arithmetic.stored(self._p, *self.staged)

    def links(self, older: Version, newer: Version) -> list[D] | None:
        """Return the differences from `older` to `newer`, oldest first; None if some are gone."""
        return between(self.chain, older, newer)

    @property
    def difference_bytes(self) -> int:
        """Bytes of the kept differences and of the staged one."""
        staged = 0 if self.staged is None else self.staged[1].nbytes
        return staged + sum(link.difference.nbytes for link in self.chain)
