"""The link between two hosts is cut, in both directions and in one, and heals.

The hosts are network namespaces of the kernel with a virtual cable between them. Real packets are
lost, so Ray's connections hang without an error.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.live.cli import TINY, Place, finish, place, until

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(500)]

HEAD, FAR = "10.77.0.1", "10.77.0.2"
PORT = 6379
TOKEN = "a-token-of-this-test-only-0123456789"
CUT_S = 20.0
"""Seconds of a cut: longer than a silent learner is waited for, shorter than Ray's timeout."""
HEARS = f"""
import socket, time
while socket.socket().connect_ex(({HEAD!r}, {PORT})):
    time.sleep(0.2)
"""
"""A script that waits until the head listens; a node that joins before that gives up."""
ARE_THERE = """
import ray, time
ray.init(f"{address}", log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < 2:
    time.sleep(0.2)
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass(frozen=True, slots=True)
class Hosts:
    """Two hosts: `near` has the head, fleet, syncer, shard and one island; `far` has another."""

    here: Place
    near: str
    far: str
    cable: str

    def start(self, host: str, *command: str) -> subprocess.Popen[str]:
        mine = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
        return subprocess.Popen(
            ["ip", "netns", "exec", host, sys.executable, *command],
            env=self.here.environment | mine,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ray(self, host: str, *options: str) -> subprocess.Popen[str]:
        return self.start(
            host, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1",
            "--object-store-memory=100000000", "--disable-usage-stats", *options,
        )  # fmt: skip

    @contextmanager
    def unplugged(self) -> Generator[None]:
        """Cut the link, so that no packet passes."""
        ip("-n", self.far, "link", "set", self.cable, "down")
        try:
            yield
        finally:
            ip("-n", self.far, "link", "set", self.cable, "up")

    @contextmanager
    def mute(self) -> Generator[None]:
        """Drop what the far host sends; it still receives."""
        route = "blackhole", f"{HEAD}/32"
        ip("-n", self.far, "route", "add", *route)
        try:
            yield
        finally:
            ip("-n", self.far, "route", "del", *route)


@contextmanager
def two_hosts() -> Generator[Hosts]:
    """Start one Ray cluster on both hosts."""
    tag = f"al{os.getpid()}"
    with place() as here:
        hosts = Hosts(here, f"{tag}n", f"{tag}f", f"{tag}b")
        rays: list[subprocess.Popen[str]] = []
        try:
            for host in (hosts.near, hosts.far):
                ip("netns", "add", host)
            ends = {hosts.near: f"{tag}a", hosts.far: hosts.cable}
            peer = "type", "veth", "peer", "name", hosts.cable, "netns", hosts.far
            ip("link", "add", ends[hosts.near], "netns", hosts.near, *peer)
            for (host, end), address in zip(ends.items(), (HEAD, FAR), strict=True):
                ip("-n", host, "address", "add", f"{address}/24", "dev", end)
                for device in ("lo", end):
                    ip("-n", host, "link", "set", device, "up")
            first = ("--head", f"--port={PORT}", "--include-dashboard=false")
            rays.append(hosts.ray(hosts.near, *first, f"--node-ip-address={HEAD}"))
            hears = finish(hosts.start(hosts.near, "-c", HEARS))
            assert hears.code == 0, hears.err
            address = f"{HEAD}:{PORT}"
            rays.append(hosts.ray(hosts.far, f"--address={address}", f"--node-ip-address={FAR}"))
            there = finish(hosts.start(hosts.near, "-c", f"address = {address!r}{ARE_THERE}"))
            assert there.code == 0, there.err
            yield hosts
        finally:
            for each in reversed(rays):
                each.send_signal(signal.SIGTERM)
                each.communicate(timeout=60)
            for host in (hosts.near, hosts.far):
                ip("netns", "delete", host)


def test_an_island_behind_a_cut_link_is_left_out_and_comes_back() -> None:
    with two_hosts() as hosts:
        here = hosts.here
        process = hosts.start(
            hosts.near, "-m", "archipelago", "run", str(TINY), "--json",
            "--address", f"{HEAD}:{PORT}", "--run-dir", str(here.run_dir),
            "--set", "run.steps=1000000", "--set", "islands.0.resources.CPU=1.0",
            "--set", "islands.0.speed=0.3",
        )  # fmt: skip

        def comes_to(what: Callable[[], object]) -> None:
            until(lambda: what() or process.poll() is not None)
            assert process.poll() is None, process.communicate()

        comes_to(lambda: all_contribute(here))
        for cut in (hosts.unplugged, hosts.mute):
            merges = here.merges
            with cut():
                began_s = time.monotonic()
                comes_to(lambda: len(live(here)) == 1)
                merged = here.merges
                assert merged > merges
                comes_to(lambda merged=merged: here.merges > merged + 5)
                comes_to(lambda began_s=began_s: time.monotonic() - began_s > CUT_S)
                assert len(live(here)) == 1, "nobody has heard the other"
            healed_s = time.monotonic()
            comes_to(lambda: all_contribute(here))
            print(f"{cut.__name__}: back {time.monotonic() - healed_s:.1f} s after it had healed")
        os.killpg(process.pid, signal.SIGINT)
        finished = finish(process)
        assert finished.code == 130, finished.err
        summary = finished.json
        fates = ("merged", "discarded", "lost", "outstanding")
        assert summary["tokens_trained"] == sum(summary[f"tokens_{fate}"] for fate in fates)
        assert here.last_status["figures"]["generation"] == 0


def live(here: Place) -> list[str]:
    islands = here.last_status.get("islands", ())
    return [each["island"] for each in islands if each["state"] == "live"]


def all_contribute(here: Place) -> bool:
    """Return whether both islands are in the last merge of each fragment."""
    fragments = here.last_status.get("fragments", ())
    return len(live(here)) == 2 and all(len(each["participants"]) == 2 for each in fragments)
