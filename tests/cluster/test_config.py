"""Tests of the configuration loader: what it accepts, and the messages of its refusals."""

import math
import pickle
import tomllib
from datetime import date
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cluster.config.load import load, parse
from cluster.config.schema import Config, MeshConfig, Table
from cluster.config.toml import toml_value
from cluster.names import island_names
from coordinator.codec import Wire
from coordinator.errors import UserMistake

EXAMPLES = Path(__file__).parents[2] / "examples"
SOUND = '[task]\npreset = "byte-tiny"\n[[islands]]\ngroup = "eu"\ncount = 3\n'


def sides(mesh: MeshConfig) -> tuple[int, int, int]:
    return mesh.data, mesh.fsdp, mesh.tensor


def sound() -> dict[str, Any]:
    return tomllib.loads(SOUND)


def complaints(*overrides: str, tables: dict[str, Any] | None = None, tmp: Path) -> list[str]:
    """Return the complaints of the loader, one a line, without the headline."""
    path = tmp / "run.toml"
    path.write_text(parse(tables or sound()).toml())
    with pytest.raises(UserMistake) as refusal:
        load(path, overrides)
    headline, *lines = str(refusal.value).splitlines()
    assert headline == f"{path}: {len(lines)} problem{'s' if len(lines) > 1 else ''}"
    return [line.removeprefix("  ") for line in lines]


# --- accepted configurations ----------------------------------------------------------------------


def test_minimal_configuration_gets_the_defaults() -> None:
    config = parse(sound())
    assert config.island_names == ("eu-0", "eu-1", "eu-2")
    assert (config.sync.every, config.sync.fragments, config.sync.overlap) == (8, 8, "auto")
    assert config.sync.grace == "auto"
    assert config.sync.wire_up is Wire.BF16
    assert config.run.name is None


def test_islands_are_named_after_their_group() -> None:
    assert island_names("eu", 3) == ("eu-0", "eu-1", "eu-2")


@pytest.mark.parametrize(
    ("name", "first"), [("demo", "local-0"), ("tiny", "local-0"), ("hosts", "wide-0")]
)
def test_the_examples_are_sound(name: str, first: str) -> None:
    assert load(EXAMPLES / f"{name}.toml").islands[0].names[0] == first


def test_demo_kills_one_of_four_islands_half_way() -> None:
    demo = load(EXAMPLES / "demo.toml")
    (fault,) = demo.faults.plan
    assert (fault.kind, fault.island, fault.at_step) == ("kill", "local-2", demo.run.steps // 2)
    assert demo.island_names == ("local-0", "local-1", "local-2", "local-3")


def test_configuration_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        parse(sound()).run.steps = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_configuration_survives_pickling() -> None:
    config = load(EXAMPLES / "demo.toml")
    assert pickle.loads(pickle.dumps(config)) == config


# --- overrides ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("run.steps=7", lambda c: c.run.steps, 7),
        ("sync.grace=0.25", lambda c: c.sync.grace, 0.25),
        ("sync.grace=3", lambda c: c.sync.grace, 3.0),
        ('sync.grace="auto"', lambda c: c.sync.grace, "auto"),
        ("sync.overlap=auto", lambda c: (c.sync.overlap, c.sync.least_overlap), ("auto", 1)),
        ("sync.outer.learning_rate=auto", lambda c: c.sync.outer.learning_rate, "auto"),
        ("sync.outer.learning_rate=2", lambda c: c.sync.outer.learning_rate, 2.0),
        ("sync.overlap=3", lambda c: (c.sync.overlap, c.sync.least_overlap), (3, 3)),
        ("sync.merge=mean", lambda c: c.sync.merge, "mean"),
        ("sync.wire_up = f32", lambda c: c.sync.wire_up, Wire.F32),
        ("sync.outer.nesterov=false", lambda c: c.sync.outer.nesterov, False),
        ("data.source=/a=b/*.txt", lambda c: c.data.source, "/a=b/*.txt"),
        ("islands.0.count=2", lambda c: c.islands[0].count, 2),
        ("islands.eu.count=2", lambda c: c.islands[0].count, 2),
        ("islands.eu.resources={GPU=1}", lambda c: c.islands[0].resources, {"GPU": 1.0}),
        ("islands.eu.mesh={tensor=1}", lambda c: sides(c.islands[0].mesh), (1, -1, 1)),
        ("islands.eu.mesh={tensor=-1}", lambda c: sides(c.islands[0].mesh), (1, 1, -1)),
        ("islands.eu.mesh={fsdp=4}", lambda c: sides(c.islands[0].mesh), (1, 4, 1)),
        ("task.options.depth=3", lambda c: c.task.options, {"depth": 3}),
        ('islands=[{group="us"}]', lambda c: c.island_names, ("us-0",)),
        (
            'faults.plan=[{at_step=3, kind="kill", island="eu-1"}]',
            lambda c: c.faults.plan[0].island,
            "eu-1",
        ),
        (
            'faults.plan=[{at_step=300, kind="kill", island="eu-1"}]',
            lambda c: c.faults.plan[0].at_step,
            300,
        ),
    ],
)
def test_override_sets_the_value(tmp_path: Path, override: str, read: Any, value: object) -> None:
    path = tmp_path / "run.toml"
    path.write_text(SOUND)
    assert read(load(path, [override])) == value


