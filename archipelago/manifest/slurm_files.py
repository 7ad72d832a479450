"""The files of `archipelago manifest slurm`, by their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archipelago.manifest.node_groups import NodeGroup, Role, group_names, node_groups
from archipelago.manifest.placed_config import placed
from archipelago.manifest.site import Site
from archipelago.manifest.slurm import BATCH_FILE, CONFIG_FILE, SlurmSite, batch_file
from cluster.config.schema import Config
from cluster.config.values import nearest
from coordinator.errors import UserMistake
from coordinator.fragments import Layout


def slurm_manifest(
    given: Config, layout: Layout, site: SlurmSite
) -> tuple[dict[str, str], tuple[NodeGroup, ...]]:
    """Return the texts of the configuration and the batch file, and the table of nodes.

    Opportunistic groups are part of the job from the start, since Slurm adds no nodes to one.

    Errors: `UserMistake` with every problem.
    """
    config = placed(given, site.name, volume=False, control=False)
    if problems := [*_problems(site, config, group_names(config))]:
        raise UserMistake("\n".join(problems))
    groups = [
        group
        for group in node_groups(config, layout, Site(name=site.name, image=""))
        if group.role is not Role.CONTROL
    ]
    text = f"# Written by `archipelago manifest slurm` for {BATCH_FILE}.\n\n{config.toml()}"
    files = {CONFIG_FILE: text, BATCH_FILE: batch_file(site, config, groups)}
    return files, tuple(groups)


def _problems(site: SlurmSite, config: Config, groups: Sequence[str]) -> Iterator[str]:
    for name in sorted(set(site.partitions) - set(groups)):
        yield f"--partition {name}: no such node group; {nearest(name, groups)}"
    for number, group in enumerate(config.islands):
        if group.devices.get("TPU"):
            yield f"islands.{number}: TPU slices have no Slurm; use `archipelago manifest kuberay`"
