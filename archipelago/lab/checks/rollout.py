"""The decision whether a run passes a stage of a roll-out: one criterion for each risk.

The functions are pure. `archipelago.lab.report.stage_facts` reads the facts from a run's files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

REGIONS = {1: 2, 2: 4, 3: 8}
"""The least number of regions of each stage, in which islands contributed."""
LEAST_UPTIME = {1: 0.95, 2: 0.98, 3: 0.99}
"""The least share of the time in which a learner advanced, by stage."""
MOST_BYTES = 1.10
"""The most bytes per trained token, relative to the planned ones.

Rounds at the end of a run, and contributions that were refused, are not in the plan.
"""


@dataclass(frozen=True, slots=True)
class Harmed:
    """A kill or a cut, and whether the run has got over it."""

    target: str
    """The island or link that it hit."""
    survived: bool
    """Whether its islands have contributed again since."""


@dataclass(frozen=True, slots=True)
class StageFacts:
    """The facts of a run that a stage is decided on."""

    run: str
    """The name of the run."""
    ended: bool
    """Whether the run has written its last summary."""
    t: int
    """The last syncer step."""
    steps: int
    """The syncer steps that were wanted."""
    regions: Sequence[str]
    """The regions whose islands contributed; islands without a region count by their group."""
    bytes_per_token: float | None
    """Bytes of contributions and publications per trained token; None: not known."""
    planned_bytes_per_token: float | None
    """The bytes that the plan's settings send per token of this model; None: not known."""
    heldout_loss: float | None
    """The held-out loss of the final model, in nats per token; None: not known."""
    expected_loss: float | None
    """The largest loss that the user accepts; None: none was given."""
    evaluates: bool = False
    """Whether the run has a summary, but its final evaluation is not over."""
    initial_loss: float | None = None
    """The held-out loss of the initial model, in nats per token; None: not known."""
    drained: Sequence[str] = ()
    """Islands that were drained and have left."""
    kills: Sequence[Harmed] = ()
    """Processes or nodes that were killed."""
    cuts: Sequence[Harmed] = ()
    """Islands or links that were cut off."""
    uptime: float | None = None
    """The share of the time in which a learner advanced; None: not known."""
    alerts: Sequence[str] = ()
    """Alerts that were not over at the end; also refused writes, and a loss outside its band."""
    unsound_ends: Sequence[str] = ()
    """Islands that contributed and were neither live at the end nor had left, with their state."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """One criterion of a stage, and its result."""

    name: str
    """The name in the output."""
    passed: bool
    has: str
    """The value in the run."""
    needs: str
    """The value that the stage needs."""
    remedy: str = ""
    """The remedy if it failed."""


@dataclass(frozen=True, slots=True)
class StageVerdict:
    """The result of a stage."""

    run: str
    stage: int
    criteria: Sequence[Criterion]
    next_stage: Sequence[Criterion] = field(default=())
    """The criteria that the same run does not meet of the next stage; empty after the last one."""

    @property
    def passed(self) -> bool:
        """Whether all criteria of the stage are met."""
        return all(each.passed for each in self.criteria)


def verdict(facts: StageFacts, stage: int) -> StageVerdict:
    """Decide a stage, and return what is missing for it and for the next one."""
    following = stage + 1
    lacks = (
        [each for each in criteria(facts, following) if not each.passed]
        if (following in REGIONS)
        else []
    )
    return StageVerdict(facts.run, stage, criteria(facts, stage), lacks)


def criteria(facts: StageFacts, stage: int) -> list[Criterion]:
    """Return all criteria of a stage; a fact that is not known fails its criterion."""
    return [
        _ended(facts),
        _regions(facts, REGIONS[stage]),
        _bytes(facts),
        _loss(facts),
        Criterion(
            "drain",
            bool(facts.drained),
            _names(facts.drained),
            "one island that was drained and left",
            "drain an island while the run trains: archipelago drain RUN ISLAND",
        ),
        _survived("kill", facts.kills, "archipelago chaos RUN --kill-every 30 --for 30"),
        _survived("cut", facts.cuts, "archipelago chaos RUN --kind cut --kill-every 30 --for 30"),
        _uptime(facts, LEAST_UPTIME[stage]),
        Criterion(
            "alerts",
            not facts.alerts,
            _names(facts.alerts),
            "none that is not over",
            "see the how-to pages of the alerts",
        ),
        Criterion(
            "islands",
            not facts.unsound_ends,
            _names(facts.unsound_ends),
            "none that contributed and was neither live at the end nor had left",
            "see the reason of the last state: archipelago status RUN, or events.jsonl",
        ),
    ]


def _ended(facts: StageFacts) -> Criterion:
    return Criterion(
        "end",
        facts.ended and facts.t >= facts.steps,
        f"t {facts.t} of {facts.steps}{_missing_end(facts)}",
        "a run that reached its last step",
        "let the run end by itself",
    )


def _missing_end(facts: StageFacts) -> str:
    if facts.ended:
        return ""
    return ", its final evaluation is not over" if facts.evaluates else ", no summary"


def _regions(facts: StageFacts, least: int) -> Criterion:
    return Criterion(
        "regions",
        len(facts.regions) >= least,
        f"{len(facts.regions)}: {_names(facts.regions)}",
        f"{least} or more with contributions",
        "add groups of islands with region = ...",
    )


def _bytes(facts: StageFacts) -> Criterion:
    found, planned = facts.bytes_per_token, facts.planned_bytes_per_token
    passed = found is not None and planned is not None and 0 < found <= MOST_BYTES * planned
    return Criterion(
        "bytes",
        passed,
        f"{_figure_text(found)} a token",
        f"at most {MOST_BYTES:g} times {_figure_text(planned)}, the plan's",
        "compare sync.every and the wires with the plan; look at the refusals in the summary",
    )


def _loss(facts: StageFacts) -> Criterion:
    """Return the criterion of the loss; without an expected one, it must be below the initial."""
    found, initial, expected = facts.heldout_loss, facts.initial_loss, facts.expected_loss
    if expected is not None:
        passed = found is not None and found <= expected
        needs = f"at most {expected:g} nats"
    else:
        passed = found is not None and initial is not None and found < initial
        known = "" if initial is None else f", {initial:.4g} nats"
        needs = f"less than the initial model's{known}"
    return Criterion(
        "loss",
        passed,
        f"{_figure_text(found)} nats",
        needs,
        "compare with a data-parallel run, and look for refusals and a wrong learning rate",
    )


def _uptime(facts: StageFacts, least: float) -> Criterion:
    return Criterion(
        "uptime",
        facts.uptime is not None and facts.uptime >= least,
        "not known" if facts.uptime is None else f"{facts.uptime:.1%}",
        f"{least:.0%} or more",
        "look for the times without a step in events.jsonl",
    )


def _survived(name: str, harmed: Sequence[Harmed], command: str) -> Criterion:
    """Return a criterion of faults: at least one, and the run has got over all of them."""
    lost = [each.target for each in harmed if not each.survived]
    has = f"{len(harmed) - len(lost)} survived"
    return Criterion(
        name,
        bool(harmed) and not lost,
        has + (f", not {_names(lost)}" if lost else ""),
        f"at least one {name}, and contributions after each",
        f"see events.jsonl for {_names(lost)}" if lost else f"inject one: {command}",
    )


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _figure_text(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4g}"
