"""A real run over the regions of a network on this machine, for benchmarks of links."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from archipelago.lab.bench.child_run import ChildRun, ends_on_sigterm, started
from archipelago.lab.wan import kernel, nodes, rig
from archipelago.lab.wan.network import Network
from cluster.config.schema import Config

NODE = nodes.NodeSize(cpus=1.0, store_mb=150)
"""The size of the node in each region."""


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
