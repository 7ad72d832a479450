"""The benchmark `archipelago bench wan`: merged tokens per second over thin, long links.

Regions are network namespaces with real links (`archipelago.lab.wan`). Decoupled training is a real
syncer with real shards and paced stand-ins; data-parallel training, DiLoCo and streaming are a ring
over plain TCP (`wan_ring`), each with the best of several numbers of streams and buckets. A step is
idle time on both sides, so the machine's cores do not decide. Data-parallel training overlaps its
all-reduce with the whole step, which no real one can.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from archipelago.lab.bench.wan_decoupled import BATCH_TOKENS, DecoupledPlan
from archipelago.lab.bench.wan_points import REGIONS, STREAMING_OVERLAP, WanPoint, predicted
from archipelago.lab.bench.wan_ring import RingPlan
from archipelago.lab.bench.wan_run import driver, output_of_members, transfer
from archipelago.lab.bench.wan_samples import PARTS, ByteSampler, first_link
from archipelago.lab.wan import ceiling, kernel, nodes, rig
from archipelago.lab.wan.network import Network
from cluster.storage.files import json_text
from coordinator.errors import RunFailed

NAME, PREFIX = "bwan", "10.91"
STORE_MB = 1500
BF16_BYTES = 2
CHOICES = ((1, 1), (4, 1), (8, 1), (8, 4))
"""Streams, and buckets of each, from which every ring chooses the fastest."""
QUICK_CHOICES = ((4, 1),)
PERIODS, WARM_PERIODS = 10, 3
"""Periods of H steps that are measured, and those before them."""
TCP_REPEATS = 3
"""Measurements of plain TCP, beside the objects through Ray."""
OF_DECOUPLED = ("mean_participants", "discarded_fraction", "queue_growth_s", "peak_over_mean")
"""The figures of decoupled training at the last point that have goals."""
RING_S = 600.0
"""Timeout of one run of a ring."""


def wan(
    points: Sequence[WanPoint],
    *,
    methods: Sequence[str],
    methods_elsewhere: Sequence[str] | None = None,
    choices: Sequence[tuple[int, int]] = CHOICES,
    periods: int = PERIODS,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure methods at points; the last point decides `speedup`.

    `methods_elsewhere`: those at the other points; None: the same. Other points that fail, or whose
    links are too fast for this machine, are left out.

    Errors: `UserMistake` without root or network tools; `RunFailed` if the last point fails.
    """
    rows = list[dict[str, Any]]()
    figures: dict[str, Any] = {"scaled_point": points[-1].scaled, "rows": rows}

    def measure(point: WanPoint) -> None:
        last_one = point == points[-1]
        here = methods if last_one or methods_elsewhere is None else methods_elsewhere
        figures.update(_at(point, here, choices, periods, rows, say, objects=last_one))

    left_out = over_points(points, measure, say)
    if left_out:
        figures["left_out"] = left_out
    last = {row["method"]: row for row in rows[-len(methods) :]}
    if {"decoupled", "data-parallel"} <= last.keys():
        decoupled, parallel = last["decoupled"], last["data-parallel"]
        figures |= speedup_of(decoupled, parallel)
        figures["speedup_over_bytes"] = decoupled["tokens_per_s"] / parallel["bytes_tokens_per_s"]
        figures |= {name: decoupled[name] for name in OF_DECOUPLED}
    figures["utilisation_off"] = max(abs(row["utilisation_off"]) for row in rows)
    at_once = [r for r in rows if r["method"] == "data-parallel" and not r["rtt_ms"]]
    if at_once:
        figures["ring_link_fraction"] = min(row["link_fraction"] for row in at_once)
    return figures


