"""A run, or a driver of the Ray cluster, over the regions of a network on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any

from archipelago.lab.bench.child_run import ChildRun, ends_on_sigterm, started
from archipelago.lab.bench.stats import interval_of, median
from archipelago.lab.wan import kernel, nodes, rig
from archipelago.lab.wan.network import MARK, Network
from cluster.config.schema import Config
from coordinator.errors import RunFailed

NODE = nodes.NodeSize(cpus=1.0, store_mb=150)
"""The size of the node in each region."""
DRIVER_S = 600.0
"""Timeout of a driver, beyond the time that it measures."""
POLL_S = 0.1
"""Seconds between two looks at the members of a ring."""
COMMAND_LETTERS, END_LETTERS = 200, 2000
"""Characters of a command, and of the end of an output, that an error message has."""


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

    Errors: `RunFailed` with the end of its output if it fails, or takes longer.
    """
    command = python_in(network, 0, module, *arguments)
    out, err = output_of(command, nodes.environment(network), DRIVER_S + within_s)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    figures: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    if not figures or "error" in figures:
        raise RunFailed(f"{module} failed; its output ends with:\n{_ends_of(out, err)}")
    return figures


def output_of(
    command: Sequence[str], environment: Mapping[str, str], within_s: float
) -> tuple[str, str]:
    """Run a command, and return its standard output and its standard error.

    Errors: `RunFailed` with the ends of both if it runs for longer than `within_s` seconds; it is
    killed then.
    """
    with _file() as out, _file() as err:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=err)
        is_late = False
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            is_late = True
        finally:
            process.kill()
            process.wait()
        outputs = _text(out), _text(err)
    if is_late:
        raise RunFailed(
            f"`{' '.join(command)[:COMMAND_LETTERS]}` did not end within {within_s:g} s, so it was "
            f"killed; its output ends with:\n{_ends_of(*outputs)}"
        )
    return outputs


def output_of_members(
    network: Network, module: str, arguments: Sequence[str], *, within_s: float
) -> list[str]:
    """Run a module in each region at once, and return the outputs, with standard error.

    `arguments`: one argument for each region, in the order of the regions.

    Errors: `RunFailed` with the region and the end of the output of each one that fails, or of
    those that run for longer than `within_s` seconds. All are killed then.
    """
    environment, end_s = {**os.environ, MARK: network.name}, time.monotonic() + within_s
    with ExitStack() as stack:
        started = list[tuple[subprocess.Popen[bytes], IO[str]]]()
        try:
            for number, argument in enumerate(arguments):
                file = stack.enter_context(_file())
                command = python_in(network, number, module, argument)
                process = subprocess.Popen(
                    command, env=environment, stdout=file, stderr=subprocess.STDOUT
                )
                started.append((process, file))
            codes = _codes_of([process for process, _ in started], end_s)
        finally:
            for process, _ in started:
                process.kill()
                process.wait()
        outputs = [_text(file) for _, file in started]
    names = [region.name for region in network.regions]
    failed = {n: f"ended with exit code {code}" for n, code in enumerate(codes) if code}
    late = f"did not end within {within_s:g} s"
    if problems := failed or {n: late for n, code in enumerate(codes) if code is None}:
        raise RunFailed(
            "\n".join(
                f"{module} in {names[n]} {what}; its output ends with:\n{_ends_of(outputs[n])}"
                for n, what in problems.items()
            )
        )
    return outputs


def _codes_of(processes: Sequence[subprocess.Popen[bytes]], end_s: float) -> list[int | None]:
    """Wait for the end of all, a failure or the time `end_s`; return the exit codes, None if alive.

    The members of a ring wait for each other, so the others do not end after a failure.
    """
    while True:
        codes = [each.poll() for each in processes]
        if any(codes) or None not in codes or time.monotonic() > end_s:
            return codes
        time.sleep(POLL_S)


def _file() -> IO[str]:
    """Return a new file for an output; a pipe that is not read would block its process."""
    return TemporaryFile("w+", errors="replace")


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _ends_of(*texts: str) -> str:
    """Return the ends of the texts that are not empty, each from a line of its own."""
    return "\n".join(filter(None, (text[-END_LETTERS:].strip() for text in texts)))


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
