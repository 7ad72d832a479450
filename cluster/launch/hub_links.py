"""The links between the hub and the islands, measured within seconds when a run starts.

The hub is this process's node: fleet, syncer and shards run there. One node of each region stands
for its region. All regions send at once, as in a run, each in proportion to its islands.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from cluster.actors.call_errors import message_of
from cluster.actors.start import NODE_ID
from cluster.config.schema import Config
from cluster.fleet.placement import Node, expected_islands
from cluster.launch.links import REGION, LinkProbe
from cluster.launch.region_shares import readers_of_source, shard_shares
from coordinator.errors import UserMistake
from coordinator.interval import HubLink
from islands.own_wire import AnyWire, decoded_of, encoded
from islands.sources import STDLIB

PATIENT_S = 300.0
"""Timeout of the measurement of all links together.

It takes seconds; the start of a process behind a thin link takes a minute.
"""
TINY_BYTES, WARM_BYTES, MOST_BYTES = 2**16, 2**20, 2**26
"""An object that measures latency, one that opens connections, and the largest one."""
TRANSFER_S = 1.0
"""The wanted duration of the measured transfer."""
LEAST_SHARE = 0.1
"""The least share of a transfer's time that counts as the time of its bytes."""
CODED, CALLS = 2**20, 5
"""Elements that are coded, and calls that are timed, to measure this machine."""
THIS_MACHINE = "this machine's codec and object store"


@dataclass(frozen=True, slots=True)
class HubMeasured:
    """The result of a measurement."""

    links: tuple[HubLink, ...] = ()
    missing: tuple[str, ...] = ()
    """The regions that could not be measured, and why."""
    unreadable: tuple[str, ...] = ()
    """The regions that cannot read `data.source`, and why."""


class RegionProbe(LinkProbe):
    """A probe that also looks for the corpus that all may read."""

    def unreadable(self, config: str) -> str:
        """Return why this node cannot read `data.source`; empty if it can."""
        from cluster.workers.assembly import data_spec
        from islands.sources import find_source

        try:
            find_source(data_spec(Config.model_validate_json(config)))
        except (UserMistake, OSError) as error:
            return str(error)
        return ""


@dataclass(frozen=True, slots=True)
class _Site:
    """One node that stands for a region."""

    name: str
    address: str
    islands: float
    others: float
    """The islands of other regions."""
    held: float
    """The share of the shards that are in this region."""
    probe: Any
    is_public: bool
    """Whether islands will be here that read `data.source`."""


def this_machine(config: Config) -> HubLink:
    """Measure how fast this node codes contributions and moves them through its object store.

    It bounds what the hub can merge, also where all islands are on one machine.

    Errors: `UserMistake` if this node starts no process within `PATIENT_S`.
    """
    values = np.random.default_rng(0).standard_normal(CODED).astype(np.float32)
    up, down = (_coded_bit_s(w, values) for w in (config.sync.wire_up, config.sync.wire_down))
    probe: Any = _probe(ray.get_runtime_context().get_node_id())
    try:
        ray.get(probe.port.remote(), timeout=PATIENT_S)
        took_s = [_seconds(lambda: ray.get(probe.port.remote())) for _ in range(CALLS)]
    except RayError as error:
        raise UserMistake(
            'sync.every: "auto" could not measure this node: it starts no process within '
            f"{PATIENT_S:g} s ({type(error).__name__}); give sync.every a number"
        ) from error
    finally:
        ray.kill(probe)
    return HubLink(THIS_MACHINE, up, down, statistics.median(took_s), len(config.island_names))


def _coded_bit_s(wire: AnyWire, values: np.ndarray[Any, np.dtype[np.float32]]) -> float:
    """Return the bits of a payload over the time to encode, put, get and decode it."""

    def once() -> None:
        decoded_of(wire, ray.get(ray.put(encoded(wire, values))), values.size)

    once()  # compiles the kernels
    took_s = statistics.median(_seconds(once) for _ in range(CALLS))
    return 8 * wire.bytes_of(values.size) / took_s


def _seconds(call: Callable[[], object]) -> float:
    began_s = time.monotonic()
    call()
    return time.monotonic() - began_s


def to_regions(config: Config, nodes: Sequence[Node], within_s: float) -> HubMeasured:
    """Measure the links to all regions that islands will be in; none if all are on this node.

    It takes at most `within_s`, and raises nothing because of a link.
    """
    here = ray.get_runtime_context().get_node_id()
    wanted = _sites(config, nodes, here)
    if not wanted:
        return HubMeasured()
    hub: Any = _probe(here, threads=2 * len(wanted) + 2)
    try:
        return _Measurement(hub, wanted, within_s).result(config)
    finally:
        for probe in (hub, *(site.probe for site in wanted)):
            ray.kill(probe)


def measured_meanwhile(config: Config, nodes: Sequence[Node]) -> ray.ObjectRef | None:
    """Start the measurement in a process of this node, and return the reference of its result.

    Return None if there is no link to measure.
    """
    here = ray.get_runtime_context().get_node_id()
    own, islands = address_of(nodes, here), expected_islands(config, nodes)
    if all(node.name == own or not islands.get(node.labels.get(NODE_ID, "")) for node in nodes):
        return None
    options: dict[str, Any] = {"label_selector": {NODE_ID: here}, "num_cpus": 0, "max_retries": 0}
    task: Any = ray.remote(_measure).options(**options)
    return task.remote(config.model_dump_json(), nodes)


