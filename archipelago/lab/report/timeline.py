"""The events of a Chrome trace, which Perfetto and chrome://tracing read.

Source of the format: "Trace Event Format" (the Chromium project). Times are whole microseconds
since the first event. A lane is a thread; slices of a lane are nested, as the format requires.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MICRO = 1e6
"""Microseconds of a second."""
PROCESSES = ("syncer", "islands", "shards", "run")
"""The groups of lanes, in order."""


class Lane(NamedTuple):
    """A lane of a timeline."""

    process: str
    """The group of lanes, one of `PROCESSES`."""
    name: str
    """The name of the lane, such as an island."""


class LaneSlice(NamedTuple):
    """A span of time on a lane."""

    start_s: float
    end_s: float
    name: str
    args: Mapping[str, Any]


class FlowStop(NamedTuple):
    """A place that a flow passes: a moment on a lane, within a slice."""

    lane: Lane
    at_s: float


@dataclass(slots=True)
class Timeline:
    """A timeline that grows; times are seconds of one clock."""

    slices: defaultdict[Lane, list[LaneSlice]] = field(
        default_factory=lambda: defaultdict[Lane, list[LaneSlice]](list)
    )
    """The slices of each lane."""
    instants: list[tuple[Lane | None, float, str, Mapping[str, Any]]] = field(
        default_factory=list[tuple[Lane | None, float, str, Mapping[str, Any]]]
    )
    """Moments: the lane (None: the whole run), time, name and details."""
    flows: list[tuple[str, Sequence[FlowStop]]] = field(
        default_factory=list[tuple[str, Sequence[FlowStop]]]
    )
    """Arrows: a name, and two or more stops in order."""
    spans: list[tuple[str, str, float, float, Mapping[str, Any]]] = field(
        default_factory=list[tuple[str, str, float, float, Mapping[str, Any]]]
    )
    """Spans that may overlap: track and name, start and end, details."""
    counters: list[tuple[str, float, float]] = field(default_factory=list[tuple[str, float, float]])
    """Curves: name, time, value."""

    def slice(self, lane: Lane, name: str, start_s: float, end_s: float, **args: object) -> None:
        """Add a span to a lane; one that overlaps an earlier one without being inside is cut."""
        self.slices[lane].append(LaneSlice(start_s, max(start_s, end_s), name, args))

    def instant(self, lane: Lane | None, name: str, at_s: float, **args: object) -> None:
        """Add a moment to a lane, or to the whole run."""
        self.instants.append((lane, at_s, name, args))

    @property
    def size(self) -> int:
        """The number of things on the timeline."""
        return (
            sum(map(len, self.slices.values()))
            + len(self.instants) + len(self.flows) + 2 * len(self.spans) + len(self.counters)
        )  # fmt: skip

    @property
    def began_s(self) -> float:
        """The time of the first event; infinity if there is none."""
        times = [each.start_s for lane in self.slices.values() for each in lane]
        times += [at_s for _, at_s, _, _ in self.instants]
        times += [start_s for _, _, start_s, _, _ in self.spans]
        times += [at_s for _, at_s, _ in self.counters]
        return min(times, default=math.inf)

    def events(self) -> list[dict[str, Any]]:
        """Return the trace events, by time; metadata first."""
        lanes = sorted(
            {*self.slices, *(lane for lane, *_ in self.instants if lane is not None)},
            key=lambda lane: (PROCESSES.index(lane.process), lane.name),
        )
        places = {lane: (PROCESSES.index(lane.process), n + 1) for n, lane in enumerate(lanes)}
        processes = {lane.process for lane in lanes}
        processes |= {"syncer"} if self.spans else set[str]()
        if self.counters or any(lane is None for lane, *_ in self.instants):
            processes.add("run")
        named = [*_metadata(sorted(processes, key=PROCESSES.index), places)]
        began_s = self.began_s

        def ts(at_s: float) -> int:
            return max(0, round((at_s - began_s) * MICRO))

        found = [*self._slices(places, ts), *self._instants(places, ts), *self._flows(places, ts)]
        run = PROCESSES.index("run")
        for number, (track, name, start_s, end_s, args) in enumerate(self.spans):
            both = {"cat": track, "name": name, "id": number + 1, "pid": 0, "tid": 0}
            found.append({**both, "ph": "b", "ts": ts(start_s), "args": {**args}})
            found.append({**both, "ph": "e", "ts": ts(end_s)})
        found += [
            {"ph": "C", "pid": run, "tid": 0, "ts": ts(at_s), "name": name, "args": {name: value}}
            for name, at_s, value in self.counters
        ]
        return [*named, *sorted(found, key=lambda each: each["ts"])]

    def _slices(self, places: Mapping[Lane, tuple[int, int]], ts: Any) -> Iterator[dict[str, Any]]:
        for lane, slices in self.slices.items():
            pid, tid = places[lane]
            ends: list[int] = []  # of the slices that are open
            for start, end, each in sorted(
                ((ts(each.start_s), ts(each.end_s), each) for each in slices),
                key=lambda found: (found[0], -found[1]),
            ):
                while ends and ends[-1] <= start:
                    ends.pop()
                last = min(max(end, start + 1), ends[-1] if ends else math.inf)
                ends.append(int(last))
                yield {
                    "ph": "X", "pid": pid, "tid": tid, "ts": start, "dur": int(last) - start,
                    "name": each.name, "cat": lane.process, "args": {**each.args},
                }  # fmt: skip

    def _instants(
        self, places: Mapping[Lane, tuple[int, int]], ts: Any
    ) -> Iterator[dict[str, Any]]:
        for lane, at_s, name, args in self.instants:
            pid, tid = (PROCESSES.index("run"), 0) if lane is None else places[lane]
            scope = "g" if lane is None else "t"
            yield {
                "ph": "i", "pid": pid, "tid": tid, "ts": ts(at_s), "s": scope, "name": name,
                "cat": "run" if lane is None else lane.process, "args": {**args},
            }  # fmt: skip

    def _flows(self, places: Mapping[Lane, tuple[int, int]], ts: Any) -> Iterator[dict[str, Any]]:
        for number, (name, stops) in enumerate(self.flows):
            for index, stop in enumerate(stops):
                phase = "s" if index == 0 else "f" if index == len(stops) - 1 else "t"
                pid, tid = places[stop.lane]
                yield {
                    "ph": phase, "pid": pid, "tid": tid, "ts": ts(stop.at_s), "name": name,
                    "cat": "flow", "id": number + 1, **({"bp": "e"} if phase == "f" else {}),
                }  # fmt: skip


def _metadata(
    processes: Sequence[str], places: Mapping[Lane, tuple[int, int]]
) -> Iterator[dict[str, Any]]:
    for process in processes:
        pid = PROCESSES.index(process)
        for name, args in (
            ("process_name", {"name": process}),
            ("process_sort_index", {"sort_index": pid}),
        ):
            yield {"ph": "M", "pid": pid, "tid": 0, "ts": 0, "name": name, "args": args}
    for lane, (pid, tid) in places.items():
        for name, args in (
            ("thread_name", {"name": lane.name}),
            ("thread_sort_index", {"sort_index": tid}),
        ):
            yield {"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": name, "args": args}
