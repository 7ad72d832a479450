"""A batch file for Slurm around `ray symmetric-run`.

Each node group is a component of one heterogeneous job, because nodes of a component are equal. The
first node is the head: it has an island, and fleet, syncer and shards beside it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from archipelago.manifest.node_groups import NodeGroup, Role
from cluster.config.schema import Config
from cluster.launch.ray_cluster import RAY_SETTINGS
from cluster.storage.files import json_text
from cluster.storage.runs import SUMMARY

CONFIG_FILE, BATCH_FILE = "run.toml", "run.sbatch"
"""The names of the two files; the second one is submitted in their folder."""
WARNING_S = 120
"""Seconds before the time limit at which the job is put back into the queue."""
PORTS, FIRST_PORT = 10_000, 20_000
"""Ports of heads: the number of the job chooses one of them, since nodes can be shared."""
START_S = 600
"""The timeout in seconds for all nodes to start: Ray's own 30 s are few for a large cluster."""
END_EARLIER_LIFE = """\
for each in /proc/[0-9]*; do
    own=$(tr "\\0" "\\n" 2>/dev/null < "$each/environ" | grep "^SLURM_") || continue
    grep -qx "SLURM_JOB_ID=$SLURM_JOB_ID" <<< "$own" || continue
    grep -qx "SLURM_RESTART_COUNT=$SLURM_RESTART_COUNT" <<< "$own" || kill -KILL "${each#/proc/}"
done"""
"""Ends the processes on a node that belong to this job, but to its life before the requeue."""


@dataclass(frozen=True, slots=True)
class SlurmSite:
    """A Slurm cluster, as far as its users must describe it."""

    name: str
    """The name of the job and the run."""
    time: str | None = None
    """The time limit, as Slurm writes it; None: the partition's."""
    account: str | None = None
    """The account; None: the user's."""
    partitions: Mapping[str, str] = field(default_factory=dict[str, str])
    """The partition of each node group; the others use the default one."""
    setup: Sequence[str] = ()
    """Shell lines that every node needs first, such as `module load`."""
    exclusive: bool = True
    """Take whole nodes: `ray symmetric-run` ends all Ray processes of the user on a node."""


def batch_file(site: SlurmSite, config: Config, groups: Sequence[NodeGroup]) -> str:
    """Return the batch file; `groups`: the table, whose control group shares the first node."""
    components = [group for group in groups if group.role is not Role.CONTROL]
    components.sort(key=lambda group: group.role is not Role.ISLANDS)  # the head has an island
    lines = [
        "#!/bin/bash",
        "# Written by `archipelago manifest slurm`. Type `sbatch run.sbatch` in its folder.",
        *_directives(site, components),
        "",
        *_preparation(site),
        "",
        *_steps(site, config, components),
    ]
    return "\n".join(lines) + "\n"


def _directives(site: SlurmSite, components: Sequence[NodeGroup]) -> Iterator[str]:
    """Yield the options of the job, and those of each component."""
    yield f"#SBATCH --job-name={site.name}"
    yield f"#SBATCH --output={site.name}-%j.log"
    yield "#SBATCH --open-mode=append"
    yield "#SBATCH --requeue"
    yield f"#SBATCH --signal=B:USR1@{WARNING_S}"
    if site.time is not None:
        yield f"#SBATCH --time={site.time}"
    if site.account is not None:
        yield f"#SBATCH --account={site.account}"
    for number, group in enumerate(components):
        if number > 0:
            yield "#SBATCH hetjob"
        yield f"# {group.name}"
        yield f"#SBATCH --nodes={_nodes(group)} --ntasks-per-node=1 --cpus-per-task={group.cpus}"
        if gpus := group.resources.get("GPU"):
            yield f"#SBATCH --gpus-per-node={gpus:.0f}"
        if (partition := site.partitions.get(group.name)) is not None:
            yield f"#SBATCH --partition={partition}"
        if site.exclusive:
            yield "#SBATCH --exclusive --mem=0"
        else:
            yield f"#SBATCH --mem={group.memory.removesuffix('i')}"


