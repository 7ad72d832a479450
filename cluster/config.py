"""The configuration of a run: TOML, checked once at the door, printed and hashed.

`load` reads the file and the `--set` overrides and returns a `Config`, or one `UserMistake` with
every problem in it. Everything behind the door may rely on what is checked here. Where a problem
lies is said the way `--set` takes it: `sync.every`, `islands.0.count`.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args
from urllib.parse import parse_qs, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from cluster import slices
from cluster.names import EVALUATOR, FLEET, SHARD, SYNCER
from coordinator.codec import Wire
from coordinator.errors import UserMistake
from coordinator.protocol import Island

# --- what a field may hold ------------------------------------------------------------------------

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
GROUP = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
TOPOLOGY = r"^[1-9]\d*(x[1-9]\d*)+$"
TARGET = r"^[\w.]+:[\w.]+$"

Count = Annotated[int, Field(ge=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
Name = Annotated[str, Field(pattern=NAME, max_length=80)]
GroupName = Annotated[str, Field(pattern=GROUP, max_length=40)]

BUCKETS = ("s3", "gs", "gcs", "abfs", "abfss")
"""What pyarrow reaches where an object is replaced as a whole."""
SECRET = re.compile("key|secret|token|password", re.IGNORECASE)
RATES: Mapping[str, float] = {"muon": 16e-3, "adamw": 6e-3}
"""The inner optimizer's learning rate, where none is given: measured (docs/benchmarks.md)."""
LARGEST_SEED = 2**32 - 1  # what a JAX key takes without 64-bit mode


def only(allowed: object) -> AfterValidator:
    """Mark a field that nothing reads yet: any value but `allowed` is refused, never ignored."""

    def refuse(value: object) -> object:
        if value != allowed:
            remedy = "leave it out" if allowed is None else f"leave it at {toml_value(allowed)}"
            raise PydanticCustomError("not_built", "{why}", {"why": f"is not built yet; {remedy}"})
        return value

    return AfterValidator(refuse)


def _grace(value: object) -> object:
    if value == "auto":
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    why = 'must be "auto" or a number of seconds, 0 or more'
    raise PydanticCustomError("grace", "{why}", {"why": why})


def _with_a_rate(optimizer: object) -> object:
    """Whoever names the kind and no rate gets the one that suits it."""
    if not isinstance(optimizer, dict):
        return optimizer
    given: dict[str, object] = optimizer
    rate = RATES.get(str(given.get("kind")))
    return given if rate is None else {"learning_rate": rate, **given}


def _option(value: object) -> object:
    if not isinstance(value, bool | int | float | str):
        raise PydanticCustomError("option", "must be a number, text, true or false")
    return value


Grace: TypeAlias = Literal["auto"] | float
Option = Annotated[bool | int | float | str, PlainValidator(_option)]
WireName = Annotated[Wire, Field(strict=False)]


class Table(BaseModel):
    """One table of the file: no unknown keys, no conversions between types, never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Run(Table):
    name: Name | None = None  # None: the file's name and the time of the start
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = 0
    mode: Literal["decoupled"] = "decoupled"
    steps: Count = 300  # T, in syncer steps
    dir: Annotated[str, Field(min_length=1)] = "runs"


class Task(Table):
    """What is learned: a preset that comes with the project, or the user's own `target`."""

    preset: Annotated[str, Field(min_length=1)] | None = None
    target: Annotated[str, Field(pattern=TARGET)] | None = None  # module:attribute
    options: dict[str, Option] = {}


class Data(Table):
    source: Annotated[str, Field(min_length=1)] = "python-stdlib"
    column: Annotated[str, Field(min_length=1)] | None = None  # of a Parquet dataset
    tokens: bool = False  # the column holds token ids, not text
    heldout_percent: Annotated[float, Field(gt=0, lt=100)] = 5.0
    window: Count = 128  # tokens predicted in one window
    lease_windows: Count = 256


