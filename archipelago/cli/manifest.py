"""The command group `archipelago manifest`: deployment files from the configuration of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from archipelago.cli.options import ConfigPath, Json, Overrides, on_this_machine
from cluster.storage.files import json_text
from coordinator.errors import UserMistake

if TYPE_CHECKING:
    from archipelago.manifest.node_groups import NodeGroup
    from cluster.config.schema import Config

manifest = typer.Typer(
    help="Deployment files from the configuration of a run: Kubernetes, Slurm.",
    no_args_is_help=True,
)
Named = Annotated[
    str | None, typer.Option(help="Name of the run and its cluster; the file's by default.")
]
GroupMemory = Annotated[
    list[str],
    typer.Option("--memory", metavar="GROUP=SIZE", help="Memory of a node; may be repeated."),
]
DEFAULT_IMAGE = "archipelago:latest"


@manifest.command()
def kuberay(
    config_path: ConfigPath,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where to write.", callback=on_this_machine)
    ],
    overrides: Overrides = [],  # noqa: B006 - typer reads it; it never changes
    name: Named = None,
    image: Annotated[str, typer.Option(help="Container image (Dockerfile).")] = DEFAULT_IMAGE,
    namespace: Annotated[str, typer.Option(help="Namespace of all objects.")] = "default",
    cloud: Annotated[
        str, typer.Option(help="gke: set its labels of TPU and spot nodes; or none.")
    ] = "none",
    storage_size: Annotated[str, typer.Option(help="Size of the shared volume.")] = "100Gi",
    storage_class: Annotated[
        str | None, typer.Option(help="Class of the volume; it must allow ReadWriteMany.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option(help="Local queue of Kueue; turns Ray's autoscaler off.")
    ] = None,
    gcs: Annotated[
        str, typer.Option(help="Storage of Ray's control service: rocksdb, redis, none.")
    ] = "rocksdb",
    redis: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Redis, for --gcs redis.")
    ] = None,
    tls: Annotated[
        bool, typer.Option(help="Encrypt Ray's connections; needs cert-manager.")
    ] = True,
    network_policy: Annotated[
        bool, typer.Option(help="Deny all traffic that the run does not need.")
    ] = True,
    api_server: Annotated[
        str, typer.Option(metavar="CIDR", help="Addresses of the Kubernetes API server.")
    ] = "0.0.0.0/0",
    monitoring: Annotated[str, typer.Option(help="Namespace of Prometheus.")] = "monitoring",
    operator: Annotated[str, typer.Option(help="Namespace of the operator.")] = "kuberay",
    release: Annotated[
        str, typer.Option(help="Label `release` of the Prometheus operator.")
    ] = "prometheus",
    gpu_resource: Annotated[
        str, typer.Option(help="Kubernetes' resource for a GPU.")
    ] = "nvidia.com/gpu",
    memory: GroupMemory = [],  # noqa: B006 - typer reads it; it never changes
    most: Annotated[
        list[str],
        typer.Option(
            "--most",
            metavar="GROUP=N",
            help="Most islands of an opportunistic group; may be repeated.",
        ),
    ] = [],  # noqa: B006 - typer reads it; it never changes
    node_selector: Annotated[
        list[str],
        typer.Option(
            "--node-selector",
            metavar="GROUP=KEY=VALUE",
            help="Label of a group's Kubernetes nodes.",
        ),
    ] = [],  # noqa: B006 - typer reads it; it never changes
    as_json: Json = False,
) -> None:
    """Write RayCluster, RayJob and the objects around them for KubeRay 1.7.

    Example: archipelago manifest kuberay run.toml --out deploy/mine --image registry/me/mine:1
    """
    config = _loaded(config_path, overrides)
    from archipelago.manifest.kuberay_files import kuberay_manifest
    from archipelago.manifest.site import Cloud, Gcs, Site
    from cluster.launch.preflight import model_layout

    problems: list[str] = []
    site = Site(
        name=name or config.run.name or config_path.stem,
        image=image,
        namespace=namespace,
        cloud=_one_of(Cloud, "--cloud", cloud, problems) or Cloud.NONE,
        storage_size=storage_size,
        storage_class=storage_class,
        queue=queue,
        gcs=_one_of(Gcs, "--gcs", gcs, problems) or Gcs.ROCKSDB,
        redis=redis,
        tls=tls,
        network_policy=network_policy,
        api_server=api_server,
        monitoring=monitoring,
        operator=operator,
        release=release,
        gpu_resource=gpu_resource,
        memory=_pairs("--memory", memory, problems),
        most=_counts("--most", most, problems),
        node_selectors=_selectors(node_selector, problems),
    )
    if problems:
        raise UserMistake("\n".join(problems))
    made = kuberay_manifest(config, model_layout(config), site)
    _print_result(_written(out, made.files), made.groups, as_json)


@manifest.command()
def slurm(
    config_path: ConfigPath,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where to write.", callback=on_this_machine)
    ] = Path("slurm"),
    overrides: Overrides = [],  # noqa: B006 - typer reads it; it never changes
    name: Named = None,
    time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time limit, such as 12:00:00.")
    ] = None,
    account: Annotated[str | None, typer.Option(help="Account of the job.")] = None,
    partition: Annotated[
        list[str],
        typer.Option(
            "--partition", metavar="GROUP=NAME", help="Partition of a group; may be repeated."
        ),
    ] = [],  # noqa: B006 - typer reads it; it never changes
    setup: Annotated[
        list[str],
        typer.Option(metavar="LINE", help="Shell line that comes first; may be repeated."),
    ] = [],  # noqa: B006 - typer reads it; it never changes
    exclusive: Annotated[bool, typer.Option(help="Take whole nodes.")] = True,
    as_json: Json = False,
) -> None:
    """Write a batch file for Slurm; a job that is put back into the queue resumes its run.

    Example: archipelago manifest slurm run.toml --time 12:00:00 && cd slurm && sbatch run.sbatch
    """
    config = _loaded(config_path, overrides)
    from archipelago.manifest.slurm import BATCH_FILE, SlurmSite
    from archipelago.manifest.slurm_files import slurm_manifest
    from cluster.launch.preflight import model_layout

    problems: list[str] = []
    site = SlurmSite(
        name=name or config.run.name or config_path.stem,
        time=time,
        account=account,
        partitions=_pairs("--partition", partition, problems),
        setup=setup,
        exclusive=exclusive,
    )
    if problems:
        raise UserMistake("\n".join(problems))
    files, groups = slurm_manifest(config, model_layout(config), site)
    paths = _written(out, files)
    (out / BATCH_FILE).chmod(0o755)
    _print_result(paths, groups, as_json)


def _loaded(config_path: Path, overrides: Sequence[str]) -> Config:
    """Return the configuration, with this process prepared to make its task."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from archipelago.cli.train import import_from_here
    from cluster.config.load import load

    import_from_here()
    return load(config_path, overrides)


