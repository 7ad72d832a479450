"""A cluster file: chips, regions and their links, and their training job.

`archipelago simulate`, `archipelago plan` and the WAN bench read the same file. As with a run's
configuration, the loader checks it once and reports every problem. The comment above a key is its
documentation.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails

from cluster.config.problem_text import Problem, problem_of
from cluster.config.schema import Table
from cluster.config.values import Amount, Count, GroupName, Positive, nearest
from coordinator.errors import UserMistake

MOST_CHIPS, MOST_YEARS, MOST_LEARNERS = 10**7, 1000.0, 4096
MOST_FAILURES_PER_S = 5.0
"""The most interruptions of all chips together in a second: beyond it no step ever completes."""
YEAR_S = 365.25 * 86400.0
Utilisation = Annotated[float, Field(gt=0, le=1)]
Years = Annotated[float, Field(gt=0, le=MOST_YEARS)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class RegionTable(Table):
    """A region, with one full-duplex link to all other regions."""

    name: GroupName
    """Name of the region."""
    gbit_s: Positive
    """Bandwidth of the link in each direction, in Gbit/s."""
    latency_ms: Amount = 0.0
    """Latency of the link one way, in milliseconds."""
    usd_per_gb: Amount = 0.0
    """Price of the traffic that leaves the region, in dollars per GB."""


class GroupTable(Table):
    """A group of equal chips in one region."""

    group: GroupName
    """Name of the group."""
    region: GroupName
    """Name of the region that the chips are in."""
    chips: Annotated[int, Field(ge=1, le=MOST_CHIPS)]
    """Number of chips."""
    slice_chips: Count
    """Chips of one slice: they fail and return together."""
    mtbi_years: Years = 1.0
    """Mean time between two interruptions of one chip, in years."""
    learners: Annotated[int, Field(ge=1, le=MOST_LEARNERS)] | None = None
    """Number of learners on the group; if it is missing, `archipelago plan` chooses it."""
    tflops: Positive = 200.0
    """Peak TFLOP/s of a chip in the precision of training."""
    utilisation: Utilisation = 0.4
    """Share of the peak that training reaches."""
    usd_per_hour: Amount = 0.0
    """Price of a chip, in dollars per hour."""
    speed: Utilisation = 1.0
    """Speed of the group's steps, as a share of that of the fastest group."""


class RecoveryTable(Table):
    """The costs of a failure; the defaults are fitted to table 1 (docs/lab/simulation.md)."""

    shrink_s: Seconds = 17.1
    """Seconds that a learner takes to rebuild without a slice that it lost."""
    grow_s: Seconds = 11.7
    """Seconds that a learner takes to rebuild with slices that are back."""
    return_s: Seconds = 57.0
    """Mean time until a failed slice is back, in seconds."""
    restart_s: Seconds = 76.7
    """Seconds that a job takes to restart if it cannot run with fewer chips."""
    spread: Annotated[float, Field(gt=0, le=5)] = 0.5
    """Spread of the return time.

    Sigma of its logarithm (log-normal), or the inner shape of the exponentiated Weibull.
    """
    returns: Literal["log-normal", "exponentiated-weibull"] = "log-normal"
    """Distribution of the return time about its mean."""
    weibull_shape: Annotated[float, Field(ge=0.2, le=10)] = 1.0
    """Weibull shape of the time between two interruptions of a chip.

    1 is exponential; below 1 interruptions come in bursts.
    """


class TrainingTable(Table):
    """The training job."""

    parameters: Annotated[float, Field(ge=1e5, le=1e14)]
    """Parameters of the model."""
    active_parameters: Annotated[float, Field(ge=1e5, le=1e14)] | None = None
    """Parameters that multiply each token, of which the computation follows; the default is all."""
    tokens: Annotated[float, Field(ge=1e6, le=1e17)]
    """Tokens to train on."""
    batch_tokens: Annotated[float, Field(ge=1, le=1e12)] = 8e6
    """Tokens of all learners together in one step."""
    step_s: Seconds | None = None
    """Time of a step on all chips, in seconds.

    If it is missing, it follows from the chips' FLOP/s.
    """
    target_loss: Positive | None = None
    """Loss to reach, in nats per token; the default is that of data-parallel after `tokens`."""
    days: Positive | None = None
    """Longest acceptable training time, in days; the default is no limit."""


class SyncerTable(Table):
    """A node of the syncer and the shards."""

    memory_gb: Positive = 256.0
    """Memory of a node, in GB."""
    gbit_s: Positive = 100.0
    """Bandwidth of a node's link in each direction, in Gbit/s."""
    disk_gb_s: Positive = 1.0
    """Write rate of a node's disk, in GB/s."""
    usd_per_hour: Amount = 0.0
    """Price of a node, in dollars per hour."""


class ObjectiveTable(Table):
    """The objective of `archipelago plan`."""

    minimise: Literal["time", "cost"] = "time"
    """Quantity to minimise: the time of the training, or its cost."""


class ClusterFile(Table):
    """A checked cluster file."""

    regions: Annotated[tuple[RegionTable, ...], Field(strict=False, min_length=1)]
    """Regions, at least one: [[regions]]."""
    groups: Annotated[tuple[GroupTable, ...], Field(strict=False, min_length=1)]
    """Groups of chips, at least one: [[groups]]."""
    training: TrainingTable
    """The training job: [training]."""
    recovery: RecoveryTable = RecoveryTable()
    """Costs of a failure: [recovery]."""
    syncer: SyncerTable = SyncerTable()
    """Nodes of the syncer and the shards: [syncer]."""
    objective: ObjectiveTable = ObjectiveTable()
    """Objective of the plan: [objective]."""

    def region(self, name: str) -> RegionTable:
        """Return the region of this name; `_between` has checked that it exists."""
        return next(region for region in self.regions if region.name == name)

    @property
    def chips(self) -> int:
        """The number of chips of all groups."""
        return sum(group.chips for group in self.groups)


