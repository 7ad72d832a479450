"""The extraction of a fragment from the parameters and the adoption of a newer one, on the device.

Both are small compiled functions of the leaves that the fragment touches. They are dispatched at a
step boundary and do not wait; the parameters are donated to `put`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Any

import jax

from coordinator.fragments import Layout, Leaf, cut
from coordinator.protocol import Fragment
from islands.flat_form import FlatForm, flat_form, within
from islands.mesh import Devices
from islands.task import Params, Task, leaf_path
from islands.windows import Lying


class AdoptRule(StrEnum):
    """The fate of the steps trained since the hand-in (docs/explanation/protocol.md)."""

    OVERWRITE = "overwrite"
    CARRY = "carry"
    BLEND = "blend"


def layout_of(task: Task, fragments: int, shapes: Params | None = None) -> Layout:
    """Cut the task's parameters, from their shapes alone; the layout is equal on every machine.

    `shapes`: those parameters as `jax.ShapeDtypeStruct`, if the caller has them already.
    """
    return cut(leaves_of(task, task.shapes if shapes is None else shapes), fragments)


def leaves_of(task: Task, shapes: Params) -> list[Leaf]:
    """Return the leaves of the task's parameters and state, from their shapes."""
    leaves: list[Leaf] = []
    for keys, leaf in jax.tree_util.tree_flatten_with_path(shapes)[0]:
        path, shape = leaf_path(keys), tuple(leaf.shape)
        state = task.state(path)
        leaves.append(Leaf(path, shape, task.stacked(path), task.embedding(path), state))
    return leaves