class Optimizer(Table):
    """The inner one, with a linear warm-up and a cosine down to a floor."""

    kind: Literal["muon", "adamw"] = "muon"  # muon: for hidden matrices; all other leaves by adamw
    learning_rate: Positive = RATES["muon"]  # or what suits the other kind
    warmup_steps: Annotated[int, Field(ge=0)] = 20
    floor_fraction: Annotated[float, Field(gt=0, le=1)] = 0.1
    b1: Share = 0.9
    b2: Share = 0.99
    eps: Positive = 1e-8
    momentum: Share = 0.95  # muon's
    weight_decay: Amount = 0.1
    clip_norm: Amount = 1.0  # 0: no clipping


class Outer(Table):
    """SGD with momentum on the outer gradient (arXiv:2311.08105), or an optax transformation."""

    learning_rate: Positive = 1.0
    momentum: Share = 0.0
    nesterov: bool = True
    target: Annotated[str, Field(pattern=TARGET)] | None = None  # such as "optax:adam", instead
    options: dict[str, Option] = {}  # ... called with these


class Sync(Table):
    every: Count = 8  # H: each fragment is merged once in so many syncer steps
    fragments: Count = 8  # P
    overlap: Annotated[int, Field(ge=0)] = 2  # tau, in steps; 0 = learners wait for adoption
    quorum: Count = 1  # K
    grace: Annotated[Grace, BeforeValidator(_grace)] = "auto"  # seconds
    max_staleness: Annotated[int, Field(ge=0)] = 8  # versions
    merge: Literal["rda", "mean"] = "mean"
    anchor: Literal["base", "current"] = "base"  # the learner's own base, or the syncer's fragment
    adopt: Literal["overwrite", "carry", "blend"] = "carry"
    blend: Annotated[float, Field(gt=0, lt=1)] | None = None  # alpha, the share of the local one
    wire_up: WireName = Wire.BF16
    wire_down: WireName = Wire.BF16
    direction: Literal["quarantine", "report", "off"] = "quarantine"  # of who is against all
    keep_differences: Annotated[int, Field(ge=0)] = 4  # R, for who missed some, where that is less
    shards: Count = 1  # processes that share the fragments between them
    shard_labels: dict[str, str] | None = None  # of their nodes, in turn; None: the fleet's node
    outer: Outer = Outer()


class IslandGroup(Table):
    """Islands of one kind; they are named after their group."""

    group: GroupName = "local"
    count: Count = 1
    spares: Annotated[int, Field(ge=0)] = 0  # more processes, warm, on devices of their own
    batch_size: Count = 8  # windows per inner step
    hosts: Annotated[int, only(1)] = 1
    resources: dict[str, Amount] = {"CPU": 1.0}  # of each island, in Ray's words
    accelerator: Annotated[str, Field(min_length=1)] | None = None  # such as "H200", "TPU-V6E"
    topology: Annotated[str, Field(pattern=TOPOLOGY)] | None = None  # of a TPU slice, of one host
    label_selector: dict[str, str] | None = None  # labels that its node must have
    region: GroupName | None = None  # its corpus: what is leased there is read there
    speed: Annotated[float, Field(gt=0, le=1)] = 1.0  # below 1 the island is slowed on purpose
    step_s: Amount = 0.0  # ... or idles so that no step takes less than this
    encode: Literal["host", "device"] = "host"  # device: 8 bytes a parameter there, fewer to copy
    opportunistic: bool = False  # may wait for devices that the cluster does not have yet

    @property
    def names(self) -> tuple[Island, ...]:
        return island_names(self.group, self.count)

    @property
    def devices(self) -> dict[str, float]:
        """The resources of one island; a slice's chips are among them."""
        if self.topology is None or self.resources.get("TPU"):
            return self.resources
        return {**self.resources, "TPU": float(slices.chips(self.topology))}


class Durability(Table):
    """What is there when something dies, and where."""

    every: Count = 1  # merges of a fragment from one stored version to the next
    dir: Annotated[str, Field(min_length=1)] | None = None  # None: the run directory
    keep_snapshots: Annotated[int, Field(ge=2)] = 2  # versions of each fragment
    keep_contributions: bool = False  # what was merged, so that replay gives the same fragments


