"""An island of several processes with devices of their own: what its hosts hold and hand in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster.workers.environment import ONE_THREAD, devices_of_cpus
from coordinator.codec import BLOCK, Wire, WithMoments, decode, encode, split
from coordinator.fragments import take
from coordinator.parts import Part, Split, cut_out, joined, misfit
from coordinator.protocol import (
    ContributionId,
    Fragment,
    HandIn,
    Incarnation,
    Island,
    Lease,
    Life,
    Progress,
    Version,
)
from islands.adopt import AdoptRule
from islands.encoder import ENCODERS, on_host
from islands.exchange import NOTHING
from islands.inner import Inner, InnerState
from islands.mesh import Devices
from islands.mesh_shape import MeshShape
from islands.moments import MomentsPort
from tests.given import optimizer_spec
from tests.islands.test_mesh import EVERY, LAYOUT, ROUNDS, SIZES, TASK, Kit, batches
from tests.together import together

ROOT = Path(__file__).parents[2]
FACTS = HandIn(
    ContributionId(Life(Island("a-0"), Incarnation(1)), Fragment(0), 0, 2),
    Version(0, 0),
    0,
    1,
    "",
    Progress(2, 1, Lease(0)),
)
CASES = [(2, 2, (2, 2, 1)), pytest.param(4, 1, (1, -1, 1), marks=pytest.mark.long)]
"""Hosts, devices per host, and the mesh."""


def host(address: str, hosts: int, number: int, sizes: tuple[int, int, int], folder: str) -> None:
    """Run one of the hosts, and write everything that it holds to a file.

    It runs rounds in lock-step, with public fragments of which it holds its own range, then two
    hand-ins of given parameters.
    """
    if hosts > 1:
        import jax

        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(address, hosts, number, initialization_timeout=200)
    devices = Devices(TASK, MeshShape(*sizes))
    kit = Kit.on(devices, "adamw", AdoptRule.CARRY)
    inner, port, own = kit.inner, kit.port, [devices.own(size) for _, size in SIZES]
    first = [np.asarray(leaf) for leaf in leaves_of(0)]
    public = [take(LAYOUT, p, first)[own[p]] for p, _ in SIZES]
    state, largest, losses = inner.started(filled(kit, own, 0), None), 0, list[float]()
    for clock, batch in enumerate(batches(ROUNDS * EVERY)):
        state, measures = inner.step(state, batch, clock)
        losses.append(float(measures.loss))
        if clock % EVERY:
            for p, size in SIZES:
                flat = port.take(state.params, p)
                mine = on_host(flat)[: public[p].size]
                largest = max(largest, on_host(flat).nbytes)
                public[p] = np.asarray((mine + public[p]) / 2, np.float32)
                params = port.put(state.params, p, inner.place_flat(public[p], size), flat)
                state = replace(state, params=params)
    found: dict[str, np.ndarray] = {f"public{p}": flat for p, flat in enumerate(public)}
    for p, size in SIZES:  # a late hand-in stays in place beside the merged fragment
        placed = inner.place_flat(public[p], size)
        moved = port.moved(
            placed, port.take(state.params, p), inner.place_flat(0 * public[p], size)
        )
        found[f"late{p}"] = on_host(moved)[: public[p].size]
        params = port.put(state.params, p, moved, port.take(state.params, p))
        found[f"put{p}"] = on_host(port.take(params, p))[: public[p].size]
        state = replace(state, params=params)
    give_moments(kit, hosts, number, state, found)
    share_moments(kit, own, found)
    for wire in Wire:
        for p, _ in SIZES:
            params = inner.place(TASK.init(1)) if hosts == 1 else filled(kit, own, 1)
            origin, left = take(LAYOUT, p, first)[own[p]], None
            for n in range(2):
                flat = port.take(params, p)
                payload, left = ENCODERS["host"](wire)(flat, origin, left, 1.0, origin.size)
                found[f"{wire}{p}{n}"] = payload
    bounds = [[each.start, each.stop] for each in own]
    said = {"own": bounds, "largest": largest, "losses": losses}
    (Path(folder) / f"{number}.json").write_text(json.dumps(said))
    np.savez(Path(folder) / f"{number}.npz", allow_pickle=False, **found)


def filled(kit: Kit, own: list[slice], seed: int) -> Any:
    """Return the task's initial parameters, of which this host has read only its own ranges."""
    leaves, params = [np.asarray(leaf) for leaf in leaves_of(seed)], kit.inner.devices.zeros
    for p, size in SIZES:
        flat = kit.inner.place_flat(take(LAYOUT, p, leaves)[own[p]], size)
        params = kit.port.fill(params, p, flat)
    return params


