"""Start, look-up and end of the actors of a run, each with its Ray options.

Constructors take small plain values and cannot fail. An actor whose constructor raises is never
restarted, and large arguments may be gone by the time of a restart. Ray retries no call: a request
made to one life must not run in the next (docs/explanation/protocol.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.actors.directory import Actor
from cluster.actors.evaluator.actor import EvaluatorActor
from cluster.actors.evaluator.region_actor import RegionEvaluatorActor
from cluster.actors.fault_injection import Breakable
from cluster.actors.hosts.host_group import devices_of
from cluster.actors.island.actor import IslandActor
from cluster.actors.island.call_threads import THREADS
from cluster.actors.ring.actor import RingActor
from cluster.actors.ring.island_actor import RingIslandActor
from cluster.actors.shard.actor import ShardActor
from cluster.actors.syncer.actor import SyncerActor
from cluster.config.schema import Config, EvaluatorConfig, IslandGroup
from cluster.names import EVALUATOR, SYNCER, Seat, island_actor, region_evaluator
from cluster.source import learner_sha256, user_sha256
from cluster.workers.environment import (
    CPU_ENV,
    KEEP_PAGES,
    environment_of,
)


@dataclass(frozen=True, slots=True)
class Home:
    """The place of a run's actors.

    The actors stay on the node of the fleet while it is there: they may share a directory that no
    other node sees.
    """

    namespace: str
    detached: bool
    """Whether the actors outlive the process that starts them."""

    def options(self, name: str, env: Mapping[str, str]) -> dict[str, Any]:
        """Return Ray's options for an actor of this name, with this environment."""
        own: dict[str, Any] = {"runtime_env": {"env_vars": dict(env)}} if env else {}
        if self.detached:
            own |= {"lifetime": "detached", "get_if_exists": True}
        return {
            **own,
            "name": name,
            "namespace": self.namespace,
            "max_restarts": -1,
            "max_task_retries": 0,
            "enable_task_events": False,  # otherwise Ray would keep a record of every report
        }

    def near(self) -> dict[str, Any]:
        """Return the options for this process's node, or any other node if that is gone.

        The node's label is used, not soft node affinity: since Ray 2.60 that puts actors without
        resources on any node.
        """
        here = {NODE_ID: ray.get_runtime_context().get_node_id()}
        return {"label_selector": here, "fallback_strategy": [{"label_selector": {}}]}


def start_syncer(config: Config, run: str, home: Home, run_dir: Path, owner: int = 0) -> Actor:
    """Start the syncer, or the conductor of the ring where gradients are summed.

    `owner`: the number of the owner for its `Fence`; 0: ownership is not checked.
    """
    code = learner_sha256(config.learner_code, config.pickled_code)
    kind = RingActor if config.run.mode.sums_gradients else SyncerActor
    return _start(kind, SYNCER, home, {}).remote(
        config.model_dump_json(), run, home.namespace, str(run_dir), code, owner
    )


def start_shard(
    config: Config, name: str, home: Home, run_dir: Path, node: str | None = None, owner: int = 0
) -> Actor:
    """Start a shard.

    `node`: Ray's id of the preferred node; None: the fleet's node. If that node is gone, any node
    with the labels of `sync.shard_labels` will do. `owner`: as in `start_syncer`.
    """
    env = KEEP_PAGES | (CPU_ENV if config.shard_code else {})  # it may use JAX
    placement: dict[str, Any] = {}
    if node is not None:
        fallback = {"label_selector": dict(config.sync.shard_labels or {})}
        placement = {"label_selector": {NODE_ID: node}, "fallback_strategy": [fallback]}
    code = user_sha256(*config.shard_code.values())
    return _start(ShardActor, name, home, env, placement).remote(
        config.model_dump_json(), home.namespace, str(run_dir), code, owner
    )


def start_evaluator(
    config: Config, home: Home, devices: PlacementGroupSchedulingStrategy | None = None
) -> Actor:
    """Start the evaluator, or its first host if it has several.

    `devices`: the reserved devices; None: the fleet's node, or any node with room.
    """
    machines = config.monitor.evaluator
    env = {name: each for name, each in environment_of(machines).items() if name not in KEEP_PAGES}
    placement = home.near() if devices is None else {"scheduling_strategy": devices}
    placement |= devices_of(machines)
    actor = _start(EvaluatorActor, EVALUATOR, home, env, placement, groups={"asking": 1})
    return actor.remote(config.model_dump_json(), home.namespace)


def start_region_evaluator(
    config: Config, region: str, home: Home, labels: Mapping[str, str]
) -> Actor:
    """Start the evaluator of a region, which takes no device.

    `labels`: those of its node; if there are none, the evaluator is near the fleet.
    """
    plain = EvaluatorConfig()
    env = {name: each for name, each in environment_of(plain).items() if name not in KEEP_PAGES}
    placement = {"label_selector": dict(labels)} if labels else {}
    name, groups = region_evaluator(region), {"asking": 1}
    actor = _start(RegionEvaluatorActor, name, home, env, placement, groups=groups)
    return actor.remote(config.model_dump_json(), region, home.namespace)


def start_island(
    config: Config,
    group: IslandGroup,
    seat: Seat,
    home: Home,
    devices: PlacementGroupSchedulingStrategy | None,
    kind: type[Breakable] | None = None,
) -> Actor:
    """Start a process of this group; Ray restarts it whenever it dies.

    `devices`: the reserved devices; None: any node with room. `kind`: the actor's class; None: the
    class that the run's mode needs.
    """
    kind = kind or (RingIslandActor if config.run.mode.sums_gradients else IslandActor)
    env = environment_of(group)
    threaded: Any = ray.remote(concurrency_groups=THREADS)  # type: ignore[call-overload]
    actor = threaded(kind).options(
        **home.options(island_actor(seat), env),
        **devices_of(group),
        scheduling_strategy=devices,
    )
    return actor.remote(config.model_dump_json(), group.group, seat, home.namespace)


def find_actor(name: str, namespace: str) -> Actor | None:
    """Return an actor that an earlier incarnation of the fleet started; None if there is none."""
    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError:
        return None


def end_actor(actor: Actor) -> None:
    """End an actor's process for good."""
    ray.kill(actor, no_restart=True)


def _start(
    kind: type,
    name: str,
    home: Home,
    env: Mapping[str, str],
    where: Mapping[str, Any] = MappingProxyType({}),
    groups: Mapping[str, int] = MappingProxyType({}),
) -> Actor:
    """Prepare an actor with its options; `groups` gives numbers of threads by kind of call."""
    place = where or home.near()
    remote: Any = ray.remote(concurrency_groups=dict(groups)) if groups else ray.remote  # type: ignore[call-overload]
    return remote(kind).options(**home.options(name, env), **{"num_cpus": 0, **place})


NODE_ID = "ray.io/node-id"
"""The label of a node that holds Ray's id of it."""
