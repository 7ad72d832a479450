"""The fleet's Ray cluster: placement groups for devices, actors of one namespace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayTaskError
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.actors.call_errors import STORE_FULL, answer
from cluster.actors.hosts.host_group import PLACED, bundles_by_host
from cluster.actors.start import (
    Home,
    end_actor,
    find_actor,
    start_evaluator,
    start_island,
    start_shard,
    start_syncer,
)
from cluster.config.schema import Config, IslandGroup, Machines
from cluster.fleet.backend import Handle, Place, RayCluster, Unavailable
from cluster.fleet.evaluation import Evaluating, Pending
from cluster.fleet.placement import Node, bundle, selector
from cluster.fleet.tpu_slice import PlacedSlice, head_of
from cluster.names import Seat, island_actor

MEANWHILE_S = 0.5
"""Between two times that whoever waits for an answer looks at other things."""
SIGNS = ("progress", "judged", "__ray_ready__")
"""Calls that say how far an actor has come; the first of them that it has is asked."""


@dataclass(frozen=True, slots=True)
class PlacedGroup:
    """A placement group of one bundle, or of one to each host of an island; the first host starts
    the others (`cluster.actors.hosts.host_group`).

    A TPU slice of one host is a node like any other: Ray's own slice utilities reserve no more for
    it than such a placement group (ray.util.tpu, `is_single_host`).
    """

    group: PlacementGroup
    head: PlacementGroup | None = None
    """What reserves the head of a slice that an earlier life of the fleet asked for."""

    def ready(self) -> bool:
        """`group.wait(0)` would be a race: it gives up before it can be answered, every other
        time."""
        return placement_group_table(self.group).get("state") == PLACED

    def strategy(self) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(self.group, bundles_by_host(self.group)[0])

    def give_back(self) -> None:
        remove_placement_group(self.group)
        if self.head is not None:
            remove_placement_group(self.head)


def cluster_nodes() -> list[Node]:
    """The living nodes of the cluster that this process is connected to."""
    return [
        Node(node["NodeManagerAddress"], node["Resources"], node.get("Labels") or {})
        for node in ray.nodes()
        if node["Alive"]
    ]


def reserve(
    machines: Machines, seat: Seat, namespace: str, *, detached: bool
) -> PlacedGroup | PlacedSlice:
    """Ask for the devices of one island, of a spare, or of the evaluator; returns at once."""
    name, lifetime = f"{namespace}/{seat}", "detached" if detached else None
    hosts = machines.hosts
    if machines.topology is not None and machines.accelerator is not None and hosts > 1:
        return PlacedSlice(
            machines.accelerator,
            machines.topology,
            hosts,
            bundle=bundle(machines),
            labels=selector(machines),
            name=name,
            lifetime=lifetime,
        )
    pack = "STRICT_PACK" if hosts == 1 else "STRICT_SPREAD" if machines.spread else "PACK"
    asked = placement_group(
        [bundle(machines)] * hosts,
        strategy=pack,
        name=name,
        lifetime=lifetime,
        bundle_label_selector=[selector(machines)] * hosts,
    )
    return PlacedGroup(asked)


def reserved(seat: Seat, namespace: str) -> PlacedGroup | None:
    """The devices that an earlier life of the fleet asked for; None if there are none."""
    try:
        group = ray.util.get_placement_group(f"{namespace}/{seat}")
    except ValueError:
        return None
    return PlacedGroup(group, head_of(group))


@dataclass(frozen=True, slots=True)
class RayBackend(RayCluster):
    """The Ray cluster that this process is connected to, for one run."""

    config: Config
    run_dir: Path
    home: Home

    def nodes(self) -> list[Node]:
        return cluster_nodes()

    def here(self) -> str:
        return ray.get_runtime_context().get_node_id()

    def address(self) -> str:
        return ray.get_runtime_context().gcs_address

    def reserve(self, machines: Machines, seat: Seat) -> Place:
        return reserve(machines, seat, self.home.namespace, detached=self.home.detached)

    def reserved(self, seat: Seat) -> Place | None:
        return reserved(seat, self.home.namespace)

    def start_island(self, group: IslandGroup, seat: Seat, place: Place) -> Handle:
        assert isinstance(place, PlacedGroup | PlacedSlice)
        return start_island(self.config, group, seat, self.home, place.strategy())

    def start_evaluator(self, place: Place | None) -> Handle:
        if place is None:
            return start_evaluator(self.config, self.home)
        assert isinstance(place, PlacedGroup | PlacedSlice)
        return start_evaluator(self.config, self.home, place.strategy())

    def start_shard(self, name: str, node: str | None, owner: int) -> Handle:
        return start_shard(self.config, name, self.home, self.run_dir, node, owner=owner)

    def start_syncer(self, owner: int) -> Handle:
        return start_syncer(self.config, self.run_dir.name, self.home, self.run_dir, owner=owner)

    def find(self, name: str) -> Handle | None:
        return find_actor(name, self.home.namespace)

    def find_island(self, seat: Seat) -> Handle | None:
        return find_actor(island_actor(seat), self.home.namespace)

    def end(self, actor: Handle) -> None:
        end_actor(actor)

    def restart(self, actor: Handle) -> None:
        ray.kill(actor, no_restart=False)

    def ask(
        self, actor: Handle, method: str, *arguments: object, meanwhile: Callable[[], None]
    ) -> Any:
        reference = getattr(actor, method).remote(*arguments)
        while True:
            try:
                return answer(reference, MEANWHILE_S)
            except (ActorUnavailableError, *STORE_FULL) as error:
                raise Unavailable(type(error).__name__) from error
            except RayTaskError:  # what the actor raised, which may be a timeout of its own
                raise
            except GetTimeoutError:
                meanwhile()

    def sign(self, actor: Handle) -> Pending:
        call = next(each for name in SIGNS if (each := getattr(actor, name, None)) is not None)
        reference = call.remote()
        return lambda wait_s: ray.get(reference, timeout=wait_s)

    def promise(self, actor: Handle, method: str, *arguments: object) -> object:
        return getattr(actor, method).remote(*arguments)

    def tell(self, actor: Handle, method: str, *arguments: object) -> None:
        getattr(actor, method).remote(*arguments)

    def tell_all(self, actors: Sequence[Handle], method: str, within_s: float) -> None:
        said = [getattr(actor, method).remote() for actor in actors]
        if said:
            ray.wait(said, num_returns=len(said), timeout=within_s)

    def evaluating(self, evaluator: Handle) -> Evaluating:
        return RayEvaluator(evaluator)


@dataclass(frozen=True, slots=True)
class RayEvaluator(Evaluating):
    """The evaluator's actor."""

    actor: Handle

    def ask(self, method: str, *arguments: object) -> Pending:
        reference = getattr(self.actor, method).remote(*arguments)
        return lambda wait_s: ray.get(reference, timeout=wait_s)

    def restart(self) -> None:
        """End its process; Ray begins it anew."""
        ray.kill(self.actor, no_restart=False)