class Harm(Table):
    """What is broken on purpose; cluster/faults.py says what each kind does."""

    kind: Literal["kill", "stop", "nan", "scale", "slow", "cut", "node", "drain", "disk"]
    island: str  # or one of SERVICES
    factor: Annotated[float, Field(allow_inf_nan=False)] = 1000.0  # of "scale" and "slow"
    for_s: Positive = 20.0  # of "stop", "slow", "cut" and "disk"

    @classmethod
    def kinds(cls) -> tuple[str, ...]:
        return get_args(cls.model_fields["kind"].annotation)

    def misfit(self, islands: Sequence[str]) -> str | None:
        """Why this cannot happen to a run with these islands."""
        if (kinds := SERVICES.get(self.island)) is not None:
            possible = self.kind in kinds
            hint = f"it can be {' or '.join(sorted(kinds))}"
        elif self.island in islands:
            possible, hint = self.kind != "disk", "that is for syncer or shard-0"
        else:
            return f'the {self.kind} of "{self.island}" names no island; ' + _nearest(
                self.island, islands
            )
        return None if possible else f'"{self.island}" cannot have the fault {self.kind}; {hint}'


SERVICES: Mapping[str, frozenset[str]] = {
    SYNCER: frozenset({"kill", "stop", "disk"}),
    SHARD: frozenset({"kill", "stop", "disk"}),
    EVALUATOR: frozenset({"kill", "stop"}),
    FLEET: frozenset({"kill"}),
}
"""What of a run that is no island can be broken, and how."""


class Fault(Harm):
    """... as soon as the syncer's clock gets there and, if it hits an island, that is live."""

    at_step: Count


class Attack(Harm):
    """... at so many seconds after `archipelago chaos` began."""

    after_s: Annotated[float, Field(ge=0)]


class Policy(Table):
    """What is done about which failure of an island."""

    deaths: Count = 5  # of its processes without a contribution between ...
    exceptions: Count = 3  # ... or so many that ended with an exception of the program ...
    then: Literal["set aside", "stop"] = "set aside"  # ... and it is, or the run stops
    first_delay_s: Positive = 2.0  # before its second restart; then twice as long each time ...
    longest_delay_s: Positive = 60.0  # ... at most
    hang: Literal["replace", "wait"] = "replace"  # one that is silent and not dead ...
    hang_s: Positive = 300.0  # ... after so long
    drain_s: Positive = 60.0  # a draining one that says nothing for so long is taken for dead


class Faults(Table):
    plan: Annotated[tuple[Fault, ...], Field(strict=False)] = ()
    policy: Policy = Policy()


class Monitor(Table):
    dashboard: bool = False  # Ray's own
    evaluate_every_s: Positive = 10.0
    refresh_s: Positive = 0.5
    metrics: bool = True  # a target for Prometheus
    metrics_host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 0  # 0: a free one
    targets: Annotated[str, Field(min_length=1)] = "~/.archipelago/targets"  # where it is said


class Config(Table):
    """A checked configuration: what `load` lets in."""

    run: Run = Run()
    task: Task = Task()
    data: Data = Data()
    optimizer: Annotated[Optimizer, BeforeValidator(_with_a_rate)] = Optimizer()
    sync: Sync = Sync()
    islands: Annotated[tuple[IslandGroup, ...], Field(strict=False)] = ()
    durability: Durability = Durability()
    faults: Faults = Faults()
    monitor: Monitor = Monitor()

    def group(self, name: str) -> IslandGroup:
        return next(group for group in self.islands if group.group == name)

    @property
    def island_names(self) -> tuple[Island, ...]:
        return tuple(name for group in self.islands for name in group.names)

    @property
    def sha256(self) -> str:
        """Equal for two configurations that say the same, however their files are written."""
        plain = self.model_dump(mode="json")
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def toml(self) -> str:
        """The whole configuration, defaults included, as a file that `load` reads back."""
        tables = self.model_dump(mode="json", exclude_none=True)
        blocks = [
            block
            for name, table in tables.items()
            for block in (
                [_block(f"[[{name}]]", each) for each in table]
                if isinstance(table, list)
                else [_block(f"[{name}]", table)]
            )
        ]
        return "\n".join(blocks)


def island_names(group: str, count: int) -> tuple[Island, ...]:
    """`eu`, 3 -> `eu-0`, `eu-1`, `eu-2`."""
    return tuple(Island(f"{group}-{index}") for index in range(count))