def _preparation(site: SlurmSite) -> Iterator[str]:
    """Yield the lines that find the head, make a token, and set what all nodes need."""
    yield "set -euo pipefail"
    yield 'cd "$SLURM_SUBMIT_DIR"'
    yield from site.setup
    yield "# The head is this node. On nodes with several networks, set ARCHIPELAGO_HEAD_IP."
    yield 'head_ip=${ARCHIPELAGO_HEAD_IP:-$(hostname -I | cut -d" " -f1)}'
    yield f"address=${{head_ip:-127.0.0.1}}:$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))"
    yield "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$PWD/.ray-token-$SLURM_JOB_ID"
    yield "(umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \\n' > \"$RAY_AUTH_TOKEN_PATH\")"
    yield "export RAY_TMPDIR=/tmp/ray-$SLURM_JOB_ID"
    yield f"export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT={START_S}"
    for name, value in sorted(RAY_SETTINGS.items()):
        yield f"export {name}={shlex.quote(value)}"
    yield ""
    yield "# Before the time limit the job goes back into the queue; it then resumes the run."
    yield "trap 'scontrol requeue \"$SLURM_JOB_ID\"' USR1"


def _steps(site: SlurmSite, config: Config, components: Sequence[NodeGroup]) -> Iterator[str]:
    """Yield the step of each component; the first one has the head, and its end is the job's."""
    run_dir = f"{config.run.dir}/{site.name}"
    entrypoint = [
        "archipelago", "run", CONFIG_FILE, "--address", "auto", "--run-dir", run_dir, "--continue",
    ]  # fmt: skip
    total = sum(map(_nodes, components))
    several = len(components) > 1
    yield "# Where Slurm does not track processes by cgroups, Ray can outlive a requeue of its job."
    yield 'if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then'
    all_groups = [f"--het-group=0-{len(components) - 1}"] if several else []
    yield "    # shellcheck disable=SC2016"
    yield f"    {shlex.join(['srun', *all_groups])} bash -c {shlex.quote(END_EARLIER_LIFE)} || true"
    yield "fi"
    for number, group in reversed([*enumerate(components)]):
        step = ["srun", *([f"--het-group={number}"] if several else []), "--label"]
        step.append(f"--cpus-per-task={group.cpus}")  # steps do not inherit it from the job
        yield f"# {group.name}"
        yield (
            f'{shlex.join(step)} ray symmetric-run --address "$address" --min-nodes {total} \\\n'
            f"    {shlex.join(_start_options(group))} \\\n"
            f"    -- {shlex.join(entrypoint)} &"
        )
    yield "head=$!"
    yield "# `wait` returns when a signal arrives, too; then it waits again."
    yield 'while kill -0 "$head" 2>/dev/null; do wait "$head" && code=0 || code=$?; done'
    yield "# Ray's command succeeds even if Ray has not started, so look for the result of the run."
    yield f'[ "${{code:-0}}" -ne 0 ] || [ -e {shlex.quote(run_dir)}/{SUMMARY} ] || code=1'
    yield 'exit "${code:-0}"'


def _start_options(group: NodeGroup) -> list[str]:
    """Return the options of `ray start` for a node of this group."""
    labels = ",".join(f"{key}={value}" for key, value in sorted(group.labels.items()))
    resources = {name: int(amount) for name, amount in group.resources.items()}
    options = [f"--labels={labels}", f"--num-cpus={resources.pop('CPU', 0)}"]
    if gpus := resources.pop("GPU", 0):
        options.append(f"--num-gpus={gpus}")
    if resources:
        options.append(f"--resources={json_text(resources)}")
    return [*options, f"--object-store-memory={group.store_bytes}"]


def _nodes(group: NodeGroup) -> int:
    """Return the nodes of a component; a batch job has all of its nodes from the start."""
    return group.most * group.hosts
