"""The findings about a run: what is wrong with it, why, and what to do; pure.

The causes come from the reasons that the rules give with every decision. `RunFacts` has a status,
an earlier one, the events between the two, and what the run's machine and its cluster show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cluster.launch.causes import cause_of
from cluster.launch.link_findings import Finding, Severity
from cluster.status import IslandStatus, RunStatus

SILENT_ROWS_S = 10.0
"""The longest usual time between two rows of metrics.jsonl, in seconds."""
LATE_MERGE_S, LATE_MERGE_ROUNDS = 60.0, 10.0
"""A merge is late after so many seconds, and so many times the usual time of a round."""
FIRST_MERGE_S = 1800.0
"""Seconds from the first inner step after which the first merge is late; no round has a time yet.
"""
IDLE_S = 60.0
"""Seconds without a contribution of an island, while others contribute, that are notable."""
WASTED_SHARE = 0.2
"""The share of contributions that were not merged from which something should be changed."""
LEAST_CONTRIBUTIONS = 20
"""Contributions below which no share is computed."""
SKEW_S = 5.0
"""The largest difference between two clocks that is not notable, in seconds."""
FULL_SHARE, LEAST_VERSIONS = 0.05, 3.0
"""A disk is nearly full below this share, or with room for fewer versions of the model."""
ProbeAnswer = Literal["answers", "silent"]
"""The result of a call to the process of an island."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The disk and the files of a run directory."""

    free_bytes: int
    total_bytes: int
    version_bytes: int = 0
    """Bytes of one version of all fragments; 0: not known."""
    token_is_open: bool = False
    """Whether other users can read the token of the run's HTTP port."""
    port_answers: bool = True
    """Whether the HTTP port of a live run of this machine answers."""
    fleet_lives: int = 1
    """Processes of the fleet that have owned the run, each one restarted after the other."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts about one run."""

    status: RunStatus
    """The newest status."""
    before: RunStatus | None = None
    """A status from some minutes earlier, with which counters are compared; None: the beginning."""
    events: Sequence[Mapping[str, Any]] = ()
    """The lines of events.jsonl since `before`, oldest first."""
    gap_s: float = 0.0
    """The longest time between two rows of metrics.jsonl since `before`, in seconds."""
    age_s: float = 0.0
    """Seconds since the newest status; negative if it is from the future."""
    is_live: bool = True
    files: FileFacts | None = None
    """Facts about the files; None: they are on another machine."""
    probes: Mapping[str, ProbeAnswer] = field(default_factory=dict[str, ProbeAnswer])
    """The calls to processes of islands that are silent; empty without a cluster."""
    dead_nodes: Mapping[str, str] = field(default_factory=dict[str, str])
    """The nodes that the cluster has lost, with the reason."""


def findings_about(facts: RunFacts) -> list[Finding]:
    """Return everything that is wrong with a run, the worst first."""
    found = [each for rule in RULES for each in rule(facts)]
    order = [*Severity]
    return sorted(dict.fromkeys(found), key=lambda each: order.index(each.severity))


def _reachable(facts: RunFacts) -> Iterator[Finding]:
    """Find runs that write no status, and clocks that differ."""
    if facts.age_s < -SKEW_S:
        what = f"the newest status is {-facts.age_s:.0f} s in the future: two clocks differ"
        hint = "synchronize the clocks of all machines (chrony or ntpd)"
        yield Finding("clock", what, Severity.WARNING, hint)
    ended = facts.status["phase"] == "finished"
    if not facts.is_live and not ended:
        what = f"the run is not live and has not finished; its status is {facts.age_s:.0f} s old"
        hint = "continue it with `archipelago run CONFIG.toml --resume --run-dir RUN`"
        yield Finding("run", what, Severity.PROBLEM, hint)
    elif facts.is_live and not ended and facts.age_s > SILENT_ROWS_S:
        what = f"no status for {facts.age_s:.0f} s: the fleet or the syncer hangs, or was killed"
        hint = "see ray.log of the run; a syncer that hangs is restarted after durability.hang_s"
        yield Finding("syncer", what, Severity.PROBLEM, hint)
    if facts.gap_s > SILENT_ROWS_S:
        what = f"no status for {facts.gap_s:.0f} s: the syncer or the fleet hung, or was restarted"
        hint = "look for swapping, a full disk or a stopped process on the node of the syncer"
        yield Finding("syncer", what, Severity.WARNING, hint)