# --- the door -------------------------------------------------------------------------------------


Location: TypeAlias = tuple[int | str, ...]
"""Where pydantic found something: keys and indexes from the root on."""


class Problem(NamedTuple):
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Draft:
    """A configuration as far as it is sound, and what is wrong with the rest of it.

    `broken`: where that is; defaults stand there.
    """

    config: Config
    origin: str
    problems: tuple[Problem, ...]
    broken: tuple[Location, ...]

    def sound(self, *reads: str) -> bool:
        """Whether these fields are as the user wrote them; `*` stands for any index."""
        return not any(_touches(location, read) for location in self.broken for read in reads)

    def accepted(self, more: Sequence[str] = ()) -> Config:
        """The configuration, if nothing is wrong with it, and nothing more was found elsewhere.

        Errors: `UserMistake` with every problem.
        """
        if not self.problems:
            if more:
                raise UserMistake("\n".join(more))
            return self.config
        found = [*map(str, self.problems), *(line for text in more for line in text.splitlines())]
        lines = dict.fromkeys(f"  {problem}" for problem in found)
        count = f"{len(lines)} problem{'s' if len(lines) > 1 else ''}"
        raise UserMistake("\n".join([f"{self.origin}: {count}", *lines]))


def load(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read, override (`a.b=c`), check. Refuses with every problem at once (`UserMistake`)."""
    return read(path, overrides).accepted()


def read(path: Path | str, overrides: Sequence[str] = ()) -> Draft:
    """... for who has more to check. Refuses only what is no TOML (`UserMistake`)."""
    path = Path(path)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise UserMistake(f"{path}: no such file; examples are in examples/") from error
    except OSError as error:
        raise UserMistake(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserMistake(f"{path} is not text in UTF-8: {error.reason}") from error
    except tomllib.TOMLDecodeError as error:
        raise UserMistake(f"{path} is not valid TOML: {error}") from error
    return draft(tables, origin=str(path), overrides=overrides)


def parse(
    tables: Mapping[str, Any], *, origin: str = "configuration", overrides: Sequence[str] = ()
) -> Config:
    """Check tables as a TOML file holds them, with the overrides (`a.b=c`) applied."""
    return draft(tables, origin=origin, overrides=overrides).accepted()


def draft(tables: Mapping[str, Any], *, origin: str, overrides: Sequence[str] = ()) -> Draft:
    """Find what is sound of the tables, and all that is not.

    What is wrong is reported, then taken out, so that the checks between fields still speak about
    all fields that are sound.
    """
    changed = copy.deepcopy(dict(tables))
    found = [problem for text in overrides for problem in _override(changed, text)]
    config, mistakes = _salvage(changed)
    broken = [mistake["loc"] for mistake in mistakes]
    problems = [*found, *(_problem(mistake) for mistake in mistakes)]
    between: list[Problem] = []
    for reads, check in CHECKS:
        if not any(_touches(location, read) for location in broken for read in reads):
            between += check(config)
    broken += [tuple(problem.where.split(".")) for problem in between]
    return Draft(config, origin, (*problems, *between), tuple(broken))


def _salvage(tables: Mapping[str, Any]) -> tuple[Config, list[ErrorDetails]]:
    """What is sound of the tables, and the mistakes that were in the rest."""
    try:
        return Config.model_validate(tables), []
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
    sound = copy.deepcopy(dict(tables))
    _take_out(sound, [mistake["loc"] for mistake in mistakes])
    return _salvage(sound)[0], mistakes


def _touches(location: Location, read: str) -> bool:
    """Whether the one path is the other's beginning; `*` in `read` stands for any index."""
    return all(
        part in ("*", str(found)) for found, part in zip(location, read.split("."), strict=False)
    )


def _take_out(tables: dict[str, Any], locations: Sequence[Location]) -> None:
    """Remove what is at these locations, or what should have held it if nothing is there."""

    def target(location: Location) -> Location:
        node: Any = tables
        for depth, part in enumerate(location):
            if isinstance(node, dict) and part not in node:
                return location[:depth]
            node = node[part]
        return location

    def later_first(location: Location) -> list[tuple[bool, int | str]]:
        return [(isinstance(part, int), part) for part in location]

    for *parents, last in sorted(set(map(target, locations)), key=later_first, reverse=True):
        node: Any = tables
        for part in parents:
            node = node[part]
        del node[last]


# --- checks between fields ------------------------------------------------------------------------

Check: TypeAlias = Callable[[Config], Iterator[Problem]]
CHECKS: list[tuple[tuple[str, ...], Check]] = []
"""Each with the fields that it reads: it is left out when one of them is unsound already."""


def check(*reads: str) -> Callable[[Check], Check]:
    def register(function: Check) -> Check:
        CHECKS.append((reads, function))
        return function

    return register


@check("task.preset", "task.target")
def _one_task(config: Config) -> Iterator[Problem]:
    if config.task.preset is None and config.task.target is None:
        yield Problem("task", 'says not what to learn; give preset = "byte-1m", or a target')
    if config.task.preset is not None and config.task.target is not None:
        yield Problem("task", "preset and target are both given; keep one")


@check("data.tokens", "data.column")
def _tokens_have_column(config: Config) -> Iterator[Problem]:
    if config.data.tokens and config.data.column is None:
        yield Problem("data.column", "is needed by tokens = true: the Parquet column to read")


@check("sync.fragments", "sync.every")
def _fragments_fit(config: Config) -> Iterator[Problem]:
    given, every = config.sync.fragments, config.sync.every
    if given > every:
        yield Problem(
            "sync.fragments",
            f"two of {given} fragments would be due at one step, as sync.every is {every}; "
            f"use {every} fragments or fewer, or a longer interval",
        )


@check("islands.*.topology", "islands.*.accelerator")
def _slices_are_of_tpus(config: Config) -> Iterator[Problem]:
    for number, group in enumerate(config.islands):
        if group.topology and not (group.accelerator or "").startswith("TPU-"):
            yield Problem(
                f"islands.{number}.accelerator",
                f'a slice {group.topology} is of TPUs: say which, such as "TPU-V6E"',
            )


@check("islands.*.topology", "islands.*.accelerator", "islands.*.resources")
def _slices_are_of_one_host(config: Config) -> Iterator[Problem]:
    for number, group in enumerate(config.islands):
        kind, given = group.accelerator or "", group.resources.get("TPU") or None
        if group.topology is None or not kind.startswith("TPU-"):
            continue
        if (hosts := slices.hosts(group.topology, kind, given)) > 1:
            each = given or slices.chips_per_host(group.topology, kind)
            yield Problem(
                f"islands.{number}.topology",
                f"a slice {group.topology} of {kind} has {slices.chips(group.topology)} chips, "
                f"{each:g} on a host{f' as islands.{number}.resources.TPU says' if given else ''}: "
                f"{hosts} hosts, and an island of several hosts is not built yet; take a slice of "
                f"one host, {slices.largest_of_one_host(kind)} at most"
                f"{', and all of its chips' if given else ''}",
            )


@check("durability.dir")
def _durable_everywhere(config: Config) -> Iterator[Problem]:
    """What may be a secret is not shown."""
    if (given := config.durability.dir) is None or given.startswith("/"):
        return
    parts, where = urlsplit(given), "durability.dir"
    if parts.scheme not in BUCKETS:
        known = ", ".join(f"{scheme}://" for scheme in BUCKETS)
        yield Problem(where, f"must be an absolute path that every node sees, or one of {known}")
    elif not parts.netloc:
        yield Problem(where, f"names no bucket: {parts.scheme}://BUCKET/PREFIX")
    if parts.password or any(SECRET.search(key) for key in parse_qs(parts.query)):
        yield Problem(
            where,
            "holds credentials, which would be written into the run's files; leave them to the "
            "environment of Ray's nodes (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS ...)",
        )


@check("sync.overlap", "sync.every")
def _overlap_fits(config: Config) -> Iterator[Problem]:
    given, every = config.sync.overlap, config.sync.every
    if given >= every:
        yield Problem(
            "sync.overlap",
            f"{given} steps would reach the fragment's next round, as sync.every is {every}; "
            f"use less than {every}",
        )


@check("sync.outer")
def _one_outer_optimizer(config: Config) -> Iterator[Problem]:
    outer = config.sync.outer
    own = {"learning_rate", "momentum", "nesterov"} & outer.model_fields_set
    if outer.target is None and outer.options:
        yield Problem("sync.outer.options", "are those of a target, and there is none")
    if outer.target is not None and (own := sorted(k for k in own if _changed(outer, k))):
        yield Problem(
            f"sync.outer.{own[0]}", f"is not for {outer.target}; put it into sync.outer.options"
        )


def _changed(table: BaseModel, key: str) -> bool:
    """... from its default: a resolved configuration names every key."""
    return getattr(table, key) != type(table).model_fields[key].default


@check("sync.shards", "sync.fragments")
def _shards_have_fragments(config: Config) -> Iterator[Problem]:
    given, fragments = config.sync.shards, config.sync.fragments
    if given > fragments:
        yield Problem(
            "sync.shards", f"{given} processes cannot share {fragments} fragments; use fewer"
        )


@check("sync.shard_labels", "durability.dir")
def _shards_elsewhere_are_durable_there(config: Config) -> Iterator[Problem]:
    if config.sync.shard_labels is not None and config.durability.dir is None:
        yield Problem(
            "sync.shard_labels",
            "puts shards on nodes that do not see the run directory; give durability.dir, a folder "
            "that every node sees or a bucket",
        )


@check("sync.quorum", "islands.*.count")
def _quorum_exists(config: Config) -> Iterator[Problem]:
    given, total = config.sync.quorum, len(config.island_names)
    if 0 < total < given:
        yield Problem(
            "sync.quorum",
            f"no round could ever close: {given} contributions are needed and there are {total} "
            f"islands; use {total} or less, or more islands",
        )


@check("sync.adopt", "sync.blend")
def _blend_has_alpha(config: Config) -> Iterator[Problem]:
    if config.sync.adopt == "blend" and config.sync.blend is None:
        yield Problem("sync.blend", 'is needed by adopt = "blend": a share between 0 and 1')
    if config.sync.adopt != "blend" and config.sync.blend is not None:
        yield Problem(
            "sync.blend",
            f'is read only by adopt = "blend", and adopt is "{config.sync.adopt}"; leave one out',
        )


@check("islands")
def _some_islands(config: Config) -> Iterator[Problem]:
    if not config.islands:
        yield Problem("islands", "there are none; add an [[islands]] table with group and count")


@check("islands.*.group")
def _groups_differ(config: Config) -> Iterator[Problem]:
    names = [group.group for group in config.islands]
    for name in sorted({name for name in names if names.count(name) > 1}):
        places = ", ".join(f"islands.{i}" for i, other in enumerate(names) if other == name)
        yield Problem("islands", f'{places} are all named "{name}"; give each group its own name')


@check("islands.*.group", "islands.*.count")
def _faults_hit(config: Config) -> Iterator[Problem]:
    for fault in config.faults.plan:
        if (why := fault.misfit(config.island_names)) is not None:
            yield Problem("faults.plan", why)


@check("run.steps")
def _faults_happen(config: Config) -> Iterator[Problem]:
    for fault in config.faults.plan:
        if fault.at_step > config.run.steps:
            yield Problem(
                "faults.plan",
                f'the {fault.kind} of "{fault.island}" at step {fault.at_step} would come after '
                f"the end; run.steps is {config.run.steps}",
            )


# --- what is wrong, in words ----------------------------------------------------------------------


PHRASES = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be text in quotes",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
}
"""What pydantic's kinds of mistakes are called here; its own words for any other kind."""

