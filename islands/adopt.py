"""How one fragment leaves the parameters and how a newer one comes in, on the device.

Both are small compiled functions of the leaves that the fragment touches. They are dispatched at a
step boundary and wait for nothing; the parameters are donated to `put`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import jax
import jax.numpy as jnp

from coordinator.fragments import Layout, Leaf, Piece, cut
from coordinator.protocol import Fragment
from islands.task import Params, Task, leaf_path


class AdoptRule(StrEnum):
    """What becomes of the steps trained since the hand-in (docs/protocol.md, Adopted)."""

    OVERWRITE = "overwrite"
    CARRY = "carry"
    BLEND = "blend"


def layout_of(task: Task, fragments: int, shapes: Params | None = None) -> Layout:
    """Cut the task's parameters, from their shapes alone; equal on every machine.

    `shapes`: those parameters as `jax.ShapeDtypeStruct`, by whoever knows them already.
    """
    if shapes is None:
        shapes = task.shapes
    leaves: list[Leaf] = []
    for keys, leaf in jax.tree_util.tree_flatten_with_path(shapes)[0]:
        path = leaf_path(keys)
        leaves.append(Leaf(path, tuple(leaf.shape), task.stacked(path), task.embedding(path)))
    return cut(leaves, fragments)


class FragmentPort:
    """Takes fragments out of a parameter tree and puts them in; flat f32 arrays of [size]."""

    def __init__(self, layout: Layout, rule: AdoptRule, blend: float = 0.0) -> None:
        self.rule, self._blend = rule, blend
        self._touched = [sorted({piece.leaf for piece in pieces}) for pieces in layout.fragments]
        self._takes = [
            jax.jit(lambda leaves, p=p: _take(layout.fragments[p], self._touched[p], leaves))
            for p in range(len(layout.fragments))
        ]
        self._puts = [
            jax.jit(
                lambda leaves, public, origin, p=p: self._put(
                    layout.fragments[p], self._touched[p], leaves, public, origin
                ),
                donate_argnums=0,
            )
            for p in range(len(layout.fragments))
        ]

    def compile(self, task: Task, place: Callable[[Params], Params]) -> None:
        """Run every `take` and `put` once, so that none is compiled while training; `place` puts
        a tree where the training step keeps its parameters."""
        params = place(task.zeros())
        for p in map(Fragment, range(len(self._takes))):
            flat = self.take(params, p)
            params = self.put(params, p, flat, flat)

    def take(self, params: Params, p: Fragment) -> jax.Array:
        """A fresh copy of the fragment as it is after the steps dispatched so far."""
        leaves = jax.tree.leaves(params)
        return self._takes[p]([leaves[i] for i in self._touched[p]])

    def put(self, params: Params, p: Fragment, public: jax.Array, origin: jax.Array) -> Params:
        """Parameters with the fragment replaced by the rule; `params` is used up.

        `origin`: the fragment as it was handed in last, or adopted if nothing was handed in since.
        """
        leaves, structure = jax.tree.flatten(params)
        fresh = self._puts[p]([leaves[i] for i in self._touched[p]], public, origin)
        for i, leaf in zip(self._touched[p], fresh, strict=True):
            leaves[i] = leaf
        return jax.tree.unflatten(structure, leaves)

    def _put(
        self,
        pieces: Sequence[Piece],
        touched: Sequence[int],
        leaves: list[jax.Array],
        public: jax.Array,
        origin: jax.Array,
    ) -> list[jax.Array]:
        match self.rule:
            case AdoptRule.OVERWRITE:
                flat = public
            case AdoptRule.CARRY:
                flat = public + (_take(pieces, touched, leaves) - origin)
            case AdoptRule.BLEND:
                mine = _take(pieces, touched, leaves)
                flat = self._blend * mine + (1 - self._blend) * public
        fresh = dict(zip(touched, leaves, strict=True))
        offset = 0
        for piece in pieces:
            block = flat[offset : offset + piece.size].reshape(piece.shape)
            fresh[piece.leaf] = fresh[piece.leaf].at[piece.index].set(block)
            offset += piece.size
        return [fresh[i] for i in touched]


def _take(pieces: Sequence[Piece], touched: Sequence[int], leaves: Sequence[Any]) -> jax.Array:
    held = dict(zip(touched, leaves, strict=True))
    flat = jnp.concatenate([held[piece.leaf][piece.index].reshape(-1) for piece in pieces])
    return jnp.array(flat, jnp.float32, copy=True)  # never the leaf itself: a step donates that
