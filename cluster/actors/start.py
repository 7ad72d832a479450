"""How the actors of a run are started, found and ended; each with its options.

Constructors take small plain values and cannot fail, since an actor whose constructor raises is
never restarted, and large arguments may be gone by then. No call is retried by Ray: a request made
of one life must not run on the next (docs/protocol.md).
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
from cluster.actors.fault_injection import Breakable
from cluster.actors.hosts.host_group import devices_of
from cluster.actors.island.actor import IslandActor
from cluster.actors.island.call_threads import THREADS
from cluster.actors.ring.actor import RingActor
from cluster.actors.ring.island_actor import RingIslandActor
from cluster.actors.shard.actor import ShardActor
from cluster.actors.syncer.actor import SyncerActor
from cluster.config.schema import Config, IslandGroup
from cluster.names import EVALUATOR, SYNCER, Seat, island_actor
from cluster.source import user_sha256
from cluster.workers.environment import (
    CPU_ENV,
    KEEP_PAGES,
    environment_of,
)


@dataclass(frozen=True, slots=True)
class Home:
    """Where a run's actors live: their namespace, and whether they outlast whoever starts them.

    They stay on the node of the fleet while it is there: they may share a directory that no other
    node sees.
    """

    namespace: str
    detached: bool

    def options(self, name: str, env: Mapping[str, str]) -> dict[str, Any]:
        own: dict[str, Any] = {"runtime_env": {"env_vars": dict(env)}} if env else {}
        if self.detached:
            own |= {"lifetime": "detached", "get_if_exists": True}
        return {
            **own,
            "name": name,
            "namespace": self.namespace,
            "max_restarts": -1,
            "max_task_retries": 0,
            "enable_task_events": False,  # Ray would keep a record of every report
        }

    def near(self) -> dict[str, Any]:
        """Options: on this process's node, or on another one if that is gone.

        By its label, since Ray 2.60 puts actors without resources anywhere if the affinity is soft.
        """
        here = {NODE_ID: ray.get_runtime_context().get_node_id()}
        return {"label_selector": here, "fallback_strategy": [{"label_selector": {}}]}


def start_syncer(config: Config, run: str, home: Home, run_dir: Path, owner: int = 0) -> Actor:
    """Or who conducts the ring. `owner`: number of whom the run is; 0: nobody asks."""
    code = user_sha256(config.task.target)
    kind = RingActor if config.run.mode.sums_gradients else SyncerActor
    return _start(kind, SYNCER, home, {}).remote(
        config.model_dump_json(), run, home.namespace, str(run_dir), code, owner
    )


def start_shard(
    config: Config, name: str, home: Home, run_dir: Path, node: str | None = None, owner: int = 0
) -> Actor:
    """`node`: Ray's name of where it shall be, while that is there; None: the fleet's. `owner`:
    number of whom the run is; 0: nobody asks."""
    env = KEEP_PAGES | (CPU_ENV if config.sync.outer.target else {})  # an optax one needs JAX
    there: dict[str, Any] = {}
    if node is not None:
        else_ = {"label_selector": dict(config.sync.shard_labels or {})}
        there = {"label_selector": {NODE_ID: node}, "fallback_strategy": [else_]}
    code = user_sha256(config.sync.outer.target)
    return _start(ShardActor, name, home, env, there).remote(
        config.model_dump_json(), home.namespace, str(run_dir), code, owner
    )


def start_evaluator(
    config: Config, home: Home, devices: PlacementGroupSchedulingStrategy | None = None
) -> Actor:
    """Or its first host, on the `devices` that were reserved for it; None: on the fleet's node, or
    wherever there is room."""
    machines = config.monitor.evaluator
    env = {name: each for name, each in environment_of(machines).items() if name not in KEEP_PAGES}
    there = home.near() if devices is None else {"scheduling_strategy": devices}
    there |= devices_of(machines)
    actor = _start(EvaluatorActor, EVALUATOR, home, env, there, groups={"asking": 1})
    return actor.remote(config.model_dump_json(), home.namespace)


def start_island(
    config: Config,
    group: IslandGroup,
    seat: Seat,
    home: Home,
    devices: PlacementGroupSchedulingStrategy | None,
    kind: type[Breakable] | None = None,
) -> Actor:
    """A process of this group on the devices that were reserved for it (None: wherever there is
    room); Ray restarts it whenever it dies. `kind`: None for what the mode of the run needs."""
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
    """An actor that an earlier life of the fleet has started; None if it is not there."""
    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError:
        return None


def end_actor(actor: Actor) -> None:
    """End its process for good."""
    ray.kill(actor, no_restart=True)


def _start(
    kind: type,
    name: str,
    home: Home,
    env: Mapping[str, str],
    where: Mapping[str, Any] = MappingProxyType({}),
    groups: Mapping[str, int] = MappingProxyType({}),
) -> Actor:
    """`groups`: threads for calls of these kinds, beside those for all others."""
    place = where or home.near()
    made: Any = ray.remote(concurrency_groups=dict(groups)) if groups else ray.remote  # type: ignore[call-overload]
    return made(kind).options(**home.options(name, env), **{"num_cpus": 0, **place})


NODE_ID = "ray.io/node-id"
"""The label that Ray gives each node: its id."""
