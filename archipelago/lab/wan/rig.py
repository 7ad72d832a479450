"""A whole network: brought up, changed while a run uses it, and taken down without leftovers."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from archipelago.lab.wan import ceiling, kernel, nodes
from archipelago.lab.wan.delay import LOOK_S
from archipelago.lab.wan.network import FOLDER, MARK, Network, Region, problem_of_name, read
from archipelago.lab.wan.nodes import NodeSize
from coordinator.errors import RunFailed, UserMistake

FORWARDER_S = 20.0
"""Seconds for the forwarder to start."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a command of people, of a service manager and of a lost terminal."""


@dataclass(frozen=True, slots=True)
class Latency:
    """The way in which a network delays packets."""

    netem: bool
    """Whether the kernel does it; else the forwarder."""
    ceiling_gbit: float
    """The rate of one connection through the latency without a limit, in Gbit/s."""

    def __str__(self) -> str:
        by = "the kernel's netem" if self.netem else "a TUN device (this kernel has no netem)"
        return f"latency by {by}; its ceiling here is {self.ceiling_gbit:.2f} Gbit/s"


class LinksTooFast(UserMistake):
    """The links of a network together need more than half of what this machine forwards."""


def up(
    network: Network,
    say: Callable[[str], None],
    *,
    size: NodeSize | None,
    force: bool = False,
) -> Latency:
    """Bring a network up that stays until `down`; with a `size`, start a Ray cluster in it.

    If anything fails, or a signal ends the process meanwhile, all of it is taken down again.

    Errors: `UserMistake` if it is up already or cannot be made here; `LinksTooFast`, unless `force`
    is set; `RunFailed`.
    """
    _claim(network)
    with _signals_raise():
        try:
            return _made(network, say, size=size, force=force)
        except BaseException:
            _down_undisturbed(network.name)
            raise


@contextmanager
def running(
    network: Network,
    say: Callable[[str], None],
    *,
    size: NodeSize | None,
    force: bool = False,
) -> Generator[Latency]:
    """Bring a network up as `up` does, and take it down with the block, also on a signal.

    Errors: `UserMistake`, `LinksTooFast` and `RunFailed` as in `up`.
    """
    _claim(network)
    with _signals_raise():
        try:
            yield _made(network, say, size=size, force=force)
        finally:
            _down_undisturbed(network.name)


def _claim(network: Network) -> None:
    """Create the network's folder, which only one process can.

    Errors: `UserMistake` if the network is up.
    """
    kernel.need_root()
    FOLDER.mkdir(parents=True, exist_ok=True)
    is_up = bool(kernel.namespaces(network.name))
    try:
        if not is_up:
            network.folder.mkdir()
    except FileExistsError:
        is_up = True
    if is_up:
        raise UserMistake(
            f"a network named {network.name} is up, or was left by a crash; "
            f"`archipelago wan down --name {network.name}` removes it"
        )


@contextmanager
def _signals_raise() -> Generator[None]:
    """Let signals that end the process raise, so that `finally` clauses run."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    before = {each: signal.signal(each, end) for each in SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _down_undisturbed(name: str) -> None:
    """Take a network down; a second signal does not interrupt that."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    down(name)


def _made(
    network: Network, say: Callable[[str], None], *, size: NodeSize | None, force: bool
) -> Latency:
    network.write()
    kernel.make(network)
    netem = kernel.has_netem(network.backbone)
    if not netem:
        _start_forwarder(network)
        kernel.delay_by_device(network)
    for region in network.regions:
        free = replace(region, gbit=0.0)
        kernel.shape(replace(network, tuned=True), free, netem=netem)
    latency = Latency(netem, ceiling.measure(network))
    say(str(latency))
    needed = sum(region.gbit for region in network.regions)
    if needed > ceiling.SHARE * latency.ceiling_gbit and not force:
        raise LinksTooFast(
            f"the links together carry up to {needed:g} Gbit/s, more than half of the "
            f"{latency.ceiling_gbit:.2f} Gbit/s that this machine forwards, so the machine and not "
            "the links would be measured; take a smaller --gbit, or --force"
        )
    for region in network.regions:
        kernel.shape(network, region, netem=netem)
    if size is not None:
        _start_nodes(network, size)
    return latency