def test_last_override_wins(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(SOUND)
    assert load(path, ["run.steps=1", "run.steps=2"]).run.steps == 2


# --- refusals: one at a time ----------------------------------------------------------------------

REFUSALS = {
    # unknown
    "sync.fragmnts=3": "sync.fragmnts: is not known; did you mean fragments?",
    "snyc.a=3": "snyc: is not known; did you mean sync?",
    "run.fragments=3": "run.fragments: is not known here; did you mean sync.fragments?",
    "sync.learning_rate=1": "sync.learning_rate: is not known here; did you mean "
    "optimizer.learning_rate or sync.outer.learning_rate or islands.optimizer.learning_rate?",
    "faults.qqq=1": "faults.qqq: is not known; known are plan, policy, preemption",
    "islands.eu.cuont=1": "islands.0.cuont: is not known; did you mean count?",
    # wrong types
    'run.steps="8"': 'run.steps: must be a whole number, given "8"',
    "run.steps=8.5": "run.steps: must be a whole number, given 8.5",
    "run.steps=true": "run.steps: must be a whole number, given true",
    "run.name=7": "run.name: must be text in quotes, given 7",
    "optimizer.eps=small": 'optimizer.eps: must be a number, given "small"',
    "optimizer.eps=inf": "optimizer.eps: must be a finite number, given inf",
    "sync.outer.nesterov=1": "sync.outer.nesterov: must be true or false, given 1",
    "sync=3": "sync: must be a table, given 3",
    "faults.plan={}": "faults.plan: must be a list, given {}",
    "islands.eu=3": "islands.0: must be a table, given 3",
    "task.options.day=1979-05-27": "task.options.day: must be a number, text, true or false, "
    "given 1979-05-27",
    # out of range
    "run.steps=0": "run.steps: must be at least 1, given 0",
    "run.seed=-1": "run.seed: must be at least 0, given -1",
    "run.dir=": 'run.dir: must not be empty, given ""',
    "run.name=a/b": "run.name: must be of letters, digits, dots, dashes and underscores, "
    'a letter or digit first, given "a/b"',
    "islands.eu.group=EU": "islands.0.group: must be of small letters and digits, "
    'with dashes only within, given "EU"',
    "islands.eu.speed=1.5": "islands.0.speed: must be at most 1.0, given 1.5",
    "islands.eu.speed=0": "islands.0.speed: must be more than 0.0, given 0",
    "islands.eu.resources.CPU=-1": "islands.0.resources.CPU: must be at least 0.0, given -1",
    "optimizer.b1=1.0": "optimizer.b1: must be less than 1.0, given 1.0",
    "sync.quorum=0": "sync.quorum: must be at least 1, given 0",
    "sync.outer.learning_rate=0": 'sync.outer.learning_rate: must be "auto" or a number above 0, '
    "given 0",
    "sync.outer.learning_rate=car": 'sync.outer.learning_rate: must be "auto" or a number above 0, '
    'given "car"',
    "sync.overlap=-1": 'sync.overlap: must be "auto" or a number of steps, 0 or more, given -1',
    "sync.overlap=some": 'sync.overlap: must be "auto" or a number of steps, 0 or more, given '
    '"some"',
    "sync.merge=max": 'sync.merge: must be "mean", "rda" or look like module:attribute, given '
    '"max"',
    "sync.wire_up=f64": (
        'sync.wire_up: must be "f32", "bf16", "int8", "int4", "int2", "e3m0" or look like '
        'module:attribute, given "f64"'
    ),
    "sync.grace=-1": 'sync.grace: must be "auto" or a number of seconds, 0 or more, given -1',
    "sync.grace=inf": 'sync.grace: must be "auto" or a number of seconds, 0 or more, given inf',
    "sync.grace=true": 'sync.grace: must be "auto" or a number of seconds, 0 or more, given true',
    "task.target=mine": 'task.target: must look like module:attribute, given "mine"',
    "islands.eu.mesh.fsdp=0": "islands.0.mesh.fsdp: must be 1 or more, or -1 for what the other "
    "axes leave, given 0",
    "islands.eu.mesh={data=-1, tensor=-1}": "islands.0.mesh: data and tensor are both -1, the "
    "rest; give one a size",
    "islands.eu.mesh={data=3, fsdp=1}": "islands.0.batch_size: 8 windows cannot be split over 3 "
    "devices, data x fsdp of its mesh; use a multiple of 3",
    # not built yet
    "islands.eu.hosts=0": "islands.0.hosts: must be at least 1, given 0",
    "islands=[{hosts=2, encode='device'}]": "islands.0.encode: is not built yet for several "
    'hosts; use "host", or hosts = 1',
    "islands=[{hosts=3, mesh={fsdp=4}}]": "islands.0.mesh: 4 devices cannot be shared evenly by 3 "
    "hosts; give sizes whose product is a multiple of 3",
    "islands.eu.region=E U": "islands.0.region: must be of small letters and digits, with dashes "
    'only within, given "E U"',
    "islands.eu.topology=4x4": "islands.0.accelerator: a slice 4x4 is of TPUs: say which, "
    'such as "TPU-V6E"',
    "islands.eu.topology=four": "islands.0.topology: must be chips along each side, "
    'such as 4x4, given "four"',
    "islands.eu.topology=4x0": "islands.0.topology: must be chips along each side, such as 4x4, "
    'given "4x0"',
    'islands=[{topology="4x4", accelerator="TPU-V6E"}]': "islands.0.hosts: a slice 4x4 of "
    "TPU-V6E has 16 chips, 4 on a host: 4 hosts, and 1 is given; say hosts = 4, or take another "
    "slice (of one host: 2x4 at most)",
    'islands=[{topology="2x2x2", accelerator="TPU-V5P", hosts=4}]': "islands.0.hosts: a slice "
    "2x2x2 of TPU-V5P has 8 chips, 4 on a host: 2 hosts, and 4 is given; say hosts = 2, or take "
    "another slice (of one host: 2x2x1 at most)",
    'islands=[{topology="2x2", accelerator="TPU-V6E", hosts=2}]': "islands.0.hosts: a slice 2x2 of "
    "TPU-V6E has 4 chips, 4 on a host: 1 host, and 2 is given; say hosts = 1, or take another "
    "slice (of one host: 2x4 at most)",
    'islands=[{topology="2x4", accelerator="TPU-V6E", resources={TPU=4}}]': "islands.0.hosts: "
    "a slice 2x4 of TPU-V6E has 8 chips, 4 on a host as islands.0.resources.TPU says: 2 hosts, and "
    "1 is given; say hosts = 2, or take another slice (of one host: 2x4 at most)",
    'islands=[{topology="3x3", accelerator="TPU-V6E", hosts=3}]': "islands.0.topology: a slice 3x3 "
    "of TPU-V6E has 9 chips, 4 on a host: its hosts would not have equally many, as they "
    "must; take another",
    "monitor.evaluator={hosts=2, mesh={data=3}}": "monitor.evaluator.mesh: is of a multiple of 3 "
    "devices, and there are 2, one to a host on CPUs; give every axis a size, and there are as "
    "many",
    "monitor.evaluator={hosts=2, mesh={data=3, fsdp=1}}": "monitor.evaluator.mesh: 3 devices "
    "cannot be shared evenly by 2 hosts; give sizes whose product is a multiple of 2",
    "monitor.evaluator={hosts=0}": "monitor.evaluator.hosts: must be at least 1, given 0",
    'monitor.evaluator={topology="2x2"}': "monitor.evaluator.accelerator: a slice 2x2 is of TPUs: "
    'say which, such as "TPU-V6E"',
    "monitor.evaluate_on={GPU=1}": "monitor.evaluate_on: is not known; did you mean evaluator?",
    "durability.every=0": 'durability.every: must be "auto" or a number of merges, 1 or more, '
    "given 0",
    "durability.dir=ftp://a/b": "durability.dir: must be an absolute path that every node sees, or "
    "one of s3://, gs://, gcs://, abfs://, abfss://",
    "durability.dir=s3:///runs": "durability.dir: names no bucket: s3://BUCKET/PREFIX",
    "durability.dir=s3://me:secret@a/b": "durability.dir: holds credentials, which would be "
    "written into the run's files; leave them to the environment of Ray's nodes "
    "(AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS ...)",
    "durability.dir=s3://a/b?access_key=me": "durability.dir: holds credentials, which would be "
    "written into the run's files; leave them to the environment of Ray's nodes "
    "(AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS ...)",
    "run.dir=s3://a/runs": "run.dir: s3://a/runs is not on this machine, and would become a folder "
    "named s3: here: write to a local folder, then copy it there with `aws s3 cp --recursive "
    "FOLDER s3://a/runs`; the state of a run may be there: durability.dir",
    "durability.keep_snapshots=1": "durability.keep_snapshots: must be at least 2, given 1",
    "durability.keep_contributions=1": "durability.keep_contributions: must be true or false, "
    "given 1",
    # one field against another
    "task.target=a:b": "task: preset and target are both given; keep one",
    "data.tokens=true": "data.column: is needed by tokens = true: the Parquet column to read",
    "sync.fragments=25": "sync.fragments: two of 25 fragments would be due at one step, as "
    "sync.every is 8; use 8 fragments or fewer, or a longer interval",
    "sync.overlap=24": "sync.overlap: 24 steps would reach the fragment's next round, as "
    "sync.every is 8; use 8 at most",
    'sync={overlap=8, anchor="current"}': "sync.overlap: 8 steps would reach the fragment's next "
    "round, as sync.every is 8; use 7 at most",
    "sync.shards=9": "sync.shards: 9 processes cannot share 8 fragments; use fewer",
    "sync.quorum=4": "sync.quorum: no round could ever close: 4 contributions are needed and "
    "there are 3 islands; use 3 or less, or more islands",
    "sync.adopt=blend": 'sync.blend: is needed by adopt = "blend": a share between 0 and 1',
    "sync.blend=0.5": 'sync.blend: is read only by adopt = "blend", and adopt is "carry"; '
    "leave one out",
    "islands=[]": "islands: there are none; add an [[islands]] table with group and count",
    'islands=[{group="a"},{group="b"},{group="a"}]': "islands: islands.0, islands.2 are all "
    'named "a"; give each group its own name',
    'faults.plan=[{at_step=3, kind="kill", island="eu-3"}]': 'faults.plan: the kill of "eu-3" '
    "names no island; did you mean eu-2?",
    'faults.plan=[{at_step=301, kind="kill", island="eu-0"}]': 'faults.plan: the kill of "eu-0" '
    "at step 301 would come after the end; run.steps is 300",
    'faults.plan=[{at_step=3, kind="nap", island="eu-0"}]': "faults.plan.0.kind: "
    'must be "kill", "stop", "nan", "scale", "slow", "cut", "node", "drain", "preempt" or "disk", '
    'given "nap"',
    'faults.plan=[{kind="kill", island="eu-0"}]': "faults.plan.0.at_step: is missing; "
    "it has no default",
    # of the override itself
    "oops": "--set oops: must look like sync.every=24",
    "run..steps=1": "--set run..steps=1: must look like sync.every=24",
    "run.steps.x=1": '--set run.steps.x=1: "x" has no place: its parent is 300, not a table',
    "islands.us.count=1": '--set islands.us.count=1: no element "us"; there are 1: eu',
    "islands.1.count=1": '--set islands.1.count=1: no element "1"; there are 1: eu',
    "islands.us=1": '--set islands.us=1: no element "us"; there are 1: eu',
}


@pytest.mark.parametrize(("override", "complaint"), REFUSALS.items(), ids=list(REFUSALS))
def test_refusal_names_the_field_and_the_remedy(
    tmp_path: Path, override: str, complaint: str
) -> None:
    assert complaints(override, tmp=tmp_path) == [complaint]


def test_missing_tables_are_named() -> None:
    with pytest.raises(UserMistake) as refusal:
        parse({})
    assert str(refusal.value).splitlines() == [
        "configuration: 2 problems",
        '  task: names no task; give preset = "byte-1m", or a target',
        "  islands: there are none; add an [[islands]] table with group and count",
    ]


def test_long_value_is_shown_in_part(tmp_path: Path) -> None:
    (complaint,) = complaints(f"sync.merge={'x' * 500}", tmp=tmp_path)
    assert complaint.endswith("xxx ...")
    assert len(complaint) < 140


# --- refusals: all at once ------------------------------------------------------------------------


def test_reports_every_problem_at_once(tmp_path: Path) -> None:
    """A mistake in one field does not hide conflicts between other fields."""
    assert complaints(
        "sync.fragments=30",
        "sync.merge=max",
        "sync.quorom=2",
        "islands.eu.hosts=0",
        'faults.plan=[{at_step="x", kind="kill", island="eu-0"},'
        '{at_step=3, kind="kill", island="mars-0"}]',
        "nonsense",
        tmp=tmp_path,
    ) == [
        "--set nonsense: must look like sync.every=24",
        'sync.merge: must be "mean", "rda" or look like module:attribute, given "max"',
        "sync.quorom: is not known; did you mean quorum?",
        "islands.0.hosts: must be at least 1, given 0",
        'faults.plan.0.at_step: must be a whole number, given "x"',
        "sync.fragments: two of 30 fragments would be due at one step, as sync.every is 8; "
        "use 8 fragments or fewer, or a longer interval",
        'faults.plan: the kill of "mars-0" names no island; known are eu-0, eu-1, eu-2',
    ]


def test_skips_a_check_that_reads_an_invalid_field(tmp_path: Path) -> None:
    """The refusal does not mention the default of an invalid field."""
    assert complaints("sync.every=x", "sync.fragments=30", tmp=tmp_path) == [
        'sync.every: must be a count of steps, "auto", or stretches such as [[0, 8], [48, 24]], '
        'given "x"'
    ]
    assert complaints("islands.eu.count=no", "sync.quorum=3", tmp=tmp_path) == [
        'islands.0.count: must be a whole number, given "no"'
    ]


def test_list_elements_keep_their_places_in_messages(tmp_path: Path) -> None:
    """Leave the invalid elements out, and still check the valid ones."""
    assert complaints(
        'faults.plan=[1, {at_step=3, kind="kill", island="mars-0"}, {at_step=3, kind="nap"}, 4]',
        tmp=tmp_path,
    ) == [
        "faults.plan.0: must be a table, given 1",
        'faults.plan.2.kind: must be "kill", "stop", "nan", "scale", "slow", "cut", "node", '
        '"drain", "preempt" or "disk", given "nap"',
        "faults.plan.2.island: is missing; it has no default",
        "faults.plan.3: must be a table, given 4",
        'faults.plan: the kill of "mars-0" names no island; known are eu-0, eu-1, eu-2',
    ]


# --- the file itself ------------------------------------------------------------------------------


def test_missing_file_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(
        UserMistake,
        match=r"run\.toml: no such file; `archipelago init DIR`",
    ):
        load(tmp_path / "run.toml")


def test_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match="is a directory: a configuration is a file, such as"):
        load(tmp_path)


