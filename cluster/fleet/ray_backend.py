"""The fleet's Ray cluster: placement groups for devices, actors of one namespace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    RayError,
    RayTaskError,
)
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.actors.call_errors import STORE_FULL, answer
from cluster.actors.hosts.host_group import PLACED, bundles_by_host, nodes_of
from cluster.actors.start import (
    Home,
    end_actor,
    find_actor,
    start_evaluator,
    start_island,
    start_region_evaluator,
    start_shard,
    start_syncer,
)
from cluster.config.schema import Config, IslandGroup, Machines
from cluster.fleet.backend import (
    AliveCheck,
    Handle,
    Place,
    RayCluster,
    StorageSilent,
    Unavailable,
)
from cluster.fleet.draining_nodes import DrainingNodes, DrainRequests
from cluster.fleet.evaluation import Evaluating, Pending
from cluster.fleet.named_seats import named_seats
from cluster.fleet.placement import Node, bundle, selector
from cluster.fleet.tpu_slice import PlacedSlice, head_of
from cluster.names import Seat, island_actor
from coordinator.errors import Unreachable

MEANWHILE_S = 0.5
"""Seconds between two calls of `meanwhile` while an answer is awaited."""
SIGNS = ("progress", "judged", "__ray_ready__")
"""Calls that return an actor's progress; the first one that the actor has is used."""


@dataclass(frozen=True, slots=True)
class PlacedGroup:
    """A placement group of one bundle for each host of an island.

    The first host starts the others (`cluster.actors.hosts.host_group`). A TPU slice of one host is
    a node like any other: Ray's own slice utilities reserve no more for it than such a placement
    group (ray.util.tpu, `is_single_host`).
    """

    group: PlacementGroup
    head: PlacementGroup | None = None
    """The reservation of a slice's head that an earlier process of the fleet has made."""

    def ready(self) -> bool:
        """Return whether Ray has placed the group.

        `group.wait(0)` would be a race: every other time it gives up before it can be answered.
        """
        return placement_group_table(self.group).get("state") == PLACED

    def strategy(self) -> PlacementGroupSchedulingStrategy:
        """Return the scheduling strategy of the first host."""
        return PlacementGroupSchedulingStrategy(self.group, bundles_by_host(self.group)[0])

    def nodes(self) -> list[str]:
        """Return Ray's ids of the nodes of the bundles."""
        return nodes_of(self.group)

    def give_back(self) -> None:
        """Remove the placement group, and the reservation of the slice's head."""
        remove_placement_group(self.group)
        if self.head is not None:
            remove_placement_group(self.head)


def cluster_nodes() -> list[Node]:
    """Return the living nodes of the cluster to which this process is connected."""
    return [
        Node(node["NodeManagerAddress"], node["Resources"], node.get("Labels") or {})
        for node in ray.nodes()
        if node["Alive"]
    ]


def reserve(
    machines: Machines, seat: Seat, namespace: str, *, detached: bool
) -> PlacedGroup | PlacedSlice:
    """Ask for the devices of an island, a spare or the evaluator, without waiting for them."""
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
    group = placement_group(
        [bundle(machines)] * hosts,
        strategy=pack,
        name=name,
        lifetime=lifetime,
        bundle_label_selector=[selector(machines)] * hosts,
    )
    return PlacedGroup(group)


def reserved(seat: Seat, namespace: str) -> PlacedGroup | None:
    """Return the devices that an earlier process of the fleet has asked for; None if none."""
    try:
        group = ray.util.get_placement_group(f"{namespace}/{seat}")
    except ValueError:
        return None
    return PlacedGroup(group, head_of(group))


