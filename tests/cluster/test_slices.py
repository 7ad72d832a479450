"""Tests of TPU slices: their chips and hosts."""

from __future__ import annotations

import pytest
from ray._private.accelerators.tpu import (
    VALID_TPU_TOPOLOGY,
    get_chips_per_host,
    get_num_chips_from_topology,
)

from cluster.config.slices import chips, chips_per_host, hosts, largest_of_one_host

KNOWN = [(kind, shape) for kind, shapes in VALID_TPU_TOPOLOGY.items() for shape in sorted(shapes)]


@pytest.mark.parametrize(("kind", "topology"), KNOWN)
def test_chips_and_hosts_agree_with_ray(kind: str, topology: str) -> None:
    accelerator = f"TPU-{kind.upper()}"
    assert chips(topology) == get_num_chips_from_topology(topology)
    assert chips_per_host(topology, accelerator) == get_chips_per_host(topology, kind)


@pytest.mark.parametrize("kind", VALID_TPU_TOPOLOGY)
def test_proposed_slice_has_one_host(kind: str) -> None:
    accelerator = f"TPU-{kind.upper()}"
    assert hosts(largest_of_one_host(accelerator), accelerator) == 1


def test_last_host_may_have_fewer_chips() -> None:
    assert hosts("3x3", "TPU-V6E") == 3
    assert hosts("2x4", "TPU-V6E") == 1
    assert hosts("2x4", "TPU-V6E", on_a_host=4.0) == 2
