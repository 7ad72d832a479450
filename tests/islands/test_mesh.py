"""Islands of several devices: array placement, refused meshes, and results as on one device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from cluster.workers.environment import ONE_THREAD, devices_of_cpus
from coordinator.codec import BLOCK, Wire
from coordinator.errors import UserMistake
from coordinator.protocol import Fragment
from islands.adopt import AdoptRule, FragmentPort, layout_of
from islands.encoder import ENCODERS, Where
from islands.inner import Inner
from islands.mesh import Devices
from islands.mesh_shape import OPEN, MeshShape, misfits
from islands.model import ModelSpec
from islands.moments import MomentsPort
from islands.optimizer import OptimizerKind
from islands.task import language_model
from tests.given import data_spec, optimizer_spec

FRAGMENTS, EVERY, ROUNDS, DEVICES = 2, 2, 20, 8
Sizes = tuple[int, int, int]
MESHES: list[tuple[Sizes, OptimizerKind, AdoptRule]] = [
    ((8, 1, 1), "adamw", AdoptRule.CARRY),
    ((1, 8, 1), "muon", AdoptRule.BLEND),
    ((2, 4, 1), "adamw", AdoptRule.CARRY),
    ((2, 2, 2), "muon", AdoptRule.BLEND),
]
TASK = language_model("small", ModelSpec(36, 16, 2, 2, 24), data_spec())
LAYOUT = layout_of(TASK, FRAGMENTS)
SIZES = [(Fragment(p), size) for p, size in enumerate(LAYOUT.sizes)]


def batches(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    first, stride = rng.integers(0, 32, (2, count, 8, 1))
    return list(((first + stride * np.arange(9)) % 32).astype(np.int32))


@dataclass(frozen=True, slots=True)
class Kit:
    """One island's inner step and fragment port for the small task, compiled once."""

    devices: Devices
    inner: Inner
    port: FragmentPort

    @classmethod
    def on(cls, devices: Devices, kind: OptimizerKind, rule: AdoptRule) -> Kit:
        inner = Inner(TASK, optimizer_spec(kind=kind), devices)
        return cls(devices, inner, FragmentPort(LAYOUT, rule, 0.25, devices))


def played(kit: Kit) -> list[np.ndarray]:
    """Return the fragments after `ROUNDS` rounds in lock-step of one island.

    Each public fragment becomes the mean of the former one and the island's parameters.
    """
    inner, port = kit.inner, kit.port
    state = inner.start(TASK.init(0))
    public = [np.asarray(port.take(state.params, p))[:size] for p, size in SIZES]
    for clock, batch in enumerate(batches(ROUNDS * EVERY)):
        state, _ = inner.step(state, batch, clock)
        if clock % EVERY:
            for p, size in SIZES:
                flat = port.take(state.params, p)
                public[p] = (np.asarray(flat)[:size] + public[p]) / 2
                params = port.put(state.params, p, inner.place_flat(public[p], size), flat)
                state = replace(state, params=params)
    return public


def handed_in(kit: Kit, wire: Wire, where: Where) -> list[bytes]:
    """Return two hand-ins of each fragment, the second one with the residual of the first."""
    encode, found = ENCODERS[where](wire), list[bytes]()
    params, before = kit.inner.place(TASK.init(1)), kit.inner.place(TASK.init(0))
    for p, size in SIZES:
        flat, origin = kit.port.take(params, p), kit.port.take(before, p)
        left = None
        for _ in range(2):
            payload, left = encode(flat, origin, left, 1.0, size)
            found.append(str(payload.dtype).encode() + payload.tobytes())
    return found


def share(kit: Kit) -> float:
    """Return the share of the large leaves of parameters and moments that one device holds."""
    state, _ = kit.inner.step(kit.inner.start(TASK.init(0)), batches(1)[0], 0)
    large = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim > 1 and min(leaf.shape[1:]) > 8]
    held = sum(leaf.addressable_shards[0].data.nbytes for leaf in large)
    return held / sum(leaf.nbytes for leaf in large)


