"""The files of `archipelago manifest kuberay`, by their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from archipelago.boards.yaml_text import yaml_text
from archipelago.manifest.cluster_objects import (
    claim,
    configuration,
    disruption_budgets,
    operator_values,
    priority_classes,
)
from archipelago.manifest.kuberay import ray_cluster, ray_job
from archipelago.manifest.monitoring import boards, monitors, rules
from archipelago.manifest.node_groups import NodeGroup, group_names, node_groups
from archipelago.manifest.placed_config import placed
from archipelago.manifest.pods import CONFIG_FILE
from archipelago.manifest.site import Site, check_site
from cluster.config.schema import Config
from coordinator.fragments import Layout

SOURCE = "Written by `archipelago manifest kuberay`: change the configuration, and write it again."


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a manifest, and the table that they follow from."""

    files: Mapping[str, str]
    """The text of each file by its name."""
    groups: tuple[NodeGroup, ...]
    """The node groups."""


def kuberay_manifest(given: Config, layout: Layout, site: Site) -> Manifest:
    """Return all files for a Kubernetes cluster with the KubeRay operator.

    `layout`: the cut of the configuration's model, from which sizes follow.

    Errors: `UserMistake` with every problem of the site.
    """
    check_site(site, given, group_names(given))
    config = placed(given, site.name)
    groups = node_groups(config, layout, site)
    before = [claim(site), configuration(site, config), *disruption_budgets(site, groups)]

    def text(*objects: Mapping[str, object], note: str) -> str:
        return yaml_text(objects, f"{SOURCE}\n{note}")

    files = {
        "operator-values.yaml": text(
            operator_values(site), note="Values for the Helm chart kuberay-operator 1.7."
        ),
        "priorities.yaml": text(
            *priority_classes(site), note="For the whole cluster, so an administrator applies it."
        ),
        "storage.yaml": text(*before, note="Apply this before the cluster or the job."),
        "raycluster.yaml": text(
            ray_cluster(site, config, groups), note="A cluster that stays; submit runs to it."
        ),
        "rayjob.yaml": text(
            ray_job(site, config, groups), note="One run with a cluster of its own."
        ),
        "monitoring.yaml": text(
            *monitors(site, through_ray=config.monitor.ray_metrics),
            rules(site),
            boards(site),
            note="Needs the Prometheus operator.",
        ),
        CONFIG_FILE: f"# {SOURCE}\n# For `archipelago submit` to the cluster.\n\n{config.toml()}",
    }
    return Manifest(files, groups)
