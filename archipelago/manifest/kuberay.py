"""RayCluster and RayJob for the KubeRay operator 1.7 (`ray.io/v1`).

A RayCluster stays, and runs are submitted to it. A RayJob brings a cluster of its own, trains one
run to its end, and takes the cluster away again.
"""

from __future__ import annotations

from collections.abc import Sequence

import ray

from archipelago.manifest.network_rules import network_policy
from archipelago.manifest.node_groups import CONTROL_RESOURCE, NodeGroup, Role
from archipelago.manifest.placed_config import RUNS
from archipelago.manifest.pods import (
    CONFIG_FILE,
    CONFIG_FOLDER,
    Tree,
    head_template,
    worker_template,
)
from archipelago.manifest.site import Gcs, Site
from cluster.config.schema import Config
from cluster.storage.files import json_text

API = "ray.io/v1"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""The label by which Kueue finds the queue of a workload."""
IDLE_SECONDS = 300
"""Seconds until the autoscaler removes an idle node: longer than an island takes to return."""
GCS_SIZE = "2Gi"
"""The size of the volume for Ray's control service: 0.6 to 26 MB were measured."""
FINISHED_SECONDS = 600
"""Seconds for which the cluster of a finished RayJob stays, so that people can read its logs."""
ATTEMPTS = 6
"""Clusters that a RayJob may use up; each one resumes the run where the one before ended."""
DRIVER_SHARE = 0.01
"""The share of the control node that the driver of a RayJob asks for, so that it runs there."""
CONTROL_PREFERENCE, ISLAND_PREFERENCE, SPARE_PREFERENCE = 20, 10, 0
"""Preferences of the autoscaler between groups that could serve the same request."""


def ray_cluster(site: Site, config: Config, groups: Sequence[NodeGroup]) -> Tree:
    """Return the RayCluster with a worker group for each node group."""
    return {
        "apiVersion": API,
        "kind": "RayCluster",
        "metadata": _metadata(site),
        "spec": _cluster_spec(site, config, groups),
    }


def ray_job(site: Site, config: Config, groups: Sequence[NodeGroup]) -> Tree:
    """Return the RayJob that trains the run; a further attempt resumes it from the volume."""
    return {
        "apiVersion": API,
        "kind": "RayJob",
        "metadata": _metadata(site),
        "spec": {
            "entrypoint": entrypoint(site),
            "entrypointResources": json_text({CONTROL_RESOURCE: DRIVER_SHARE}),
            "submissionMode": "K8sJobMode",
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": FINISHED_SECONDS,
            "backoffLimit": ATTEMPTS - 1,
            "rayClusterSpec": _cluster_spec(site, config, groups),
            **({"suspend": True} if site.queue is not None else {}),
        },
    }


def entrypoint(site: Site) -> str:
    """Return the command of the job: begin the run, or resume it if it has begun."""
    return (
        f"archipelago run {CONFIG_FOLDER}/{CONFIG_FILE} --address auto "
        f"--run-dir {RUNS}/{site.name} --continue"
    )


def _metadata(site: Site) -> Tree:
    labels = {"app.kubernetes.io/part-of": site.name}
    if site.queue is not None:
        labels[QUEUE_LABEL] = site.queue
    return {"name": site.name, "namespace": site.namespace, "labels": labels}


def _cluster_spec(site: Site, config: Config, groups: Sequence[NodeGroup]) -> Tree:
    spec: Tree = {
        "rayVersion": ray.__version__,
        "authOptions": {"mode": "token"},
        "enableInTreeAutoscaling": site.autoscaling,
    }
    if site.autoscaling:
        spec["autoscalerOptions"] = {
            "version": "v2",
            "upscalingMode": "Default",
            "idleTimeoutSeconds": IDLE_SECONDS,
            "resources": {
                "requests": {"cpu": "500m", "memory": "1Gi"},
                "limits": {"cpu": "500m", "memory": "1Gi"},
            },
        }
    if site.tls:
        spec["tlsOptions"] = {"enabled": True}
    if site.network_policy:
        spec["networkPolicy"] = network_policy(site, config)
    match site.gcs:
        case Gcs.ROCKSDB:
            spec["gcsFaultToleranceOptions"] = {
                "backend": "rocksdb",
                "storage": {"size": GCS_SIZE},
            }
        case Gcs.REDIS:
            spec["gcsFaultToleranceOptions"] = {"backend": "redis", "redisAddress": site.redis}
        case Gcs.NONE:
            pass
    spec["headGroupSpec"] = {
        "rayStartParams": {"dashboard-host": "0.0.0.0"},
        "resources": {"CPU": "0"},  # no part of a run is on the head
        "template": head_template(site, config),
    }
    spec["workerGroupSpecs"] = [_worker_group(each, site, config) for each in groups]
    return spec


def _worker_group(group: NodeGroup, site: Site, config: Config) -> Tree:
    preference = SPARE_PREFERENCE if group.preemptible else ISLAND_PREFERENCE
    if group.role is not Role.ISLANDS:
        preference = CONTROL_PREFERENCE
    return {
        "groupName": group.name,
        "replicas": group.replicas,
        "minReplicas": group.least,
        "maxReplicas": group.most,
        "numOfHosts": group.hosts,
        "priority": preference,
        "labels": dict(group.labels),
        "resources": {name: f"{amount:.0f}" for name, amount in group.resources.items()},
        "rayStartParams": {"object-store-memory": str(group.store_bytes)},
        "template": worker_template(group, site, config),
    }