def lies_right(kit: Kit) -> bool:
    """Return whether parameters filled with threes lie where the step wants them.

    A flat fragment must also have whole blocks, the same number on each device.
    """
    params, port = kit.inner.place(TASK.init(0)), kit.port
    overwriting = FragmentPort(LAYOUT, AdoptRule.OVERWRITE, 0.0, kit.devices)
    for p, size in SIZES:
        flat = port.take(params, p)
        parts = {part.data.size for part in flat.addressable_shards}
        if len(parts) != 1 or parts.pop() % BLOCK or len(flat.sharding.device_set) != DEVICES:
            return False
        three = kit.inner.place_flat(np.full(size, 3, np.float32), size)
        params = overwriting.put(params, p, three, three)
    leaves = zip(jax.tree.leaves(params), kit.devices.leaves, strict=True)
    return all(
        (np.asarray(leaf) == 3).all() and leaf.sharding.is_equivalent_to(at, leaf.ndim)
        for leaf, at in leaves
    )


def shared(kit: Kit, kind: OptimizerKind) -> list[np.ndarray]:
    """Return first moments after adopting half of them a step later, and one more step."""
    inner = kit.inner
    moments = MomentsPort(TASK, LAYOUT, optimizer_spec(kind=kind), inner.devices)
    first, second, third = batches(3)
    state, _ = inner.step(inner.start(TASK.init(0)), first, 0)
    taken = {p: moments.take(state.opt_state, p) for p, _ in SIZES}
    state, _ = inner.step(state, second, 1)
    for p, size in SIZES:
        half = (np.asarray(taken[p].flat)[:size] / 2).astype(np.float32)
        mean = inner.place_flat(half, size)
        changed = moments.put(state.opt_state, p, mean, taken[p])
        state = replace(state, opt_state=inner.place_moments(changed))
    state, _ = inner.step(state, third, 2)
    return [np.asarray(moments.take(state.opt_state, p).flat)[:size] for p, size in SIZES]


def compare() -> dict[str, Any]:
    """Compare all meshes with one device; runs in a process of eight devices."""
    said: dict[str, Any] = {"apart": {}, "bits": {}, "share": {}, "right": {}, "moments": {}}
    one_device, last = Devices(TASK, devices=jax.devices()[:1]), MESHES[-1]
    ones: dict[Any, Any] = {}
    for sizes, kind, rule in MESHES:
        if (kind, rule) not in ones:
            ones[kind, rule] = one = Kit.on(one_device, kind, rule)
            ones[kind] = played(one)
        one, many = ones[kind, rule], Kit.on(Devices(TASK, MeshShape(*sizes)), kind, rule)
        pairs = zip(ones[kind], played(many), strict=True)
        said["apart"][str(sizes)] = max(float(np.max(np.abs(a - b))) for a, b in pairs)
        said["share"][str(sizes)], said["right"][str(sizes)] = share(many), lies_right(many)
        pairs = zip(shared(one, kind), shared(many, kind), strict=True)
        off = [float(np.max(np.abs(a - b)) / np.max(np.abs(a))) for a, b in pairs]
        said["moments"][str(sizes)] = max(off)
        places: tuple[Where, ...] = ("host", "device") if sizes == last[0] else ("host",)
        for where in places:
            for wire in Wire:
                same = handed_in(one, wire, where) == handed_in(many, wire, where)
                said["bits"][f"{sizes} {wire} {where}"] = same
    return said


