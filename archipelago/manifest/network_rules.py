"""The network policy of a cluster: KubeRay allows traffic inside of it, these rules the rest."""

from __future__ import annotations

from archipelago.manifest.placed_config import METRICS_PORT, in_bucket
from archipelago.manifest.pods import RAY_METRICS_PORT, Tree
from archipelago.manifest.site import Site
from cluster.config.schema import Config

DASHBOARD_PORT = 8265
AUTOSCALER_METRICS_PORT, DASHBOARD_METRICS_PORT = 44217, 44227
"""The ports of the metrics of Ray's autoscaler and dashboard."""
HTTPS_PORTS = (443, 6443)
"""The ports of API servers, behind and before the address translation of a service."""
NAMESPACE = "kubernetes.io/metadata.name"
"""The label with the name of a namespace, which Kubernetes sets."""


def network_policy(site: Site, config: Config) -> Tree:
    """Return the policy: deny all but what a run, its operator and Prometheus need."""
    outgoing = [_dns()]
    if in_bucket(config):
        outgoing.append(_to("0.0.0.0/0", HTTPS_PORTS[:1]))
    head_outgoing = [*outgoing]
    if site.autoscaling:
        head_outgoing.append(_to(site.api_server, HTTPS_PORTS))
    head_metrics = (RAY_METRICS_PORT, AUTOSCALER_METRICS_PORT, DASHBOARD_METRICS_PORT)
    operator: Tree = {"matchLabels": {"app.kubernetes.io/name": "kuberay-operator"}}
    return {
        "mode": "DenyAll",
        "head": {
            "ingressRules": [
                _from_namespace(site.operator, (DASHBOARD_PORT,), operator),
                _from_namespace(site.monitoring, head_metrics),
            ],
            "egressRules": head_outgoing,
        },
        "worker": {
            "ingressRules": [_from_namespace(site.monitoring, (RAY_METRICS_PORT, METRICS_PORT))],
            "egressRules": outgoing,
        },
    }


def _dns() -> Tree:
    """Return the rule for name look-ups, without which no pod finds the head."""
    return {
        "to": [
            {
                "namespaceSelector": {"matchLabels": {NAMESPACE: "kube-system"}},
                "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
            }
        ],
        "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}],
    }


def _to(addresses: str, ports: tuple[int, ...]) -> Tree:
    return {"to": [{"ipBlock": {"cidr": addresses}}], "ports": _tcp(ports)}


def _from_namespace(namespace: str, ports: tuple[int, ...], pods: Tree | None = None) -> Tree:
    source: Tree = {"namespaceSelector": {"matchLabels": {NAMESPACE: namespace}}}
    return {"from": [source | ({"podSelector": pods} if pods else {})], "ports": _tcp(ports)}


def _tcp(ports: tuple[int, ...]) -> list[Tree]:
    return [{"port": port, "protocol": "TCP"} for port in ports]