def _islands(facts: RunFacts) -> Iterator[Finding]:
    """Find islands that are away, slow, refused, or were so since the earlier status."""
    named = set[tuple[str, str]]()
    states = {each["island"]: each for each in facts.status["islands"]}
    for island in states.values():
        cause = cause_of(island["why"], island["state"], facts.probes.get(island["island"]))
        if cause is not None:
            named.add((island["island"], cause.kind))
            yield Finding(
                island["island"], f"{island['state']}: {island['why']}: {cause.what}",
                cause.severity, cause.hint,
            )  # fmt: skip
        elif island["state"] in ("lost", "quarantined", "set aside"):
            what = f"{island['state']}: {island['why']}"
            yield Finding(island["island"], what, Severity.PROBLEM, "see ray.log of the run")
    for event in facts.events:
        name, why, kind = event.get("island"), str(event.get("why", "")), event.get("kind")
        if name is None or kind not in ("loss", "quarantine", "set aside", "drain", "leave"):
            continue
        cause = cause_of(why, str(kind), facts.probes.get(str(name)))
        if cause is None or (name, cause.kind) in named:
            continue
        named.add((name, cause.kind))
        is_back = name in states and states[name]["state"] == "live"
        severity = Severity.WARNING if is_back and cause.severity is Severity.PROBLEM else None
        what = f"{why}: {cause.what}{'; it is back' if is_back else ''}"
        yield Finding(str(name), what, severity or cause.severity, cause.hint)


def _idle(facts: RunFacts) -> Iterator[Finding]:
    """Find live islands that hand in nothing while others do."""
    if facts.before is None:
        return
    span_s = facts.status["elapsed_s"] - facts.before["elapsed_s"]
    old = {each["island"]: each for each in facts.before["islands"]}
    pairs = [(old[i["island"]], i) for i in facts.status["islands"] if i["island"] in old]
    steady = [(was, now) for was, now in pairs if _steady(was) and _steady(now)]
    grown = {now["island"]: now["contributions"] - was["contributions"] for was, now in steady}
    if span_s < IDLE_S or not any(grown.values()):
        return
    for name, count in grown.items():
        if count == 0:
            what = f"live, but nothing of it was admitted for {span_s:.0f} s, while others were"
            hint = "look at its column `copying`, at its link, and at the refusals"
            yield Finding(name, what, Severity.WARNING, hint)


def _steady(island: IslandStatus) -> bool:
    return island["state"] == "live"


def _services(facts: RunFacts) -> Iterator[Finding]:
    """Find restarts of syncer, shards, evaluator and fleet, and nodes that died."""
    figures, before = facts.status["figures"], facts.before
    old = before["figures"] if before is not None else None
    hint = "see ray.log: out of memory, a signal, or an exception; the run went on by itself"
    if figures is not None:
        count = figures["generation"] - (old["generation"] if old is not None else 0)
        if count > 0:
            what = f"its process was restarted {_times(count)}: it was killed, or it hung"
            yield Finding("syncer", what, Severity.WARNING, hint)
    lost = facts.status.get("shards_lost", 0) - (before or {}).get("shards_lost", 0)
    if lost > 0:
        what = f"the process of a shard ended {_times(lost)}: it was killed, or it hung"
        yield Finding("shards", what, Severity.WARNING, hint)
    for why, count in _more(before and before["unjudged"], facts.status["unjudged"]):
        cause = {"died": "its process was killed", "hung": "it hung and was restarted"}.get(
            why, "an exception in it"
        )
        what = f"{count} evaluations failed, {why}: {cause}"
        yield Finding("evaluator", what, Severity.WARNING, "see ray.log of the run")
    if facts.files is not None and facts.files.fleet_lives > 1:
        what = f"its process was restarted {_times(facts.files.fleet_lives - 1)}"
        yield Finding("fleet", what, Severity.WARNING, hint)
    for name, why in facts.dead_nodes.items():
        what = f"the node has died, and everything on it: {why or 'Ray names no reason'}"
        hint = "look at the machine; with `ray start` it joins the cluster again"
        yield Finding(f"node {name}", what, Severity.PROBLEM, hint)


def _merging(facts: RunFacts) -> Iterator[Finding]:
    """Find a run that merges nothing, or wastes contributions."""
    status, figures = facts.status, facts.status["figures"]
    if figures is None or status["phase"] != "running":
        return
    if status["alive"] < figures["quorum"]:
        what = f"{status['alive']} islands are live, and the quorum is {figures['quorum']}"
        hint = "see the findings about islands; nothing is merged until enough are back"
        yield Finding("run", what, Severity.PROBLEM, hint)
    late_s = FIRST_MERGE_S
    if (round_s := figures["round_s"]) is not None:
        late_s = max(LATE_MERGE_S, LATE_MERGE_ROUNDS * round_s)
    if (age_s := figures["merge_age_s"] or 0.0) > late_s:
        what = f"nothing was merged for {age_s:.0f} s"
        hint = "see docs/howto/alerts/no-merges.md"
        yield Finding("run", what, Severity.PROBLEM, hint)
    refused = dict(_more(facts.before and facts.before["refusals"], status["refusals"]))
    old_merges = facts.before["merges"] if facts.before else 0
    handed_in = (status["merges"] - old_merges) * max(1.0, status["participants"])
    handed_in += math.fsum(refused.values())
    for fate, count in refused.items():
        is_many = handed_in >= LEAST_CONTRIBUTIONS and count / handed_in >= WASTED_SHARE
        if fate == "gate" or is_many:
            what, hint = REFUSALS.get(fate, ("not merged", "see docs/howto/alerts/refusals.md"))
            what = f"{count} contributions of {handed_in:.0f}: {what}"
            yield Finding(f"refusals, {fate}", what, Severity.WARNING, hint)


