"""What a TPU topology means: how many chips, on how many hosts.

As Ray counts them (`ray._private.accelerators.tpu`, a test compares), so that a slice of several
hosts is known before Ray is imported.
"""

from __future__ import annotations

import math

CHIPS = 4
"""On a host, in most generations."""
DENSE = ("TPU-V5LITEPOD", "TPU-V6E")
"""Generations with hosts of up to `DENSE_CHIPS`, where a slice is no larger."""
DENSE_CHIPS = 8
FLAT = ("TPU-V2", "TPU-V3")
"""Generations whose slices are planes, as those of the dense ones are."""


def chips(topology: str) -> int:
    """`2x4` -> 8."""
    return math.prod(int(side) for side in topology.split("x"))


def chips_per_host(topology: str, accelerator: str) -> int:
    """How many of a slice's chips one host has, where nothing else is said."""
    all_of_it = chips(topology)
    return all_of_it if accelerator in DENSE and all_of_it <= DENSE_CHIPS else CHIPS


def hosts(topology: str, accelerator: str, on_a_host: float | None = None) -> int:
    """Over how many hosts a slice goes, with so many chips on each."""
    return math.ceil(chips(topology) / (on_a_host or chips_per_host(topology, accelerator)))


def largest_of_one_host(accelerator: str) -> str:
    """The largest topology that one host has."""
    if accelerator in DENSE:
        return "2x4"
    return "2x2" if accelerator in FLAT else "2x2x1"
