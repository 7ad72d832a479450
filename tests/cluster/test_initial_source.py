"""`task.init_from` at the start of a run and at its resume, with real files and runs."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from archipelago.cli.main import main
from archipelago.cli.run_header import initial_lines
from archipelago.lab.training.supported import refused as refused_in_virtual_time
from cluster.config.load import load, read
from cluster.config.schema import Config
from cluster.fleet.results import save_model
from cluster.launch.initial_source import begin, checked
from cluster.launch.preflight import enter
from cluster.launch.run_model import model_of
from cluster.storage import runs
from cluster.storage.folder import Folder
from cluster.storage.layout import save_layout
from cluster.workers.evaluator import Evaluator
from coordinator.errors import UserMistake
from coordinator.fragments import Flat, Layout, sew
from coordinator.protocol import Version
from islands.orbax_checkpoint import write_orbax
from tests.cluster.played import Played
from tests.given import LEAST, sums

ISLANDS = "[[islands]]\ncount = 1\nbatch_size = 2\n"
NOW = datetime(2026, 4, 5, tzinfo=UTC)
TASKS = """
import dataclasses
import numpy as np
import jax.numpy as jnp
from islands.task import load_task

def of_the_played_run(data):
    '''Return a task whose leaves are those of `tests.cluster.played`.'''
    task = load_task("byte-tiny", None, {}, data)
    def init(seed):
        return {"b": np.zeros(7, np.float32), "w": np.zeros((6, 5), np.float32)}
    return dataclasses.replace(
        task, init=init, stacked=lambda path: path == "w",
        loss=lambda p, batch: jnp.mean(p["b"] ** 2) + jnp.mean(p["w"] ** 2),
    )
