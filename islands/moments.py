"""The first moments of a fragment: how they leave the optimizer's state, and how a mean comes in.

A first moment m (Muon's buffer, AdamW's first one) is a moving average of gradients with decay
beta. An island's moment is noisier than the mean of all islands', and nonlinear updates (Muon's
orthogonal step, AdamW's division) turn that noise into another direction. So islands may share it.
Beside Muon, the leaves that go by AdamW keep their own: a mean is shorter, their second moments are
as long as an island's noise, and so their steps would be too short (docs/lab/convergence.md).

A message carries m / (1 - beta^n), where n counts the steps in it, so that it means the same at any
age. When the mean of the islands' moments comes back, tau steps later,

    m <- m(now) + beta^tau (1 - beta^n) (mean - sent)

keeps the gradients since and replaces what was before them. Both functions are compiled for each
fragment, dispatched at a step boundary, and do not wait; moments are donated to `put`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from optax import OptState

from coordinator.errors import UserMistake
from coordinator.fragments import Flat, Layout, Piece
from coordinator.protocol import Fragment
from islands.flat_form import FlatForm, flat_form
from islands.mesh import Devices
from islands.moment_search import moment_parts
from islands.optimizer import OptimizerSpec, direction
from islands.task import Task
from islands.windows import Lying

NO_MOMENTS = (
    'sync.moments = "mean": the state of {} has no first moment, a moving average of '
    'gradients that islands could share; leave sync.moments at "own"'
)


@dataclass(frozen=True, slots=True)
class Taken:
    """The first moments of a fragment at a step boundary, on the devices."""

    flat: jax.Array
    """The moments without the bias of their age, [size] f32, padded as `FragmentPort` defines."""
    counts: jax.Array
    """Steps that each part of the optimizer's state had seen, int32."""


