"""The chips and hosts of a TPU topology.

The numbers are those of `ray._private.accelerators.tpu` (a test compares them), so that the hosts
of a slice are known before Ray is imported.
"""

from __future__ import annotations

import math

CHIPS = 4
"""Chips of a host, in most generations."""
DENSE = ("TPU-V5LITEPOD", "TPU-V6E")
"""Generations where one host holds a whole slice of up to `DENSE_CHIPS` chips."""
DENSE_CHIPS = 8
FLAT = ("TPU-V2", "TPU-V3")
"""Further generations with two-dimensional slices; those in `DENSE` are two-dimensional, too."""


def chips(topology: str) -> int:
    """Return the number of chips: `2x4` -> 8."""
    return math.prod(int(side) for side in topology.split("x"))


def chips_per_host(topology: str, accelerator: str) -> int:
    """Return how many chips of a slice one host has by default."""
    chip_count = chips(topology)
    return chip_count if accelerator in DENSE and chip_count <= DENSE_CHIPS else CHIPS


def hosts(topology: str, accelerator: str, on_a_host: float | None = None) -> int:
    """Return the number of hosts of a slice. `on_a_host`: chips of each; None for the default."""
    return math.ceil(chips(topology) / (on_a_host or chips_per_host(topology, accelerator)))


def largest_of_one_host(accelerator: str) -> str:
    """Return the largest topology of a single host."""
    if accelerator in DENSE:
        return "2x4"
    return "2x2" if accelerator in FLAT else "2x2x1"
