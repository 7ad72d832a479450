"""Two hosts on this machine with a link of limited bandwidth between them; needs root.

The hosts are network namespaces, joined by a virtual cable whose ends have token buckets; one Ray
cluster spans both. `near` has the head and the measuring process; `far` has the learners.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cluster.launch.ray_cluster import RAY_SETTINGS
from coordinator.errors import RunFailed

HEAD, FAR, PORT = "10.78.0.1", "10.78.0.2", 6379
FAR_RESOURCE = "far"
"""The Ray resource that places an actor on the far host."""
BURST_BYTES = 256 * 2**10
START_S, LOOK_S = 120.0, 0.5


def can_be() -> bool:
    """Return whether this process may make hosts: it needs root, `ip` and `tc`."""
    return os.geteuid() == 0 and all(shutil.which(tool) for tool in ("ip", "tc"))


@dataclass(frozen=True, slots=True)
class NamespaceHosts:
    """The two namespaces, and the environment of the processes in them."""

    near: str
    """The name of the namespace with the head."""
    far: str
    """The name of the namespace with the learners."""
    environment: dict[str, str]
    """The environment of every process in either namespace."""

    def start(self, host: str, *command: str, into: int | None = None) -> subprocess.Popen[str]:
        """Start a Python process on a host; its output and errors go to `into`."""
        return subprocess.Popen(
            ["ip", "netns", "exec", host, sys.executable, *command],
            env=self.environment,
            text=True,
            start_new_session=True,
            stdout=into,
            stderr=into,
        )


def _ip(*words: str) -> None:
    """Run `ip` with these words. Errors: `RunFailed`."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailed(f"ip {' '.join(words)}: {done.stderr.strip()}")


def _narrow(host: str, device: str, bits_s: float) -> None:
    """Limit what a device sends to `bits_s`, by a token bucket. Errors: `RunFailed`."""
    bucket = ["tbf", "rate", f"{bits_s:.0f}bit", "burst", str(BURST_BYTES), "latency", "200ms"]
    command = ["ip", "netns", "exec", host, "tc", "qdisc", "add", "dev", device, "root", *bucket]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailed(f"no token bucket on {device}: {done.stderr.strip()}")


@contextmanager
def two_hosts(
    bits_s: float, near_store_bytes: int, far_store_bytes: int
) -> Generator[tuple[NamespaceHosts, str]]:
    """Make two hosts with a Ray cluster, and yield them with its address; remove both at the end.

    Errors: `RunFailed` if they cannot be made.
    """
    tag = f"ab{os.getpid()}"
    with TemporaryDirectory(prefix="al-") as folder:  # socket paths must be short
        settings = {"RAY_TMPDIR": folder, "RAY_AUTH_MODE": "disabled", "PYTHONUNBUFFERED": "1"}
        hosts = NamespaceHosts(f"{tag}n", f"{tag}f", {**os.environ, **RAY_SETTINGS, **settings})
        rays: list[subprocess.Popen[str]] = []
        try:
            for host in (hosts.near, hosts.far):
                _ip("netns", "add", host)
            ends = {hosts.near: f"{tag}a", hosts.far: f"{tag}b"}
            peer = ("type", "veth", "peer", "name", ends[hosts.far], "netns", hosts.far)
            _ip("link", "add", ends[hosts.near], "netns", hosts.near, *peer)
            for host, address in ((hosts.near, HEAD), (hosts.far, FAR)):
                _ip("-n", host, "address", "add", f"{address}/24", "dev", ends[host])
                for device in ("lo", ends[host]):
                    _ip("-n", host, "link", "set", device, "up")
                _narrow(host, ends[host], bits_s)
            address = f"{HEAD}:{PORT}"
            head_options = ["--head", f"--port={PORT}", "--include-dashboard=false"]
            rays.append(_ray(hosts, hosts.near, HEAD, near_store_bytes, head_options))
            _until_heard(hosts)
            join_options = [f"--address={address}", f'--resources={{"{FAR_RESOURCE}": 1000}}']
            rays.append(_ray(hosts, hosts.far, FAR, far_store_bytes, join_options))
            yield hosts, address
        finally:
            for each in reversed(rays):
                each.send_signal(signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    each.wait(60)
                with suppress(ProcessLookupError):
                    os.killpg(each.pid, signal.SIGKILL)
            for host in (hosts.near, hosts.far):
                with suppress(RunFailed):
                    _ip("netns", "delete", host)


def _ray(
    hosts: NamespaceHosts, host: str, address: str, store_bytes: int, options: Sequence[str]
) -> subprocess.Popen[str]:
    """Start Ray on a host, with its output in a log file."""
    log_path = Path(hosts.environment["RAY_TMPDIR"]) / f"{host}.log"
    with log_path.open("w") as log:
        return hosts.start(
            host,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--block",
            "--num-cpus=2",
            "--disable-usage-stats",
            f"--node-ip-address={address}",
            f"--object-store-memory={store_bytes}",
            *options,
            into=log.fileno(),
        )


def _until_heard(hosts: NamespaceHosts) -> None:
    """Wait until the head listens, since a node that joins earlier gives up.

    Errors: `RunFailed` if that takes longer than `START_S`.
    """
    script = f"import socket; exit(socket.socket().connect_ex(({HEAD!r}, {PORT})) != 0)"
    end_s = time.monotonic() + START_S
    while hosts.start(hosts.near, "-c", script).wait():
        if time.monotonic() > end_s:
            raise RunFailed(f"Ray's head is not there within {START_S:g} s")
        time.sleep(LOOK_S)