"""
Entered = tuple[Config, Path, Layout]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with the configuration of a small run, and return it."""
    text = LEAST.replace("SOURCE", str(sums(tmp_path / "text"))) + ISLANDS
    (tmp_path / "run.toml").write_text(text)
    (tmp_path / "tasks_of_init.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(*overrides: str, run: str = "new", resume: bool = False) -> Entered:
    draft = read(Path("run.toml"), overrides)
    return enter(draft, Path("run.toml"), Path("runs") / run, NOW, resume=resume)


def refused(*overrides: str, run: str = "new", resume: bool = False) -> str:
    with pytest.raises(UserMistake) as error:
        start(*overrides, run=run, resume=resume)
    return str(error.value)


def started(*overrides: str, run: str = "new") -> Config:
    """Start a run as `archipelago run` does, as far as its directory goes."""
    config, run_dir, layout = start(*overrides, run=run)
    config = begin(config, _made(run_dir), layout.leaves)
    runs.leave(Folder(run_dir), run_dir, runs.CONFIG, config.toml().encode())
    return config


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def leaves_of(config: Config) -> dict[str, np.ndarray]:
    """Return the initial parameters as the evaluator gives them to the shards."""
    judge = Evaluator(config)
    leaves = sew(judge.layout, judge.initial())
    return {leaf.path: array for leaf, array in zip(judge.layout.leaves, leaves, strict=True)}


def same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return {*left} == {*right} and all(np.array_equal(a, right[p]) for p, a in left.items())


def public(flats: list[Flat]) -> list[tuple[Version, Flat]]:
    return [(Version(0, 0), flat) for flat in flats]


@pytest.fixture
def base(here: Path) -> dict[str, np.ndarray]:
    """Write the initial model of another seed to base.safetensors, and return it."""
    config = load(here / "run.toml", ["run.seed=5"])
    judge = Evaluator(config)
    save_model(here, judge.layout, public(judge.initial()), name="base")
    return load_file(here / "base.safetensors")


def test_run_starts_with_the_parameters_of_the_file(here: Path, base: dict) -> None:
    assert not same(leaves_of(load(here / "run.toml")), base)
    config = started("task.init_from=base.safetensors")
    assert config.task.init_from == str(here / "base.safetensors")
    assert config.task.init_sha256 is not None
    assert same(leaves_of(config), base)
    assert same(leaves_of(load(here / "runs" / "new" / "config.toml")), base)
    report = json.loads((here / "runs" / "new" / "init.json").read_text())
    assert {*report["taken"]} == {*base}
    assert report["missing"] == report["unused"] == report["other_shapes"] == []
    assert report["sha256"] == config.task.init_sha256


@pytest.mark.long
def test_initial_loss_is_that_of_the_file(here: Path, base: dict) -> None:
    config = started("task.init_from=base.safetensors")
    other = Evaluator(load(here / "run.toml", ["run.seed=5"]))
    assert Evaluator(config).initial_loss == other.initial_loss


@pytest.mark.long
def test_run_starts_with_the_parameters_of_a_checkpoint(here: Path, base: dict) -> None:
    write_orbax(here / "checkpoint", base)
    config = started("task.init_from=orbax:checkpoint")
    assert config.task.init_from == f"orbax:{here / 'checkpoint'}"
    assert same(leaves_of(config), base)
    by_file, _, _ = start("task.init_from=base.safetensors", run="other")
    assert config.task.init_sha256 == by_file.task.init_sha256


def test_partial_match_is_reported_before_the_run_and_in_its_directory(
    here: Path, base: dict, capsys: pytest.CaptureFixture[str]
) -> None:
    del base["head"]
    base["norm"] = np.ones(3, np.float32)
    save_file(base | {"more": np.ones(2, np.float32)}, here / "part.safetensors")
    settings = ("task.init_from=part.safetensors", 'task.init_other_shapes="skip"')
    config, _, layout = start(*settings)
    first, *rest = initial_lines(config, layout)
    count = f"{len(base) - 1} of {len(layout.leaves)}"
    source, digest = here / "part.safetensors", str(config.task.init_sha256)[:12]
    assert first.split() == f"start {count} leaves from {source}, sha256 {digest}".split()
    assert [line.strip() for line in rest] == [
        "kept from init: head",
        "not used there: more",
        "other shapes, kept from init: norm is float32[16] in the task and float32[3] there",
    ]
    with pytest.raises(SystemExit):
        main(["run", "run.toml", "--check", *(f"--set={each}" for each in settings)])
    out = capsys.readouterr().out
    assert first in out
    with pytest.raises(SystemExit):
        main(["run", "run.toml", "--check", "--json", *(f"--set={each}" for each in settings)])
    report = json.loads(capsys.readouterr().out)["init"]
    assert (report["missing"], report["unused"]) == (["head"], ["more"])
    assert report["other_shapes"] == [{"path": "norm", "here": [16], "there": "float32[3]"}]
    drawn = leaves_of(load(here / "run.toml"))
    wanted = base | {path: drawn[path] for path in ("head", "norm")}
    assert same(leaves_of(started(*settings)), wanted)


def test_all_problems_are_reported_at_once(here: Path, base: dict) -> None:
    base["norm"], base["head"] = np.ones(3, np.float32), np.ones((2, 2), np.float32)
    save_file(base, here / "base.safetensors")
    words = refused("task.init_from=base.safetensors", "data.source=nowhere", "sync.every=0")
    for problem in (
        "norm is float32[16] in the task and float32[3] there",
        "head is float32[16,256] in the task and float32[2,2] there",
        "data.source = 'nowhere'",
        "sync.every",
    ):
        assert problem in words
    assert not (here / "runs").exists()


def test_source_that_cannot_be_read_is_refused_before_anything_starts(here: Path) -> None:
    for source, problem in {
        "nowhere.safetensors": "there is no such file",
        "run.toml": "this is none of them",
        "orbax:text": "is no Orbax checkpoint",
        "run:nowhere": "no run 'nowhere'",
        "run:": "name the run",
        "run:@3": "name the run",
    }.items():
        words = refused(f'task.init_from="{source}"')
        assert "task.init_from = " in words
        assert problem in words
    assert not (here / "runs").exists()


@pytest.mark.long
def test_other_digest_than_the_required_one_is_refused(here: Path, base: dict) -> None:
    wrong = "0" * 64
    words = refused("task.init_from=base.safetensors", f'task.init_sha256="{wrong}"')
    assert "it is not the model that was meant" in words
    right = start("task.init_from=base.safetensors")[0].task.init_sha256
    start("task.init_from=base.safetensors", f'task.init_sha256="{right}"')
    assert "64 hexadecimal digits" in refused(
        "task.init_from=base.safetensors", 'task.init_sha256="x"'
    )
    assert "has no effect without task.init_from" in refused(f'task.init_sha256="{right}"')
    assert "has no effect without task.init_from" in refused('task.init_other_shapes="skip"')


# --- resume ---------------------------------------------------------------------------------------


def durable(here: Path, layout: Layout) -> None:
    """Leave the file that the syncer writes once the initial model is durable."""
    save_layout(Folder(here / "runs" / "new"), layout)


@pytest.mark.long
def test_run_resumes_from_the_same_file_only(here: Path, base: dict) -> None:
    settings = ("task.init_from=base.safetensors",)
    config = started(*settings)
    again, _, layout = start(*settings, resume=True)
    assert again.task == config.task
    own = read(Path("runs/new/config.toml"))
    assert enter(own, Path("c.toml"), Path("runs/new"), NOW, resume=True)[0].task == config.task
    changed = base | {"norm": base["norm"] + 1}
    for is_durable in (False, True):
        if is_durable:
            durable(here, layout)
        save_file(changed, here / "base.safetensors")
        assert "has changed since the run began" in refused(*settings, resume=True)
        with pytest.raises(UserMistake, match="has changed since the run began"):
            Evaluator(config).initial()
        save_file(base, here / "base.safetensors")
        assert start(*settings, resume=True)[0].task == config.task
    assert "task.init_from was" in refused("task.init_from=other.safetensors", resume=True)
    assert "task.init_from was" in refused(resume=True)


@pytest.mark.long
def test_run_with_a_durable_model_resumes_without_the_file(here: Path, base: dict) -> None:
    config, layout = started("task.init_from=base.safetensors"), Evaluator(load("run.toml")).layout
    (here / "base.safetensors").unlink()
    assert "there is no such file" in refused("task.init_from=base.safetensors", resume=True)
    durable(here, layout)
    again, _, layout = start("task.init_from=base.safetensors", resume=True)
    assert again.task == config.task
    assert "base.safetensors is gone; the run has its initial model" in "".join(
        initial_lines(again, layout)
    )
    judge = Evaluator(again)
    assert judge.sample([np.zeros(size, np.float32) for size in judge.layout.sizes]) > 0
    with pytest.raises(UserMistake, match="there is no such file"):
        _ = judge.initial_loss


# --- runs -----------------------------------------------------------------------------------------


@pytest.fixture
def played(here: Path) -> Played:
    """Return an earlier run, which was killed; the configuration is of a task with its leaves."""
    text = (here / "run.toml").read_text()
    head, tail = text.split("[data]")
    del head
    task = '[task]\ntarget = "tasks_of_init:of_the_played_run"\n[sync]\nfragments = 2\n[data]'
    (here / "run.toml").write_text(task + tail)
    run = Played(here / "runs" / "first")
    run.to_the_end(24)
    return run


def test_step_of_a_run_is_copied_when_the_new_run_starts(here: Path, played: Played) -> None:
    wanted = model_of(played.run_dir, 12).parameters()
    assert not same(wanted, model_of(played.run_dir).parameters())
    config = started("task.init_from=run:first@12")
    assert config.task.init_from == str(here / "runs" / "new" / "initial.safetensors")
    assert same(leaves_of(config), wanted)
    report = json.loads((here / "runs" / "new" / "init.json").read_text())
    assert report["init_from"] == f"run:{here / 'runs' / 'first'}@12"
    again, _, _ = start("task.init_from=run:first@12", resume=True)
    assert again.task == config.task
    assert "task.init_from was" in refused("task.init_from=run:first@11", resume=True)
    assert "task.init_from was" in refused("task.init_from=run:first", resume=True)
    shutil.rmtree(played.run_dir)
    assert same(leaves_of(config), wanted)
    own = read(Path("runs/new/config.toml"))
    assert enter(own, Path("c.toml"), Path("runs/new"), NOW, resume=True)[0].task == config.task


def test_newest_model_of_a_killed_run_is_copied(here: Path, played: Played) -> None:
    config = started(f"task.init_from=run:{played.run_dir}")
    assert same(leaves_of(config), model_of(played.run_dir).parameters())
    assert (here / "runs" / "new" / "initial.safetensors").exists()
    model = model_of(played.run_dir)  # the killed run is resumed and ends meanwhile
    save_model(played.run_dir, model.layout, model.public())
    again, _, _ = start("task.init_from=run:first", resume=True)
    assert again.task == config.task


def test_model_of_a_run_that_has_ended_is_read_where_it_is(here: Path, played: Played) -> None:
    model = model_of(played.run_dir)
    save_model(played.run_dir, model.layout, model.public())
    config = started("task.init_from=run:first")
    assert config.task.init_from == str(played.run_dir / "model.safetensors")
    assert same(leaves_of(config), model.parameters())
    assert not (here / "runs" / "new" / "initial.safetensors").exists()
    assert start("task.init_from=run:first", resume=True)[0].task == config.task


def test_step_that_a_run_does_not_have_is_refused(here: Path, played: Played) -> None:
    words = refused("task.init_from=run:first@99")
    assert "task.init_from = 'run:first@99'" in words
    assert "has no step 99: its steps are 0 to 24" in words
    path = played.run_dir / "config.toml"
    path.write_text(path.read_text().replace("keep_contributions = true", ""))
    assert "durability.keep_contributions = true" in refused("task.init_from=run:first@12")
    start("task.init_from=run:first@0")


def test_run_of_another_model_is_refused_by_its_leaves(here: Path, played: Played) -> None:
    (here / "run.toml").write_text(LEAST.replace("SOURCE", str(here / "text")) + ISLANDS)
    assert "no leaf matches" in refused("task.init_from=run:first@12")


# --- other users of a configuration ---------------------------------------------------------------


def test_virtual_time_needs_the_digest_of_a_file(here: Path, base: dict) -> None:
    given = "task.init_from=base.safetensors"
    (problem,) = refused_in_virtual_time(load(here / "run.toml", [given]))
    assert "archipelago run --check --json" in problem
    digest = f'task.init_sha256="{start(given)[0].task.init_sha256}"'
    assert not refused_in_virtual_time(load(here / "run.toml", [given, digest]))
    (problem,) = refused_in_virtual_time(
        load(here / "run.toml", ["task.init_from=run:first", digest])
    )
    assert "archipelago export" in problem


def test_checkpoint_is_refused_for_an_evaluator_of_several_hosts(here: Path, base: dict) -> None:
    write_orbax(here / "checkpoint", base)
    config, _, layout = start("task.init_from=orbax:checkpoint")
    apart = config.monitor.evaluator.model_copy(update={"hosts": 2})
    monitor = config.monitor.model_copy(update={"evaluator": apart})
    with pytest.raises(UserMistake, match="reads only safetensors files"):
        checked(config.model_copy(update={"monitor": monitor}), layout.leaves)