class FragmentPort:
    """The way of fragments out of a parameter tree and into it, as flat f32 arrays of [size].

    On several devices the flat form is split over all of them, padded with zeros to whole
    quantization blocks on each.
    """

    def __init__(
        self,
        layout: Layout,
        rule: AdoptRule,
        blend: float = 0.0,
        devices: Devices | None = None,
        read: Callable[[int, Any], jax.Array] | None = None,
    ) -> None:
        """Create it; `devices`: the devices of the parameters; None: one device.

        `read`: number and value of a leaf -> that leaf as an array on the devices, for parameters
        that belong to a loop of the user's own. They are never donated, and the loop may change
        them as soon as a method has returned. None: all leaves are arrays on the devices.
        """
        self._read, donated = read, 0 if read is None else ()
        self.rule, self._blend = rule, blend
        self._sizes, self._state_fragment = layout.sizes, layout.state_fragment
        self._shared = devices is not None and devices.shared
        self._touched = [sorted({piece.leaf for piece in pieces}) for pieces in layout.fragments]
        self._takes, self._puts, self._fills = list[Any](), list[Any](), list[Any]()
        for pieces, touched in zip(layout.fragments, self._touched, strict=True):
            flat = leaves = None
            lying = list[Lying]()
            if devices is not None:
                flat, leaves = devices.flat, [devices.leaves[i] for i in touched]
                lying = [Lying(layout.leaves[i].shape, devices.leaves[i]) for i in touched]
            form = flat_form(within(pieces, touched), lying, devices)
            self._takes.append(jax.jit(form.take, out_shardings=flat))
            put = partial(self._put, form, self.rule_of(Fragment(len(self._puts))))
            self._puts.append(jax.jit(put, donate_argnums=donated, out_shardings=leaves))
            self._fills.append(jax.jit(form.put, donate_argnums=donated, out_shardings=leaves))
        flat = None if devices is None else devices.flat
        self._moved = jax.jit(lambda public, end, start: public + (end - start), out_shardings=flat)

    def rule_of(self, p: Fragment) -> AdoptRule:
        """Return how a fragment is adopted; the public state always takes the place of one's own.

        A difference added to it could leave the range of what any island measured: a variance
        could become negative.
        """
        return AdoptRule.OVERWRITE if p == self._state_fragment else self.rule

    def size(self, p: Fragment) -> int:
        """Return the elements of the fragment, without padding."""
        return self._sizes[p]

    def compile(self, params: Params) -> None:
        """Run every `take`, `put` and `ready` once, so that none compiles during training.

        `params` must lie where the training step keeps them, and are donated.
        """
        for p in map(Fragment, range(len(self._takes))):
            flat = self.take(params, p)
            if self.rule_of(p) is AdoptRule.CARRY:
                flat = self.moved(flat, flat, flat)
            params = self.put(params, p, flat, flat)
            self.ready(params, p)
            if self._shared:  # a life begins with this
                params = self.fill(params, p, flat)

    def lowered(self, leaves: Sequence[Any], p: Fragment, flat: Any) -> tuple[Any, Any]:
        """Lower `take` and `put` without compiling, for parameters and a fragment like these."""
        touched = [leaves[i] for i in self._touched[p]]
        return self._takes[p].lower(touched), self._puts[p].lower(touched, flat, flat)

    def take(self, params: Params, p: Fragment) -> jax.Array:
        """Return a fresh copy of the fragment after the steps dispatched so far."""
        return self._called(self._takes[p], p, jax.tree.leaves(params))

    def put(self, params: Params, p: Fragment, public: jax.Array, origin: jax.Array) -> Params:
        """Return the parameters with the fragment replaced by the rule; `params` is donated.

        `origin`: the fragment as it was handed in last, or adopted if nothing was handed in since.
        """
        return self._replaced(params, p, self._puts[p], public, origin)

    def moved(self, public: jax.Array, end: jax.Array, start: jax.Array) -> jax.Array:
        """Return a flat fragment moved by the difference from `start` to `end`."""
        return self._moved(public, end, start)

    def fill(self, params: Params, p: Fragment, public: jax.Array) -> Params:
        """Return the parameters with this fragment in place under any rule; `params` is donated."""
        return self._replaced(params, p, self._fills[p], public)

    def ready(self, params: Params, p: Fragment) -> jax.Array | None:
        """Return an array that is ready once the fragment is in these parameters.

        They may be donated while it is awaited. It returns None if `put` has waited already.
        """
        leaf = jax.tree.leaves(params)[self._touched[p][0]]
        return _first(leaf.addressable_data(0)) if isinstance(leaf, jax.Array) else None

    def _replaced(self, params: Params, p: Fragment, put: Any, *flats: jax.Array) -> Params:
        leaves, structure = jax.tree.flatten(params)
        fresh = self._called(put, p, leaves, *flats)
        for i, leaf in zip(self._touched[p], fresh, strict=True):
            leaves[i] = leaf
        return jax.tree.unflatten(structure, leaves)

    def _called(
        self, function: Callable[..., Any], p: Fragment, leaves: Sequence[Any], *flats: jax.Array
    ) -> Any:
        """Call a compiled function of the leaves that the fragment touches."""
        touched = self._touched[p]
        if self._read is None:
            return function([leaves[i] for i in touched], *flats)
        result = function([self._read(i, leaves[i]) for i in touched], *flats)
        is_foreign = not all(isinstance(leaves[i], jax.Array) for i in touched)
        return jax.block_until_ready(result) if is_foreign else result

    def _put(
        self,
        form: FlatForm,
        rule: AdoptRule,
        leaves: list[jax.Array],
        public: jax.Array,
        origin: jax.Array,
    ) -> list[jax.Array]:
        match rule:
            case AdoptRule.OVERWRITE:
                flat = public
            case AdoptRule.CARRY:
                flat = public + (form.take(leaves) - origin)
            case AdoptRule.BLEND:
                flat = self._blend * form.take(leaves) + (1 - self._blend) * public
        return form.put(leaves, flat)


@jax.jit
def _first(leaf: jax.Array) -> jax.Array:
    """Return the first element, if any; of one device, so that no host waits for others."""
    return leaf.reshape(-1)[:1]
