"""The bytes that an audit counts beside those that the network interfaces count.

Two real runs of the same length: one merges, the other exchanges no contribution before its end.
What the second one moves over a link beyond its audited payloads is the background: Ray's messages,
reports, metrics and logs. The payloads and the background should be what the interfaces count.
"""

from __future__ import annotations

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
WAYS = {"up": "sent_bytes", "down": "received_bytes"}
"""The directions of an audit, and the counters of the interfaces."""

Bytes = dict[tuple[str, str], int]
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
    busy, payloads, resent = _measured(plan, plan.every, say)
    still, few, _ = _measured(plan, plan.steps, say)
    rows = rows_of(busy, payloads, {key: still[key] - few[key] for key in still})
    return {
        "method": "bytes",
        "resent_segments": resent,
        "audit_deviation": max(abs(row["explained"] - 1) for row in rows),
        "payload_share": min(row["payload_bytes"] / row["interface_bytes"] for row in rows),
        "rows": rows,
    }


def rows_of(busy: Bytes, payloads: Bytes, background: Bytes) -> list[dict[str, Any]]:
    """Return a row for each link and direction.

    `busy`: the interfaces' counts of the run that merges; `payloads`: its audit's.
    """
    return [
        {
            "region": region,
            "direction": way,
            "interface_bytes": busy[region, way],
            "payload_bytes": payloads[region, way],
            "background_bytes": background[region, way],
            "explained": (payloads[region, way] + background[region, way]) / busy[region, way],
        }
        for region, way in sorted(busy)
    ]


def _measured(plan: BytesPlan, every: int, say: Callable[[str], None]) -> tuple[Bytes, Bytes, int]:
    """Do one run; return the bytes by interfaces and by audit, and how many segments went twice."""
    network = Network.planned(NAME, PREFIX, REGIONS, plan.gbit, plan.rtt_ms)
    with run_over(network, config_of(plan, every), say) as run:
        before = kernel.counters(network)
        run.process.wait()
        after = kernel.counters(network)
        resent = sum(kernel.resent_segments(network).values())
        summary, errors = run.end()
        if not summary:
            raise RunFailed(f"the run has no summary:\n{errors[-2000:]}")
        audited = {each.region: each for each in audit(run.run_dir).regions}
    lives = [audited[region].down[TrafficKind.MODEL].messages for region in REGIONS]
    say(f"H = {every}: {summary['merges']} merges, lives {lives}, {resent} segments sent again")
    payloads = {
        (region, way): audited_bytes(audited[region], way) for region in REGIONS[1:] for way in WAYS
    }
    return _grown(before, after), payloads, resent


def _grown(before: Counters, after: Counters) -> Bytes:
    """Return how much the counters of the remote regions have grown."""
    return {
        (region, way): after[region][counter] - before[region][counter]
        for region in REGIONS[1:]
        for way, counter in WAYS.items()
    }


def audited_bytes(region: RegionAudit, way: str) -> int:
    """Return the bytes of all payloads of a region in one direction."""
    traffic = region.up if way == "up" else region.down
    return sum(each.bytes or 0 for each in traffic.values())


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