def _written(out: Path, texts: Mapping[str, str]) -> list[str]:
    """Write the files, and return their paths.

    Errors: `UserMistake` if `out` cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (out / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserMistake(f"{out} cannot be written: {error.strerror}") from error
    return [str(out / name) for name in texts]


def _print_result(paths: Sequence[str], groups: Sequence[NodeGroup], as_json: bool) -> None:
    if as_json:
        rows = [
            {"group": each.name, "role": each.role, "replicas": each.replicas, "most": each.most,
             "hosts": each.hosts, "resources": dict(each.resources), "labels": dict(each.labels),
             "cpus": each.cpus, "memory": each.memory, "devices": dict(each.devices),
             "preemptible": each.preemptible}
            for each in groups
        ]  # fmt: skip
        print(json_text({"files": list(paths), "groups": rows}))
        return
    table = Table(box=None)
    for column in ("node group", "nodes", "each offers Ray", "CPUs", "memory", "devices"):
        table.add_column(column)
    for each in groups:
        nodes = f"{each.nodes}" if each.most == each.replicas else f"{each.nodes}, grows"
        offer = ", ".join(f"{amount:.0f} {key}" for key, amount in each.resources.items())
        devices = ", ".join(f"{count} {key}" for key, count in each.devices.items())
        table.add_row(each.name, nodes, offer, str(each.cpus), each.memory, devices)
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    console.print(*paths, sep="\n", markup=False)


def _one_of(kinds: Any, option: str, text: str, problems: list[str]) -> Any:
    """Return the member of an enumeration; None with a problem if there is none."""
    if text in {*kinds}:
        return kinds(text)
    problems.append(f"{option} {text}: must be one of {', '.join(kinds)}")
    return None


def _pairs(option: str, texts: Sequence[str], problems: list[str]) -> dict[str, str]:
    """Return options of the form GROUP=VALUE by group."""
    found: dict[str, str] = {}
    for text in texts:
        group, equals, value = text.partition("=")
        if not (group and equals and value):
            problems.append(f"{option} {text}: must look like GROUP=VALUE")
        found[group] = value
    return found


def _counts(option: str, texts: Sequence[str], problems: list[str]) -> dict[str, int]:
    """Return options of the form GROUP=N by group."""
    found: dict[str, int] = {}
    for group, value in _pairs(option, texts, problems).items():
        if value.isdecimal() and int(value) > 0:
            found[group] = int(value)
        elif value:
            problems.append(f"{option} {group}={value}: must be a count of islands, 1 or more")
    return found


def _selectors(texts: Sequence[str], problems: list[str]) -> dict[str, dict[str, str]]:
    """Return the labels of Kubernetes nodes by group, from options GROUP=KEY=VALUE."""
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        group, _, label = text.partition("=")
        key, equals, value = label.rpartition("=")
        if not (group and key and equals):
            problems.append(f"--node-selector {text}: must look like GROUP=KEY=VALUE")
        found.setdefault(group, {})[key] = value
    return found
