"""The metrics of a run, each declared once.

A metric is read from the run's status when it is scraped. So nothing is counted twice, and a
restarted process continues where the one before was. Dashboards and alerts are in dashboards/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from typing import Any, TypeAlias, get_args

from cluster.failures import Reason, Unjudged
from cluster.fleet.run_identity import versions
from cluster.status import IslandState, RunStatus
from coordinator.protocol import Fate

PREFIX = "archipelago_"
"""The prefix of every name."""
MetricSample: TypeAlias = tuple[tuple[str, ...], float]
"""The values of the metric's labels, in order, and its own."""


class Kind(StrEnum):
    """The kind of a metric, as Prometheus has them."""

    COUNTER = "counter"  # only grows; its name ends with `_total`
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric."""

    name: str
    """The name without prefix and `_total`; its last word is the unit."""
    kind: Kind
    help: str
    read: Callable[[RunStatus], Iterable[MetricSample]]
    """Reads the samples from a status."""
    labels: tuple[str, ...] = ()
    """Labels other than `run`."""

    @property
    def full_name(self) -> str:
        """The name in Prometheus."""
        return PREFIX + self.name + ("_total" if self.kind is Kind.COUNTER else "")


def _one(
    read: Callable[[RunStatus], float | None],
) -> Callable[[RunStatus], Iterator[MetricSample]]:
    def samples(status: RunStatus) -> Iterator[MetricSample]:
        if (value := read(status)) is not None:
            yield (), value

    return samples


def _figure(key: str) -> Callable[[RunStatus], Iterator[MetricSample]]:
    return _one(lambda status: (status["figures"] or {}).get(key))


OF_ISLAND, OF_LINK = ("group", "island"), ("link", "direction")
BUILD = ("archipelago", "python", "ray", "jax")
"""The versions that `build_info` has as labels."""


def _each(
    table: str, labels: Sequence[str], key: str
) -> Callable[[RunStatus], Iterator[MetricSample]]:
    """Return a function that reads one value of each row of a table of the status."""

    def samples(status: Mapping[str, Any]) -> Iterator[MetricSample]:
        for row in status.get(table, ()):
            if (value := row.get(key)) is not None:
                yield tuple(row[label] for label in labels), float(value)

    return samples


_islands, _links = partial(_each, "islands", OF_ISLAND), partial(_each, "links", OF_LINK)


def _expected(key: str) -> Callable[[RunStatus], Iterator[MetricSample]]:
    """Return a function that reads a value of the comparison with the expected loss."""

    def read(status: RunStatus) -> float | None:
        expected: Mapping[str, Any] | None = status.get("expected")
        return None if expected is None else float(expected[key])

    return _one(read)


@cache
def _build() -> tuple[str, ...]:
    found = versions()
    return tuple(found.get(name, "unknown") for name in BUILD)


def _activities(status: RunStatus) -> Iterator[MetricSample]:
    for island in status["islands"]:
        for activity, seconds in island.get("time_s", {}).items():
            yield (island["group"], island["island"], activity), seconds


def _table(key: str) -> Callable[[RunStatus], Iterator[MetricSample]]:
    """Return a function that reads each value of a table of the figures; its key is the label."""

    def samples(status: RunStatus) -> Iterator[MetricSample]:
        figures: Mapping[str, Any] = status["figures"] or {}
        for name, value in figures.get(key, {}).items():
            if value is not None:
                yield (name,), float(value)

    return samples


def _loss_metrics(status: RunStatus) -> Iterator[MetricSample]:
    for island in status["islands"]:
        for name, value in island.get("metrics", {}).items():
            if value is not None:
                yield (island["group"], island["island"], name), value


def _states(status: RunStatus) -> Iterator[MetricSample]:
    for island in status["islands"]:
        for state in get_args(IslandState):
            in_state = float(island["state"] == state)
            yield (island["group"], island["island"], state), in_state


def _by_reason(key: str, reasons: type[StrEnum]) -> Callable[[RunStatus], Iterator[MetricSample]]:
    def samples(status: RunStatus) -> Iterator[MetricSample]:
        for reason in reasons:  # emit zeros too: a rate needs a first sample
            yield (reason.value,), status[key].get(reason.value, 0)

    return samples


def _by_region(status: RunStatus) -> Iterator[MetricSample]:
    for region, loss in status.get("heldout_by_region", {}).items():
        if loss is not None:
            yield (region,), loss


METRICS = (
    Declared("heldout_loss_nats", Kind.GAUGE,
             "Held-out loss of the syncer's model per token, on a sample.",
             _one(lambda s: s["heldout"][-1][1] if s["heldout"] else None)),
    Declared("region_heldout_loss_nats", Kind.GAUGE, "Held-out loss of the syncer's model per "
             "token on the text of a region, on a sample.", _by_region, ("region",)),
    Declared("expected_loss_nats", Kind.GAUGE, "Held-out loss that is expected after so many "
             "tokens, `monitor.expected`.", _expected("loss")),
    Declared("expected_loss_low_nats", Kind.GAUGE, "Lower end of the band of the expected loss.",
             _expected("low")),
    Declared("expected_loss_high_nats", Kind.GAUGE, "Upper end of the band of the expected loss.",
             _expected("high")),
    Declared("loss_inside_band", Kind.GAUGE, "1 while the held-out loss is inside the band of the "
             "expected one.", _expected("inside")),
    Declared("loss_spikes", Kind.COUNTER, "Training losses of an island above six deviations over "
             "128 steps.", _figure("loss_spikes")),
    Declared("build_info", Kind.GAUGE, "1; the labels are versions.",
             lambda _: [(_build(), 1.0)], BUILD),
    Declared("syncer_step", Kind.GAUGE, "The syncer's clock t.", _one(lambda s: s["t"])),
    Declared("syncer_steps_wanted", Kind.GAUGE, "The syncer step at which the run ends, T.",
             _one(lambda s: s["steps"])),
    Declared("syncer_generation", Kind.GAUGE, "Restarts of the syncer.",
             _figure("generation")),
    Declared("tokens_trained", Kind.COUNTER, "Tokens trained by all islands.",
             _one(lambda s: s["tokens_trained"])),
    Declared("tokens_merged", Kind.COUNTER, "Tokens merged into the global model.",
             _figure("tokens_merged")),
    Declared("tokens_discarded", Kind.COUNTER, "Tokens discarded: overwritten, stale or refused.",
             _figure("tokens_discarded")),
    Declared("tokens_lost", Kind.COUNTER, "Tokens lost with a learner that died.",
             _figure("tokens_lost")),
    Declared("merges", Kind.COUNTER,
             "Outer steps over all fragments.", _one(lambda s: s["merges"])),
    Declared("merges_lost", Kind.COUNTER, "Merges that were not durable when their shard died.",
             _figure("merges_lost")),
    Declared("not_durable", Kind.GAUGE, "1 while the log or the fragments cannot be written.",
             _one(lambda s: float(bool(s["figures"] and s["figures"]["not_durable"])))),
    Declared("restore_damage", Kind.GAUGE, "1 if a file of the run could not be used when it came "
             "back.",
             _one(lambda s: float(bool(s["figures"] and s["figures"].get("damage"))))),
    Declared("alerts", Kind.GAUGE, "Alerts of the fleet that need a person; `status` shows them.",
             _one(lambda s: len(s.get("alerts", ())))),
    Declared("model_sound", Kind.GAUGE, "0 while the model's held-out loss is not finite, or the "
             "last step of a fragment was undone.",
             _one(lambda s: float(not (s["figures"] and s["figures"]["trouble"])))),
    Declared("unsound_merges", Kind.COUNTER, "Merges undone: not finite or far too long.",
             _figure("unsound_merges")),
    Declared("merge_age_seconds", Kind.GAUGE, "Time since the last merge, or the first inner step.",
             _figure("merge_age_s")),
    Declared("islands_alive", Kind.GAUGE, "Islands whose learner is live.",
             _one(lambda s: s["alive"])),
    Declared("islands_wanted", Kind.GAUGE, "Islands that the configuration and `scale` ask for.",
             _one(lambda s: s["wanted"])),
    Declared("participants", Kind.GAUGE, "Islands in a merge, mean of the recent ones.",
             _one(lambda s: s["participants"])),
    Declared("quorum", Kind.GAUGE, "Islands that a merge needs, K.", _figure("quorum")),
    Declared("round_seconds", Kind.GAUGE,
             "Time from a round's opening to its close, moving average.",
             _figure("round_s")),
    Declared("grace_seconds", Kind.GAUGE, "Grace window of the last round that closed.",
             _figure("grace_s")),
    Declared("staleness_versions", Kind.GAUGE, "Staleness of merged contributions, moving average.",
             _figure("staleness")),
    Declared("overlap_steps", Kind.GAUGE,
             "Inner steps from a hand-in to its adoption, mean of all.",
             _figure("overlap_steps")),
    Declared("outer_cosine_ratio", Kind.GAUGE,
             "Cosine of merged deltas to the outer momentum (without "
             "momentum: to earlier deltas), moving average.", _figure("outer_cosine")),
    Declared("outer_rate_ratio", Kind.GAUGE, "The outer learning rate, moving average.",
             _figure("outer_rate")),
    Declared("largest_share_ratio", Kind.GAUGE, "Largest share of a merge over the share of its "
             "steps, moving average.", _figure("largest_share")),
    Declared("distrusted_lives", Kind.COUNTER, "Lives ended for counters that are impossible.",
             _figure("distrusted_lives")),
    Declared("refusals", Kind.COUNTER, "Contributions that were not merged.",
             _by_reason("refusals", Fate), ("reason",)),
    Declared("failures", Kind.COUNTER,
             "Failures of islands: exceptions, useless messages, a full object store.",
             _by_reason("failures", Reason), ("reason",)),
    Declared("evaluation_failures", Kind.COUNTER, "Evaluations of the model without a result.",
             _by_reason("unjudged", Unjudged), ("reason",)),
    Declared("up_bytes", Kind.COUNTER, "Bytes of contributions, as sent.", _figure("up_bytes")),
    Declared("down_bytes", Kind.COUNTER, "Bytes of publications, as sent.", _figure("down_bytes")),
    Declared("goodput_ratio", Kind.GAUGE, "Share of the islands' time that is spent computing.",
             _figure("goodput")),
    Declared("rolling_goodput_ratio", Kind.GAUGE, "Goodput of the last 60, 300 and 900 seconds, "
             "by length.", _table("rolling_goodput"), ("window_s",)),
    Declared("badput_seconds", Kind.COUNTER, "Time of the islands that trained nothing, by type "
             "as in ml-goodput-measurement.", _table("badput_s"), ("type",)),
    Declared("uptime_ratio", Kind.GAUGE,
             "Share of the time in which some learner advanced.", _figure("uptime")),
    Declared("faults", Kind.COUNTER, "Faults injected on purpose.", _one(lambda s: s["faults"])),
    Declared("island_state", Kind.GAUGE, "1 for the state that the island is in.", _states,
             (*OF_ISLAND, "state")),
    Declared("island_seconds", Kind.COUNTER, "Time of the island with its devices, by activity.",
             _activities, (*OF_ISLAND, "activity")),
    Declared("island_ideal_step_seconds", Kind.GAUGE, "Mean of the recent steps, without the "
             "anomalous ones.", _islands("ideal_step_s"), OF_ISLAND),
    Declared("island_step_deviation_seconds", Kind.GAUGE, "Mean deviation of the recent steps from "
             "the ideal one.", _islands("step_deviation_s"), OF_ISLAND),
    Declared("island_steps", Kind.COUNTER, "Inner steps over all lives.", _islands("steps"),
             OF_ISLAND),
    Declared("island_tokens_per_second", Kind.GAUGE, "Tokens trained per second, moving average.",
             _islands("tokens_per_s"), OF_ISLAND),
    Declared("island_loss_nats", Kind.GAUGE, "Training loss of the last step, per token.",
             _islands("loss"), OF_ISLAND),
    Declared("island_loss_metric", Kind.GAUGE, "A metric of the loss of the last step.",
             _loss_metrics, (*OF_ISLAND, "name")),
    Declared("island_contributions", Kind.COUNTER,
             "Admitted contributions.", _islands("contributions"),
             OF_ISLAND),
    Declared("island_cosine_ratio", Kind.GAUGE,
             "Cosine of the last contribution to the mean of the others.",
             _islands("cosine"), OF_ISLAND),
    Declared("island_contribution_effect_nats", Kind.GAUGE, "Held-out loss per token minus the "
             "loss without the last measured contribution; below 0 is good.",
             _islands("contribution_effect"), OF_ISLAND),
    Declared("island_harmful_contributions", Kind.GAUGE, "Newest measured contributions in a row "
             "that raised the held-out loss by more than the spread of the other islands.",
             _islands("harmful_contributions"), OF_ISLAND),
    Declared("island_slow", Kind.GAUGE, "1 while it is slower than the others of its group by "
             "a factor of 1.25.", _islands("slow"), OF_ISLAND),
    Declared("island_loss_spikes", Kind.COUNTER, "Training losses above six deviations over 128 "
             "steps.", _islands("loss_spikes"), OF_ISLAND),
    Declared("island_restarts", Kind.COUNTER, "Lives after the first.", _islands("restarts"),
             OF_ISLAND),
    Declared("link_bytes", Kind.COUNTER, "Bytes of contributions (up) and publications (down).",
             _links("bytes"), OF_LINK),
    Declared("link_transfers", Kind.COUNTER, "Contributions and publications received.",
             _links("transfers"), OF_LINK),
    Declared("link_transfer_seconds", Kind.COUNTER, "Time of all transfers, summed.",
             _links("transfer_s"), OF_LINK),
    Declared("link_late_transfers", Kind.COUNTER, "Transfers that took longer than the overlap.",
             _links("late"), OF_LINK),
    Declared("link_rate_bits_per_second", Kind.GAUGE, "Rate of recent transfers, a median.",
             _links("bits_s"), OF_LINK),
    Declared("link_usual_bits_per_second", Kind.GAUGE, "Rate of the last hour, a median.",
             _links("usual_bits_s"), OF_LINK),
    Declared("link_spread_ratio", Kind.GAUGE, "Median deviation from the usual rate, over it.",
             _links("spread"), OF_LINK),
    Declared("link_utilisation_ratio", Kind.GAUGE, "Bits per second over the usual rate, at most "
             "1.", _links("utilisation"), OF_LINK),
    Declared("link_queue_seconds", Kind.GAUGE, "Age of the oldest request that is not answered, or "
             "publication that is not received.", _links("queue_s"), OF_LINK),
    Declared("link_lagging", Kind.GAUGE, "1 while most transfers take longer than the overlap.",
             _links("lagging"), OF_LINK),
    Declared("link_slow", Kind.GAUGE, "1 while the rate is under half of the usual one.",
             _links("slow"), OF_LINK),
    Declared("link_down", Kind.GAUGE, "1 while nothing comes over the link.",
             _links("down"), OF_LINK),
)  # fmt: skip
