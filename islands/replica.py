"""A learner's copy of the model: the effects of a step, a hand-in and an adoption on it.

A carrier has one for each life: the training thread on Ray, a callback in virtual time.
`learner_state` decides when each method is called, and why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax
from optax import OptState

from coordinator.fragments import Flat
from coordinator.protocol import ContributionId, Fragment
from islands.adopt import AdoptRule, FragmentPort
from islands.encoder import Numbers, Where
from islands.exchange import Basis, Cut, FragmentSnapshot
from islands.inner import InnerState, StepMeasures
from islands.learner_messages import HandOver
from islands.moments import MomentSharing, Taken
from islands.randomness import NO_DRAWS, Draws
from islands.task import Batch, Params
from islands.training_step import TrainingStep

Handed = Mapping[ContributionId, tuple[Numbers, jax.Array]]
"""Hand-ins of a fragment, in order: the parameters at the beginning and at the end of each."""


class Replica:
    """Parameters and moments on the devices, and the start of the next delta of each fragment."""

    def __init__(
        self,
        inner: TrainingStep,
        port: FragmentPort,
        encode: Where,
        sharing: MomentSharing | None,
    ) -> None:
        """Create a replica without a life.

        `encode`: where deltas are encoded, and so where their anchors are kept. `sharing`:
        how first moments are shared; None: not at all.
        """
        self._inner, self._port, self._encode, self._sharing = inner, port, encode, sharing
        self._state: InnerState | None = None
        self._basis: dict[Fragment, Basis] = {}
        self._kept: dict[Fragment, FragmentSnapshot] = {}  # copied when due, not yet asked for
        self._handed: dict[Fragment, Handed] = {}  # handed in, not known to be in the fragment yet
        self._taken: dict[Fragment, Taken] = {}  # first moments handed in, until the mean arrives
        self._draws, self._steps = NO_DRAWS, 0  # of this life

    @property
    def state(self) -> InnerState:
        """The state on the devices; valid only during a life."""
        assert self._state is not None
        return self._state

    @property
    def params(self) -> Params:
        """The parameters, on the devices; None before the first life."""
        return None if self._state is None else self._state.params

    def end(self) -> OptState | None:
        """Free the parameters of the life before, and return its moments.

        So the old parameters take no memory beside the new ones.
        """
        before, self._state, self._basis, self._kept = self._state, None, {}, {}
        self._handed, self._taken = {}, {}
        return None if before is None else before.opt_state

    def begin(
        self,
        params: Params | None,
        moments: OptState | None,
        public: Mapping[Fragment, Flat],
        shared: Mapping[Fragment, Flat],
        clock: int,
        draws: Draws = NO_DRAWS,
    ) -> None:
        """Begin a life from the public fragments, with these moments.

        Without moments, the life starts with the mean of the others' first moments, for the
        fragments in `shared`. `params`: the same fragments as a tree. If it is None, the tree is
        put together on the devices, since no host of the island has all fragments. `draws`: where
        the keys of this life's steps come from.
        """
        self._draws, self._steps = draws, 0
        if params is None:
            placed = self._inner.devices.zeros
            for p, flat in public.items():
                placed = self._port.fill(placed, p, self._placed(p, flat))
            self._state = self._inner.started(placed, moments)
        else:
            self._state = self._inner.start(params, moments)
        if moments is None and self._sharing is not None:
            joined = self._sharing.port.joined(self._state.opt_state, shared, clock)
            self._state = replace(self._state, opt_state=self._inner.place_moments(joined))
        self._basis = {p: Basis(flat, self._anchor_of(p, flat)) for p, flat in public.items()}

    def step(self, batch: Batch, clock: int) -> StepMeasures:
        """Dispatch one inner step; the call does not wait for the devices."""
        draw = self._draws.at(self._steps)
        self._state, measures = self._inner.step(self.state, batch, clock, draw)
        self._steps += 1
        return measures

    def keep(self, word: HandOver) -> FragmentSnapshot:
        """Copy the fragment as it is now, for a hand-in that is asked for later."""
        kept = self._kept[word.fragment] = self._cut(word)
        return kept

    def take(self, word: HandOver) -> FragmentSnapshot:
        """Return the fragment to hand in: the kept copy if there is one, else a copy of now."""
        kept = self._kept.pop(word.fragment, None)
        return kept if kept is not None and kept.word == word else self._cut(word)

    def _cut(self, word: HandOver) -> FragmentSnapshot:
        """Copy the fragment, and count its next delta from here."""
        p = word.fragment
        flat, basis = self._port.take(self.state.params, p), self._basis[p]
        if word.contribution is not None and self._port.rule_of(p) is AdoptRule.CARRY:
            hand_ins = self._handed.get(p, {})
            waiting = {key: hand_ins[key] for key in word.track.waiting if key in hand_ins}
            self._handed[p] = {**waiting, word.contribution: (basis.origin, flat)}
        self._basis[p] = Basis(basis.public, flat)
        self._taken.pop(p, None)
        if self._sharing is not None and self._sharing.wanted(p, word.track.base.number):
            self._taken[p] = self._sharing.port.take(self.state.opt_state, p)
        return FragmentSnapshot(word, Cut(flat, basis, self._taken.get(p)))

    def adopt(
        self,
        p: Fragment,
        flat: Flat,
        placed: jax.Array,
        mean: jax.Array | None = None,
        *,
        keeps: Sequence[ContributionId] = (),
    ) -> jax.Array | None:
        """Put a public fragment in place; return an array that is ready once it is there.

        It returns None if a loop of the user's own has the parameters: they are there already.

        `placed`: the fragment on the devices. `mean`: the mean of the islands' first moments. It
        replaces the moments that were handed in, if any were; without it the island keeps its own.
        `keeps`: hand-ins that are no part of this version and stay in place beside it.
        """
        taken = self._taken.pop(p, None)
        if self._sharing is not None and taken is not None and mean is not None:
            shared = self._sharing.port.put(self.state.opt_state, p, mean, taken)
            self._state = replace(self.state, opt_state=self._inner.place_moments(shared))
        carries = self._port.rule_of(p) is AdoptRule.CARRY
        origin = self._placed(p, self._basis[p].origin) if carries else placed
        hand_ins = self._handed.pop(p, {})
        if kept := {key: hand_ins[key] for key in keeps if key in hand_ins}:
            self._handed[p] = kept
        for start, end in kept.values():
            placed = self._port.moved(placed, end, self._placed(p, start))
        params = self._port.put(self.state.params, p, placed, origin)
        self._state = replace(self.state, params=params)
        self._basis[p] = Basis(flat, placed if kept or self._encode == "device" else flat)
        return self._port.ready(params, p)

    def _anchor_of(self, p: Fragment, flat: Flat) -> Numbers:
        """Return the start of the next delta, on the side where deltas are encoded."""
        return self._placed(p, flat) if self._encode == "device" else flat

    def _placed(self, p: Fragment, flat: Numbers) -> jax.Array:
        """Return a flat fragment on the devices."""
        if isinstance(flat, jax.Array):
            return flat
        return self._inner.place_flat(flat, self._port.size(p))
