"""The objects around a RayCluster: claim, configuration, priorities, settings of the operator."""

from __future__ import annotations

from collections.abc import Sequence

from archipelago.manifest.node_groups import NodeGroup, Role
from archipelago.manifest.pods import CONFIG_FILE, Tree
from archipelago.manifest.site import Gcs, Site
from cluster.config.schema import Config

GROUP_PREFIX = "archipelago-"
"""The beginning of the names of groups that are not the user's."""
AUTOSCALER_CUTOFF = -10
"""The lowest priority for which Cluster Autoscaler adds nodes by default."""
PRIORITIES = {
    "control": (1_000_000, "PreemptLowerPriority", "Fleet, syncer, shards and the Ray head."),
    "islands": (1_000, "PreemptLowerPriority", "Islands that the run needs."),
    "spare-capacity": (
        AUTOSCALER_CUTOFF, "Never", "Opportunistic islands: any other pod takes their place."
    ),
}  # fmt: skip
"""The priority classes: value, preemption policy, purpose."""


def claim(site: Site) -> Tree:
    """Return the claim for the volume that all pods share."""
    spec: Tree = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": site.storage_size}},
    }
    if site.storage_class is not None:
        spec["storageClassName"] = site.storage_class
    metadata = {"name": f"{site.name}-runs", "namespace": site.namespace}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": spec,
    }


def configuration(site: Site, config: Config) -> Tree:
    """Return the ConfigMap with the configuration of the run."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{site.name}-config", "namespace": site.namespace},
        "data": {CONFIG_FILE: config.toml()},
    }


def disruption_budgets(site: Site, groups: Sequence[NodeGroup]) -> list[Tree]:
    """Return the budgets that keep maintenance from evicting control and shards, one a group.

    Kubernetes cannot count the pods that a RayCluster should have, so a budget states the number.
    """
    return [
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {
                "name": f"{site.name}-{group.name.removeprefix(GROUP_PREFIX)}",
                "namespace": site.namespace,
            },
            "spec": {
                "minAvailable": group.nodes,
                "selector": {
                    "matchLabels": {
                        "app.kubernetes.io/part-of": site.name,
                        "ray.io/group": group.name,  # KubeRay sets it on each pod
                    }
                },
            },
        }
        for group in groups
        if group.role in (Role.CONTROL, Role.SHARDS)
    ]


def priority_classes(site: Site) -> list[Tree]:
    """Return the priority classes of control nodes, islands, and opportunistic islands."""
    return [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": f"{site.name}-{kind}"},
            "value": value,
            "preemptionPolicy": policy,
            "globalDefault": False,
            "description": purpose,
        }
        for kind, (value, policy, purpose) in PRIORITIES.items()
    ]


def operator_values(site: Site) -> Tree:
    """Return values for the Helm chart of the operator: the feature gates that the cluster needs.

    A list of values replaces the chart's own, so the gates that are on by default come first.
    """
    gates = {
        "RayClusterStatusConditions": True,
        "RayJobDeletionPolicy": True,
        "RayMultiHostIndexing": True,
        "RayServiceIncrementalUpgrade": True,
        "RayClusterNetworkPolicy": site.network_policy,
        "RayClusterMTLS": site.tls,
        "GCSFaultToleranceEmbeddedStorage": site.gcs is Gcs.ROCKSDB,
    }
    return {"featureGates": [{"name": name, "enabled": on} for name, on in gates.items()]}
