"""A TPU slice of several hosts as an island's devices.

Ray's slice utilities, which are alpha, are called only here. Ray reserves a slice in two steps. It
first takes the slice's head, a resource that each slice has once. Then it makes a placement group
of one bundle for each host, pinned to that slice by name. The first step waits for a free slice, so
a thread does it. The head is kept as long as the slice: else Ray would give it to another job,
which would then wait for hosts that are taken.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping
from typing import Any

from ray import PlacementGroupID
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from ray.util.tpu import SlicePlacementGroup, slice_placement_group

from cluster.actors.hosts.host_group import PLACED, bundles_by_host, nodes_of
from cluster.fleet.backend import Place

log = logging.getLogger("archipelago.fleet")
ASKED_S = 10.0
"""The timeout in seconds of each request to Ray for a free slice, after which it is repeated."""
PLACED_S, LOOK_S = 15.0, 0.2
"""The timeout of a slice whose other hosts are taken, and the time between looks, in seconds."""

_HEAD = re.compile(r"TPU-.+-head")
"""The resource that the first host of a slice has, once."""


class PlacedSlice(Place):
    """A slice that is requested or there: one bundle for each of its `hosts`."""

    def __init__(
        self,
        accelerator: str,
        topology: str,
        hosts: int,
        *,
        bundle: Mapping[str, float],
        labels: Mapping[str, str],
        name: str,
        lifetime: str | None,
    ) -> None:
        """Request a slice, without waiting for it.

        `accelerator`: such as "TPU-V6E". `bundle`: resources of one host; `labels`: those that its
        node must have.
        """
        self._lock, self._given_back = threading.Lock(), threading.Event()
        self._slice: SlicePlacementGroup | None = None

        def reserve() -> SlicePlacementGroup:
            return slice_placement_group(
                topology,
                accelerator.removeprefix("TPU-").lower(),
                resources_per_bundle=dict(bundle),
                chips_per_vm=int(bundle["TPU"]),
                name=name,
                lifetime=lifetime,
                head_reservation_timeout_s=ASKED_S,
                bundle_label_selector=[dict(labels)] * hosts,
            )

        def ask() -> None:
            last_error = ""
            while not self._given_back.is_set():
                try:
                    if self._has(reserve()):
                        return
                except TimeoutError:
                    pass  # no slice is free
                except Exception as error:
                    if str(error) != last_error:
                        last_error = str(error)
                        log.exception("no slice %s of %s can be had", topology, accelerator)
                    self._given_back.wait(ASKED_S)

        self._asking = threading.Thread(target=ask, name=f"slice {name}", daemon=True)
        self._asking.start()

    def _has(self, found: SlicePlacementGroup) -> bool:
        """Return whether this place keeps the slice that was found.

        It does not if other hosts than the head are taken, or if the place was given back
        meanwhile.
        """
        group, until_s, kept = _group_of(found), time.monotonic() + PLACED_S, False
        try:
            while placement_group_table(group).get("state") != PLACED:
                if self._given_back.wait(LOOK_S) or time.monotonic() > until_s:
                    return False
            with self._lock:
                if kept := not self._given_back.is_set():
                    self._slice = found
            return kept
        finally:
            if not kept:
                found.shutdown()

    def ready(self) -> bool:
        """Return whether the slice is there."""
        return self._slice is not None

    def strategy(self) -> PlacementGroupSchedulingStrategy:
        """Return the scheduling strategy of the first host."""
        assert self._slice is not None, "it is ready"
        group = _group_of(self._slice)
        return PlacementGroupSchedulingStrategy(group, bundles_by_host(group)[0])

    def nodes(self) -> list[str]:
        """Return Ray's ids of the nodes of the slice; empty if it is not there."""
        with self._lock:
            return [] if self._slice is None else nodes_of(_group_of(self._slice))

    def give_back(self) -> None:
        """Return the slice.

        This waits for a request that is under way, whose slice would outlive this process.
        """
        with self._lock:
            self._given_back.set()
        self._asking.join(ASKED_S + PLACED_S)
        with self._lock:
            found, self._slice = self._slice, None
        if found is not None:
            found.shutdown()


def head_of(group: PlacementGroup) -> PlacementGroup | None:
    """Return the reservation of the head of a group's slice; None if the group has no slice.

    Ray gives that reservation no name, so a restarted fleet finds it by its place: the head of a
    slice is on one of the group's hosts, and no other group can have it.
    """
    tables: Any = placement_group_table()
    own_table = tables.get(group.id.hex(), {})
    bundles = [*own_table.get("bundles", {}).values()]
    if len(bundles) < 2 or not all(bundle.get("TPU") for bundle in bundles):
        return None
    hosts = set(own_table["bundles_to_node_id"].values())
    for number, other in tables.items():
        resources = [name for bundle in other["bundles"].values() for name in bundle]
        is_head = other["state"] == PLACED and any(map(_HEAD.fullmatch, resources))
        if is_head and set(other["bundles_to_node_id"].values()) <= hosts:
            return PlacementGroup(PlacementGroupID(bytes.fromhex(number)))
    return None


def _group_of(found: SlicePlacementGroup) -> PlacementGroup:
    assert found.placement_group is not None, "of one slice there is one"
    return found.placement_group
