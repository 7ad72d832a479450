"""Objects of Kubernetes: PrometheusRule, PodMonitor, and the ConfigMap of boards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Tree: TypeAlias = dict[str, Any]
MONITORING_API = "monitoring.coreos.com/v1"
BOARD_LABEL = {"grafana_dashboard": "1"}
"""The label by which Grafana's Helm chart finds boards."""
JOB = "archipelago"
"""The label `job` of the runs' targets, by which an alert finds those that do not answer."""
RUN_PORT = "run-metrics"
"""The name of the port of a run, on the pod of its fleet."""


FROM_RAY: tuple[Tree, ...] = (
    {
        "sourceLabels": ["__name__"],
        "regex": "ray_archipelago_.*",
        "targetLabel": "WorkerId",
        "replacement": "",
    },
    {
        "sourceLabels": ["__name__"],
        "regex": "ray_(archipelago_.*)",
        "targetLabel": "__name__",
        "replacement": "$1",
    },
)
"""The relabelling of the metrics of runs with `monitor.ray_metrics`.

It removes the prefix that Ray adds, and the process, so that a series continues when the fleet's
process is replaced.
"""


def metadata(name: str, namespace: str, release: str) -> Tree:
    """Return the metadata of an object that the Prometheus operator finds by its release."""
    return {"name": name, "namespace": namespace, "labels": {"release": release}}


def prometheus_rule(about: Tree, groups: Sequence[Tree]) -> Tree:
    """Return rules as a PrometheusRule; `about`: its metadata."""
    return {
        "apiVersion": MONITORING_API,
        "kind": "PrometheusRule",
        "metadata": about,
        "spec": {"groups": [*groups]},
    }


def pod_monitor(
    about: Tree,
    pods: Mapping[str, str],
    endpoints: Sequence[Tree],
    *,
    all_namespaces: bool = False,
) -> Tree:
    """Return a PodMonitor of the endpoints of pods with these labels."""
    anywhere = {"namespaceSelector": {"any": True}} if all_namespaces else {}
    return {
        "apiVersion": MONITORING_API,
        "kind": "PodMonitor",
        "metadata": about,
        "spec": {
            **anywhere,
            "selector": {"matchLabels": dict(pods)},
            "podMetricsEndpoints": [*endpoints],
        },
    }


def run_endpoint(secret: str) -> Tree:
    """Return the endpoint of a run; `secret`: the Secret with the token of its port."""
    return {
        "port": RUN_PORT,
        "authorization": {"type": "Bearer", "credentials": {"name": secret, "key": "token"}},
        "relabelings": [{"targetLabel": "job", "replacement": JOB}],
    }


def boards_config_map(name: str, namespace: str, boards: Mapping[str, str]) -> Tree:
    """Return the ConfigMap of boards, which Grafana's sidecar loads."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(BOARD_LABEL)},
        "data": dict(boards),
    }
