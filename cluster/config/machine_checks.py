"""Checks between fields of machines: TPU slices, hosts and meshes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from cluster.config import slices
from cluster.config.field_check import reads
from cluster.config.problem_text import Problem
from cluster.config.schema import Config, Machines


def _machines(config: Config) -> Iterator[tuple[str, Machines]]:
    """Yield the machines of each group and of the evaluator, with their place in the tables."""
    for number, group in enumerate(config.islands):
        yield f"islands.{number}", group
    yield "monitor.evaluator", config.monitor.evaluator


@reads(
    "islands.*.topology",
    "islands.*.accelerator",
    "monitor.evaluator.topology",
    "monitor.evaluator.accelerator",
)
def slices_are_of_tpus(config: Config) -> Iterator[Problem]:
    """Check that a topology comes with a TPU accelerator."""
    for where, given in _machines(config):
        if given.topology and not (given.accelerator or "").startswith("TPU-"):
            yield Problem(
                f"{where}.accelerator",
                f'a slice {given.topology} is of TPUs: say which, such as "TPU-V6E"',
            )


@reads(
    "islands.*.topology",
    "islands.*.accelerator",
    "islands.*.resources",
    "islands.*.hosts",
    "monitor.evaluator",
)
def slices_have_as_many_hosts(config: Config) -> Iterator[Problem]:
    """Check that `hosts` is the number of hosts of the TPU slice, with equal numbers of chips."""
    for where, machines in _machines(config):
        kind, given = machines.accelerator or "", machines.resources.get("TPU") or None
        if machines.topology is None or not kind.startswith("TPU-"):
            continue
        chips, hosts = slices.chips(machines.topology), slices.hosts(machines.topology, kind, given)
        each = given or slices.chips_per_host(machines.topology, kind)
        source = f" as {where}.resources.TPU says" if given else ""
        slice_text = (
            f"a slice {machines.topology} of {kind} has {chips} chips, {each:g} on a host{source}"
        )
        if chips % each and hosts > 1:
            yield Problem(
                f"{where}.topology",
                f"{slice_text}: its hosts would not have equally many, as they must; take another",
            )
        elif hosts != machines.hosts:
            largest, noun = slices.largest_of_one_host(kind), "host" if hosts == 1 else "hosts"
            yield Problem(
                f"{where}.hosts",
                f"{slice_text}: {hosts} {noun}, and {machines.hosts} is given; "
                f"say hosts = {hosts}, or take another slice (of one host: {largest} at most)",
            )


@reads("islands.*.hosts", "islands.*.encode", "monitor.evaluator.hosts", "run.mode")
def several_hosts_are_built(config: Config) -> Iterator[Problem]:
    """Check that several hosts are given only where the mode and `encode` support them."""
    for where, machines in _machines(config):
        if machines.hosts > 1 and config.run.mode.sums_gradients:
            mode = config.run.mode
            yield Problem(
                f"{where}.hosts", f"run.mode = {mode} is for one host of each so far; leave it at 1"
            )
    for number, group in enumerate(config.islands):
        if group.hosts > 1 and group.encode == "device":
            yield Problem(
                f"islands.{number}.encode",
                'is not built yet for several hosts; use "host", or hosts = 1',
            )


@reads("islands.*.mesh", "islands.*.hosts", "monitor.evaluator.mesh", "monitor.evaluator.hosts")
def meshes_can_be(config: Config) -> Iterator[Problem]:
    """Check that at most one axis of a mesh is -1, and that CPU hosts share its devices evenly."""
    for where, machines in _machines(config):
        mesh, hosts = machines.mesh, machines.hosts
        sizes = mesh.model_dump()
        if len(free_axes := [name for name, size in sizes.items() if size == -1]) > 1:
            axes = " and ".join(free_axes)
            yield Problem(f"{where}.mesh", f"{axes} are both -1, the rest; give one a size")
        known = math.prod(size for size in sizes.values() if size != -1)
        if machines.on_cpu and len(free_axes) == 1 and hosts % known:
            count = f"are {hosts}" if hosts > 1 else "is one"
            yield Problem(
                f"{where}.mesh",
                f"is of a multiple of {known} devices, and there {count}, one to a host on CPUs; "
                "give every axis a size, and there are as many",
            )
        if machines.on_cpu and mesh.devices is not None and mesh.devices % hosts:
            yield Problem(
                f"{where}.mesh",
                f"{mesh.devices} devices cannot be shared evenly by {hosts} hosts; give "
                f"sizes whose product is a multiple of {hosts}",
            )


@reads("islands.*.mesh", "islands.*.batch_size", "islands.*.accumulate")
def batches_divide(config: Config) -> Iterator[Problem]:
    """Check that a batch splits evenly into parts, and over the batch axes of its mesh."""
    for number, group in enumerate(config.islands):
        splits = group.mesh.splits
        parts = group.accumulate * (1 if group.mesh.devices is None else splits)
        if group.accumulate > 1 and group.batch_size % parts:
            yield Problem(
                f"islands.{number}.accumulate",
                f"{group.batch_size} windows cannot be split into {group.accumulate} parts on each "
                f"of {parts // group.accumulate} devices; use a batch_size that is a multiple of "
                f"{parts}",
            )
            continue
        if group.mesh.devices is not None and group.batch_size % splits:
            axes = "data x fsdp" + (" x expert" if group.mesh.expert > 1 else "")
            yield Problem(
                f"islands.{number}.batch_size",
                f"{group.batch_size} windows cannot be split over {splits} devices, {axes} of its "
                f"mesh; use a multiple of {splits}",
            )


@reads("run.budget.usd", "islands.*.usd_per_hour")
def budget_has_prices(config: Config) -> Iterator[Problem]:
    """Check that dollars are limited only where every group has a price."""
    free = [group.group for group in config.islands if group.usd_per_hour is None]
    if config.run.budget is not None and config.run.budget.usd is not None and free:
        yield Problem(
            "run.budget.usd",
            f"no price is known for {', '.join(free)}; give usd_per_hour in every [[islands]], or "
            "limit run.budget.device_hours",
        )