def over_points(
    points: Sequence[WanPoint],
    measure: Callable[[WanPoint], None],
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Measure at all points, and return those that were left out, each with `why` and `failed`.

    A point is left out if it is not the last one, and its measurement fails (`failed` is True) or
    its links are too fast for this machine. The points before it may have taken an hour.

    Errors: `UserMistake` without root or network tools; `RunFailed` if the last point fails.
    """
    left_out = list[dict[str, Any]]()
    for point in points:
        try:
            measure(point)
        except (rig.LinksTooFast, RunFailed) as error:
            if point == points[-1]:
                raise
            say(f"left out: {point.gbit:g} Gbit/s, {point.rtt_ms:g} ms: {error}")
            left_out.append({
                "gbit_s": point.gbit, "rtt_ms": point.rtt_ms, "why": str(error),
                "failed": isinstance(error, RunFailed),
            })  # fmt: skip
    return left_out


def speedup_of(decoupled: Mapping[str, Any], parallel: Mapping[str, Any]) -> dict[str, float]:
    """Return `speedup` with its interval, which is that of the periods of decoupled training.

    The denominator is the fastest ring that was found.
    """
    rates = {end: decoupled[f"tokens_per_s{end}"] for end in ("", "_low", "_high")}
    found = {f"speedup{end}": rate / parallel["tokens_per_s"] for end, rate in rates.items()}
    return found | {
        "speedup_coverage": decoupled["coverage"],
        "speedup_samples": decoupled["samples"],
    }


def _at(
    point: WanPoint,
    methods: Sequence[str],
    choices: Sequence[tuple[int, int]],
    periods: int,
    rows: list[dict[str, Any]],
    say: Callable[[str], None],
    *,
    objects: bool,
) -> dict[str, float]:
    """Measure methods at a point, and append their rows.

    With `objects` and decoupled training, return the figures of transfers of objects.
    """
    network = Network.planned(NAME, PREFIX, REGIONS, point.gbit, point.rtt_ms)
    needs_ray = "decoupled" in methods
    size = nodes.NodeSize(cpus=2.0, store_mb=STORE_MB) if needs_ray else None
    with rig.running(network, say, size=size):
        tcp_gbit = statistics.median(ceiling.measure(network) for _ in range(TCP_REPEATS))
        rates = transfer(network, tcp_gbit, say) if needs_ray and objects else {}
        for method in methods:
            row = _row(network, point, method, choices, periods)
            row |= predicted(point, method, tcp_gbit, row["compute_utilisation"])
            say(_line(row))
            rows.append(row)
    return rates


def spread(point: WanPoint, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure decoupled training with all shards in the first region, and with one in each.

    On a link that is too thin, merges of a fragment are more than H steps apart. Figures are these
    steps on both sides, `one_region_every` and `each_region_every`, beside H.

    Errors: `UserMistake` without root or network tools; `RunFailed`.
    """
    figures = wan([point, replace(point, spread=True)], methods=["decoupled"], say=say)
    if left_out := figures.get("left_out"):
        raise RunFailed(f"all shards in the first region: {left_out[0]['why']}")
    rows = figures["rows"]
    one, each = (row["effective_every"] for row in rows)
    return {"one_region_every": one, "each_region_every": each, "every": point.every, "rows": rows}


def _row(
    network: Network,
    point: WanPoint,
    method: str,
    choices: Sequence[tuple[int, int]],
    periods: int,
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "method": method, "gbit_s": point.gbit, "rtt_ms": point.rtt_ms,
        "parameters": point.parameters, "step_s": point.step_s, "spread": point.spread,
    }  # fmt: skip
    before = kernel.counters(network)
    if method == "decoupled":
        row |= _decoupled(network, point, periods)
    else:
        row |= _best_ring(network, point, method, choices)
    after = kernel.counters(network)
    first = network.regions[0].name
    ways = ("sent_bytes", "received_bytes")
    return row | {f"hub_{way}": after[first][way] - before[first][way] for way in ways}


def _line(row: Mapping[str, Any]) -> str:
    return (
        f"{row['method']}, {row['gbit_s']:g} Gbit/s, {row['rtt_ms']:g} ms: "
        f"{row['tokens_per_s']:.0f} tokens/s, computing {row['compute_utilisation']:.1%}"
    )


def _decoupled(network: Network, point: WanPoint, periods: int) -> dict[str, Any]:
    """Run the decoupled side in the first region, and return its figures."""
    period_s = point.every * point.step_s
    plan = DecoupledPlan(
        address=f"{network.address(0)}:{nodes.PORT}",
        regions=REGIONS,
        parameters=point.parameters,
        every=point.every,
        wire=point.wire,
        quorum=point.quorum,
        step_s=point.step_s,
        warm_s=WARM_PERIODS * period_s,
        for_s=periods * period_s,
        periods=periods,
        spread=point.spread,
    )
    module = "archipelago.lab.bench.wan_decoupled"
    sampler = ByteSampler(first_link(network), period_s / PARTS / 2)
    with sampler.running():
        within_s = plan.warm_s + plan.for_s
        figures = driver(network, module, json_text(asdict(plan)), within_s=within_s)
    peak = sampler.peak_over_mean(figures.pop("began_s"), period_s, periods)
    return figures | {"peak_over_mean": peak}


def plan_of(method: str, point: WanPoint, streams: int, buckets: int) -> RingPlan:
    """Return the plan of a ring for data-parallel training, DiLoCo or streaming.

    Streaming sends fours: half a byte for each parameter of one fragment.
    """
    model = BF16_BYTES * point.parameters
    plan = RingPlan((), model, 1, 0, point.step_s, streams, buckets, warm=1, measured=2)
    match method:
        case "data-parallel":
            return plan
        case "diloco":
            return replace(plan, every=point.every, overlap=-1, warm=0, measured=1)
        case "streaming":
            nbytes = point.parameters // 2 // point.every
            overlap = STREAMING_OVERLAP
            return replace(plan, nbytes=nbytes, overlap=overlap, warm=10, measured=2 * point.every)
        case _:
            raise ValueError(method)


def _best_ring(
    network: Network, point: WanPoint, method: str, choices: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """Run a ring with each choice, and return the figures of the fastest."""
    found = [_ring(network, plan_of(method, point, *choice)) for choice in choices]
    seconds, choice = min(
        (each["seconds"] / each["steps"], choice)
        for each, choice in zip(found, choices, strict=True)
    )
    plan = plan_of(method, point, *choice)
    size = len(REGIONS)
    tokens = size * BATCH_TOKENS
    bytes_step = 2 * (size - 1) / size * plan.nbytes / plan.every
    bytes_s = max(point.step_s, bytes_step * 8 / (point.gbit * 1e9)) if point.gbit else point.step_s
    if plan.overlap < 0 and point.gbit:
        bytes_s = point.step_s + bytes_step * 8 / (point.gbit * 1e9)
    return {
        "tokens_per_s": tokens / seconds,
        "trained_tokens_per_s": tokens / seconds,
        "bytes_tokens_per_s": tokens / bytes_s,
        "compute_utilisation": point.step_s / seconds,
        "link_fraction": bytes_s / seconds,
        "streams": choice[0],
        "buckets": choice[1],
        "bytes_per_token": bytes_step / BATCH_TOKENS,
    }


def _ring(network: Network, plan: RingPlan) -> dict[str, Any]:
    """Run one member of a ring in each region, and return the first one's figures."""
    addresses = [network.address(region.number) for region in network.regions]
    fields = asdict(replace(plan, addresses=tuple(addresses)))
    module = "archipelago.lab.bench.wan_ring"
    arguments = [json_text(fields | {"rank": rank}) for rank in range(len(addresses))]
    outputs = output_of_members(network, module, arguments, within_s=RING_S)
    time.sleep(0.5)  # its connections are gone
    figures: dict[str, Any] = json.loads(outputs[0].splitlines()[-1])
    return figures