def _measure(config: str, nodes: Sequence[Node]) -> HubMeasured:
    return to_regions(Config.model_validate_json(config), nodes, PATIENT_S)


def _sites(config: Config, nodes: Sequence[Node], here: str) -> list[_Site]:
    """Return one node of each region with islands; nodes of this machine have no link."""
    islands = expected_islands(config, nodes)
    public = readers_of_source(config, nodes)
    own = address_of(nodes, here)
    found: dict[str, tuple[Node, float]] = {}
    for node in nodes:
        known = node.labels.get(NODE_ID, "")
        if node.name == own or not islands.get(known):
            continue
        name = node.labels.get(REGION, "the other nodes")
        first, count = found.get(name, (node, 0.0))
        found[name] = first, count + islands[known]
    total, held = sum(islands.values()), shard_shares(config, nodes)
    return [
        _Site(
            name,
            node.name,
            count,
            total - count,
            held.get(name, 0.0),
            _probe(node.labels[NODE_ID]),
            node.labels[NODE_ID] in public,
        )
        for name, (node, count) in found.items()
    ]


def address_of(nodes: Sequence[Node], known: str) -> str:
    """Return the address of the node with this id; empty if there is none."""
    return next((node.name for node in nodes if node.labels.get(NODE_ID) == known), "")


def _probe(node: str, threads: int = 4) -> Any:
    options: dict[str, Any] = {"label_selector": {NODE_ID: node}, "num_cpus": 0}
    return ray.remote(RegionProbe).options(max_concurrency=threads, **options).remote()


class _Measurement:
    """One measurement of all regions at once."""

    def __init__(self, hub: Any, sites: Sequence[_Site], within_s: float) -> None:
        self._hub, self._within_s = hub, within_s
        self._end_s = time.monotonic() + within_s
        self._sites = {site.name: site for site in sites}
        self._missing: dict[str, str] = {}

    def result(self, config: Config) -> HubMeasured:
        """Look for the corpus, measure round trips, then both directions."""
        unreadable = self._unreadable(config)
        ports = self._all({name: site.probe.port.remote() for name, site in self._sites.items()})
        rtts = self._all(
            {
                name: self._hub.round_trip_ms.remote(self._sites[name].address, port)
                for name, port in ports.items()
            }
        )
        up = self._rates(rtts, towards_hub=True)
        down = self._rates(up, towards_hub=False)
        links = tuple(
            HubLink(
                f"the link to {name}",
                up[name],
                down[name],
                rtts[name] / 1000,
                site.islands * (1.0 - site.held),
                site.others * site.held,
            )
            for name, site in self._sites.items()
            if name in down
        )
        missing = tuple(f"{name}: {why}" for name, why in self._missing.items())
        return HubMeasured(links, missing, unreadable)

    def _unreadable(self, config: Config) -> tuple[str, ...]:
        """Return the regions that cannot read `data.source` for a preset, and why.

        The corpora of regions with a table are checked by `corpus_check`.
        """
        everywhere = config.data.source == STDLIB and not config.data.mixture
        if config.task.preset is None or everywhere:
            return ()
        text = config.model_dump_json()
        public = {name: site for name, site in self._sites.items() if site.is_public}
        answers = self._all(
            {name: site.probe.unreadable.remote(text) for name, site in public.items()}
        )
        return tuple(
            f"{name} (node {self._sites[name].address}): {why}"
            for name, why in answers.items()
            if why
        )

    def _rates(self, names: Mapping[str, object], *, towards_hub: bool) -> dict[str, float]:
        """Return the rates to or from these regions, in bit/s."""
        warm_s = self._transfers(dict.fromkeys(names, WARM_BYTES), towards_hub=towards_hub)
        tiny_s = self._transfers(dict.fromkeys(warm_s, TINY_BYTES), towards_hub=towards_hub)
        if not tiny_s:
            return {}
        islands = {name: self._sites[name].islands for name in tiny_s}
        unit = min(TRANSFER_S * WARM_BYTES / warm_s[name] / islands[name] for name in tiny_s)
        sizes = {
            name: int(min(MOST_BYTES, max(WARM_BYTES, unit * count)))
            for name, count in islands.items()
        }
        big_s = self._transfers(sizes, towards_hub=towards_hub)
        return {
            name: 8 * sizes[name] / max(LEAST_SHARE * took_s, took_s - tiny_s[name])
            for name, took_s in big_s.items()
        }

    def _transfers(self, sizes: Mapping[str, int], *, towards_hub: bool) -> dict[str, float]:
        """Return the seconds of one transfer of each region, all at the same time."""
        senders = {name: self._sites[name].probe if towards_hub else self._hub for name in sizes}
        receivers = {name: self._hub if towards_hub else self._sites[name].probe for name in sizes}
        boxes = self._all({name: senders[name].put.remote(size) for name, size in sizes.items()})
        return self._all({name: receivers[name].fetch_s.remote(box) for name, box in boxes.items()})

    def _all(self, calls: Mapping[str, ray.ObjectRef]) -> dict[str, Any]:
        """Return the answers by region; a region without an answer is missing from now on."""
        references = [*calls.values()]
        left_s = max(0.0, self._end_s - time.monotonic())
        if references:
            ray.wait(references, num_returns=len(references), timeout=left_s)
        found: dict[str, Any] = {}
        for name, reference in calls.items():
            try:
                found[name] = ray.get(reference, timeout=0)
            except RayError as error:
                late = time.monotonic() >= self._end_s
                reason = f"no answer within {self._within_s:g} s" if late else message_of(error)
                self._missing[name] = reason
        return found
