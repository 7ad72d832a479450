"""The nodes of a Ray cluster in a network: one raylet in each region, the head in the first."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from archipelago.lab.wan.kernel import inside
from archipelago.lab.wan.network import MARK, Network, WanRegion
from cluster.launch.ray_cluster import RAY_SETTINGS
from cluster.launch.wan_settings import settings_for
from coordinator.errors import RunFailed

PORT, JOBS_PORT = 6379, 8265
"""The head's control service, and its job server."""
READY_S, END_S = 60.0, 20.0
"""Seconds for a node to start, and to end after SIGTERM."""
FIXED_PORTS = (
    "--node-manager-port=6380", "--object-manager-port=6381",
    "--dashboard-agent-grpc-port=6382", "--dashboard-agent-listen-port=6383",
    "--metrics-export-port=6384", "--min-worker-port=10002", "--max-worker-port=10999",
)  # fmt: skip
"""The options of `ray start` that leave no port to chance (docs/howto/wan.md, step 2)."""
STARTED = b"Ray runtime started."
"""The line that `ray start` prints once a node is part of the cluster."""
ATTEMPTS, LOG_LINES = 3, 5
"""Attempts to start a node, and the last lines of its log in an error."""
LABEL = "region"
"""The label of a node with the name of its region."""
OWN_FOLDER = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
"""A shell script that runs a command with one folder in the place of another."""


def token_file(network: Network) -> Path:
    """Return the file with the cluster's token, which the first call makes."""
    path = network.folder / "token"
    if not path.exists():
        path.touch(0o600)
        path.write_text(secrets.token_hex(32))
    return path


def environment(network: Network) -> dict[str, str]:
    """Return the environment of a process that belongs to the network or talks to its cluster."""
    first = network.regions[0]
    tuned = settings_for(first.gbit or 1.0, first.rtt_ms).ray if network.tuned else ()
    return {
        **RAY_SETTINGS,
        **{each.name: each.value for each in tuned},
        **os.environ,
        MARK: network.name,
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",  # jobs use `python`
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_file(network)),
    }


@dataclass(frozen=True, slots=True)
class NodeSize:
    """The resources of a region's Ray node."""

    cpus: float = 2.0
    store_mb: int = 512
    """The size of the object store in MiB."""


CHILDREN: list[subprocess.Popen[bytes]] = []
"""The processes that this one has started and that outlive it; `end` reaps them."""


def launch(command: Sequence[str], log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, with its output in a log."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    CHILDREN.append(process)
    return process


def start(network: Network, region: WanRegion, size: NodeSize) -> subprocess.Popen[bytes]:
    """Start a region's node, and return the process of `ray start`, without waiting for it.

    Ray's nodes of one cluster have the same path for their session. Each region mounts a folder of
    its own there, as on a machine of its own: with one folder for all, a node removes the packages
    of a job while a worker of another node imports them.
    """
    address = network.address(region.number)
    head, session = network.address(0), network.folder / "ray"
    words = [f"--node-ip-address={address}", f"--num-cpus={size.cpus:g}", "--block"]
    words += [f"--object-store-memory={size.store_mb * 2**20}", "--disable-usage-stats"]
    words += [f"--labels={LABEL}={region.name}", *FIXED_PORTS]
    if region.number == 0:
        dashboard = ["--include-dashboard=true", f"--dashboard-host={address}"]
        words += ["--head", f"--port={PORT}", *dashboard, f"--dashboard-port={JOBS_PORT}"]
        words += [f"--temp-dir={session}"]
    else:
        words += [f"--address={head}:{PORT}"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *words]
    if region.number != 0:
        own = network.folder / f"ray-{region.number}"
        for folder in (own, session):
            folder.mkdir(exist_ok=True)
        command = ["sh", "-c", OWN_FOLDER, "sh", str(own), str(session), *command]
    return launch(
        inside(network.namespace(region), *command), log_of(network, region), environment(network)
    )


def bring_up(network: Network, region: WanRegion, size: NodeSize) -> None:
    """Start a region's node, and wait until it is part of the cluster.

    On a busy machine Ray now and then gives up after 30 s, which is fixed; it is started again.

    Errors: `RunFailed` with the end of the node's log.
    """
    log = log_of(network, region)
    for _ in range(ATTEMPTS):
        place = log.stat().st_size if log.exists() else 0
        process = start(network, region, size)
        end_s = time.monotonic() + READY_S
        while process.poll() is None and time.monotonic() < end_s:
            if STARTED in log.read_bytes()[place:]:
                return
            time.sleep(0.2)
        process.terminate()  # `ray start` ends what it has started
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    raise RunFailed(
        f"Ray did not start in {region.name}, tried {ATTEMPTS} times:\n{_end_of_log(log)}"
    )


def _end_of_log(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])


def log_of(network: Network, region: WanRegion) -> Path:
    """Return the log of a region's node."""
    return network.folder / f"node-{region.name}.log"


def processes(name: str) -> dict[int, Mapping[str, str]]:
    """Return the processes of a network, also of one whose owner was killed, with environments."""
    found = dict[int, Mapping[str, str]]()
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        try:
            text = (process / "environ").read_bytes().decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        pairs = (each.partition("=") for each in text.split("\0"))
        own = {key: value for key, _, value in pairs}
        if own.get(MARK) == name:
            found[int(process.name)] = own
    return found


def end(name: str) -> int:
    """End all processes of a network, and return how many there were."""
    count = len(processes(name))
    for number, patience_s in ((signal.SIGTERM, END_S), (signal.SIGKILL, END_S)):
        end_s = time.monotonic() + patience_s
        for pid in (found := processes(name)):
            _signal(pid, number)
        while found and time.monotonic() < end_s:
            time.sleep(0.1)
            found = processes(name)
        if not found:
            break
    for child in [*CHILDREN]:
        if child.poll() is not None:
            CHILDREN.remove(child)
    return count


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
