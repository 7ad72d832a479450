"""Hosts that compute as one, as actors: the first one starts the others, and they end with it.

Ray ends an actor whose owner is gone, and it restarts none of the other hosts by itself. When one
host dies, the first host ends its own process and Ray restarts that. The new process starts new
other hosts on the devices of the same placement group.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.actors.directory import Actor
from cluster.config.schema import Machines
from cluster.workers.environment import environment_of

if TYPE_CHECKING:  # JAX is imported where there are devices, and where a failure can be reported
    from islands.hosts.lead import Lead

KEY_BYTES = 32
"""The length of the secret that hosts of one island share, in bytes."""
PLACED = "CREATED"
"""Ray's state of a placement group that has its devices."""
TPU_WORKER = "ray.io/tpu-worker-id"
"""The label of a node's place in its TPU slice."""


def devices_of(machines: Machines) -> dict[str, Any]:
    """Return the resources that one host asks Ray for, as options of an actor."""
    resources = dict(machines.devices)
    cpus, gpus = resources.pop("CPU", 0.0), resources.pop("GPU", 0.0)
    memory = resources.pop("memory", None)
    return {"num_cpus": cpus, "num_gpus": gpus, "memory": memory, "resources": resources}


def bundles_by_host(group: PlacementGroup) -> list[int]:
    """Return the bundle of a placement group for each host, the first host's first.

    On a TPU slice the order is that of its workers, in which JAX counts them, not that of bundles.
    """
    nodes: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
    labels = {node["NodeID"]: node.get("Labels") or {} for node in ray.nodes()}

    def worker(bundle: int) -> int:
        return int(labels.get(nodes[bundle], {}).get(TPU_WORKER, bundle))

    return sorted(nodes, key=worker)


def nodes_of(group: PlacementGroup) -> list[str]:
    """Return Ray's ids of the nodes on which a placement group has bundles; empty if on none."""
    nodes: dict[int, str] = placement_group_table(group).get("bundles_to_node_id", {})
    return [*dict.fromkeys(filter(None, nodes.values()))]


class Hosts:
    """The other hosts, as the first one reaches them.

    `lead`: sends orders to all of them. `actors`, `names`: one for each host, in order.
    """

    def __init__(
        self,
        kind: type,
        arguments: tuple[Any, ...],
        machines: Machines,
        namespace: str,
        called: str,
        end: Callable[[str], NoReturn],
    ) -> None:
        """Start the other hosts and meet them; from here on `jax.devices()` are those of all hosts.

        `kind`: their actor's class; its constructor gets `arguments`, the host's number and the
        meeting address. `called`: the first host's name. `end`: ends this process, with a reason.
        """
        from cluster.hosts.gang import First, enter

        count = machines.hosts
        address, key = ray.util.get_node_ip_address(), secrets.token_bytes(KEY_BYTES)
        self._first = First(address, count, key, lambda error: end(str(error)))
        life = secrets.token_hex(4)
        self.names = tuple(f"{called} {life}/{n}" for n in range(1, count))
        places: list[PlacementGroupSchedulingStrategy | None] = [None] * len(self.names)
        if (bundles := ray.util.get_current_placement_group()) is not None:
            _, *others = bundles_by_host(bundles)
            places = [PlacementGroupSchedulingStrategy(bundles, each) for each in others]
        threaded: Any = ray.remote(concurrency_groups={"asking": 16})  # type: ignore[call-overload]
        env = {"env_vars": environment_of(machines)}
        self.actors: list[Actor] = [  # Ray ends an actor without handles
            threaded(kind)
            .options(
                name=name,
                namespace=namespace,
                max_restarts=0,
                max_task_retries=0,
                enable_task_events=False,
                runtime_env=env,
                scheduling_strategy=place,
                **devices_of(machines),
            )
            .remote(*arguments, number, self._first.meeting)
            for (number, name), place in zip(enumerate(self.names, 1), places, strict=True)
        ]
        from islands.hosts.lead import Lead  # imports JAX, while the other processes start

        self.lead: Lead[Any] = Lead(self._first.send, count - 1)
        self._first.hear(self.lead.heard)  # answers to orders; none was sent yet
        enter(self._first.meeting, 0)
        self._first.entered()
