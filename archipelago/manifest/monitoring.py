"""Objects for a Prometheus operator and a Grafana: targets, alerts and boards."""

from __future__ import annotations

from importlib.resources import files

import yaml

from archipelago.manifest.placed_config import CONTROL
from archipelago.manifest.pods import Tree, http_token_secret
from archipelago.manifest.site import Site

MONITORING_API = "monitoring.coreos.com/v1"
BOARD_LABEL = {"grafana_dashboard": "1"}
"""The label by which Grafana's Helm chart finds boards."""


def monitors(site: Site) -> list[Tree]:
    """Return a PodMonitor for the metrics of the run, and one for those of Ray."""
    cluster = {"app.kubernetes.io/part-of": site.name}
    token = {"type": "Bearer", "credentials": {"name": http_token_secret(site), "key": "token"}}
    return [
        _monitor(
            site,
            "run",
            {**cluster, "ray.io/group": CONTROL},
            [{"port": "run-metrics", "authorization": token}],
        ),
        _monitor(site, "ray", cluster, [{"port": "metrics", "relabelings": [_cluster_label()]}]),
    ]


def rules(site: Site) -> Tree:
    """Return the alerts as a PrometheusRule."""
    alerts = yaml.safe_load(_board("alerts.yml"))
    return {
        "apiVersion": MONITORING_API,
        "kind": "PrometheusRule",
        "metadata": _metadata(site, "alerts"),
        "spec": {"groups": alerts["groups"]},
    }


def boards(site: Site) -> Tree:
    """Return the ConfigMap of boards, which Grafana's sidecar loads."""
    folder = files("archipelago").joinpath("boards")
    names = sorted(each.name for each in folder.iterdir() if each.name.endswith(".json"))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{site.name}-boards",
            "namespace": site.namespace,
            "labels": dict(BOARD_LABEL),
        },
        "data": {name: _board(name) for name in names},
    }


def _board(name: str) -> str:
    return files("archipelago").joinpath("boards", name).read_text(encoding="utf-8")


def _monitor(site: Site, name: str, pods: dict[str, str], endpoints: list[Tree]) -> Tree:
    return {
        "apiVersion": MONITORING_API,
        "kind": "PodMonitor",
        "metadata": _metadata(site, name),
        "spec": {"selector": {"matchLabels": pods}, "podMetricsEndpoints": endpoints},
    }


def _metadata(site: Site, name: str) -> Tree:
    return {
        "name": f"{site.name}-{name}",
        "namespace": site.namespace,
        "labels": {"release": site.release},
    }


def _cluster_label() -> Tree:
    return {
        "sourceLabels": ["__meta_kubernetes_pod_label_ray_io_cluster"],
        "targetLabel": "ray_io_cluster",
    }
