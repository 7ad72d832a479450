"""The facts about a cluster that no configuration of a run has: names, image, storage, policies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from cluster.config.schema import Config
from cluster.config.values import nearest
from coordinator.errors import UserMistake

NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
"""A DNS label as Kubernetes has it (RFC 1035)."""
MOST_NAME = 40
"""The longest name: KubeRay appends up to 16 characters for services and jobs, of 63 in all."""
QUANTITY = re.compile(r"[1-9][0-9]*(Ki|Mi|Gi|Ti|k|M|G|T)?")
"""A whole quantity of Kubernetes."""


class Cloud(StrEnum):
    """A cloud whose node labels are known."""

    GKE = "gke"
    NONE = "none"


class Gcs(StrEnum):
    """The storage of Ray's control service (GCS), from which a head restarts."""

    ROCKSDB = "rocksdb"
    REDIS = "redis"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster, as far as its users must describe it."""

    name: str
    """The name of the RayCluster, the RayJob and the run."""
    image: str
    """The container image, with Archipelago and the task of the user."""
    namespace: str = "default"
    """The namespace of all objects."""
    cloud: Cloud = Cloud.NONE
    """The cloud, for the labels of its TPU and spot nodes."""
    storage_size: str = "100Gi"
    """The size of the volume for run directories and the durable store."""
    storage_class: str | None = None
    """The class of that volume; it must allow ReadWriteMany. None: the default of the cluster."""
    queue: str | None = None
    """The local queue of Kueue; None: the cluster has no Kueue."""
    gcs: Gcs = Gcs.ROCKSDB
    """The storage of Ray's control service."""
    redis: str | None = None
    """The address of Redis, HOST:PORT, with `Gcs.REDIS`."""
    tls: bool = True
    """Encrypt and authenticate Ray's connections; needs cert-manager."""
    network_policy: bool = True
    """Deny all traffic that the run does not need."""
    api_server: str = "0.0.0.0/0"
    """The addresses of the Kubernetes API server, which the autoscaler calls."""
    monitoring: str = "monitoring"
    """The namespace of Prometheus."""
    operator: str = "kuberay"
    """The namespace of the KubeRay operator."""
    release: str = "prometheus"
    """The label `release` by which the Prometheus operator finds monitors and rules."""
    gpu_resource: str = "nvidia.com/gpu"
    """The resource of Kubernetes for one GPU."""
    memory: Mapping[str, str] = field(default_factory=dict[str, str])
    """The memory of a node by group, where the estimate does not fit."""
    most: Mapping[str, int] = field(default_factory=dict[str, int])
    """The most islands of opportunistic groups, for the autoscaler; the default is the count."""
    node_selectors: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict[str, Mapping[str, str]]
    )
    """Labels of Kubernetes nodes by group."""

    @property
    def autoscaling(self) -> bool:
        """True if Ray's autoscaler adds and removes pods; Kueue admits a cluster as a whole."""
        return self.queue is None


def check_site(site: Site, config: Config, groups: Sequence[str]) -> None:
    """Check a site against the configuration of a run; `groups`: the names of all node groups.

    Errors: `UserMistake` with every problem.
    """
    if problems := [*_problems(site, config, groups)]:
        raise UserMistake("\n".join(problems))


def _problems(site: Site, config: Config, groups: Sequence[str]) -> Iterator[str]:
    for option, value in (("--name", site.name), ("--namespace", site.namespace)):
        if not NAME.fullmatch(value) or len(value) > MOST_NAME:
            yield (
                f"{option} {value}: must be a name of Kubernetes: a-z, 0-9 and -, beginning with a "
                f"letter, at most {MOST_NAME} characters"
            )
    if len(set(groups)) < len(groups):
        double = sorted({name for name in groups if groups.count(name) > 1})
        yield f"islands: {', '.join(double)} is a node group already; rename the group"
    if (site.gcs is Gcs.REDIS) != (site.redis is not None):
        yield "--redis HOST:PORT: is needed with --gcs redis, and with that only"
    for option, named in (
        ("--memory", site.memory), ("--most", site.most), ("--node-selector", site.node_selectors)
    ):  # fmt: skip
        for name in sorted(set(named) - set(groups)):
            yield f"{option} {name}: no such node group; {nearest(name, groups)}"
    quantities = [("--storage-size", site.storage_size)]
    quantities += [(f"--memory {name}", size) for name, size in site.memory.items()]
    for option, size in quantities:
        if not QUANTITY.fullmatch(size):
            yield f"{option}={size}: must be a quantity of Kubernetes, such as 64Gi"
    yield from _growth_problems(site, config, groups)


def _growth_problems(site: Site, config: Config, groups: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with `--most`: only opportunistic groups wait for more nodes."""
    islands = {group.group: group for group in config.islands}
    for name, most in site.most.items():
        option = f"--most {name}={most}"
        if (group := islands.get(name)) is None:
            if name in groups:
                yield f"{option}: only groups of islands grow"
            continue
        needed = group.count + group.spares
        if not site.autoscaling:
            yield (
                f"{option}: has no effect with --queue, which turns Ray's autoscaler off; leave "
                f"--most out, and raise the group's count if {needed} islands are too few"
            )
        elif not group.opportunistic:
            yield (
                f"{option}: the group is not opportunistic, so `archipelago scale` refuses more "
                "islands than there are nodes; set opportunistic = true for it, or leave --most "
                f"out and raise the group's count if {needed} islands are too few"
            )
        elif most < needed:
            yield f"{option}: the group begins with {needed}; give at least that"
