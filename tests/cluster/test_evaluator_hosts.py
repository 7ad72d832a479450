"""Tests of an evaluator of several devices or hosts.

The evaluator judges as one device does, and no host holds the whole model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import numpy as np
import pytest

from cluster.actors.evaluator import hosts as evaluator_hosts
from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.workers.environment import ONE_THREAD, devices_of_cpus
from cluster.workers.evaluator import EVALUATION_BATCH, Evaluator
from coordinator.fragments import Flat
from coordinator.protocol import Fragment
from islands.mesh_shape import MeshShape
from tests.together import together

ROOT = Path(__file__).parents[2]
CONFIG = {
    "task": {"preset": "byte-tiny"},
    "data": {"window": 32},
    "sync": {"fragments": 3, "every": 4},
    "islands": [{}],
}


def config() -> Config:
    return parse(CONFIG)


def trained() -> list[Flat]:
    """Return fragments that differ from the initial model."""
    other = parse(CONFIG | {"run": {"seed": 7}})
    return [2 * flat for flat in Evaluator(other).initial()]


def host(address: str, hosts: int, number: int, sizes: tuple[int, int, int], folder: str) -> None:
    """Run one of the hosts, and write its answers into files."""
    import jax

    if hosts > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(address, hosts, number, initialization_timeout=200)
    judge, flats = Evaluator(config(), MeshShape(*sizes)), trained()
    fragments = [Fragment(p) for p in range(len(flats))]
    mine = flats
    if hosts > 1:
        whole = [judge.initial_fragment(p) for p in fragments]
        mine = [flats[p][judge.ranges[p]].copy() for p in fragments]
    else:
        whole = judge.initial()
    bounds = [[judge.ranges[p].start, judge.ranges[p].stop] for p in fragments]
    said = {
        "losses": [judge.initial_loss, judge.loss(mine), judge.sample(mine)],
        "bounds": bounds,
        "judged": judge.judged.batches,
    }
    (Path(folder) / f"{number}.json").write_text(json.dumps(said))
    np.savez(Path(folder) / f"{number}.npz", *whole)


def asked(
    hosts: int, devices: int, sizes: tuple[int, int, int], folder: Path
) -> list[tuple[dict[str, Any], list[Flat]]]:
    """Run the hosts, and return the answers and the initial fragments of each one."""
    environment = {
        "XLA_FLAGS": f"{devices_of_cpus(devices)} {ONE_THREAD}",
        "JAX_PLATFORMS": "cpu",
    }
    together(
        "tests.cluster.test_evaluator_hosts:host",
        hosts,
        lambda address, number: (address, hosts, number, sizes, str(folder)),
        environment,
    )
    return [
        (
            json.loads((folder / f"{n}.json").read_text()),
            list(np.load(folder / f"{n}.npz").values()),
        )
        for n in range(hosts)
    ]


def test_failure_on_the_first_host_ends_all_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the other hosts would wait for its devices forever."""

    def end(why: str) -> NoReturn:
        raise SystemExit(why)

    def breaks(flats: object) -> float:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(evaluator_hosts, "_end", end)
    told: list[object] = []
    judge = evaluator_hosts.TogetherEvaluator.__new__(evaluator_hosts.TogetherEvaluator)
    judge._lead = cast("Any", SimpleNamespace(tell=told.append))
    judge._host = cast("Any", SimpleNamespace(evaluator=SimpleNamespace(loss=breaks)))
    with pytest.raises(SystemExit):
        judge.loss([])
    assert told == [evaluator_hosts.Judge(few=False)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_heldout_data_that_cannot_be_split_is_reported(tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("a few words, and a few more of them. " * 1000)  # 37 kB
    tables = CONFIG | {
        "data": {"window": 32, "source": str(text), "heldout_percent": 0.5},
        "monitor": {"evaluator": {"mesh": {"data": 1, "fsdp": 3, "tensor": 1}}},
    }
    code = f"""
from cluster.config.load import parse
from cluster.workers.evaluator import Evaluator
from islands.mesh_shape import MeshShape
Evaluator(parse({tables!r}), MeshShape(1, 3, 1))
"""
    environment = os.environ | {
        "XLA_FLAGS": f"{devices_of_cpus(3)} {ONE_THREAD}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "cannot be split over the evaluator's 3 devices" in done.stderr, done.stderr


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("hosts", "devices", "sizes"),
    [(1, 3, (1, -1, 1)), (2, 1, (1, -1, 1)), (2, 2, (2, 1, 2))],
)
def test_several_hosts_judge_like_one(
    hosts: int, devices: int, sizes: tuple[int, int, int], tmp_path: Path
) -> None:
    """Compare the losses of several hosts or devices with those of one.

    Three devices judge batches of 18 windows, because 16 cannot be split over them. Their losses
    therefore cover a few windows more.
    """
    alone, flats = Evaluator(config()), trained()
    initial = alone.initial()
    losses = [alone.initial_loss, alone.loss(flats), alone.sample(flats)]
    found = asked(hosts, devices, sizes, tmp_path)
    within = 1e-5 if EVALUATION_BATCH % (hosts * devices) == 0 else 0.02
    for said, whole in found:
        np.testing.assert_allclose(said["losses"], losses, rtol=within)
        assert said["judged"] == found[0][0]["judged"] > 3
        for mine, theirs in zip(initial, whole, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    for p, flat in enumerate(flats):
        bounds = [said["bounds"][p] for said, _ in found]
        assert [bounds[0][0], bounds[-1][1]] == [0, flat.size]
        assert [stop for _, stop in bounds[:-1]] == [start for start, _ in bounds[1:]]
        assert all(stop - start < 0.6 * flat.size for start, stop in bounds) or hosts == 1
