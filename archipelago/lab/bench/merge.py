"""The benchmark `archipelago bench merge`: the speed of a merge, compared with memory bandwidth.

Two yardsticks run beside it. A copy moves one stream in and one out. It counts as two streams,
though the target is read as well before it is written. A sum of M streams into one is the best that
a merge could do, since nearly all of it is reading. Against the sum, every stream that moves is
counted (`Workload.streams`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from archipelago.lab.bench.merge_memory import memory
from archipelago.lab.bench.merge_workload import Workload, spread_over, tasks_of
from archipelago.lab.bench.stats import interval_of, median


def merge(workload: Workload, *, repeats: int, say: Callable[[str], None]) -> dict[str, object]:
    """Time memcpy, sum, mean, RDA and the gate's norms in turn, `repeats` times, on equal threads.

    - `..._gb_s`: GB/s of `moved_bytes`.
    - `..._fraction`: the speed of a merge over that of the memcpy beside it.
    - `roofline_gb_s`, `..._of_roofline`: by `streams`; for RDA with the gate that goes before it.
    - `..._in_pieces`: for a fragment of many pieces.
    - `f32_contributions_per_s`, `wire_...`: contributions merged by RDA, in f32 and in the wire's
      encoding; `wire_speedup` is their ratio.
    - `directions_cost`: the time of the mean with directions measured, over that without.
    - `shard_...`: the memory of a shard with such a tensor; see `memory`.
    """
    held = memory(workload)
    seconds: dict[str, list[float]] = {}
    with ThreadPoolExecutor(workload.threads) as pool:
        tasks = tasks_of(workload, spread_over(pool, workload.threads))
        for task in tasks.values():
            task()  # compile, and touch every page
        for turn in range(repeats):
            for name, task in tasks.items():
                began_s = time.perf_counter()
                task()
                seconds.setdefault(name, []).append(time.perf_counter() - began_s)
            say(f"turn {turn + 1} of {repeats}: " + _line(workload, seconds))
    return _figures(workload, seconds) | held


def _line(workload: Workload, seconds: dict[str, list[float]]) -> str:
    """Return the speeds of the last turn, for people."""
    moved = workload.moved_bytes
    return ", ".join(f"{name} {moved[name] / seconds[name][-1] / 1e9:.1f} GB/s" for name in moved)


def _figures(workload: Workload, seconds: dict[str, list[float]]) -> dict[str, object]:
    """Return all figures of the timed tasks."""
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
        middle = median([merge_speed / copy_speed for merge_speed, copy_speed in pairs])
        figures |= interval_of(f"{name}_fraction", middle) | {"coverage": middle.coverage}
    figures |= _against_roofline(workload, seconds)
    pairs = zip(seconds["mean"], seconds["mean_alone"], strict=True)
    figures |= interval_of(
        "directions_cost", median([whole_s / alone_s for whole_s, alone_s in pairs])
    )
    for name, task in (("f32", "rda"), ("wire", "wire_rda")):
        figures[f"{name}_contributions_per_s"] = median([m / s for s in seconds[task]]).value
    pairs = zip(seconds["rda"], seconds["wire_rda"], strict=True)
    figures |= interval_of("wire_speedup", median([plain_s / wire_s for plain_s, wire_s in pairs]))
    figures["wire_gate_gb_s"] = median(
        [moved["gate"] / s / 1e9 for s in seconds["wire_gate"]]
    ).value
    return figures


def _against_roofline(workload: Workload, seconds: dict[str, list[float]]) -> dict[str, object]:
    """Return the bytes of all streams per second, and their share of the sum's."""
    streams, n = workload.streams, 4 * workload.elements
    roofline = [streams["sum"] * n / s / 1e9 for s in seconds["sum"]]
    figures: dict[str, object] = {"roofline_gb_s": median(roofline).value}
    for suffix in ("", "_in_pieces"):
        took_s = {
            "mean": seconds[f"mean{suffix}"],
            "rda": [
                gate_s + merge_s
                for gate_s, merge_s in zip(
                    seconds[f"gate{suffix}"], seconds[f"rda{suffix}"], strict=True
                )
            ],
        }
        for name, samples in took_s.items():
            speeds = [streams[name] * n / s / 1e9 for s in samples]
            shares = [speed / limit for speed, limit in zip(speeds, roofline, strict=True)]
            figures[f"{name}{suffix}_streams_gb_s"] = median(speeds).value
            figures |= interval_of(f"{name}{suffix}_of_roofline", median(shares))
    return figures
