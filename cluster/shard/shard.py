"""What a shard decides and keeps: which bytes, of which version, for which syncer.

It decides nothing about the training. Per fragment it knows the public version and the one that is
*staged*: merged, but not seen by anybody before it is published, so that nothing is seen before it
is durable; the last differences, for learners that missed some; and what was handed in for merges
to come. The arrays and the files are behind `Arithmetic` and `Files`, which is all that the
simulator replaces: what it plays is this module.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from cluster.shard.arithmetic import Arithmetic, D, Files, Held, P, S, Sized, W, Weighed
from coordinator.chain import Kept, between, lengthened
from coordinator.errors import Misordered, NoModel, Outdated
from coordinator.protocol import (
    Anchor,
    Contribution,
    ContributionId,
    Fragment,
    HandIn,
    Item,
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


@dataclass(frozen=True, slots=True)
class Keeping:
    """How much a shard keeps. `every`: as `durability.every`.

    `anchor`: with `CURRENT` the public fragments of `max_staleness` versions before the present one
    are kept, since the gate admits nothing older; a contribution may still count from them.
    """

    anchor: Anchor
    max_staleness: int
    every: int

    @property
    def former(self) -> int:
        return self.max_staleness if self.anchor is Anchor.CURRENT else 0


@dataclass(slots=True)
class _Holding(Generic[D, W]):
    """One fragment, at its public `version`. `stored`: the newest version in the files, if known.

    `former`: public fragments that a contribution may still count from, by version, oldest first.
    `chain`: the last differences of the public one.
    """

    version: Version
    stored: Version | None
    staged: tuple[Version, D] | None = None
    former: dict[Version, W] = field(default_factory=dict[Version, Any])
    chain: tuple[Kept[D], ...] = ()


class Shard(Generic[P, D, W, S]):
    """Some fragments of a model, or all; none until it is told to `seed` or to `recover`.

    One thread at a time may call; `whole`, `shared` and `missed` may be called from any. `store`
    may be called beside calls for other fragments; once it has its copy, it may go on beside all
    but `seed`. `generation`: of the newest
    syncer that was heard; of an earlier one no order is taken.
    """

    def __init__(
        self, means: Callable[[], tuple[Arithmetic[P, D, W, S], Files[S]]], keeping: Keeping
    ) -> None:
        """`means`: called once, when there is a model."""
        self.generation = 0
        self._means, self._keeping = means, keeping
        self._arithmetic: Arithmetic[P, D, W, S]
        self._files: Files[S]
        self._holdings: dict[Fragment, _Holding[D, W]] = {}
        self._inbox: dict[Reference, Held[P]] = {}
        self._publishing = threading.Lock()

    @property
    def has_model(self) -> bool:
        return bool(self._holdings)

    def obey(self, generation: int) -> None:
        """Errors: `Outdated` if a later generation has been heard: a syncer may live on where Ray
        has lost sight of it."""
        if generation < self.generation:
            raise Outdated(
                f"the syncer of generation {generation} is not heard any more, that of "
                f"{self.generation} is"
            )

    def _holding(self, p: Fragment) -> _Holding[D, W]:
        """Errors: `NoModel`: this process is not the one that was meant."""
        if not self._holdings:
            raise NoModel(NO_MODEL)
        return self._holdings[p]

    # --- beginnings -------------------------------------------------------------------------------

    def seed(self, fragments: Mapping[Fragment, S]) -> None:
        """Take in these fragments of the initial model, and make them durable.

        Errors: `OSError` if that is not to be had.
        """
        if not self._holdings:
            self._arithmetic, self._files = self._means()
        for p, stored in fragments.items():
            self._arithmetic.put(p, stored)
            self._files.save(p, functools.partial(fragments.__getitem__, p), first=True)
            self._holdings[p] = self._as_stored(p, stored.version)

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
        if not self._holdings:
            self._arithmetic, self._files = self._means()
        back = {p: self._files.newest(p, v) for p, v in wanted.items() if not self._has(p, v)}
        found = {p: back[p].version if p in back else v for p, v in wanted.items()}
        with self._publishing:
            for p, stored in back.items():
                self._arithmetic.put(p, stored)
            self._holdings |= {p: self._as_stored(p, version) for p, version in found.items()}
        self._inbox = {r: held for r, held in self._inbox.items() if held.fragment not in found}
        for p, version in found.items():
            self._files.forget_after(p, version)
        return found

    def _has(self, p: Fragment, version: Version) -> bool:
        """Is this the fragment as it is in memory, down to what a merge changes?"""
        holding = self._holdings.get(p)
        return holding is not None and holding.version == version and holding.staged is None

    def _as_stored(self, p: Fragment, version: Version) -> _Holding[D, W]:
        return _Holding(version, version if self._files.has(p, version) else None)

    # --- contributions ----------------------------------------------------------------------------

    def receive(self, hand_in: HandIn, payload: P) -> Contribution:
        """Hold what was handed in, measured; of what the run's wire does not have nothing is held,
        and the contribution says why (`flaw`).

        Errors: `NoModel`.
        """
        p, lengths, moments = hand_in.id.fragment, [math.nan], None
        self._holding(p)
        reference, flaw = Reference(str(hand_in.id)), self._arithmetic.flaw(p, payload)
        if not flaw:
            held = self._inbox[reference] = self._arithmetic.hold(p, payload)
            lengths, moments = held.norms, held.moments
        return Contribution(
            id=hand_in.id,
            base=hand_in.base,
            since_step=hand_in.since_step,
            tokens=hand_in.tokens,
            fingerprint=hand_in.fingerprint,
            progress=hand_in.progress,
            norm=math.hypot(*lengths),
            bytes=payload.nbytes,
            reference=reference,
            flaw=flaw,
            moments_norm=moments,
        )

    def drop(self, reference: Reference) -> None:
        """Free what will not be merged; unknown references are free already."""
        self._inbox.pop(reference, None)

    def payload(self, reference: Reference) -> P:
        """What was handed in, as it was encoded.

        Errors: `NoModel`; `Misordered` if it is not held.
        """
        if not self._holdings:
            raise NoModel(NO_MODEL)
        if (held := self._inbox.get(reference)) is None:
            raise Misordered(f"nothing is held of {reference}")
        return held.payload

    def payloads(self, order: Merge) -> list[P]:
        """Return what an order would merge, as it was encoded. Errors: as `payload`."""
        self._holding(order.fragment)
        return [self.payload(item.contribution.reference) for item in order.items]

    @property
    def inbox(self) -> Mapping[Reference, Held[P]]:
        """What was handed in and neither merged nor dropped."""
        return self._inbox

    # --- versions ---------------------------------------------------------------------------------

    def merge(self, order: Merge) -> Merged | Unsound:
        """Merge the contributions named, in their order; stage the next version if its step is
        finite and no longer than the order's limit, else go back and hold on to them.

        To go back, the public version is had again from the files, if it is stored; else what a
        merge changes is copied first (8 bytes an element until this returns).

        Errors: `NoModel`; `Misordered`; what `Files.load` has, and then the fragment is not sound.
        """
        p = order.fragment
        holding = self._holding(p)
        if holding.staged is not None or order.version <= holding.version:
            raise Misordered(f"{order} while {self._how_it_stands(p)}")
        named = [*(item.contribution for item in order.items), *order.trial]
        if missing := [c.id for c in named if c.reference not in self._inbox]:
            raise Misordered(f"{order}: nothing is held of {missing}")
        parts = [self._weighed(holding, item) for item in order.items]
        trial = self._on_trial(holding, order)
        stored = holding.stored == holding.version
        undo = None if stored else self._arithmetic.undo(p)
        staging = self._arithmetic.merge(order, parts, trial)
        norm = staging.norm
        if not norm <= order.limit or not math.isfinite(norm):
            if undo is not None:
                undo()
            else:
                self._arithmetic.put_back(p, self._files.load(p, holding.version))
            return Unsound(p, order.version, norm, self._spoiled(order))
        holding.staged = (order.version, staging.difference)
        for item in order.items:
            self.drop(item.contribution.reference)
        return Merged(p, order.version, *staging[1:])

    def _weighed(self, holding: _Holding[D, W], item: Item) -> Weighed[P, W]:
        said, held = item.contribution, self._inbox[item.contribution.reference]
        if self._keeping.anchor is Anchor.BASE or said.base == holding.version:
            return Weighed(held, item.weight, None)
        if (base := holding.former.get(said.base)) is None:
            raise Misordered(f"{said.id} counts from {said.base}, which is not kept")
        return Weighed(held, item.weight, base)

    def _on_trial(self, holding: _Holding[D, W], order: Merge) -> list[Weighed[P, W]] | None:
        """What is measured beside a merge; None if directions are not wanted, or there are too few
        contributions to say who points the wrong way."""
        few = len(order.items) + len(order.trial) < 2  # one alone has nobody to point against
        if few or not order.measure:
            return None
        return [self._weighed(holding, Item(c, 0.0)) for c in order.trial]

    def _spoiled(self, order: Merge) -> tuple[ContributionId, ...]:
        """Which contributions of an order have other norms now than when they arrived."""
        held = {c.id: self._inbox[c.reference] for c, _ in order.items}
        return tuple(s for s, each in held.items() if self._arithmetic.norms(each) != each.norms)

    def store(
        self, p: Fragment, version: Version, copied: Callable[[], None] = lambda: None
    ) -> bool:
        """Make the staged version durable, if it is its turn; else False.

        `copied`: called once there is a copy of it, and the version may be published and merged
        into.

        Errors: `OSError` if that is not to be had; `Misordered`.
        """
        holding = self._holding(p)
        if holding.staged is None or holding.staged[0] != version:
            raise Misordered(f"store {version} while {self._how_it_stands(p)}")
        if version.number % self._keeping.every:
            return False

        def copy() -> S:
            mine = self.staged(p)
            copied()
            return mine

        self._files.save(p, copy, first=False)
        holding.stored = version
        return True

    def publish(self, order: Publish) -> tuple[Publication, D] | None:
        """Make the staged version public; what to send to every learner. None if this process has
        come back with that version: learners take it with the next one.

        Errors: `NoModel`; `Misordered`.
        """
        p, holding = order.fragment, self._holding(order.fragment)
        if holding.version == order.version:
            return None
        version, difference = holding.staged or (None, None)
        if version != order.version or difference is None or order.previous != holding.version:
            raise Misordered(f"{order} while {self._how_it_stands(p)}")
        if former := self._keeping.former:
            holding.former[holding.version] = self._arithmetic.whole(p)
            for old in list(holding.former)[:-former]:
                del holding.former[old]
        with self._publishing:
            missed = self._arithmetic.publish(p, difference)
            kept = Kept(holding.version, order.version, missed)
            holding.version, holding.staged = order.version, None
        holding.chain = lengthened(holding.chain, kept, self._arithmetic.links(p))
        return Publication(p, order.version, order.previous, order.merged), difference

    def _how_it_stands(self, p: Fragment) -> str:
        holding = self._holdings[p]
        staged = "nothing" if holding.staged is None else str(holding.staged[0])
        return f"{holding.version} of fragment {p} is public and {staged} is staged"

    # --- what it has ------------------------------------------------------------------------------

    def version(self, p: Fragment) -> Version:
        """The public one."""
        return self._holding(p).version

    def arrays(self, p: Fragment) -> S:
        """The fragment as it is; not to be called while a version is staged."""
        holding = self._holding(p)
        if holding.staged is not None:
            raise Misordered(f"the arrays while {self._how_it_stands(p)}")
        return self._arithmetic.stored(p, holding.version, None)

    def staged(self, p: Fragment) -> S:
        """A copy of the merged version that is not public yet, to be made durable.

        Errors: `Misordered` if there is none.
        """
        holding = self._holding(p)
        if holding.staged is None:
            raise Misordered(f"what is staged while {self._how_it_stands(p)}")
        return self._arithmetic.stored(p, *holding.staged)

    def whole(self, fragments: Sequence[Fragment]) -> list[tuple[Version, W]]:
        """Copies of public fragments, with their present versions."""
        with self._publishing:
            return [(self._holding(p).version, self._arithmetic.whole(p)) for p in fragments]

    def read(self, p: Fragment, copied: Callable[[W], T]) -> tuple[Version, T]:
        """Return the public version and what `copied` takes of the fragment, which it must not
        keep: nothing is published meanwhile."""
        with self._publishing:
            return self._holding(p).version, copied(self._arithmetic.public(p))

    def shared(self, fragments: Sequence[Fragment]) -> list[D | None]:
        """Return the mean of the islands' first moments of each fragment, None where there is none.

        It waits for no copy of a fragment: a mean is replaced as a whole, and never changed.
        """
        return [self._arithmetic.shared(p) for p in fragments]

    def missed(self, p: Fragment, older: Version, newer: Version) -> list[D] | tuple[Version, W]:
        """The differences that lead from one version to another, in order; the public fragment as
        it is now, if they are not kept."""
        found = self.links(p, older, newer)
        return self.whole([p])[0] if found is None else found

    def links(self, p: Fragment, older: Version, newer: Version) -> list[D] | None:
        """The differences that lead from one version to another, in order; None if they are not
        kept."""
        return between(self._holding(p).chain, older, newer)

    @property
    def bytes_held(self) -> int:
        """Of all arrays, the differences kept, and what was handed in and is not merged yet."""
        holdings = [*self._holdings.values()]
        former = [each for h in holdings for each in h.former.values()]
        beside: list[Sized] = [link.difference for h in holdings for link in h.chain]
        beside += [h.staged[1] for h in holdings if h.staged is not None]
        beside += [held.payload for held in self._inbox.values()]
        return self._arithmetic.nbytes(*former) + sum(each.nbytes for each in beside)
