"""Leaves go to the flat form and back on eight devices, with the same bits as in numpy.

A device needs at most two shares of a fragment and one window of it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from coordinator.fragments import Layout, Leaf, cut
from coordinator.protocol import Fragment
from islands.adopt import AdoptRule, FragmentPort, layout_of
from islands.flat_form import flat_form, within
from islands.inner import Inner
from islands.mesh import Devices
from islands.mesh_shape import AXES, MeshShape
from islands.model import ModelSpec
from islands.task import language_model
from islands.windows import Lying
from tests.given import data_spec, optimizer_spec
from tests.islands.test_mesh import DEVICES, TASK, said_by_eight

MESHES = [(8, 1, 1), (1, 8, 1), (2, 4, 1), (1, 2, 4), (2, 2, 2)]
TREES = 20
LARGE = language_model("large", ModelSpec(256, 2560, 8, 20, 64), data_spec())
"""A large task, whose quarter fragments have 0.6 GB; the tests allocate none of them."""


class Tree(NamedTuple):
    """Leaves, their layout, and their sharding."""

    layout: Layout
    arrays: list[NDArray[np.float32]]
    specs: list[PartitionSpec]


def drawn(draw: random.Random, sizes: dict[str, int]) -> Tree:
    """Return a few leaves of random shapes, split along random axes that divide.

    Their bits are random too, so -0.0 and NaN occur.
    """
    leaves, arrays, specs = list[Leaf](), list[NDArray[np.float32]](), list[PartitionSpec]()
    for number in range(draw.randint(1, 4)):
        shape = tuple(draw.choice([1, 2, 3, 8, 16, 24]) for _ in range(draw.randint(0, 4)))
        stacked = bool(shape) and draw.random() < 0.5
        leaves.append(Leaf(f"leaf{number}", shape, stacked))
        bits = np.random.default_rng(draw.randrange(1 << 32)).integers(0, 1 << 32, shape, np.uint32)
        arrays.append(np.asarray(bits, np.uint32).view(np.float32))
        free, spec = draw.sample(AXES, 3), list[tuple[str, ...]]()
        for side in shape:
            names = list[str]()
            while free and draw.random() < 0.6:
                if side % (math.prod(sizes[name] for name in names) * sizes[free[-1]]):
                    break
                names.append(free.pop())
            spec.append(tuple(names))
        specs.append(PartitionSpec(*(names or None for names in spec)))
    fragments = min(draw.randint(1, 3), len(leaves))
    return Tree(cut(leaves, fragments), arrays, specs)


def wrong_in(tree: Tree, devices: Devices, room: int) -> list[str]:
    """Return the differences from numpy's result."""
    wrong = list[str]()
    for p, pieces in enumerate(tree.layout.fragments):
        touched = sorted({piece.leaf for piece in pieces})
        wanted = [number != 1 for number in range(len(pieces))]
        lying = [
            Lying(tree.arrays[i].shape, NamedSharding(devices.mesh, tree.specs[i])) for i in touched
        ]
        form = flat_form(within(pieces, touched), lying, devices, wanted, room)
        arrays = [tree.arrays[i] for i in touched]
        placed = [
            jax.device_put(array, each.where) for array, each in zip(arrays, lying, strict=True)
        ]
        size, padded = tree.layout.sizes[p], devices.padded(tree.layout.sizes[p])
        flat = np.zeros(padded, np.float32)
        new = np.random.default_rng(p).normal(size=padded).astype(np.float32)
        put, old = (
            [array.copy() for array in arrays],
            [np.array(np.nan_to_num(array)) for array in arrays],
        )
        added, offset = [array.copy() for array in old], 0
        for number, piece in enumerate(pieces):
            at, inside = touched.index(piece.leaf), slice(offset, offset + piece.size)
            offset += piece.size
            if wanted[number]:
                flat[inside] = arrays[at][piece.index].reshape(-1)
                put[at][piece.index] = new[inside].reshape(piece.shape)
                half = np.float32(0.5) * new[inside].reshape(piece.shape)
                added[at][piece.index] += half
        found = np.asarray(jax.jit(form.take, out_shardings=devices.flat)(placed))
        if found.tobytes() != flat.tobytes():
            wrong.append(f"take {p}: {int(np.argmax(found.view('i4') != flat.view('i4')))}")
        there = devices.place_flat(new[:size], size)
        wrong += apart(f"put {p}", jax.jit(form.put)(placed, there), put, lying)
        placed = [jax.device_put(x, each.where) for x, each in zip(old, lying, strict=True)]
        halves = np.full(len(pieces), 0.5, np.float32)
        wrong += apart(f"add {p}", jax.jit(form.add)(placed, there, halves), added, lying)
    return wrong


