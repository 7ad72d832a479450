"""`archipelago bench merge`: how near the merge comes to moving the bytes that it must move.

Two yardsticks run beside it. A copy moves one stream in and one out; it is counted as two, though
what is written is read first. A sum of M streams into one is what a merge could be at best: nearly
all of it reads. Against that every stream is counted that moves (`Workload.streams`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from archipelago.lab.bench.merge_memory import memory
from archipelago.lab.bench.merge_workload import Workload, spread_over, tasks_of
from archipelago.lab.bench.stats import median, told


def merge(workload: Workload, *, repeats: int, say: Callable[[str], None]) -> dict[str, object]:
    """Memcpy, sum, mean, RDA and the gate's norms in turn, `repeats` times, by the same threads.

    GB/s are of `moved_bytes`; a fraction is that of a merge to that of the memcpy beside it.
    `roofline_gb_s` and `..._of_roofline` are of `streams`, RDA's with the gate that goes before it;
    `..._in_pieces` of a fragment of so many pieces.
    `f32_contributions_per_s` and `wire_...` are merged by RDA, in f32 and as the wire has them, and
    `wire_speedup` is the ratio.
    `shard_...`: what a shard of such a tensor holds, and `memory` says how it is counted.
    """
    held = memory(workload)
    seconds: dict[str, list[float]] = {}
    with ThreadPoolExecutor(workload.threads) as pool:
        tasks = tasks_of(workload, spread_over(pool, workload.threads))
        for task in tasks.values():
            task()  # compiled, and every page touched
        for turn in range(repeats):
            for name, task in tasks.items():
                began_s = time.perf_counter()
                task()
                seconds.setdefault(name, []).append(time.perf_counter() - began_s)
            say(f"turn {turn + 1} of {repeats}: " + _line(workload, seconds))
    return _figures(workload, seconds) | held


def _line(workload: Workload, seconds: dict[str, list[float]]) -> str:
    moved = workload.moved_bytes
    return ", ".join(f"{name} {moved[name] / seconds[name][-1] / 1e9:.1f} GB/s" for name in moved)


def _figures(workload: Workload, seconds: dict[str, list[float]]) -> dict[str, object]:
    moved, m = workload.moved_bytes, workload.contributions
    figures: dict[str, object] = {
        "contributions": m,
        "elements": workload.elements,
        "threads": workload.threads,
        "wire": str(workload.wire),
        "pieces": len(workload.leaves),
        "samples": len(seconds["memcpy"]),
    }
    speeds = {name: [moved[name] / s / 1e9 for s in seconds[name]] for name in moved}
    for name, speed in speeds.items():
        figures[f"{name}_gb_s"] = median(speed).value
    for name in ("mean", "rda"):
        pairs = zip(speeds[name], speeds["memcpy"], strict=True)
        middle = median([ours / copied for ours, copied in pairs])
        figures |= told(f"{name}_fraction", middle) | {"coverage": middle.coverage}
    figures |= _against_roofline(workload, seconds)
    pairs = zip(seconds["mean"], seconds["mean_alone"], strict=True)
    figures |= told("directions_cost", median([whole_s / alone_s for whole_s, alone_s in pairs]))
    for name, task in (("f32", "rda"), ("wire", "wire_rda")):
        figures[f"{name}_contributions_per_s"] = median([m / s for s in seconds[task]]).value
    pairs = zip(seconds["rda"], seconds["wire_rda"], strict=True)
    figures |= told("wire_speedup", median([plain_s / wire_s for plain_s, wire_s in pairs]))
    figures["wire_gate_gb_s"] = median(
        [moved["gate"] / s / 1e9 for s in seconds["wire_gate"]]
    ).value
    return figures


def _against_roofline(workload: Workload, seconds: dict[str, list[float]]) -> dict[str, object]:
    """Bytes of all streams per second, and their share of the same of the sum beside it."""
    streams, n = workload.streams, 4 * workload.elements
    roofline = [streams["sum"] * n / s / 1e9 for s in seconds["sum"]]
    figures: dict[str, object] = {"roofline_gb_s": median(roofline).value}
    for where in ("", "_in_pieces"):
        took_s = {
            "mean": seconds[f"mean{where}"],
            "rda": [
                gate_s + merge_s
                for gate_s, merge_s in zip(
                    seconds[f"gate{where}"], seconds[f"rda{where}"], strict=True
                )
            ],
        }
        for name, samples in took_s.items():
            speeds = [streams[name] * n / s / 1e9 for s in samples]
            shares = [ours / top for ours, top in zip(speeds, roofline, strict=True)]
            figures[f"{name}{where}_streams_gb_s"] = median(speeds).value
            figures |= told(f"{name}{where}_of_roofline", median(shares))
    return figures
