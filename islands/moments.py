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
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray
from optax import OptState

from coordinator.fragments import Flat, Layout
from coordinator.protocol import Fragment
from islands.flat_form import FlatForm, flat_form, within
from islands.mesh import Devices
from islands.optimizer import OptimizerSpec, direction
from islands.task import Params, Task, leaf_path
from islands.windows import Lying


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
        """
        self._devices = devices or Devices(task)
        like = jax.eval_shape(direction(spec, task).init, task.shapes)
        parts = _parts_of(like)
        self._decays = [_decay(spec, part) for part in parts]
        found = {
            path: (number, place)
            for number, part in enumerate(parts)
            for place, path in enumerate(_paths(part.mu))
        }
        self._where = [found[leaf.path] for leaf in layout.leaves]
        self._touched = [sorted({each.leaf for each in pieces}) for pieces in layout.fragments]
        self._sizes, self._state_fragment = layout.sizes, layout.state_fragment
        self._joins = [not isinstance(part, optax.ScaleByAdamState) for part in parts]
        self._shared = [spec.kind == "adamw" or joins for joins in self._joins]
        self._numbers = [[self._where[each.leaf][0] for each in x] for x in layout.fragments]
        self._some = [any(self._shared[number] for number in x) for x in self._numbers]
        everywhere, lying = self._devices.everywhere, _moments_of(self._devices.alike(like))
        self._takes, self._puts = list[Any](), list[Any]()
        for p, pieces in enumerate(layout.fragments):
            touched = self._touched[p]
            where = [lying[number][at] for number, at in self._places(Fragment(p))]
            leaves = [
                Lying(layout.leaves[i].shape, at) for i, at in zip(touched, where, strict=True)
            ]
            wanted = [self._shared[number] for number in self._numbers[p]]
            form = flat_form(within(pieces, touched), leaves, self._devices, wanted)
            numbers = np.array(self._numbers[p])
            take = partial(self._take, form, numbers)
            self._takes.append(jax.jit(take, out_shardings=(self._devices.flat, everywhere)))
            put = partial(self._put, form, numbers)
            self._puts.append(jax.jit(put, donate_argnums=0, out_shardings=where))

    def shares(self, p: Fragment) -> bool:
        """Return whether the fragment has first moments that are shared."""
        return self._some[p] and p != self._state_fragment

    def compile(self, state: OptState) -> None:
        """Run every `take` and `put` once, so that none compiles during training.

        `state` is donated.
        """
        for p in map(Fragment, range(len(self._takes))):
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
        return self._with(state, dict(zip(self._touched[p], fresh, strict=True)))

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
        old = [devices.put(age, everywhere) if age else None for age in ages]
        state = _replaced(state, lambda number, part: part._replace(count=_or(old[number], part)))
        for p, flat in shared.items():
            size = self._sizes[p]
            nothing = Taken(devices.place_flat(np.zeros_like(flat), size), counts)
            state = self.put(state, p, devices.place_flat(flat, size), nothing)
        return state

    def _places(self, p: Fragment) -> list[tuple[int, int]]:
        """Return, for each leaf of the fragment, its part of the state, and its number there."""
        return [self._where[leaf] for leaf in self._touched[p]]

    def _of(self, state: OptState, p: Fragment) -> tuple[list[jax.Array], list[jax.Array]]:
        moments, counts = _moments_of(state), [part.count for part in _parts_of(state)]
        return [moments[number][place] for number, place in self._places(p)], counts

    def _with(self, state: OptState, fresh: Mapping[int, jax.Array]) -> OptState:
        """Return the state with these leaves, by their number in the layout."""
        by_place = {self._where[leaf]: moment for leaf, moment in fresh.items()}

        def with_moments(number: int, part: Any) -> Any:
            leaves, structure = jax.tree.flatten(part.mu)
            moments = [by_place.get((number, place), leaf) for place, leaf in enumerate(leaves)]
            return part._replace(mu=jax.tree.unflatten(structure, moments))

        return _replaced(state, with_moments)

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


def _is_part(node: object) -> bool:
    """Return whether this part of an optimizer's state has first moments."""
    return hasattr(node, "mu") and hasattr(node, "count")


def _parts_of(state: OptState) -> list[Any]:
    """Return the parts of an optimizer's state that have first moments, each with its count."""
    return [each for each in jax.tree.leaves(state, is_leaf=_is_part) if _is_part(each)]


def _moments_of(state: OptState) -> list[list[Any]]:
    """Return the leaves of the first moments of each part."""
    return [jax.tree.leaves(part.mu) for part in _parts_of(state)]


def _replaced(state: OptState, change: Any) -> OptState:
    """Return the state with each of these parts changed by `change(number, part)`."""
    leaves, structure = jax.tree.flatten(state, is_leaf=_is_part)
    numbers = iter(range(len(leaves)))
    fresh = [change(next(numbers), each) if _is_part(each) else each for each in leaves]
    return jax.tree.unflatten(structure, fresh)


def _or(count: jax.Array | None, part: Any) -> Any:
    return part.count if count is None else count


def _paths(tree: Params) -> list[str]:
    return [leaf_path(keys) for keys, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def _decay(spec: OptimizerSpec, part: Any) -> float:
    return spec.b1 if isinstance(part, optax.ScaleByAdamState) else spec.momentum