@dataclass(frozen=True, slots=True)
class RayBackend(RayCluster):
    """The Ray cluster to which this process is connected, for one run."""

    config: Config
    run_dir: Path
    home: Home
    watch: DrainingNodes = field(default_factory=DrainingNodes)
    drains: DrainRequests = field(default_factory=DrainRequests)

    def nodes(self) -> list[Node]:
        """Return the living nodes."""
        return cluster_nodes()

    def here(self) -> str:
        """Return the id of this process's node."""
        return ray.get_runtime_context().get_node_id()

    def address(self) -> str:
        """Return the address of the cluster's head."""
        return ray.get_runtime_context().gcs_address

    def draining(self) -> Mapping[str, float | None]:
        """Return the nodes that are draining, with the seconds that are left to each."""
        return self.watch.now()

    def drain_node(self, node: str, why: str, left_s: float) -> bool:
        """Return whether Ray places nothing more on this node."""
        return self.drains.ask(node, why, left_s)

    def reserve(self, machines: Machines, seat: Seat) -> Place:
        """Ask for devices, without waiting for them."""
        return reserve(machines, seat, self.home.namespace, detached=self.home.detached)

    def reserved(self, seat: Seat) -> Place | None:
        """Return the devices that an earlier process of the fleet has asked for; None if none."""
        return reserved(seat, self.home.namespace)

    def start_island(self, group: IslandGroup, seat: Seat, place: Place) -> Handle:
        """Start a process of this group on these devices."""
        assert isinstance(place, PlacedGroup | PlacedSlice)
        return start_island(self.config, group, seat, self.home, place.strategy())

    def start_evaluator(self, place: Place | None) -> Handle:
        """Start the evaluator on this place; None: at the fleet, or wherever there is room."""
        if place is None:
            return start_evaluator(self.config, self.home)
        assert isinstance(place, PlacedGroup | PlacedSlice)
        return start_evaluator(self.config, self.home, place.strategy())

    def start_region_evaluator(self, region: str) -> Handle:
        """Start the evaluator of a region on a node with the labels of its first group."""
        labels = selector(self.config.group_in(region))
        return start_region_evaluator(self.config, region, self.home, labels)

    def start_shard(self, name: str, node: str | None, owner: int) -> Handle:
        """Start a shard on this node, or at the fleet if that is None."""
        return start_shard(self.config, name, self.home, self.run_dir, node, owner=owner)

    def start_syncer(self, owner: int) -> Handle:
        """Start the syncer."""
        return start_syncer(self.config, self.run_dir.name, self.home, self.run_dir, owner=owner)

    def find(self, name: str) -> Handle | None:
        """Return the actor with this name; None if there is none."""
        return find_actor(name, self.home.namespace)

    def find_island(self, seat: Seat) -> Handle | None:
        """Return the actor of the island or spare at this seat; None if there is none."""
        return find_actor(island_actor(seat), self.home.namespace)

    def seats(self) -> list[Seat]:
        """Return the seats of islands and spares whose actor or devices are there."""
        return named_seats(self.home.namespace)

    def end(self, actor: Handle) -> None:
        """End the actor's process for good."""
        end_actor(actor)

    def restart(self, actor: Handle) -> None:
        """Kill the actor's process; Ray starts another one in its place."""
        ray.kill(actor, no_restart=False)

    def ask(
        self, actor: Handle, method: str, *arguments: object, meanwhile: Callable[[], None]
    ) -> Any:
        """Return the actor's answer; call `meanwhile` every `MEANWHILE_S` until then.

        Errors: the actor's own; `RunFailed` if it has died for good; `Unavailable`, which is
        `StorageSilent` if it waits for its storage.
        """
        reference = getattr(actor, method).remote(*arguments)
        while True:
            try:
                return answer(reference, MEANWHILE_S)
            except (ActorUnavailableError, *STORE_FULL) as error:
                raise Unavailable(type(error).__name__) from error
            except Unreachable as error:  # it is there, and waits for its storage
                raise StorageSilent(str(error)) from error
            except RayTaskError:  # an error of the actor, which may be a timeout of its own
                raise
            except GetTimeoutError:
                meanwhile()

    def sign(self, actor: Handle) -> Pending:
        """Ask the actor for a sign of life, without waiting."""
        call = next(each for name in SIGNS if (each := getattr(actor, name, None)) is not None)
        reference = call.remote()
        return lambda wait_s: ray.get(reference, timeout=wait_s)

    def alive(self, actor: Handle) -> AliveCheck:
        """Ask the actor for a sign of life, without waiting."""
        answer_within = self.sign(actor)

        def check() -> tuple[bool, str]:
            try:
                answer_within(0.0)
            except GetTimeoutError:
                return False, ""
            except ActorDiedError as error:
                return True, str(error)
            except RayError:  # it is unavailable at present, as while Ray restarts it
                pass
            return True, ""

        return check

    def promise(self, actor: Handle, method: str, *arguments: object) -> object:
        """Return a reference to the actor's answer."""
        return getattr(actor, method).remote(*arguments)

    def tell(self, actor: Handle, method: str, *arguments: object) -> None:
        """Call the actor, and do not wait."""
        getattr(actor, method).remote(*arguments)

    def tell_all(self, actors: Sequence[Handle], method: str, within_s: float) -> None:
        """Call all of these actors, and wait at most `within_s` for their answers."""
        calls = [getattr(actor, method).remote() for actor in actors]
        if calls:
            ray.wait(calls, num_returns=len(calls), timeout=within_s)

    def evaluating(self, evaluator: Handle) -> Evaluating:
        """Return the evaluator as `EvaluationSchedule` calls it."""
        return RayEvaluator(evaluator)


@dataclass(frozen=True, slots=True)
class RayEvaluator(Evaluating):
    """The evaluator's actor, as `EvaluationSchedule` calls it."""

    actor: Handle

    def ask(self, method: str, *arguments: object) -> Pending:
        """Call a method, without waiting for the answer."""
        reference = getattr(self.actor, method).remote(*arguments)
        return lambda wait_s: ray.get(reference, timeout=wait_s)

    def restart(self) -> None:
        """Kill its process; Ray starts another one."""
        ray.kill(self.actor, no_restart=False)
