"""Helpers of tests in which a run goes over the links of a network of regions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

from archipelago.lab.wan import kernel, nodes
from archipelago.lab.wan.network import FOLDER, Network
from tests.live.cli import ROOT, Place, until


def own_name() -> str:
    """Return a name of a network that no other test process has."""
    return f"t{os.getpid() % 10**6}"


def left_of(name: str) -> list[str]:
    """Return the processes, namespaces, devices and files of a network that are still there."""
    links = kernel.run("ip", "-o", "link")
    there = [f"{name}h"] if f"{name}h" in links else []
    there += [str(FOLDER / name)] if (FOLDER / name).exists() else []
    return [*map(str, nodes.processes(name)), *kernel.namespaces(name), *there]


def happens(process: subprocess.Popen[str], what: Callable[[], object]) -> None:
    """Wait until something holds, and fail if the run ends first."""
    until(lambda: what() or process.poll() is not None)
    assert process.poll() is None, process.communicate()


def started(here: Place, network: Network, *words: str) -> subprocess.Popen[str]:
    """Start a command in the first region, with the address of its cluster."""
    address = f"{network.address(0)}:{nodes.PORT}"
    command = [sys.executable, "-m", "archipelago", *words, "--address", address]
    return subprocess.Popen(
        kernel.inside(network.namespace(network.regions[0]), *command),
        cwd=ROOT,
        env=here.environment | nodes.environment(network),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