class MomentsPort:
    """The way of a fragment's first moments out of an optimizer's state, and of a mean into it."""

    def __init__(
        self, task: Task, layout: Layout, spec: OptimizerSpec, devices: Devices | None = None
    ) -> None:
        """Prepare the functions of each fragment, which are compiled at first use.

        `devices`: the devices of parameters and moments; None: all of this process. The flat form
        is split over them as that of `FragmentPort` is.

        Errors: `UserMistake` if the optimizer's state has no first moments.
        """
        self._devices = devices or Devices(task)
        like = jax.eval_shape(direction(spec, task).init, task.shapes)
        parts = moment_parts(spec, task)
        if not parts:
            raise UserMistake(NO_MOMENTS.format(spec.target or spec.kind))
        self._decays = [part.decay for part in parts]
        self._joins = [part.alone for part in parts]
        self._shared = [joins or not any(self._joins) for joins in self._joins]
        self._ages = [part.age for part in parts]
        self._aged = {number for part in parts if part.alone for number in part.counts}
        found = {path: (k, n) for k, part in enumerate(parts) for path, n in part.leaves.items()}
        self._sizes, self._state_fragment = layout.sizes, layout.state_fragment
        self._touched, self._some = list[list[int]](), list[bool]()
        everywhere, lying = self._devices.everywhere, jax.tree.leaves(self._devices.alike(like))
        self._takes, self._puts = list[Any](), list[Any]()
        for pieces in layout.fragments:
            touched = sorted({x.leaf for x in pieces if layout.leaves[x.leaf].path in found})
            at = [found[layout.leaves[i].path][1] for i in touched]
            of = [found.get(layout.leaves[x.leaf].path) for x in pieces]
            numbers = [0 if each is None else each[0] for each in of]
            wanted = [each is not None and self._shared[each[0]] for each in of]
            self._touched.append(at)
            self._some.append(any(wanted))
            where = [lying[number] for number in at]
            leaves = [Lying(layout.leaves[i].shape, x) for i, x in zip(touched, where, strict=True)]
            form = flat_form(_within(pieces, touched), leaves, self._devices, wanted)
            take = partial(self._take, form, np.array(numbers))
            self._takes.append(jax.jit(take, out_shardings=(self._devices.flat, everywhere)))
            put = partial(self._put, form, np.array(numbers))
            self._puts.append(jax.jit(put, donate_argnums=0, out_shardings=where))

    def shares(self, p: Fragment) -> bool:
        """Return whether the fragment has first moments that are shared."""
        return self._some[p] and p != self._state_fragment

    def compile(self, state: OptState) -> None:
        """Run every `take` and `put` once, so that none compiles during training.

        `state` is donated.
        """
        for p in (p for p in map(Fragment, range(len(self._takes))) if self.shares(p)):
            taken = self.take(state, p)
            state = self.put(state, p, taken.flat, taken)

    def take(self, state: OptState, p: Fragment) -> Taken:
        """Return a copy of the first moments after the steps dispatched so far; 0 if not shared."""
        leaves, counts = self._of(state, p)
        return Taken(*self._takes[p](leaves, counts))

    def put(self, state: OptState, p: Fragment, mean: jax.Array, taken: Taken) -> OptState:
        """Return the state with the islands' mean in place of the first moments in `taken`.

        The gradients since `taken` was handed in are kept. `state` is donated.
        """
        leaves, counts = self._of(state, p)
        fresh = self._puts[p](leaves, counts, mean, taken.flat, taken.counts)
        return _replaced(state, dict(zip(self._touched[p], fresh, strict=True)))

    def joined(self, state: OptState, shared: Mapping[Fragment, Flat], clock: int) -> OptState:
        """Return the fresh state of a learner joining at this clock, with the others' mean.

        The mean goes only where no second moment divides it: AdamW's first moment is of use only
        beside a second one of the same age, so AdamW's moments start fresh. `state` is donated.
        """
        if clock < 1 or not shared:
            return state
        devices, everywhere = self._devices, self._devices.everywhere
        ages = np.array([clock if joins else 0 for joins in self._joins], np.int32)
        counts = devices.put(ages, everywhere)
        aged = {n: devices.put(np.array(clock, np.int32), everywhere) for n in sorted(self._aged)}
        state = _replaced(state, aged)
        for p, flat in shared.items():
            if not self.shares(p):
                continue
            size = self._sizes[p]
            nothing = Taken(devices.place_flat(np.zeros_like(flat), size), counts)
            state = self.put(state, p, devices.place_flat(flat, size), nothing)
        return state

    def _of(self, state: OptState, p: Fragment) -> tuple[list[jax.Array], list[jax.Array]]:
        """Return the first moments of the fragment's leaves, and the age of each part."""
        leaves = jax.tree.leaves(state)
        return [leaves[n] for n in self._touched[p]], [leaves[n] for n in self._ages]

    def _take(
        self,
        form: FlatForm,
        numbers: NDArray[np.int_],
        leaves: Sequence[jax.Array],
        counts: Sequence[jax.Array],
    ) -> tuple[jax.Array, jax.Array]:
        ages = jnp.stack([jnp.asarray(count, jnp.int32) for count in counts])
        seen = self._seen(ages)
        return form.take(leaves, jnp.where(seen > 0, seen, 1)[numbers]), ages

    def _put(
        self,
        form: FlatForm,
        numbers: NDArray[np.int_],
        leaves: Sequence[jax.Array],
        counts: Sequence[jax.Array],
        mean: jax.Array,
        taken: jax.Array,
        then: jax.Array,
    ) -> list[jax.Array]:
        age = jnp.stack([jnp.asarray(n, jnp.int32) for n in counts]) - then
        decay = jnp.float32(self._decays) ** age.astype(jnp.float32)
        return form.add(leaves, mean - taken, (decay * self._seen(then))[numbers])

    def _seen(self, counts: jax.Array) -> jax.Array:
        """Return 1 - beta^n for each part."""
        return 1 - jnp.float32(self._decays) ** counts.astype(jnp.float32)


@dataclass(frozen=True, slots=True)
class MomentSharing:
    """The sharing of a learner's first moments, with every `every`-th merge of a fragment."""

    port: MomentsPort
    every: int

    def wanted(self, p: Fragment, base: int) -> bool:
        """Return whether moments go along with a hand-in based on the version of this number."""
        return self.port.shares(p) and (base + 1) % self.every == 0


def _within(pieces: Sequence[Piece], touched: Sequence[int]) -> list[Piece]:
    """Return the pieces with their leaves counted among the touched ones.

    A piece whose leaf has no first moment is never moved, and counts as one of the first leaf.
    """
    places = {leaf: place for place, leaf in enumerate(touched)}
    return [replace(piece, leaf=places.get(piece.leaf, 0)) for piece in pieces]


def _replaced(state: OptState, fresh: Mapping[int, jax.Array]) -> OptState:
    """Return the state with these leaves, by their number."""
    leaves, structure = jax.tree.flatten(state)
    return jax.tree.unflatten(structure, [fresh.get(n, leaf) for n, leaf in enumerate(leaves)])
