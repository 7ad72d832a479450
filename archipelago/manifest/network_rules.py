"""The network policy of a cluster: KubeRay allows traffic inside of it, these rules the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_network
from urllib.parse import parse_qs, urlsplit

from archipelago.manifest.placed_config import METRICS_PORT, buckets
from archipelago.manifest.pods import RAY_METRICS_PORT, Tree
from archipelago.manifest.site import Site
from cluster.config.schema import Config, PreemptionConfig

DASHBOARD_PORT = 8265
AUTOSCALER_METRICS_PORT, DASHBOARD_METRICS_PORT = 44217, 44227
"""The ports of the metrics of Ray's autoscaler and dashboard."""
HTTP_PORT, HTTPS_PORT = 80, 443
HTTPS_PORTS = (HTTPS_PORT, 6443)
"""The ports of API servers, behind and before the address translation of a service."""
PORT = re.compile(r":([0-9]+)$")
"""A port at the end of an address."""
ANYWHERE = "0.0.0.0/0"
METADATA, METADATA_OF_GKE = "169.254.169.254/32", "169.254.169.252/32"
"""The metadata server of all clouds, and GKE's own behind it if nodes have workload identity."""
PORTS_OF_GKE = (987, 988)
"""The ports of GKE's own metadata server."""
HOSTED_TRACKERS = frozenset({"wandb"})
"""The trackers of `monitor.track` that send the curves to a server."""
NAMESPACE = "kubernetes.io/metadata.name"
"""The label with the name of a namespace, which Kubernetes sets."""


def network_policy(site: Site, config: Config) -> Tree:
    """Return the policy: deny all but what a run, its operator and Prometheus need."""
    outgoing = [_dns()]
    if ports := _outside_ports(config):
        outgoing.append(_to(ANYWHERE, ports))
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
            "egressRules": [*outgoing, *_metadata_rules(config.faults.preemption)],
        },
    }


def _outside_ports(config: Config) -> tuple[int, ...]:
    """Return the ports of the servers outside: of buckets, and of trackers."""
    ports = {_port(uri) for uri in buckets(config)}
    if HOSTED_TRACKERS & {*config.monitor.track}:
        ports.add(HTTPS_PORT)
    return tuple(sorted(ports))


def _port(uri: str) -> int:
    """Return the port of a bucket; its endpoint may have another one than HTTPS."""
    options = {name: values[-1] for name, values in parse_qs(urlsplit(uri).query).items()}
    usual = HTTP_PORT if options.get("scheme") == "http" else HTTPS_PORT
    given = PORT.search(options.get("endpoint_override", ""))
    return usual if given is None else int(given[1])


def _metadata_rules(preemption: PreemptionConfig) -> Iterator[Tree]:
    """Yield the rules for the metadata server that the hosts of an island poll for notices."""
    if preemption.cloud is None:
        return
    if preemption.address is not None:
        server = urlsplit(preemption.address)
        given = PORT.search(server.netloc)
        port = HTTP_PORT if given is None else int(given[1])
        yield _to(_addresses(server.hostname or ""), (port,))
        return
    yield _to(METADATA, (HTTP_PORT,))
    if preemption.cloud == "gce":
        yield _to(METADATA_OF_GKE, PORTS_OF_GKE)


def _addresses(host: str) -> str:
    """Return the address of a host as a range; all addresses if it is a name."""
    try:
        return str(ip_network(host))
    except ValueError:
        return ANYWHERE


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