def test_run_directory_is_refused_with_the_resume_command(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    way = rf"config\.toml --resume --run-dir {tmp_path}`"
    with pytest.raises(UserMistake, match=way):
        load(tmp_path)


def test_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserMistake, match="is not text in UTF-8: invalid start byte"):
        load(path)


def test_invalid_toml_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[run]\nname = "x"\nsteps 3\n')
    with pytest.raises(UserMistake, match=r"is not valid TOML: .*at line 3, column 7"):
        load(path)


def test_refusal_survives_pickling() -> None:
    with pytest.raises(UserMistake) as refusal:
        parse({})
    assert str(pickle.loads(pickle.dumps(refusal.value))) == str(refusal.value)


# --- printed and hashed ---------------------------------------------------------------------------

BUSY = (
    "run.name=x",
    "run.seed=4294967295",
    "sync.adopt=blend",
    "sync.blend=0.5",
    "sync.grace=1e-7",
    "sync.outer.momentum=0.9",
    "sync.outer.learning_rate=auto",
    'faults.plan=[{at_step=3, kind="kill", island="eu-1"}]',
    "islands.eu.resources={CPU=0.5, 'tiny gpu'=2}",
    'task.options={text="a \\"b\\" \\\\ \\n \\u007f ü", deep=1e16, on=true}',
)


