"""The pod of a node: its container, environment, volumes, and the order in which it ends."""

from __future__ import annotations

import math
from typing import Any

from archipelago.manifest.node_groups import NodeGroup, Role
from archipelago.manifest.placed_config import METRICS_PORT, VOLUME, buckets
from archipelago.manifest.site import Cloud, Site
from cluster.config.schema import Config
from cluster.fleet.http_port import TOKEN_VARIABLE
from cluster.launch.ray_cluster import RAY_SETTINGS

Tree = dict[str, Any]
"""An object of Kubernetes, or a part of one."""
CONFIG_FOLDER, CONFIG_FILE = "/etc/archipelago", "run.toml"
"""The place of the configuration in every pod."""
RAY_METRICS_PORT = 8080
"""The port of Ray's own metrics, KubeRay's default."""
USER = 1000
"""The user of the image (Dockerfile), the owner of the files on the volume."""
LAST_SECONDS = 15
"""Seconds for the processes of a pod to end after its islands have left."""
HEAD_CPUS, HEAD_MEMORY = 2, "8Gi"
"""The size of the head's pod, which runs no part of a run."""


def leave_script(drain_s: int) -> str:
    """Return the shell line that a pod runs before it ends.

    Ray then places nothing more on the node. The line ends as soon as no island is left in the pod,
    or after `drain_s` seconds.
    """
    return (
        "ray drain-node --reason DRAIN_NODE_REASON_PREEMPTION"
        f" --reason-message 'the pod is being deleted' --deadline-remaining-seconds {drain_s};"
        f" {wait_for_islands(drain_s)}"
    )


def wait_for_islands(drain_s: int) -> str:
    """Return the shell line that waits until no process of an island is left in the pod.

    The first host of an island is an `IslandActor`, each other one a `HostActor`.
    """
    return (
        f"end=$(( $(date +%s) + {drain_s} ));"
        ' while [ "$(date +%s)" -lt "$end" ]'
        " && grep -Eqs '^ray::[A-Za-z]*(Island|Host)Actor' /proc/[0-9]*/cmdline; do sleep 1; done"
    )


def drain_seconds(config: Config) -> int:
    """Return the whole seconds that an island may take to hand in (`faults.policy.drain_s`)."""
    return math.ceil(config.faults.policy.drain_s)


def http_token_secret(site: Site) -> str:
    """Return the name of the Secret with the token of the run's HTTP port, under the key `token`.

    People create it, so that no secret is in a file of the manifest.
    """
    return f"{site.name}-http-token"


def bucket_secret(site: Site) -> str:
    """Return the name of the Secret with the credentials of a bucket, as variables."""
    return f"{site.name}-bucket"


def tracker_secret(site: Site) -> str:
    """Return the name of the Secret with the variables of Weights & Biases."""
    return f"{site.name}-wandb"


def volumes(site: Site) -> list[Tree]:
    """Return the volumes of every pod: configuration, and runs on shared storage."""
    return [
        {"name": "config", "configMap": {"name": f"{site.name}-config"}},
        {"name": "runs", "persistentVolumeClaim": {"claimName": f"{site.name}-runs"}},
    ]


def environment(site: Site) -> list[Tree]:
    """Return the variables of every Ray container: Ray's settings, and the token for metrics."""
    found: list[Tree] = [
        {"name": name, "value": value} for name, value in sorted(RAY_SETTINGS.items())
    ]
    secret = {"name": http_token_secret(site), "key": "token", "optional": True}
    return [*found, {"name": TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": secret}}]


def head_template(site: Site, config: Config) -> Tree:
    """Return the pod of the head."""
    size = {"cpu": str(HEAD_CPUS), "memory": HEAD_MEMORY}
    container = {
        **_container("ray-head", site, config, size, control=True),
        "ports": [
            {"containerPort": 6379, "name": "gcs-server"},
            {"containerPort": 8265, "name": "dashboard"},
            {"containerPort": 10001, "name": "client"},
            {"containerPort": RAY_METRICS_PORT, "name": "metrics"},
        ],
        "env": environment(site),
    }
    return _template(site, container, priority=f"{site.name}-control", keep=True)


def worker_template(group: NodeGroup, site: Site, config: Config) -> Tree:
    """Return the pod of one node of a group."""
    size = {"cpu": str(group.cpus), "memory": group.memory}
    size |= {name: str(count) for name, count in group.devices.items()}
    drain_s, kind = drain_seconds(config), "spare-capacity" if group.preemptible else "islands"
    container = {
        **_container("ray-worker", site, config, size, control=group.role is Role.CONTROL),
        "ports": [
            {"containerPort": RAY_METRICS_PORT, "name": "metrics"},
            {"containerPort": METRICS_PORT, "name": "run-metrics"},
        ],
        "env": environment(site),
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", leave_script(drain_s)]}}},
    }
    priority = f"{site.name}-{kind if group.role is Role.ISLANDS else 'control'}"
    template = _template(site, container, priority, keep=not group.preemptible)
    spec: Tree = template["spec"]
    spec["terminationGracePeriodSeconds"] = drain_s + LAST_SECONDS
    if group.node_selector:
        spec["nodeSelector"] = dict(group.node_selector)
    if tolerations := _tolerations(group, site):
        spec["tolerations"] = tolerations
    return template


def _tolerations(group: NodeGroup, site: Site) -> list[Tree]:
    """Return the taints that the nodes of a group may have: devices, and a cloud's spot nodes."""
    keys = [*group.devices]
    found: list[Tree] = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]
    if site.cloud is Cloud.GKE and group.preemptible:
        found.append(
            {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true",
             "effect": "NoSchedule"}
        )  # fmt: skip
    return found


def _container(name: str, site: Site, config: Config, size: Tree, *, control: bool) -> Tree:
    """Return what all Ray containers have in common; requests and limits are the same.

    `control`: whether the fleet may run there, which alone talks to trackers.
    """
    container: Tree = {
        "name": name,
        "image": site.image,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"requests": dict(size), "limits": dict(size)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True},
            {"name": "runs", "mountPath": VOLUME},
        ],
    }
    secrets = [bucket_secret(site)] if buckets(config) else []
    if control and "wandb" in config.monitor.track:
        secrets.append(tracker_secret(site))
    if secrets:
        container["envFrom"] = [{"secretRef": {"name": each, "optional": True}} for each in secrets]
    return container


def _template(site: Site, container: Tree, priority: str, *, keep: bool) -> Tree:
    """Return a pod template; `keep`: the cluster must not move the pod to save nodes."""
    annotations = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"} if keep else {}
    return {
        "metadata": {
            "labels": {"app.kubernetes.io/part-of": site.name},
            **({"annotations": annotations} if annotations else {}),
        },
        "spec": {
            "restartPolicy": "Never",  # Ray's autoscaler v2 replaces pods itself
            "priorityClassName": priority,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": volumes(site),
        },
    }
