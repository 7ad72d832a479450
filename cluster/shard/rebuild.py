"""The fragments of a run, rebuilt from its tape: the first versions and the kept contributions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from cluster.config.schema import Config
from cluster.shard.build import shard_over
from cluster.shard.files import NoFiles
from cluster.storage.contributions import ContributionStore
from cluster.storage.depot import Depot
from cluster.storage.format import Damaged
from cluster.storage.fragments import Arrays, FragmentStore
from cluster.storage.model_file import fingerprint
from coordinator.fragments import Flat, Layout
from coordinator.protocol import (
    Effect,
    Event,
    Fragment,
    Item,
    Merge,
    Publish,
    Resume,
    ShardBack,
    Store,
    Version,
)


class RebuiltFragments:
    """The fragments of a replayed run, which `follow` moves on event by event."""

    def __init__(
        self, config: Config, layout: Layout, depot: Depot, kept: ContributionStore
    ) -> None:
        """Begin with the first version of each fragment.

        Errors: `Damaged` if one is gone.
        """
        self._kept, self._layout = kept, layout
        store = FragmentStore(depot, layout, keep=config.durability.keep_snapshots)
        self._fragments = [Fragment(p) for p in range(len(layout.fragments))]
        self._files = _Past(store)
        config = config.model_copy(update={"sync": config.sync.model_copy(update={"gate": None})})
        self._shard = shard_over(config, lambda: (layout, self._files), map)  # it has accepted all
        self._shard.seed({p: _first(store, p) for p in self._fragments})
        self._ordered: dict[Fragment, Merge] = {}

    def follow(self, event: Event, effects: tuple[Effect, ...]) -> None:
        """Repeat the shard's actions for this event and its effects.

        Errors: `Damaged` if a contribution was not kept.
        """
        if isinstance(event, Resume):
            versions = zip(self._fragments, event.versions, strict=True)
            self._shard.recover(dict(versions), event.generation)
        if isinstance(event, ShardBack):
            versions = {p: self._shard.version(p) for p in event.fragments}
            self._shard.recover(versions, self._shard.generation)
        for effect in effects:
            if isinstance(effect, Merge):
                self._ordered[effect.fragment] = effect
            if isinstance(effect, Store):  # only now is the merge known to have succeeded
                self._merge(self._ordered.pop(effect.fragment))
            if isinstance(effect, Publish):
                self._shard.publish(effect)

    def _merge(self, order: Merge) -> None:
        """Load the contributions of a merge, and merge them under the names that they have here.

        Contributions on trial are not kept, and change nothing in the merge.
        """
        p = order.fragment
        self._files.before[p] = _copy(self._shard.arrays(p))
        items: list[Item] = []
        for contribution, weight in order.items:
            payload = self._kept.load(contribution.id, self._layout.fingerprint)
            reference = self._shard.receive(contribution, payload).reference
            items.append(Item(replace(contribution, reference=reference), weight))
        self._shard.merge(replace(order, items=tuple(items), trial=()))

    def public(self) -> Iterator[tuple[Version, Flat]]:
        """Yield a copy of each public fragment, with its version."""
        for p in self._fragments:
            yield from self._shard.whole([p])

    def sha256(self) -> str:
        """Return the fingerprint of all public fragments."""
        return fingerprint(flat for _, flat in self.public())


class _Past(NoFiles):
    """The files of a recovering shard: the state before its last merge. It writes nothing."""

    def __init__(self, store: FragmentStore) -> None:
        self._store = store
        self.before: dict[Fragment, Arrays] = {}

    def newest(self, p: Fragment, upto: Version) -> Arrays:
        """Return the fragment's arrays at exactly the version `upto`.

        Errors: `Damaged` if that version was not kept.
        """
        copied = self.before.get(p)
        if copied is not None and copied.version == upto:
            return copied
        arrays = self._store.newest(p, upto=upto)
        if arrays.version != upto:
            raise Damaged(f"fragment {p} continued from {upto}, which was not kept")
        return arrays


def _first(store: FragmentStore, p: Fragment) -> Arrays:
    """Return the fragment's first version. Errors: `Damaged` if it is gone."""
    arrays = store.oldest(p)
    if arrays.version != Version(0, 0):
        raise Damaged(
            f"fragment {p} has lost its first version, its oldest is now "
            f"{arrays.version}: the model cannot be rebuilt"
        )
    return arrays


def _copy(arrays: Arrays) -> Arrays:
    """Return a deep copy, so that later merges do not change it."""
    master, momentum = np.array(arrays.master), np.array(arrays.momentum)
    return replace(arrays, master=master, momentum=momentum, public=np.array(arrays.public))