def said_by_eight(module: str, call: str) -> Any:
    """Return the result of a test module's function, called in a process of eight devices.

    The number of devices has to be set before JAX starts.
    """
    environment = os.environ | {
        "XLA_FLAGS": f"{devices_of_cpus(DEVICES)} {ONE_THREAD}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    code = f"import json; from tests.islands import {module} as it; print(json.dumps(it.{call}))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    return said_by_eight("test_mesh", "compare()")


def of_eight(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that waits for a process of eight devices, for a minute or longer."""
    return pytest.mark.long(pytest.mark.slow(pytest.mark.timeout(600)(test)))


@of_eight
def test_twenty_rounds_on_any_mesh_give_the_fragments_of_one_device(said: Any) -> None:
    assert len(said["apart"]) == len(MESHES)
    assert max(said["apart"].values()) < 1e-3, said["apart"]


@of_eight
def test_equal_parameters_give_equal_hand_ins_bit_for_bit(said: Any) -> None:
    assert len(said["bits"]) == (len(MESHES) + 1) * len(Wire)
    assert all(said["bits"].values()), [name for name, same in said["bits"].items() if not same]


@of_eight
def test_parameters_and_moments_are_split_over_fsdp_and_tensor(said: Any) -> None:
    for sizes, _, _ in MESHES:
        _, fsdp, tensor = sizes
        assert 1 / (fsdp * tensor) <= said["share"][str(sizes)] < 1.2 / fsdp, sizes


@of_eight
def test_shared_moments_equal_those_of_one_device(said: Any) -> None:
    assert len(said["moments"]) == len(MESHES)
    assert max(said["moments"].values()) < 1e-3, said["moments"]


@of_eight
def test_adopted_parameters_have_the_sharding_of_the_step(said: Any) -> None:
    assert said["right"] == {str(sizes): True for sizes, _, _ in MESHES}


# --- refused meshes, and the split of a leaf --------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "devices", "whole"),
    [((1, -1, 1), 6, (1, 6, 1)), ((2, -1, 1), 8, (2, 4, 1)), ((2, 2, 2), 8, (2, 2, 2))],
)
def test_minus_one_fills_in_the_remaining_devices(
    shape: tuple[int, int, int], devices: int, whole: tuple[int, int, int]
) -> None:
    assert MeshShape(*shape).over(devices) == MeshShape(*whole)


@pytest.mark.parametrize("shape", [(2, 2, 1), (3, -1, 1), (1, 1, 16), (16, -1, 1)])
def test_refuses_a_mesh_that_does_not_match_the_devices(shape: tuple[int, int, int]) -> None:
    with pytest.raises(UserMistake, match=r"data = .* and the island has 8; give sizes whose"):
        MeshShape(*shape).over(8)


def test_leaf_is_split_along_the_largest_divisible_axis() -> None:
    devices = Devices(TASK, devices=jax.devices()[:1])
    devices.shape = MeshShape(1, 4, 2)
    filled = devices.filled_in  # pyright: ignore[reportPrivateUsage]
    assert filled((6, 12, 20), None) == PartitionSpec(None, None, "fsdp")
    assert filled((8, 6, 30), None) == PartitionSpec("fsdp", None, None)
    assert filled((3, 5), None) == PartitionSpec(None, None)
    assert filled((), None) == PartitionSpec()
    assert filled((8, 8), PartitionSpec()) == PartitionSpec()
    assert filled((4, 8, 6), PartitionSpec(None, OPEN, "tensor")) == PartitionSpec(
        None, "fsdp", "tensor"
    )
    assert filled((4, 7, 6), PartitionSpec(None, OPEN, "tensor")) == PartitionSpec(
        None, None, "tensor"
    )


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (PartitionSpec("model"), "no axis 'model'"),
        (PartitionSpec("fsdp", "fsdp"), "fsdp is named twice"),
        (PartitionSpec(None, None, None, "fsdp"), "it has 2 axes"),
        (PartitionSpec(None, ("fsdp", "tensor")), "its axis of 36 does not divide by 8"),
    ],
)
def test_impossible_sharding_is_refused_with_the_leafs_path(spec: PartitionSpec, why: str) -> None:
    wishing = replace(TASK, sharding=lambda path, shape: spec if path == "head" else None)
    found = misfits(wishing, MeshShape(1, 4, 2))
    assert len(found) == 1
    assert found[0].startswith("task small: head, [16, 36], cannot be split as ")
    assert why in found[0]


def test_every_leaf_with_an_impossible_sharding_is_named() -> None:
    wrong = replace(TASK, sharding=lambda path, shape: PartitionSpec("model"))
    with pytest.raises(UserMistake, match="embedding") as refused:
        Devices(wrong, devices=jax.devices()[:1])
    assert len(str(refused.value).splitlines()) == len(jax.tree.leaves(TASK.shapes))
