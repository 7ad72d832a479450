"""Objects for a Prometheus operator and a Grafana: targets, rules and boards of one site."""

from __future__ import annotations

from archipelago.boards.kubernetes_objects import (
    FROM_RAY,
    boards_config_map,
    metadata,
    pod_monitor,
    prometheus_rule,
    run_endpoint,
)
from archipelago.boards.settings import BoardSettings
from archipelago.boards.written import board_texts, rule_groups
from archipelago.manifest.placed_config import CONTROL
from archipelago.manifest.pods import Tree, http_token_secret
from archipelago.manifest.site import Site


def monitors(site: Site, *, through_ray: bool) -> list[Tree]:
    """Return a PodMonitor for the metrics of the run, and one for those of Ray.

    `through_ray`: Ray's pages have the metrics of the run too, so the first one is left out.
    """
    cluster = {"app.kubernetes.io/part-of": site.name}
    endpoint: Tree = {"port": "metrics", "relabelings": [_cluster_label()]}
    if through_ray:
        endpoint["metricRelabelings"] = [dict(rule) for rule in FROM_RAY]
    ray = pod_monitor(_metadata(site, "ray"), cluster, [endpoint])
    if through_ray:
        return [ray]
    control = {**cluster, "ray.io/group": CONTROL}
    return [
        pod_monitor(_metadata(site, "run"), control, [run_endpoint(http_token_secret(site))]),
        ray,
    ]


def rules(site: Site) -> Tree:
    """Return recording rules and alerts as a PrometheusRule."""
    return prometheus_rule(_metadata(site, "alerts"), rule_groups(BoardSettings()))


def boards(site: Site) -> Tree:
    """Return the ConfigMap of boards, which Grafana's sidecar loads."""
    return boards_config_map(f"{site.name}-boards", site.namespace, board_texts())


def _metadata(site: Site, name: str) -> Tree:
    return metadata(f"{site.name}-{name}", site.namespace, site.release)


def _cluster_label() -> Tree:
    return {
        "sourceLabels": ["__meta_kubernetes_pod_label_ray_io_cluster"],
        "targetLabel": "ray_io_cluster",
    }
