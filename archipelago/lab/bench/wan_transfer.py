"""Objects through Ray between two regions, beside the rate of plain TCP over the same link.

The process runs in the first region: `python -m archipelago.lab.bench.wan_transfer ADDRESS REGION`.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray

from archipelago.lab.bench.wan_decoupled import ANSWER
from archipelago.lab.wan.nodes import LABEL
from cluster.storage.files import json_text

OBJECT_BYTES = 100 * 2**20
"""The size of an object: below that, round trips count, and not the bandwidth."""
REPEATS = 3


class ObjectSource:
    """An actor that puts objects into the store of its region."""

    def put(self, nbytes: int) -> list[ray.ObjectRef]:
        """Put an object of that many bytes, and return its reference in a list."""
        return [ray.put(np.random.default_rng().integers(0, 255, nbytes, np.uint8))]


def measure(address: str, region: str) -> dict[str, Any]:
    """Fetch objects from a region, and return the Gbit/s of each."""
    ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    options: dict[str, Any] = {"label_selector": {LABEL: region}, "num_cpus": 0}
    source: Any = ray.remote(ObjectSource).options(**options).remote()
    rates = list[float]()
    for _ in range(REPEATS):
        (reference,) = ray.get(source.put.remote(OBJECT_BYTES))
        began_s = time.monotonic()
        fetched: Any = ray.get(reference)
        rates.append(8e-9 * fetched.nbytes / (time.monotonic() - began_s))
    return {"gbit_s": rates}


def main(arguments: Sequence[str]) -> None:
    """Measure, and print the figures as JSON."""
    print(ANSWER + json_text(measure(*arguments)))


if __name__ == "__main__":
    main(sys.argv[1:])
