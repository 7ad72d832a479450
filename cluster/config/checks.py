"""Checks between fields; each says which fields it reads."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import TypeAlias
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel

from cluster.config import slices
from cluster.config.modes import misfit, problems_of_ring, problems_of_streaming
from cluster.config.problem_text import Problem
from cluster.config.rule import schedule_of
from cluster.config.schema import Config, Machines, SyncConfig

BUCKETS = ("s3", "gs", "gcs", "abfs", "abfss")
"""What pyarrow reaches where an object is replaced as a whole."""
SECRET = re.compile("key|secret|token|password", re.IGNORECASE)
Check: TypeAlias = Callable[[Config], Iterator[Problem]]
CHECKS: list[tuple[tuple[str, ...], Check]] = []
"""Each with the fields that it reads: it is left out when one of them is unsound already."""


def check(*reads: str) -> Callable[[Check], Check]:
    def register(function: Check) -> Check:
        CHECKS.append((reads, function))
        return function

    return register


@check("task.preset", "task.target")
def _one_task(config: Config) -> Iterator[Problem]:
    if config.task.preset is None and config.task.target is None:
        yield Problem("task", 'says not what to learn; give preset = "byte-1m", or a target')
    if config.task.preset is not None and config.task.target is not None:
        yield Problem("task", "preset and target are both given; keep one")


@check("data.tokens", "data.column")
def _tokens_have_column(config: Config) -> Iterator[Problem]:
    if config.data.tokens and config.data.column is None:
        yield Problem("data.column", "is needed by tokens = true: the Parquet column to read")


@check("sync.fragments", "sync.every")
def _fragments_fit(config: Config) -> Iterator[Problem]:
    given, every = config.sync.fragments, min(every for _, every in config.sync.stretches)
    if given > every:
        yield Problem(
            "sync.fragments",
            f"two of {given} fragments would be due at one step, as sync.every is {every}; "
            f"use {every} fragments or fewer, or a longer interval",
        )


def _machines(config: Config) -> Iterator[tuple[str, Machines]]:
    """All machines that compute as one, and where they stand in the configuration."""
    for number, group in enumerate(config.islands):
        yield f"islands.{number}", group
    yield "monitor.evaluator", config.monitor.evaluator


@check(
    "islands.*.topology",
    "islands.*.accelerator",
    "monitor.evaluator.topology",
    "monitor.evaluator.accelerator",
)
def _slices_are_of_tpus(config: Config) -> Iterator[Problem]:
    for where, given in _machines(config):
        if given.topology and not (given.accelerator or "").startswith("TPU-"):
            yield Problem(
                f"{where}.accelerator",
                f'a slice {given.topology} is of TPUs: say which, such as "TPU-V6E"',
            )


@check(
    "islands.*.topology",
    "islands.*.accelerator",
    "islands.*.resources",
    "islands.*.hosts",
    "monitor.evaluator",
)
def _slices_have_as_many_hosts(config: Config) -> Iterator[Problem]:
    for where, machines in _machines(config):
        kind, given = machines.accelerator or "", machines.resources.get("TPU") or None
        if machines.topology is None or not kind.startswith("TPU-"):
            continue
        chips, hosts = slices.chips(machines.topology), slices.hosts(machines.topology, kind, given)
        each = given or slices.chips_per_host(machines.topology, kind)
        says = f" as {where}.resources.TPU says" if given else ""
        what = f"a slice {machines.topology} of {kind} has {chips} chips, {each:g} on a host{says}"
        if chips % each and hosts > 1:
            yield Problem(
                f"{where}.topology",
                f"{what}: its hosts would not have equally many, as they must; take another",
            )
        elif hosts != machines.hosts:
            one, are = slices.largest_of_one_host(kind), "host" if hosts == 1 else "hosts"
            yield Problem(
                f"{where}.hosts",
                f"{what}: {hosts} {are}, and {machines.hosts} is given; "
                f"say hosts = {hosts}, or take another slice (of one host: {one} at most)",
            )


@check("islands.*.hosts", "islands.*.encode", "monitor.evaluator.hosts", "run.mode")
def _several_hosts_are_built(config: Config) -> Iterator[Problem]:
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


@check("islands.*.mesh", "islands.*.hosts", "monitor.evaluator.mesh", "monitor.evaluator.hosts")
def _meshes_can_be(config: Config) -> Iterator[Problem]:
    for where, machines in _machines(config):
        mesh, hosts = machines.mesh, machines.hosts
        sizes = {"data": mesh.data, "fsdp": mesh.fsdp, "tensor": mesh.tensor}
        if len(rest := [name for name, size in sizes.items() if size == -1]) > 1:
            which = " and ".join(rest)
            yield Problem(f"{where}.mesh", f"{which} are both -1, the rest; give one a size")
        known = math.prod(size for size in sizes.values() if size != -1)
        if machines.on_cpu and len(rest) == 1 and hosts % known:
            are = f"are {hosts}" if hosts > 1 else "is one"
            yield Problem(
                f"{where}.mesh",
                f"is of a multiple of {known} devices, and there {are}, one to a host on CPUs; "
                "give every axis a size, and there are as many",
            )
        if machines.on_cpu and mesh.devices is not None and mesh.devices % hosts:
            yield Problem(
                f"{where}.mesh",
                f"{mesh.devices} devices cannot be shared evenly by {hosts} hosts; give "
                f"sizes whose product is a multiple of {hosts}",
            )


@check("islands.*.mesh", "islands.*.batch_size")
def _batches_divide(config: Config) -> Iterator[Problem]:
    for number, group in enumerate(config.islands):
        ways = group.mesh.data * group.mesh.fsdp
        if group.mesh.devices is not None and group.batch_size % ways:
            yield Problem(
                f"islands.{number}.batch_size",
                f"{group.batch_size} windows cannot be split over {ways} devices, data x fsdp of "
                f"its mesh; use a multiple of {ways}",
            )


@check("durability.dir")
def _durable_everywhere(config: Config) -> Iterator[Problem]:
    """What may be a secret is not shown."""
    if (given := config.durability.dir) is None or given.startswith("/"):
        return
    parts, where = urlsplit(given), "durability.dir"
    if parts.scheme not in BUCKETS:
        known = ", ".join(f"{scheme}://" for scheme in BUCKETS)
        yield Problem(where, f"must be an absolute path that every node sees, or one of {known}")
    elif not parts.netloc:
        yield Problem(where, f"names no bucket: {parts.scheme}://BUCKET/PREFIX")
    if parts.password or any(SECRET.search(key) for key in parse_qs(parts.query)):
        yield Problem(
            where,
            "holds credentials, which would be written into the run's files; leave them to the "
            "environment of Ray's nodes (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS ...)",
        )


@check("durability.keep_segments", "durability.keep_contributions")
def _whole_tape_is_kept(config: Config) -> Iterator[Problem]:
    if config.durability.keep_segments and config.durability.keep_contributions:
        yield Problem(
            "durability.keep_segments",
            "lets the beginning of the tape go, and what keep_contributions keeps is of use only "
            "with all of it; leave one out",
        )


@check("sync.overlap", "sync.every", "sync.fragments", "sync.adopt", "sync.anchor")
def _overlap_fits(config: Config) -> Iterator[Problem]:
    sync = config.sync
    given, least = sync.least_overlap, schedule_of(config).least
    # who runs free and keeps its late hand-ins in place hands in again before it adopts
    keeps = sync.adopt == "carry" and sync.anchor == "base" and not config.run.mode.lock_step
    most = least if keeps else least - 1
    if given > most:
        kind = "sync.every" if isinstance(sync.every, int) else "the least interval of sync.every"
        yield Problem(
            "sync.overlap",
            f"{given} steps would reach the fragment's next round, as {kind} is {least}; "
            f"use {most} at most",
        )


@check("sync.outer")
def _one_outer_optimizer(config: Config) -> Iterator[Problem]:
    outer = config.sync.outer
    own = {"learning_rate", "momentum", "nesterov"} & outer.model_fields_set
    if outer.target is None and outer.options:
        yield Problem("sync.outer.options", "are those of a target, and there is none")
    if outer.target is not None and (own := sorted(k for k in own if _changed(outer, k))):
        yield Problem(
            f"sync.outer.{own[0]}", f"is not for {outer.target}; put it into sync.outer.options"
        )


def _changed(table: BaseModel, key: str) -> bool:
    """Tell whether a key is not at its default: a resolved configuration names every key."""
    return getattr(table, key) != type(table).model_fields[key].default


@check("sync.shards", "sync.fragments")
def _shards_have_fragments(config: Config) -> Iterator[Problem]:
    given, fragments = config.sync.shards, config.sync.fragments
    if given > fragments:
        yield Problem(
            "sync.shards", f"{given} processes cannot share {fragments} fragments; use fewer"
        )


@check("sync.shard_labels", "durability.dir")
def _shards_elsewhere_are_durable_there(config: Config) -> Iterator[Problem]:
    if config.sync.shard_labels is not None and config.durability.dir is None:
        yield Problem(
            "sync.shard_labels",
            "puts shards on nodes that do not see the run directory; give durability.dir, a folder "
            "that every node sees or a bucket",
        )


@check("sync.quorum", "islands.*.count")
def _quorum_exists(config: Config) -> Iterator[Problem]:
    given, total = config.sync.quorum, len(config.island_names)
    if 0 < total < given:
        yield Problem(
            "sync.quorum",
            f"no round could ever close: {given} contributions are needed and there are {total} "
            f"islands; use {total} or less, or more islands",
        )


@check("sync.adopt", "sync.blend")
def _blend_has_alpha(config: Config) -> Iterator[Problem]:
    if config.sync.adopt == "blend" and config.sync.blend is None:
        yield Problem("sync.blend", 'is needed by adopt = "blend": a share between 0 and 1')
    if config.sync.adopt != "blend" and config.sync.blend is not None:
        yield Problem(
            "sync.blend",
            f'is read only by adopt = "blend", and adopt is "{config.sync.adopt}"; leave one out',
        )


@check("optimizer.kind", "optimizer.adamw_share")
def _some_leaves_go_by_adamw(config: Config) -> Iterator[Problem]:
    if config.optimizer.kind == "adamw" and config.optimizer.adamw_share != 1:
        yield Problem(
            "optimizer.adamw_share",
            'is for the leaves beside those of kind = "muon"; with "adamw" all go by it: set '
            "optimizer.learning_rate instead",
        )


@check("sync.merge", "sync.kappa")
def _kappa_is_of_rda(config: Config) -> Iterator[Problem]:
    if config.sync.merge != "rda" and config.sync.kappa is not None:
        yield Problem(
            "sync.kappa",
            f'is read only by merge = "rda", and merge is "{config.sync.merge}"; leave one out',
        )


@check("sync.moments", "sync.moments_every", "sync.wire_moments")
def _moments_are_shared(config: Config) -> Iterator[Problem]:
    """What says how they are is of no use where they are not."""
    if config.sync.moments == "mean":
        return
    for key in ("moments_every", "wire_moments"):
        if getattr(config.sync, key) != SyncConfig.model_fields[key].default:
            yield Problem(
                f"sync.{key}",
                'is read only by moments = "mean", and moments is "own"; leave one out',
            )


@check("islands")
def _some_islands(config: Config) -> Iterator[Problem]:
    if not config.islands:
        yield Problem("islands", "there are none; add an [[islands]] table with group and count")


@check("islands.*.group")
def _groups_differ(config: Config) -> Iterator[Problem]:
    names = [group.group for group in config.islands]
    for name in sorted({name for name in names if names.count(name) > 1}):
        places = ", ".join(f"islands.{i}" for i, other in enumerate(names) if other == name)
        yield Problem("islands", f'{places} are all named "{name}"; give each group its own name')


check("run.mode", "sync.wire_up", "islands")(problems_of_ring)
check("run.mode", "sync.overlap", "sync.fragments")(problems_of_streaming)


@check("islands.*.group", "islands.*.count", "run.mode")
def _faults_hit(config: Config) -> Iterator[Problem]:
    for fault in config.faults.plan:
        why = fault.misfit(config.island_names) or misfit(config, fault)
        if why is not None:
            yield Problem("faults.plan", why)


@check("run.steps")
def _faults_happen(config: Config) -> Iterator[Problem]:
    for fault in config.faults.plan:
        if fault.at_step > config.run.steps:
            yield Problem(
                "faults.plan",
                f'the {fault.kind} of "{fault.island}" at step {fault.at_step} would come after '
                f"the end; run.steps is {config.run.steps}",
            )
