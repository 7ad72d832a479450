"""The clock of a process's activities: its time budget, the activity under way, loss spikes."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from coordinator.protocol import METRIC_NAME_LENGTH, METRICS_SENT, Vitals
from islands.loss_spikes import LossSpikes
from islands.time_budget import OF_VITALS, Activity, TimeBudget, ideal_step_s

if TYPE_CHECKING:
    from islands.losses import Metrics

STEPS_KEPT = 128
"""The newest steps from which the ideal step time is computed."""
PROCESS_ID_BYTES = 6
"""Bytes of the number of a process: two of one island are never the same by chance."""
NO_METRICS: Metrics = MappingProxyType({})
"""The metrics of a loss that has none."""


class _Now(NamedTuple):
    budget: TimeBudget
    activity: Activity | None
    """The activity since `budget.until_s`; None: a step, whose parts are known at its end."""
    process: int


class ActivityClock:
    """The time budget of an island's process; one thread writes it, and any thread reads it.

    The state is one value that is replaced as a whole, so that a reader needs no lock. A reading
    never shows a second that a later one takes back.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        """Begin with `STARTING`; `now_s` is a steady clock."""
        self._now_s = now_s
        self._steps_s = deque[float](maxlen=STEPS_KEPT)
        self._spikes, self._metrics = LossSpikes(), NO_METRICS
        self._state = self._begun()

    def _begun(self) -> _Now:
        process = int.from_bytes(os.urandom(PROCESS_ID_BYTES), "big") or 1
        return _Now(TimeBudget.begun(self._now_s()), Activity.STARTING, process)

    def restart(self) -> None:
        """Begin again at zero: a spare becomes an island, whose time begins now."""
        self._steps_s.clear()
        self._spikes = LossSpikes()
        self._state = self._begun()

    def switch(self, activity: Activity | None) -> None:
        """Begin another activity; None: a step, whose parts `split` reports at its end.

        The time of a step that was not split counts as copying.
        """
        budget, present, process = self._state
        rest = Activity.COPYING if present is None else present
        self._state = _Now(budget.to(self._now_s(), rest), activity, process)

    def split(self, parts: Mapping[Activity, float], activity: Activity | None = None) -> None:
        """End a step, of whose time these `parts` are known and the rest is copying."""
        budget, _, process = self._state
        named = {key.value: seconds for key, seconds in parts.items()}
        after = budget.split(self._now_s(), named, Activity.COPYING)
        self._state = _Now(after, activity, process)

    def stepped(self, took_s: float) -> None:
        """Count the time of one step, without waits for others."""
        self._steps_s.append(took_s)

    def learned(self, loss: float, metrics: Metrics = NO_METRICS) -> None:
        """Count the loss of one step, and keep its metrics, which the devices have computed."""
        self._spikes.saw(loss)
        self._metrics = metrics

    def vitals(self, loss: float) -> Vitals:
        """Return the seconds of this process up to now, or to the end of the last step."""
        budget, activity, process = self._state
        age_s = (now_s := self._now_s()) - budget.began_s
        if activity is not None:
            budget = budget.to(now_s, activity)
        fields = {name: budget.seconds.get(activity, 0.0) for activity, name in OF_VITALS.items()}
        ideal_s, deviation_s = ideal_step_s(self._steps_s.copy())
        metrics = {} if math.isnan(loss) else self._metrics  # NaN: no step of this life yet
        return Vitals(
            loss,
            **fields,
            process=process,
            age_s=age_s,
            ideal_step_s=ideal_s,
            step_deviation_s=deviation_s,
            loss_spikes=self._spikes.count,
            metrics=tuple(_named(metrics)),
        )


def _named(metrics: Metrics) -> Iterator[tuple[str, float]]:
    """Yield the metrics that are sent: few, and with short names, so that a report stays small."""
    for name, value in islice(metrics.items(), METRICS_SENT):
        yield str(name)[:METRIC_NAME_LENGTH], float(value)