def share_moments(kit: Kit, own: list[slice], found: dict[str, np.ndarray]) -> None:
    """Record the first moments as this host hands them in.

    Record them again a step after the host has adopted half of them, and record those of a learner
    that joins with them.
    """
    devices = kit.inner.devices
    moments = MomentsPort(TASK, LAYOUT, optimizer_spec(kind="muon"), devices)
    muon = Inner(TASK, optimizer_spec(kind="muon"), devices)
    moments.compile(muon.started(devices.zeros, None).opt_state)
    zeroth, first, second, third = batches(4)
    state = muon.started(filled(kit, own, 2), None)
    for clock, batch in enumerate((zeroth, first)):  # the head is zero at the first step
        state, _ = muon.step(state, batch, clock)
    taken = {p: moments.take(state.opt_state, p) for p, _ in SIZES}
    state, _ = muon.step(state, second, 2)
    means: dict[Fragment, np.ndarray] = {}
    for p, size in SIZES:
        mine = on_host(taken[p].flat)[: own[p].stop - own[p].start]
        payload, _ = ENCODERS["host"](Wire.INT8)(taken[p].flat, NOTHING, None, 1.0, mine.size)
        found[f"sent{p}"], means[p] = payload, np.asarray(mine / 2, np.float32)
        changed = moments.put(state.opt_state, p, muon.place_flat(means[p], size), taken[p])
        state = replace(state, opt_state=muon.place_moments(changed))
    state, _ = muon.step(state, third, 3)
    fresh = muon.started(filled(kit, own, 2), None)
    joined = replace(fresh, opt_state=moments.joined(fresh.opt_state, means, 9))
    joined, _ = muon.step(joined, first, 9)
    for name, each in (("moments", state), ("joined", joined)):
        for p, _ in SIZES:
            flat = on_host(moments.take(each.opt_state, p).flat)
            found[f"{name}{p}"] = flat[: own[p].stop - own[p].start]


def give_moments(
    kit: Kit, hosts: int, number: int, state: InnerState, found: dict[str, np.ndarray]
) -> None:
    """Record this host's shares of all moments, and those given to a learner of another split.

    Record also the moments of a learner that begins with those of `given_moments`.
    """
    inner = kit.inner
    for n, (share, mine) in enumerate(zip(inner.shares, inner.moments(state), strict=True)):
        found[f"share{n}"], found[f"whole{n}"] = mine, np.array(share.size)
    given = given_moments(kit.inner, Split(inner.devices.parting.devices, hosts).ranges, number)
    begun = inner.started(inner.devices.zeros, inner.accept(given))
    back = inner.moments(replace(begun, params=None))
    found["given back"] = np.array([np.array_equal(x, y) for x, y in zip(given, back, strict=True)])


def given_moments(inner: Inner, ranges: Any, number: int) -> list[np.ndarray]:
    """Return this host's range of random numbers that are the same on every host, for each leaf."""
    found: list[np.ndarray] = []
    for n, share in enumerate(inner.shares):
        if share.everywhere:
            found.append(np.array([7], np.int32))
        else:
            whole = np.random.default_rng(n).standard_normal(share.size, np.float32)
            found.append(whole[ranges(share.size)[number]])
    return found


def leaves_of(seed: int) -> list[Any]:
    import jax

    return jax.tree.leaves(TASK.init(seed))


