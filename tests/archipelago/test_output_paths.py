"""Commands write to this machine: they refuse the address of a bucket as a place to write to."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
import typer

from archipelago.cli.main import app, main
from archipelago.cli.options import on_this_machine
from coordinator.errors import UserMistake
from islands.data.local_paths import address_problem, local_path

READ = {
    "chaos": {"plan"},
    "evaluate": {"tasks"},
    "job": {"config_path"},
    "kuberay": {"config_path"},
    "list_runs": {"folder"},
    "plan": {"cluster_path"},
    "queue": {"quotas"},
    "replay": {"run_dir"},
    "run": {"config_path"},
    "simulate": {"config_path"},
    "slurm": {"config_path"},
    "stage": {"plan"},
    "study": {"path"},
    "submit": {"config_path", "working_dir"},
    "verify": {"run_dir"},
}
"""The arguments of commands that are paths to read from."""


def commands(group: typer.Typer) -> Iterator[Any]:
    """Yield the functions of all commands of a group."""
    yield from (each.callback for each in group.registered_commands)
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from commands(inner.typer_instance)


def paths(command: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the definition of each argument that is a path, or several."""
    names = inspect.signature(command).parameters
    hints = get_type_hints(command, include_extras=True)
    for name in names:
        if get_origin(hint := hints[name]) is Annotated and "Path" in str(get_args(hint)[0]):
            yield name, get_args(hint)[1]


def test_every_path_that_a_command_writes_to_is_checked() -> None:
    unchecked = dict[str, set[str]]()
    for command in commands(app):
        for name, definition in paths(command):
            if definition.callback is not on_this_machine:
                unchecked.setdefault(command.__name__, set()).add(name)
    assert unchecked == READ


@pytest.mark.parametrize(
    "words",
    [
        ("data", "tokenize", "here.txt", "s3://bucket/out?access_key=secret"),
        ("data", "questions", "cloze", "here.txt", "s3://bucket/out"),
        ("export", "runs/first", "s3://bucket/out", "--format", "hf"),
        ("init", "s3://bucket/out"),
        ("report", "runs/first", "-o", "s3://bucket/out"),
        ("run", "run.toml", "--run-dir", "s3://bucket/out"),
    ],
)
def test_bucket_is_refused_before_anything_is_written(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    place = next(each for each in words if "://" in each).partition("?")[0]
    said = capsys.readouterr().err
    assert f": {place} is not on this machine, and would become a folder named s3: here" in said
    assert said.startswith(("archipelago: OUT", "archipelago: DIR", "archipelago: -"))
    assert "secret" not in said
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("path", ["out", "./s3:/out", "/a/b", "C:/runs", "a:b", "~/x"])
def test_paths_of_this_machine_are_kept(path: str) -> None:
    assert address_problem(path) == ""
    assert local_path("OUT", path) == Path(path)


@pytest.mark.parametrize(
    ("address", "remedy"),
    [
        ("s3://b/x", "copy it there with `aws s3 cp --recursive FOLDER s3://b/x`"),
        ("gs://b/x", "copy it there with `gcloud storage cp --recursive FOLDER gs://b/x`"),
        ("hdfs://b/x", "copy it there with the tools of that storage"),
        ("file:///tmp/x", "file:// is no path: write /tmp/x"),
    ],
)
def test_refusal_has_the_remedy(address: str, remedy: str) -> None:
    for given in (address, Path(address)):
        with pytest.raises(UserMistake, match=r"^OUT: ") as refusal:
            local_path("OUT", given)
        assert str(refusal.value).endswith(remedy)
