"""Tests of the environment variables of the processes that compute."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cluster.config.schema import IslandGroup
from cluster.workers.environment import STALE_ADDRESSES, environment_of


@pytest.mark.parametrize(
    ("resources", "platforms"), [({"CPU": 1.0}, "cpu"), ({"GPU": 1.0}, ""), ({"TPU": 4.0}, "")]
)
def test_island_uses_its_accelerator_whatever_its_starter_uses(
    resources: dict[str, float], platforms: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terminal's process sets JAX_PLATFORMS=cpu, and Ray's processes inherit it."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert environment_of(IslandGroup(resources=resources))["JAX_PLATFORMS"] == platforms


PROGRAM = """
import json, os
from cluster.hosts.gang import GangAddress, enter
from cluster.hosts.held_port import HeldPort
from cluster.workers.environment import STALE_ADDRESSES, drop_stale_addresses
drop_stale_addresses()
held = HeldPort()
enter(GangAddress(("unused", 1), f"127.0.0.1:{held.port}", 1, b"k"), 0)
import jax
left = [name for name in STALE_ADDRESSES if name in os.environ]
print(json.dumps([jax.process_count(), len(jax.local_devices()), left]))
"""


@pytest.mark.slow
def test_program_of_an_island_ignores_addresses_of_a_slice_that_is_gone() -> None:
    """Stale variables of a preempted slice would make JAX wait for it, or drop its devices."""
    stale = dict.fromkeys(STALE_ADDRESSES, "7") | {
        "MEGASCALE_COORDINATOR_ADDRESS": "192.0.2.1:8081",
        "JAX_COORDINATOR_ADDRESS": "192.0.2.1:9999",
    }
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **stale},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == [1, 1, []]