PATTERNS = {
    TOPOLOGY: "must be chips along each side, such as 4x4",
    NAME: "must be of letters, digits, dots, dashes and underscores, a letter or digit first",
    GROUP: "must be of small letters and digits, with dashes only within",
    TARGET: "must look like module:attribute",
}


def _problem(mistake: ErrorDetails) -> Problem:
    location, kind, context = mistake["loc"], mistake["type"], mistake.get("ctx", {})
    where = ".".join(str(part) for part in location)
    match kind:
        case "extra_forbidden":
            return Problem(where, _unknown(location))
        case "missing":
            return Problem(where, "is missing; it has no default")
        case "string_pattern_mismatch":
            what = PATTERNS[context["pattern"]]
        case _:
            what = PHRASES.get(kind, mistake["msg"]).format(**context).replace("'", '"')
    return Problem(where, f"{what}, given {_shown(mistake['input'])}")


def _shown(value: object) -> str:
    text = toml_value(value)
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + " ..."


LONGEST_SHOWN = 60  # characters of a refused value


def _unknown(location: Location) -> str:
    *parents, last = location
    if homes := _homes(str(last)):
        return f"is not known here; did you mean {' or '.join(homes)}?"
    known = tuple(_table_at(tuple(parents)).model_fields)
    return f"is not known; {_nearest(str(last), known)}"