def is_cluster(path: Path) -> bool:
    """Return whether this file describes a cluster, not a run; False if it cannot be read."""
    try:
        return "groups" in tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False


def load_cluster(path: Path, model: Mapping[str, float] | None = None) -> ClusterFile:
    """Read a cluster file and check it.

    `model`: keys of [training] that replace those of the file; they are the sizes of a preset.

    Errors: `UserMistake` with every problem.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserMistake(f"{path} cannot be read: {error.strerror}; see examples/") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserMistake(f"{path} is not valid TOML: {error}") from error
    if not tables.keys() & ClusterFile.model_fields.keys() and tables.keys() & {"run", "islands"}:
        raise UserMistake(
            f"{path} is the configuration of a run, where a cluster's is needed, such as "
            f"examples/cluster.toml; to train it use `archipelago run {path}`"
        )
    training = tables.get("training", {})
    if model is not None and isinstance(training, dict):
        tables["training"] = {**training, **model}
    return parse_cluster(tables, str(path))


def parse_cluster(tables: Mapping[str, Any], origin: str) -> ClusterFile:
    """Check tables in the form of a TOML file.

    Errors: `UserMistake` with every problem.
    """
    try:
        cluster = ClusterFile.model_validate(tables)
        problems = list(_between(cluster))
    except ValidationError as error:
        mistakes = error.errors()
        nested_keys = {mistake["loc"][0] for mistake in mistakes if len(mistake["loc"]) > 1}
        problems = [
            _problem(mistake)
            for mistake in mistakes
            if mistake["type"] != "too_short" or mistake["loc"][0] not in nested_keys
        ]
        cluster = None
    if cluster is None or problems:
        lines = [f"{origin}: {len(problems)} problem{'s' if len(problems) > 1 else ''}"]
        raise UserMistake("\n".join([*lines, *(f"  {problem}" for problem in problems)]))
    return cluster


def _problem(mistake: ErrorDetails) -> Problem:
    where = ".".join(map(str, mistake["loc"]))
    match mistake["type"]:
        case "extra_forbidden":
            table: type[Table] = ClusterFile
            for part in mistake["loc"][:-1]:
                if isinstance(part, str):
                    table = TABLES[part]
            hint = nearest(str(mistake["loc"][-1]), tuple(table.model_fields))
            return Problem(where, f"is not known; {hint}")
        case "too_short":
            return Problem(where, "there are none; add a table")
        case _:
            return problem_of(mistake)


TABLES: dict[str, type[Table]] = {
    "regions": RegionTable,
    "groups": GroupTable,
    "training": TrainingTable,
    "recovery": RecoveryTable,
    "syncer": SyncerTable,
    "objective": ObjectiveTable,
}


def _between(cluster: ClusterFile) -> Iterator[Problem]:
    """Yield the problems between fields."""
    names = [region.name for region in cluster.regions]
    for kind, given in (("regions", names), ("groups", [g.group for g in cluster.groups])):
        for name in sorted({name for name in given if given.count(name) > 1}):
            yield Problem(kind, f'several are named "{name}"; give each its own name')
    for number, group in enumerate(cluster.groups):
        where = f"groups.{number}"
        if group.region not in names:
            yield Problem(
                f"{where}.region", f'"{group.region}" is no region; {nearest(group.region, names)}'
            )
        if rest := group.chips % group.slice_chips:
            lower = group.chips - rest
            choices = [n for n in (lower, lower + group.slice_chips) if n > 0]
            yield Problem(
                f"{where}.slice_chips",
                f"slices of {group.slice_chips} do not divide {group.chips} chips; the nearest "
                f"that can: {' or '.join(map(str, choices))} chips, or slices of "
                f"{_divisor(group.chips, group.slice_chips)}",
            )
        elif group.learners is not None:
            slices = group.chips // group.slice_chips
            if group.learners > slices:
                yield Problem(
                    f"{where}.learners",
                    f"{group.learners} learners cannot share {slices} slices; at most {slices} can",
                )
            elif slices % group.learners:
                yield Problem(
                    f"{where}.learners",
                    f"{group.learners} learners cannot share {slices} slices evenly; the nearest "
                    f"that can: {_divisor(slices, group.learners)}",
                )
    rate = sum(group.chips / group.mtbi_years / YEAR_S for group in cluster.groups)
    if rate > MOST_FAILURES_PER_S:
        yield Problem(
            "groups",
            f"their chips are interrupted {rate:.3g} times a second, and nothing could be trained; "
            f"the nearest that can: {rate / MOST_FAILURES_PER_S:.3g} times longer mtbi_years",
        )
    training = cluster.training
    if (active := training.active_parameters or 0) > training.parameters:
        most = f"{training.parameters:g}"
        reason = f"{active:g} are more than all {most} parameters; use {most} or less"
        yield Problem("training.active_parameters", reason)
    if training.batch_tokens > training.tokens:
        taken, most = f"{training.batch_tokens:g}", f"{training.tokens:g}"
        reason = f"one step would take {taken} tokens of {most}; use {most} or less"
        yield Problem("training.batch_tokens", reason)


def _divisor(whole: int, near: int) -> int:
    """Return the divisor of `whole` that is nearest to `near`."""
    small = [n for n in range(1, int(whole**0.5) + 1) if whole % n == 0]
    return min({*small, *(whole // n for n in small)}, key=lambda n: (abs(n - near), n))