def _start_forwarder(network: Network) -> None:
    """Start the forwarder, and wait until its device is there.

    Errors: `RunFailed`.
    """
    command = [sys.executable, "-m", "archipelago.lab.wan.delay", network.name]
    nodes.launch(
        kernel.inside(network.backbone, *command),
        log := network.folder / "forwarder.log",
        {**os.environ, MARK: network.name},
    )
    end_s = time.monotonic() + FORWARDER_S
    while b"ready" not in (said := log.read_bytes()):
        if time.monotonic() > end_s:
            raise RunFailed(f"the forwarder did not start: {said.decode(errors='replace')[-500:]}")
        time.sleep(0.05)


def _start_nodes(network: Network, size: NodeSize) -> None:
    for region in network.regions:  # in turn: together they take too long on a busy machine
        nodes.bring_up(network, region, size)


def change(
    name: str,
    regions: list[str],
    *,
    gbit: float | None = None,
    rtt_ms: float | None = None,
    jitter_ms: float | None = None,
    cut: bool | None = None,
) -> Network:
    """Change links of a network that is up, all of them if `regions` is empty; None: as it was.

    Errors: `UserMistake`; `RunFailed`.
    """
    kernel.need_root()
    with _locked(read(name)):
        return _changed(read(name), regions, gbit, rtt_ms, jitter_ms, cut)


@contextmanager
def _locked(network: Network) -> Generator[None]:
    """Let one command at a time change a network."""
    with (network.folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _changed(
    network: Network,
    regions: list[str],
    gbit: float | None,
    rtt_ms: float | None,
    jitter_ms: float | None,
    cut: bool | None,
) -> Network:
    chosen = [network.region(each) for each in regions] or list(network.regions)
    wishes = {"gbit": gbit, "rtt_ms": rtt_ms, "jitter_ms": jitter_ms, "cut": cut}
    changes = {key: value for key, value in wishes.items() if value is not None}
    if wrong := [f"--{key.replace('_', '-')} {value:g}" for key, value in changes.items()
                 if value < 0]:  # fmt: skip
        raise UserMistake(f"{', '.join(wrong)}: it may not be below 0")
    for region in chosen:
        network = network.with_region(replace(region, **changes))
    network.write()
    time.sleep(2 * LOOK_S)  # the forwarder has read it then
    netem = kernel.has_netem(network.backbone)
    for region in chosen:
        kernel.shape(network, network.region(region.name), netem=netem)
    return network


def restart_node(name: str, region: str, size: NodeSize) -> None:
    """Start the node of a region again, after Ray has ended the one that it had.

    Errors: `UserMistake`; `RunFailed` if it does not come up.
    """
    network = read(name)
    nodes.bring_up(network, network.region(region), size)


def down(name: str) -> list[str]:
    """Take a network down: processes, namespaces, files; return a list of the removed parts.

    It also removes what a crash has left.

    Errors: `UserMistake` if that is no name.
    """
    if (problem := problem_of_name(name)) is not None:
        raise UserMistake(problem)
    ended = nodes.end(name)
    found = [f"{ended} process{'es' if ended > 1 else ''}"] if ended else []
    found += kernel.remove(name)
    folder: Path = FOLDER / name
    if folder.exists():
        shutil.rmtree(folder)
        found.append(str(folder))
    return found


def links(network: Network) -> list[dict[str, object]]:
    """Return one row for each region: its link, its address and what it has carried."""
    counted = kernel.counters(network)

    def row(region: Region) -> dict[str, object]:
        return {
            "region": region.name,
            "address": network.address(region.number),
            "gbit": region.gbit,
            "rtt_ms": region.rtt_ms,
            "jitter_ms": region.jitter_ms,
            "cut": region.cut,
            **counted[region.name],
        }

    return [row(region) for region in network.regions]
