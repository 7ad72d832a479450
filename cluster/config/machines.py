"""A cluster file: chips, regions and their links, and what shall be trained on them.

`archipelago simulate`, `archipelago plan` and the WAN bench read the same file. Like a run's
configuration it is checked once, and refused with every problem in it.
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
"""Of all chips: with more than that no learner ever completes a step."""
YEAR_S = 365.25 * 86400.0
Utilisation = Annotated[float, Field(gt=0, le=1)]
Years = Annotated[float, Field(gt=0, le=MOST_YEARS)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class RegionTable(Table):
    """A place with a link to the others, full duplex; `latency_ms` one way."""

    name: GroupName
    gbit_s: Positive
    latency_ms: Amount = 0.0
    usd_per_gb: Amount = 0.0  # of what leaves it


class GroupTable(Table):
    """Chips of one kind in one region."""

    group: GroupName
    region: GroupName
    chips: Annotated[int, Field(ge=1, le=MOST_CHIPS)]
    slice_chips: Count  # what fails, and comes back, together
    mtbi_years: Years = 1.0  # between two interruptions of a chip
    learners: Annotated[int, Field(ge=1, le=MOST_LEARNERS)] | None = None  # None: for plan to say
    tflops: Positive = 200.0  # a chip's, peak, in the precision of training
    utilisation: Utilisation = 0.4  # of that
    usd_per_hour: Amount = 0.0  # of a chip
    speed: Utilisation = 1.0  # of the group's steps, against the fastest


class RecoveryTable(Table):
    """What a failure costs; the defaults are what table 1 gives (docs/simulation.md)."""

    shrink_s: Seconds = 17.1
    grow_s: Seconds = 11.7
    return_s: Seconds = 57.0
    restart_s: Seconds = 76.7
    spread: Annotated[float, Field(gt=0, le=5)] = 0.5
    returns: Literal["log-normal", "exponentiated-weibull"] = "log-normal"
    weibull_shape: Annotated[float, Field(ge=0.2, le=10)] = 1.0  # of chips' interruptions


class TrainingTable(Table):
    """What is trained. `step_s` is of all chips; else it follows from FLOP/s."""

    parameters: Annotated[float, Field(ge=1e5, le=1e14)]
    tokens: Annotated[float, Field(ge=1e6, le=1e17)]
    batch_tokens: Annotated[float, Field(ge=1, le=1e12)] = 8e6  # of all learners, in one step
    step_s: Seconds | None = None
    target_loss: Positive | None = None  # None: that of data-parallel after `tokens`
    days: Positive | None = None  # None: however long it takes


class SyncerTable(Table):
    """Of the nodes that syncer and shards are on."""

    memory_gb: Positive = 256.0
    gbit_s: Positive = 100.0
    disk_gb_s: Positive = 1.0
    usd_per_hour: Amount = 0.0


class ObjectiveTable(Table):
    minimise: Literal["time", "cost"] = "time"


class ClusterFile(Table):
    """A checked cluster file."""

    regions: Annotated[tuple[RegionTable, ...], Field(strict=False, min_length=1)]
    groups: Annotated[tuple[GroupTable, ...], Field(strict=False, min_length=1)]
    training: TrainingTable
    recovery: RecoveryTable = RecoveryTable()
    syncer: SyncerTable = SyncerTable()
    objective: ObjectiveTable = ObjectiveTable()

    def region(self, name: str) -> RegionTable:
        return next(region for region in self.regions if region.name == name)

    @property
    def chips(self) -> int:
        return sum(group.chips for group in self.groups)


def is_cluster(path: Path) -> bool:
    """Whether this file speaks of chips rather than of a run; what is no TOML does not."""
    try:
        return "groups" in tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False


def load_cluster(path: Path) -> ClusterFile:
    """Read and check; refuses with every problem at once (`UserMistake`)."""
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
    return parse_cluster(tables, str(path))


def parse_cluster(tables: Mapping[str, Any], origin: str) -> ClusterFile:
    """Check tables as a TOML file holds them."""
    try:
        read = ClusterFile.model_validate(tables)
        found = list(_between(read))
    except ValidationError as error:
        mistakes = error.errors()
        inside = {mistake["loc"][0] for mistake in mistakes if len(mistake["loc"]) > 1}
        found = [
            _problem(mistake)
            for mistake in mistakes
            if mistake["type"] != "too_short" or mistake["loc"][0] not in inside
        ]
        read = None
    if read is None or found:
        lines = [f"{origin}: {len(found)} problem{'s' if len(found) > 1 else ''}"]
        raise UserMistake("\n".join([*lines, *(f"  {problem}" for problem in found)]))
    return read


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
    """What fields say of each other."""
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
    if cluster.training.batch_tokens > cluster.training.tokens:
        yield Problem(
            "training.batch_tokens",
            f"one step would take {cluster.training.batch_tokens:g} tokens of "
            f"{cluster.training.tokens:g}; use {cluster.training.tokens:g} or less",
        )


def _divisor(whole: int, near: int) -> int:
    """The divisor of `whole` that is nearest to `near`."""
    small = [n for n in range(1, int(whole**0.5) + 1) if whole % n == 0]
    return min({*small, *(whole // n for n in small)}, key=lambda n: (abs(n - near), n))
