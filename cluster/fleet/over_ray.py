"""The fleet's Ray cluster: placement groups for devices, actors of one namespace."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.actors.calls import STORE_FULL, answer
from cluster.actors.hosts import PLACED, bundles_by_host
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
from cluster.fleet.cluster import Handle, Place, RayCluster, Unavailable
from cluster.fleet.judging import Evaluating, Pending
from cluster.fleet.placement import Node, bundle, selector
from cluster.fleet.tpu_slice import PlacedSlice
from cluster.names import Seat, island_actor
from coordinator.errors import RunFailed

ANSWER_TIMEOUT_S = 120.0
"""For an answer of the run's own actors, imports and compilation included, or for a sign that they
have come further with it."""
SIGN_TIMEOUT_S = 10.0
log = logging.getLogger("archipelago.fleet")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PlacedGroup:
    """A placement group of one bundle, or of one to each host of an island; the first host starts
    the others (`cluster.actors.hosts`).

    A TPU slice of one host is a node like any other: Ray's own slice utilities reserve no more for
    it than such a placement group (ray.util.tpu, `is_single_host`).
    """

    group: PlacementGroup

    def ready(self) -> bool:
        """`group.wait(0)` would be a race: it gives up before it can be answered, every other
        time."""
        return placement_group_table(self.group).get("state") == PLACED

    def strategy(self) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(self.group, bundles_by_host(self.group)[0])

    def give_back(self) -> None:
        remove_placement_group(self.group)


def patient(wait: Callable[[], T], heard: Callable[[], object], each_s: float) -> T:
    """An answer, waited for as long as whoever owes it comes further: `wait` gives up with
    `GetTimeoutError` after `each_s`, then `heard` says how far it is.

    Errors: `RunFailed` if it says the same as before, or nothing; what `wait` raises else.
    """
    before: object = None
    while True:
        try:
            return wait()
        except GetTimeoutError as error:
            try:
                now = heard()
            except GetTimeoutError:
                now = before
            if now == before:
                words = f"an actor of the run has not answered for {each_s:g} s"
                raise RunFailed(words) from error
            log.warning("an answer takes long; its actor is at %s", now)
            before = now


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
        return PlacedGroup(ray.util.get_placement_group(f"{namespace}/{seat}"))
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class OverRay(RayCluster):
    """The cluster that this process is connected to, for one run."""

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

    def ask(self, actor: Handle, method: str, *arguments: object) -> Any:
        reference = getattr(actor, method).remote(*arguments)

        def heard() -> object:
            """How far it is; the same again says that it hangs, as does an actor that has nothing
            to say."""
            sign = getattr(actor, "progress", None)
            return None if sign is None else answer(sign.remote(), SIGN_TIMEOUT_S)

        try:
            return patient(lambda: answer(reference, ANSWER_TIMEOUT_S), heard, ANSWER_TIMEOUT_S)
        except (ActorUnavailableError, *STORE_FULL) as error:
            raise Unavailable(type(error).__name__) from error

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
        ray.kill(self.actor, no_restart=False)
