"""A whole network: brought up, changed while a run uses it, and taken down without leftovers."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from archipelago.lab.wan import ceiling, kernel, nodes
from archipelago.lab.wan.delay import LOOK_S
from archipelago.lab.wan.network import (
    FOLDER,
    MARK,
    Network,
    WanRegion,
    problem_of_name,
    read,
    wrong_link,
)
from archipelago.lab.wan.nodes import NodeSize
from archipelago.lab.wan.signals import SIGNALS, signals_raise
from coordinator.errors import RunFailed, UserMistake

FORWARDER_S = 20.0
"""Seconds for the forwarder to start."""


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
    with signals_raise():
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
    with signals_raise():
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
    network = replace(network, ceiling_gbit=latency.ceiling_gbit, forced=force)
    _within_ceiling(network)
    network.write()
    for region in network.regions:
        kernel.shape(network, region, netem=netem)
    if size is not None:
        _start_nodes(network, size)
    return latency


def _within_ceiling(network: Network) -> None:
    """Check that the links together need at most half of what this machine forwards.

    A link without a limit needs more than that.

    Errors: `LinksTooFast`, unless the network is forced or its ceiling is not measured.
    """
    most = network.ceiling_gbit
    if most is None or network.forced:
        return
    needed = sum(region.gbit for region in network.regions)
    free = ", ".join(region.name for region in network.regions if not region.gbit)
    if not free and needed <= ceiling.SHARE * most:
        return
    rates, smaller = f"the links together carry up to {needed:g} Gbit/s,", "smaller --gbit"
    if free:
        rates, smaller = f"the links of {free} have no limit, so they carry", "--gbit above 0"
    raise LinksTooFast(
        f"{rates} more than half of the {most:.2f} Gbit/s that this machine forwards, so the "
        f"machine and not the links would be measured; take a {smaller}, or --force"
    )


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
    force: bool = False,
) -> Network:
    """Change links of a network that is up, all of them if `regions` is empty; None: as it was.

    Errors: `UserMistake`; `LinksTooFast` as in `up`; `RunFailed`.
    """
    kernel.need_root()
    with _locked(read(name)):
        wishes = {"gbit": gbit, "rtt_ms": rtt_ms, "jitter_ms": jitter_ms}
        network = changed(read(name), regions, wishes, cut=cut, force=force)
        network.write()
        time.sleep(2 * LOOK_S)  # the forwarder has read it then
        netem = kernel.has_netem(network.backbone)
        for region in _chosen(network, regions):
            kernel.shape(network, region, netem=netem)
        return network


@contextmanager
def _locked(network: Network) -> Generator[None]:
    """Let one command at a time change a network."""
    with (network.folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def changed(
    network: Network,
    regions: list[str],
    wishes: Mapping[str, float | None],
    *,
    cut: bool | None = None,
    force: bool = False,
) -> Network:
    """Return a network with other links, all of them if `regions` is empty; None: as it was.

    Errors: `UserMistake`; `LinksTooFast` as in `up`, if a bandwidth changes.
    """
    numbers = {key: value for key, value in wishes.items() if value is not None}
    if wrong := wrong_link({f"--{key.replace('_', '-')}": each for key, each in numbers.items()}):
        raise UserMistake("\n".join(wrong))
    changes: dict[str, Any] = numbers if cut is None else {**numbers, "cut": cut}
    for region in _chosen(network, regions):
        network = network.with_region(replace(region, **changes))
    if "gbit" in numbers:
        network = replace(network, forced=network.forced or force)
        _within_ceiling(network)
    return network


def _chosen(network: Network, names: list[str]) -> list[WanRegion]:
    """Return the regions with these names; all of them if there is no name."""
    return [network.region(each) for each in names] or list(network.regions)


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

    def row(region: WanRegion) -> dict[str, object]:
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