def _nearest(given: str, known: Sequence[str]) -> str:
    if close := get_close_matches(given, known, n=1):
        return f"did you mean {close[0]}?"
    return f"known are {', '.join(known)}" if known else "none is known"


def _table_at(location: Location) -> type[Table]:
    table: type[Table] = Config
    for part in location:
        if isinstance(part, str):
            table = _inner(table.model_fields[part].annotation) or table
    return table


def _inner(annotation: Any) -> type[Table] | None:
    """The table that a field holds, by itself or in a list."""
    kinds = (annotation, *get_args(annotation))
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, Table)), None)


def _homes(key: str, table: type[Table] = Config, path: str = "") -> list[str]:
    """Every place in the file where a key of this name is known."""
    found = [f"{path}{key}"] if key in table.model_fields else []
    for name, field in table.model_fields.items():
        if inner := _inner(field.annotation):
            found += _homes(key, inner, f"{path}{name}.")
    return found


# --- overrides and TOML ---------------------------------------------------------------------------


def _override(tables: dict[str, Any], text: str) -> Iterator[Problem]:
    """Apply one `a.b=c` to the tables, in place; groups of islands go by index or by name."""
    path, equals, value = text.partition("=")
    *parents, last = parts = [part.strip() for part in path.split(".")]
    where = f"--set {text}"
    if not equals or not all(parts):
        yield Problem(where, "must look like sync.every=24")
        return
    node: Any = tables
    for part in parents:
        if isinstance(node, dict):
            node = node.setdefault(part, {})
        elif (index := _index(node, part)) is not None:
            node = node[index]
        else:
            yield Problem(where, _no_element(node, part))
            return
    if isinstance(node, dict):
        node[last] = _override_value(value.strip())
    elif (index := _index(node, last)) is not None:
        node[index] = _override_value(value.strip())
    else:
        yield Problem(where, _no_element(node, last))


