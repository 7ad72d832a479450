"""The hosts of one island as actors: the first one starts the others, and they are gone with it.

Ray ends an actor whose owner is gone, and it brings none of them back by itself: when one host dies
the first ends its own process, Ray restarts that, and a new life begins with new other hosts on the
devices of the same placement group.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.actors.directory import Actor, holder_of, setup_logging
from cluster.actors.handed import FirstPart
from cluster.actors.inject import Cable
from cluster.actors.link import RayLink
from cluster.config.schema import Config, IslandGroup
from cluster.host.environment import environment_of
from cluster.names import Seat, island_actor
from coordinator.codec import Sent
from coordinator.parts import Part
from coordinator.protocol import ContributionId, Fragment, HandIn, Island, Known

if TYPE_CHECKING:  # JAX is imported on a thread where a failure can be reported
    from cluster.host.gang import Meeting
    from islands.follower import Follower
    from islands.lead import Lead
    from islands.link import Link

log = logging.getLogger("archipelago.gang")
KEY_BYTES = 32
PLACED = "CREATED"
"""What Ray calls a placement group that has its devices."""
TPU_WORKER = "ray.io/tpu-worker-id"
"""The label of a node's place in its TPU slice."""


def devices_of(group: IslandGroup) -> dict[str, Any]:
    """What one host of an island asks Ray for."""
    resources = dict(group.devices)
    cpus, gpus = resources.pop("CPU", 0.0), resources.pop("GPU", 0.0)
    memory = resources.pop("memory", None)
    return {"num_cpus": cpus, "num_gpus": gpus, "memory": memory, "resources": resources}


def bundles_by_host(group: PlacementGroup) -> list[int]:
    """Which bundle of an island's placement group each of its hosts has, the first one's first: on
    a TPU slice in the order of its workers, in which JAX counts them, and not of the bundles."""
    where: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
    labels = {node["NodeID"]: node.get("Labels") or {} for node in ray.nodes()}

    def worker(bundle: int) -> int:
        return int(labels.get(where[bundle], {}).get(TPU_WORKER, bundle))

    return sorted(where, key=worker)


class RayGang:
    """The other hosts of an island, as the first one has them."""

    def __init__(
        self,
        config: str,
        group: IslandGroup,
        seat: Seat,
        namespace: str,
        end: Callable[[str], NoReturn],
    ) -> None:
        """Start the others, and meet them. `end`: this process, with the reason."""
        from cluster.host.gang import First, enter
        from islands.lead import Lead

        address = ray.util.get_node_ip_address()
        key = secrets.token_bytes(KEY_BYTES)
        self._first = First(address, group.hosts, key, lambda error: end(str(error)))
        self.lead: Lead = Lead(self._first.send, group.hosts - 1)
        self._first.hear(self.lead.heard)
        life = secrets.token_hex(4)
        self._names = [f"{island_actor(seat)} {life}/{n}" for n in range(1, group.hosts)]
        places: list[PlacementGroupSchedulingStrategy | None] = [None] * len(self._names)
        if (bundles := ray.util.get_current_placement_group()) is not None:
            _, *others = bundles_by_host(bundles)
            places = [PlacementGroupSchedulingStrategy(bundles, each) for each in others]
        self._actors: list[Actor] = [  # Ray ends an actor that nobody has a handle of
            _host(config, group, seat, namespace, name, number, self._first.meeting, where)
            for (number, name), where in zip(enumerate(self._names, 1), places, strict=True)
        ]
        enter(self._first.meeting, 0)
        self._ranges: Mapping[Fragment, slice] = {}

    def narrowed(self, link: Link, ranges: Mapping[Fragment, slice]) -> Link:
        assert isinstance(link, RayLink)
        link.ranges = self._ranges = ranges
        return link

    def first_part(self, fragment: Fragment, facts: HandIn, sent: Sent) -> FirstPart:
        own = self._ranges[fragment]
        return FirstPart(Part(facts, own.start, own.stop, sent), tuple(self._names))


def _host(
    config: str,
    group: IslandGroup,
    seat: Seat,
    namespace: str,
    name: str,
    number: int,
    meeting: Meeting,
    where: PlacementGroupSchedulingStrategy | None,
) -> Actor:
    threaded: Any = ray.remote(concurrency_groups={"asking": 16})  # type: ignore[call-overload]
    actor = threaded(HostActor).options(
        name=name,
        namespace=namespace,
        max_restarts=0,
        max_task_retries=0,
        enable_task_events=False,
        runtime_env={"env_vars": environment_of(group)},
        scheduling_strategy=where,
        **devices_of(group),
    )
    return actor.remote(config, group.group, seat, namespace, number, meeting)


class HostActor:
    """A host of an island that is not the first."""

    def __init__(
        self, config: str, group: str, seat: Seat, namespace: str, number: int, meeting: Meeting
    ) -> None:
        setup_logging()
        plain = Config.model_validate_json(config, strict=False)
        self._config, self._group = plain, plain.group(group)
        self._number, self._meeting = number, meeting
        self._link = RayLink(namespace, Cable(), seat, holder_of(plain), relievable=False)
        self._follower: Follower | None = None
        threading.Thread(target=self._live, name="train", daemon=True).start()

    def _live(self) -> None:
        try:
            from cluster.host.gang import Other, enter
            from islands.orders import Fate, News

            first = Other(self._meeting, self._number, lambda error: self._end(str(error)))

            def beside(said: News | Fate) -> None:
                if (follower := self._follower) is not None:
                    try:
                        match said:
                            case News(life, publication):
                                follower.offer(life, publication)
                            case Fate(contribution):
                                follower.refused(contribution)
                    except BaseException:
                        log.exception("a publication could not be taken in")
                        self._end("see above")

            first.start(beside)
            enter(self._meeting, self._number)
            from cluster.host.build import assemble_follower, compiled, ranges_of

            parts = compiled(self._config, self._group)
            self._link.ranges = ranges_of(parts)
            any_of_it: Island = self._group.names[0]
            self._follower = assemble_follower(
                self._config, any_of_it, parts, self._link, first.say
            )
            self._follower.run(first.orders())
        except BaseException:
            log.exception("a host of an island broke")
        self._end("nothing is left to do")

    def _end(self, why: str) -> NoReturn:
        """End this process, and with it the island."""
        log.error("host %d of an island of %s ends: %s", self._number, self._group.group, why)
        logging.shutdown()
        os._exit(1)

    @ray.method(concurrency_group="asking")
    def part(self, said: ContributionId, known: Known) -> Part | str | None:
        """Its part of a contribution; whatever this raises ends the island."""
        try:
            follower = self._follower
            return None if follower is None else follower.part(said, known)
        except BaseException:
            log.exception("what was trained could not be handed in")
            self._end("see above")
