"""The bytes that an audit counts beside those that the network interfaces count.

Two real runs of the same length: one merges, the other exchanges no contribution before its end.
What the second one moves over a link beyond its audited payloads is the background: Ray's messages,
reports, metrics and logs. Ray also fetches a published version from a node of another region that
has it already. The audit counts such bytes where they arrive; here they count where they leave, too
(`relayed`). Payloads, background, relayed bytes and the headers of the additional packets should be
what the interfaces count.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from archipelago.lab.bench.stats import demo
from archipelago.lab.bench.wan_run import run_over
from archipelago.lab.checks.audit import audit
from archipelago.lab.checks.audit_result import RegionAudit, TrafficKind
from archipelago.lab.wan import kernel, nodes
from archipelago.lab.wan.network import Network
from cluster.config.schema import Config
from coordinator.errors import RunFailed

NAME, PREFIX = "bbyte", "10.93"
REGIONS = ("r0", "r1", "r2")
"""The regions; syncer and shards are in the first one, whose own island crosses no border."""
BATCH, WINDOW = 2, 32
WITHIN_S = 600.0
"""Timeout of one run, whose paced steps take less than two minutes."""
WAYS = {"up": "sent", "down": "received"}
"""The directions of an audit, and the names of the interfaces' counters of bytes and packets."""
HEADER_BYTES = 14 + 20 + 32
"""Bytes of the headers of a packet: Ethernet, IPv4, and TCP with a time stamp."""

BytesByLink = dict[tuple[str, str], int]
"""Bytes by region and direction."""
Counters = Mapping[str, Mapping[str, int]]
"""The counters of each region's link."""


@dataclass(frozen=True, slots=True)
class BytesPlan:
    """The model, the links and the length of the two runs."""

    preset: str = "byte-1m"
    steps: int = 240
    every: int = 4
    """H of the run that merges."""
    step_s: float = 0.4
    gbit: float = 0.2
    rtt_ms: float = 80.0


def bytes_agree(plan: BytesPlan, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the bytes of each link and direction, by the audit and by the interfaces.

    Errors: `UserMistake` without root or network tools; `RunFailed` if a run does not end well.
    """
    busy = _measured(plan, plan.every, say)
    still = _measured(plan, plan.steps, say)
    rows = rows_of(busy, still)
    return {
        "method": "bytes",
        "resent_segments": busy.resent_segments,
        "audit_deviation": max(abs(row["explained"] - 1) for row in rows),
        "payload_share": min(row["payload_bytes"] / row["interface_bytes"] for row in rows),
        "rows": rows,
    }


@dataclass(frozen=True, slots=True)
class BytesMeasured:
    """The bytes of one run, by region and direction."""

    interfaces: BytesByLink
    """Bytes that the interfaces counted."""
    packets: BytesByLink
    """Packets that they counted."""
    payloads: BytesByLink
    """Bytes that the audit counts."""
    relayed: BytesByLink
    """Bytes that a region sent to others than that of the shards; only with the direction "up"."""
    resent_segments: int = 0
    """TCP segments that were sent again, in all regions."""


def rows_of(busy: BytesMeasured, still: BytesMeasured) -> list[dict[str, Any]]:
    """Return a row for each link and direction of the run that merges.

    The other run gives the background, and the number of packets without exchanges.
    """
    rows = list[dict[str, Any]]()
    for key, interface in sorted(busy.interfaces.items()):
        background = still.interfaces[key] - still.payloads[key] - still.relayed.get(key, 0)
        headers = HEADER_BYTES * (busy.packets[key] - still.packets[key])
        relayed = busy.relayed.get(key, 0)
        row = {
            "region": key[0],
            "direction": key[1],
            "interface_bytes": interface,
            "payload_bytes": busy.payloads[key],
            "background_bytes": background,
            "header_bytes": headers,
            "relayed_bytes": relayed,
            "explained": (busy.payloads[key] + background + headers + relayed) / interface,
        }
        rows.append(row)
    return rows


def _measured(plan: BytesPlan, every: int, say: Callable[[str], None]) -> BytesMeasured:
    """Do one run, and return its bytes."""
    network = Network.planned(NAME, PREFIX, REGIONS, plan.gbit, plan.rtt_ms)
    with run_over(network, config_of(plan, every), say) as run:
        before = kernel.counters(network)
        try:
            run.process.wait(WITHIN_S)
        except subprocess.TimeoutExpired as cause:
            raise RunFailed(f"the run has not ended within {WITHIN_S:g} s") from cause
        after = kernel.counters(network)
        resent = sum(kernel.resent_segments(network).values())
        between = kernel.bytes_between(network)
        summary, errors = run.end()
        if not summary:
            raise RunFailed(f"the run has no summary:\n{errors[-2000:]}")
        audited = {each.region: each for each in audit(run.run_dir).regions}
    for region in REGIONS:
        say(f"{region}: {traffic_of(audited[region])}")
    lives = [audited[region].down[TrafficKind.MODEL].messages for region in REGIONS]
    say(f"H = {every}: {summary['merges']} merges, lives {lives}, {resent} segments sent again")
    relayed = {
        (region, "up"): sum(between.get((region, other), 0) for other in REGIONS[1:])
        for region in REGIONS[1:]
    }
    return BytesMeasured(
        _grown(before, after, "bytes"),
        _grown(before, after, "packets"),
        {(each, way): audited_bytes(audited[each], way) for each in REGIONS[1:] for way in WAYS},
        relayed,
        resent,
    )


def _grown(before: Counters, after: Counters, unit: str) -> BytesByLink:
    """Return how much the counters of the remote regions have grown; `unit`: bytes or packets."""
    return {
        (region, way): after[region][f"{name}_{unit}"] - before[region][f"{name}_{unit}"]
        for region in REGIONS[1:]
        for way, name in WAYS.items()
    }


def audited_bytes(region: RegionAudit, way: str) -> int:
    """Return the bytes of all payloads of a region in one direction."""
    traffic = region.up if way == "up" else region.down
    return sum(each.bytes for kind, each in traffic.items() if kind.has_payload)


def traffic_of(region: RegionAudit) -> str:
    """Return the bytes of a region by direction and kind, for people."""
    return ", ".join(
        f"{way} {kind} {each.bytes:,}"
        for way, traffic in (("up", region.up), ("down", region.down))
        for kind, each in traffic.items()
        if kind.has_payload
    )


def config_of(plan: BytesPlan, every: int) -> Config:
    """Return the configuration: one island with paced steps in each region."""
    islands = [
        {
            "group": name,
            "region": name,
            "batch_size": BATCH,
            "resources": {"CPU": 0.5},
            "label_selector": {nodes.LABEL: name},
            "step_s": plan.step_s,
        }
        for name in REGIONS
    ]
    overrides = [f"data.window={WINDOW}", f"sync.every={every}", "sync.fragments=4"]
    return demo(plan.preset, steps=plan.steps, seed=0, overrides=overrides, islands=islands)