def _index(node: object, part: str) -> int | None:
    if not isinstance(node, list):
        return None
    for index, element in enumerate(node):
        if isinstance(element, dict) and element.get("group") == part:
            return index
    return int(part) if part.isdecimal() and int(part) < len(node) else None


def _no_element(node: object, part: str) -> str:
    if not isinstance(node, list):
        return f'"{part}" has no place: what should hold it is {_shown(node)}, not a table'
    groups = [str(e["group"]) for e in node if isinstance(e, dict) and "group" in e]
    return f'no element "{part}"; there are {len(node)}' + (
        f": {', '.join(groups)}" if groups else ""
    )


def _override_value(text: str) -> object:
    """A TOML value; what is none is taken as plain text."""
    try:
        tables = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return tables["value"] if len(tables) == 1 else text


def _block(header: str, table: Mapping[str, object]) -> str:
    return "".join(
        f"{line}\n"
        for line in (header, *(f"{_key(key)} = {toml_value(v)}" for key, v in table.items()))
    )


def toml_value(value: object) -> str:
    """One value as TOML writes it; tables and lists on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            inside = ", ".join(f"{_key(str(k))} = {toml_value(v)}" for k, v in value.items())
            return f"{{{inside}}}"
        case list() | tuple():
            return f"[{', '.join(toml_value(each) for each in value)}]"
        case date() | time():
            return value.isoformat()
        case _:
            return repr(value)


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else toml_value(key)