def played(
    hosts: int, devices: int, sizes: tuple[int, int, int], folder: Path
) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """Return the measures and arrays of each host."""
    environment = {
        "XLA_FLAGS": f"{devices_of_cpus(devices)} {ONE_THREAD}",
        "JAX_PLATFORMS": "cpu",
    }
    together(
        "tests.islands.test_hosts:host",
        hosts,
        lambda address, number: (address, hosts, number, sizes, str(folder)),
        environment,
    )
    return [
        (json.loads((folder / f"{n}.json").read_text()), dict(np.load(folder / f"{n}.npz")))
        for n in range(hosts)
    ]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Return what one host on one device holds and hands in."""
    ((_, found),) = played(1, 1, (1, 1, 1), tmp_path_factory.mktemp("alone"))
    return found


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("hosts", "devices", "sizes"), CASES)
def test_several_hosts_train_like_one_host(
    hosts: int,
    devices: int,
    sizes: tuple[int, int, int],
    tmp_path: Path,
    alone: dict[str, np.ndarray],
) -> None:
    """Fragments after twenty rounds are equal within rounding, and hand-ins to the last bit.

    No host holds more of a fragment than its share and one block for each device.
    """
    found = played(hosts, devices, sizes, tmp_path)
    assert any(alone[f"joined{p}"].any() for p, _ in SIZES)
    assert all(said["losses"] == found[0][0]["losses"] for said, _ in found)
    for p, _ in SIZES:
        whole = np.concatenate([arrays[f"public{p}"] for _, arrays in found])
        np.testing.assert_allclose(whole, alone[f"public{p}"], rtol=0, atol=1e-3)
        late = np.concatenate([arrays[f"late{p}"] for _, arrays in found])
        np.testing.assert_allclose(late, alone[f"late{p}"], rtol=0, atol=2e-3)
        for _, arrays in found:
            np.testing.assert_array_equal(arrays[f"put{p}"], arrays[f"late{p}"])
        for name in ("moments", "joined"):
            whole = np.concatenate([arrays[f"{name}{p}"] for _, arrays in found])
            mine = alone[f"{name}{p}"]
            np.testing.assert_allclose(whole, mine, rtol=1e-3, atol=1e-3 * np.abs(mine).max())
    for n in range(sum(name.startswith("share") for name in alone)):
        mine, parts = alone[f"share{n}"], [arrays[f"share{n}"] for _, arrays in found]
        size = int(alone[f"whole{n}"])
        whole = parts[0] if parts[0].dtype == np.int32 else np.concatenate(parts)
        np.testing.assert_allclose(whole, mine, rtol=0, atol=1e-3 * max(1, np.abs(mine).max()))
        assert all(part.size <= size / hosts + devices * BLOCK for part in parts)
    assert all(arrays["given back"].all() for _, arrays in found)
    for p, size in SIZES:
        for said, _ in found:
            assert said["largest"] <= 4 * (max(LAYOUT.sizes) / hosts + devices * BLOCK)
        for wire in Wire:
            for n in range(2):
                name = f"{wire}{p}{n}"
                parts = list[Part]()
                for said, arrays in found:
                    start, stop = said["own"][p]
                    both = WithMoments(arrays[name], arrays[f"sent{p}"])
                    parts.append(Part(FACTS, start, stop, both))
                assert misfit(parts, size) is None
                difference, sent = split(joined(parts, size))
                assert difference.tobytes() == alone[name].tobytes(), name
                assert sent is not None
                moments, mine = decode(sent, size), decode(alone[f"sent{p}"], size)
                np.testing.assert_allclose(moments, mine, rtol=0, atol=0.02 * np.abs(mine).max())


def test_publication_is_cut_at_host_boundaries() -> None:
    values = np.random.default_rng(0).standard_normal(1000, np.float32)
    for wire in Wire:
        payload = encode(wire, values)
        assert cut_out(payload, 1000, 512, 1000).nbytes == wire.bytes_of(488)