def apart(
    what: str, found: Sequence[jax.Array], wanted: list[NDArray[np.float32]], lying: list[Lying]
) -> list[str]:
    return [
        f"{what}: leaf {number} of {each.shape}, {each.where.spec}"
        for number, (leaf, one, each) in enumerate(zip(found, wanted, lying, strict=True))
        if np.asarray(leaf).tobytes() != one.tobytes()
        or not leaf.sharding.is_equivalent_to(each.where, leaf.ndim)
    ]


def searched(seed: int) -> list[str]:
    """Return the errors found in trees of this seed; runs in a process of eight devices."""
    draw, wrong = random.Random(seed), list[str]()
    for turn in range(TREES):
        devices = Devices(TASK, MeshShape(*MESHES[turn % len(MESHES)]))
        room = draw.choice([1, 5, 40, 300, 1 << 16])
        tree = drawn(draw, dict(devices.sizes))
        wrong += [
            f"seed {seed}, tree {turn}, {devices.shape}, room {room}: {each}"
            for each in wrong_in(tree, devices, room)
        ]
    return wrong


def room_needed() -> dict[str, list[float]]:
    """Return the memory that a device needs beside its share of the leaves.

    The values are in shares of the flat form: for a fragment taken and put by each rule, and for a
    leaf given and accepted. It runs in a process of eight devices.
    """
    layout, needed = layout_of(LARGE, 4), dict[str, list[float]]()
    for sizes in MESHES[1:]:
        devices = Devices(LARGE, MeshShape(*sizes))
        leaves = [
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)
            for leaf, where in zip(jax.tree.leaves(LARGE.shapes), devices.leaves, strict=True)
        ]
        found = needed[str(sizes)] = []
        for rule in AdoptRule:
            port, p = FragmentPort(layout, rule, 0.25, devices), Fragment(0)
            flat = jax.ShapeDtypeStruct(
                (devices.padded(layout.sizes[p]),), np.float32, sharding=devices.flat
            )
            take, put = port.lowered(leaves, p, flat)
            share = layout.sizes[p] * 4 / DEVICES
            found += [held(each.compile()) / share for each in (take, put)]
        inner = Inner(LARGE, optimizer_spec(), devices)
        leaf = max(leaves, key=lambda leaf: leaf.size)
        flat = jax.ShapeDtypeStruct((devices.padded(leaf.size),), np.float32, sharding=devices.flat)
        take, put = inner.formed(leaf, leaf.sharding)
        share = leaf.size * 4 / DEVICES
        found += [held(x.compile()) / share for x in (take.lower(leaf), put.lower(leaf, flat))]
    return needed


def held(compiled: Any) -> float:
    """Return the bytes of temporaries, and of outputs that do not reuse an argument."""
    found = compiled.memory_analysis()
    return found.temp_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_take_and_put_are_exact_for_any_leaves_on_any_mesh() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    assert said_by_eight("test_flat_form", f"searched({seed})") == []


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_device_needs_at_most_two_shares_of_a_fragment_and_a_window() -> None:
    found = said_by_eight("test_flat_form", "room_needed()")
    assert len(found) == len(MESHES) - 1
    for sizes, held in found.items():
        assert len(held) == 2 * len(AdoptRule) + 2
        print(sizes, [round(each, 2) for each in held])
        assert max(held) < 2.5, (sizes, held)
