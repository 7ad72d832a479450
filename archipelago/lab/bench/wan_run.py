"""A run, or a driver of the Ray cluster, over the regions of a network on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

from archipelago.lab.bench.child_run import ChildRun, ends_on_sigterm, started
from archipelago.lab.bench.stats import interval_of, median
from archipelago.lab.wan import kernel, nodes, rig
from archipelago.lab.wan.network import Network
from cluster.config.schema import Config
from coordinator.errors import RunFailed

NODE = nodes.NodeSize(cpus=1.0, store_mb=150)
"""The size of the node in each region."""
DRIVER_S = 600.0
"""Timeout of a driver, beyond the time that it measures."""


@contextmanager
def run_over(network: Network, config: Config, say: Callable[[str], None]) -> Generator[ChildRun]:
    """Bring the network up and start a run in its first region; end both with the block.

    Errors: `UserMistake` without root or network tools; `RunFailed`.
    """
    with rig.running(network, say, size=NODE), TemporaryDirectory(prefix="archipelago-") as folder:
        path, run_dir = Path(folder) / "run.toml", Path(folder) / "run"
        path.write_text(config.toml())
        address = f"{network.address(0)}:{nodes.PORT}"
        words = ["run", str(path), "--json", "--run-dir", str(run_dir), "--address", address]
        python = kernel.inside(network.namespace(network.regions[0]), sys.executable)
        environment = nodes.environment(network) | {"HOME": folder}
        process = started([*python, "-m", "archipelago", *words], environment, Path(folder))
        run = ChildRun(process, Path(folder), run_dir, len(network.regions), environment)
        try:
            with ends_on_sigterm():
                yield run
        finally:
            run.end()


def driver(network: Network, module: str, *arguments: str, within_s: float) -> dict[str, Any]:
    """Run a driver of the Ray cluster in the first region, and return the figures it prints.

    `within_s`: seconds that it measures, beyond `DRIVER_S`.

    Errors: `RunFailed`.
    """
    with TemporaryFile("w+") as errors:
        done = subprocess.run(
            python_in(network, 0, module, *arguments),
            env=nodes.environment(network),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=DRIVER_S + within_s,
            check=False,
        )
        errors.seek(0)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        figures: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        if not figures or "error" in figures:
            raise RunFailed(f"{module} failed: {errors.read()[-2000:]}")
    return figures


def python_in(network: Network, number: int, module: str, *arguments: str) -> list[str]:
    """Return the command of a Python module in the region of this number."""
    namespace = network.namespace(network.regions[number])
    return kernel.inside(namespace, sys.executable, "-m", module, *arguments)


def transfer(network: Network, tcp: float, say: Callable[[str], None]) -> dict[str, float]:
    """Return the rate of objects through Ray, as a share of plain TCP's over the same link.

    There is one sample for each link to the first region.
    """
    address = f"{network.address(0)}:{nodes.PORT}"
    words = ("doctor", "--links", "--json", "--address", address)
    links = driver(network, "archipelago", *words, within_s=0.0)["links"]
    hub = network.regions[0].name
    rates = [link["gbit_s"] for link in links if link["to"].startswith(hub)]
    fractions = [rate / tcp for rate in rates]
    say(f"objects of 100 MiB: {fractions} of the {tcp:.3f} Gbit/s of plain TCP")
    middle = median(fractions)
    return interval_of("transfer_fraction", middle) | {
        "transfer_fraction_coverage": middle.coverage,
        "transfer_fraction_samples": middle.samples,
    }