REFUSALS = {
    "gate": (
        "the gate refused them: not finite, or far larger than usual",
        "see the findings about islands, and docs/howto/alerts/refusals.md",
    ),
    "stale": (
        "they were based on too old a version: their islands, or links, are slow",
        "raise sync.max_staleness or sync.every, or use a smaller wire",
    ),
    "superseded": (
        "their island handed in again before they were merged",
        "lower sync.grace, or raise sync.every",
    ),
    "overwritten": (
        "an adoption replaced the training before it was handed in",
        "raise sync.overlap, or use a faster link",
    ),
}


def _storage(facts: RunFacts) -> Iterator[Finding]:
    """Find writes that are refused, damage, and disks that are nearly full."""
    figures, files = facts.status["figures"], facts.files
    hint = "free space on the disk, or repair it; the run writes again by itself"
    if figures is not None and figures["not_durable"]:
        what = f"the disk refuses writes: {figures['not_durable']}"
        yield Finding("disk", what, Severity.PROBLEM, hint)
    elif refused := [e for e in facts.events if e.get("kind") == "durability" and _begins(e)]:
        what = f"the disk refused writes, and accepts them again: {refused[-1]['why']}"
        yield Finding("disk", what, Severity.WARNING, hint)
    if figures is not None and figures.get("damage"):
        what = f"files were damaged when the run came back: {figures['damage']}"
        yield Finding("disk", what, Severity.WARNING, "run `archipelago verify RUN`")
    if files is not None:
        least = max(FULL_SHARE * files.total_bytes, LEAST_VERSIONS * files.version_bytes)
        if files.free_bytes < least:
            what = (
                f"{files.free_bytes / 1e9:.1f} GB are free; at least {least / 1e9:.1f} are needed"
            )
            yield Finding("disk", what, Severity.WARNING, "free space where the run directory is")
        if files.token_is_open:
            what = "other users of this machine can read the token of the HTTP port"
            yield Finding("token", what, Severity.WARNING, "chmod 600 RUN/token")
        if facts.is_live and not files.port_answers:
            what = "the HTTP port of the run does not answer"
            hint = "see ray.log; with monitor.metrics_port = 0 any free port is taken"
            yield Finding("port", what, Severity.WARNING, hint)


def _begins(event: Mapping[str, Any]) -> bool:
    return str(event.get("text", "")).startswith("not durable")


def _model(facts: RunFacts) -> Iterator[Finding]:
    """Find problems of the model, links, alerts and exceptions."""
    figures = facts.status["figures"]
    if figures is not None and figures["trouble"]:
        hint = "see docs/howto/alerts/model-unsound.md"
        yield Finding("model", figures["trouble"], Severity.PROBLEM, hint)
    for link in facts.status.get("links", ()):
        if link["down"] or link["slow"]:
            is_down, where = link["down"], f"link {link['link']} {link['direction']}"
            what = "nothing comes over it" if is_down else "it carries less than half as usual"
            page = "link-down" if is_down else "link-slow"
            severity = Severity.PROBLEM if is_down else Severity.WARNING
            yield Finding(where, what, severity, f"see docs/howto/alerts/{page}.md")
    for alert in facts.status.get("alerts", ()):
        yield Finding("fleet", alert, Severity.PROBLEM, "see docs/howto/alerts/needs-somebody.md")
    for reason, count in _more(facts.before and facts.before["failures"], facts.status["failures"]):
        what = f"{count} failures of islands, {reason}"
        yield Finding("islands", what, Severity.WARNING, "see the folder tracebacks of the run")


RULES: tuple[Callable[[RunFacts], Iterator[Finding]], ...] = (
    _reachable, _islands, _idle, _services, _merging, _storage, _model,
)  # fmt: skip


def _more(before: Mapping[str, int] | None, after: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield the counters that have grown, with their growth."""
    for key, count in after.items():
        if (grown := count - (before or {}).get(key, 0)) > 0:
            yield key, grown


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