@pytest.mark.parametrize("overrides", [(), BUSY], ids=["defaults", "busy"])
def test_printed_configuration_loads_as_the_same(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    path, again = tmp_path / "run.toml", tmp_path / "again.toml"
    path.write_text(SOUND)
    config = load(path, overrides)
    again.write_text(config.toml(), encoding="utf-8")
    assert load(again) == config
    assert load(again).sha256 == config.sha256


def test_hash_depends_on_values_not_on_spelling() -> None:
    plain = parse(sound())
    spelled_out = sound() | {"sync": {"every": 8, "outer": {"momentum": 0.0}}, "run": {}}
    assert parse(spelled_out).sha256 == plain.sha256
    assert parse(sound() | {"run": {"seed": 1}}).sha256 != plain.sha256


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
TOML_VALUES = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | TEXT
    | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(TOML_VALUES)
def test_toml_values_round_trip(value: object) -> None:
    assert tomllib.loads(f"value = {toml_value(value)}")["value"] == value


KEYS = sorted(
    {
        key
        for table in Config.model_fields.values()
        for model in (table.annotation, *get_args(table.annotation))
        if isinstance(model, type) and issubclass(model, Table)
        for key in model.model_fields
    }
    | {"outer", "at_step", "kind", "island", "unheard-of"}
)
SCRAPS = st.sampled_from([True, -1, 0, 1, 30, 0.5, math.inf, "", "x", "byte-1m", date.min])
TABLES = st.dictionaries(
    st.sampled_from([*Config.model_fields, "unheard-of"]),
    st.recursive(
        SCRAPS,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
        ),
        max_leaves=8,
    ),
    max_size=4,
)


@given(TABLES)
def test_any_tables_are_accepted_or_refused_with_a_user_mistake(tables: dict[str, Any]) -> None:
    try:
        printed = parse(tables).toml()
    except UserMistake:  # any other exception fails this test
        return
    assert tomllib.loads(printed)


@pytest.mark.parametrize(
    ("said", "kind", "rate"),
    [
        ({}, "muon", 16e-3),
        ({"kind": "muon"}, "muon", 16e-3),
        ({"kind": "adamw"}, "adamw", 6e-3),
        ({"kind": "adamw", "learning_rate": 0.5}, "adamw", 0.5),
        ({"learning_rate": 0.5}, "muon", 0.5),
    ],
)
def test_inner_optimizer_has_its_own_default_learning_rate(
    said: dict[str, object], kind: str, rate: float
) -> None:
    config = parse(sound() | {"optimizer": said})
    assert (config.optimizer.kind, config.optimizer.learning_rate) == (kind, rate)
    again = parse(tomllib.loads(config.toml()))
    assert again.optimizer == config.optimizer


def test_unknown_inner_optimizer_is_refused() -> None:
    with pytest.raises(UserMistake, match=r"optimizer\.kind"):
        parse(sound() | {"optimizer": {"kind": "sgd"}})
