"""The model of a run at its newest state and at a step, and its export in both formats."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import archipelago
from archipelago.cli.main import main
from cluster.fleet.results import save_model
from cluster.launch.run_model import model_of
from cluster.storage.folder import Folder
from cluster.storage.model_file import PART_BYTES, ModelFiles, fingerprint
from cluster.storage.playback import read_tape
from cluster.storage.state_history import relive
from coordinator.errors import UserMistake
from coordinator.fragments import Flat, sew
from coordinator.protocol import Fragment, Version
from islands.initial_model import open_source
from tests.cluster.played import CONFIG, LAYOUT, Played

STEPS = 24
FRAGMENTS = (Fragment(0), Fragment(1))
Parameters = dict[str, np.ndarray]


@pytest.fixture
def played(tmp_path: Path) -> Played:
    """Return a run that was ended before it could write its model."""
    run = Played(tmp_path / "runs" / "first")
    run.to_the_end(STEPS)
    return run


@pytest.fixture
def ended(played: Played) -> Played:
    """Return a run that has ended with its model."""
    leave_model(played)
    return played


def leave_model(played: Played, part_bytes: int = PART_BYTES) -> None:
    files = ModelFiles(played.run_dir, LAYOUT, part_bytes)
    for version, flat in flats_of(played, versions_at(played)[max(versions_at(played))]):
        files.add(version, flat)
    files.publish()


def versions_at(played: Played) -> dict[int, tuple[Version, ...]]:
    """Return the public versions at the last event of each step, from the rules' own states."""
    found = dict[int, tuple[Version, ...]]()
    tape = read_tape(Folder(played.run_dir), LAYOUT.fingerprint)
    for each in relive(played.rule, tape.events):
        found[each.after.t] = tuple(fragment.version for fragment in each.after.fragments)
    return found


def flats_of(played: Played, versions: tuple[Version, ...]) -> list[tuple[Version, Flat]]:
    """Return public fragments as the run published them."""
    return [(v, played.history[p, v].public) for p, v in zip(FRAGMENTS, versions, strict=True)]


def parameters_of(played: Played, versions: tuple[Version, ...]) -> Parameters:
    leaves = sew(LAYOUT, [flat for _, flat in flats_of(played, versions)])
    return {leaf.path: array for leaf, array in zip(LAYOUT.leaves, leaves, strict=True)}


def same(left: Parameters, right: Parameters) -> bool:
    return {*left} == {*right} and all(
        a.dtype == np.float32 and np.array_equal(a, right[path]) for path, a in left.items()
    )


def refused(run_dir: Path, at: int | None) -> str:
    with pytest.raises(UserMistake) as error:
        model_of(run_dir, at).parameters()
    return str(error.value)


def test_every_step_is_rebuilt_bit_for_bit(played: Played) -> None:
    wanted = versions_at(played)
    assert [*wanted] == [*range(STEPS + 1)]
    assert len({*wanted.values()}) > 4
    for at, versions in wanted.items():
        assert same(model_of(played.run_dir, at).parameters(), parameters_of(played, versions))


def test_newest_model_is_the_stored_one_until_the_run_has_ended(played: Played) -> None:
    newest = parameters_of(played, versions_at(played)[STEPS])
    assert model_of(played.run_dir).file is None
    assert same(model_of(played.run_dir).parameters(), newest)
    leave_model(played)
    shutil.rmtree(played.run_dir / "fragments")
    assert same(model_of(played.run_dir).parameters(), newest)


def test_model_in_several_files_is_read_block_by_block(played: Played) -> None:
    leave_model(played, part_bytes=64)
    model = model_of(played.run_dir)
    assert model.file is not None
    assert model.file.name == "model.safetensors.index.json"
    assert same(model.parameters(), parameters_of(played, versions_at(played)[STEPS]))
    assert fingerprint(flat for _, flat in model.public()) == summary(played)["global_sha256"]


def summary(played: Played) -> dict[str, str]:
    return json.loads((played.run_dir / "summary.json").read_text())


def test_step_out_of_range_is_refused(ended: Played) -> None:
    for at in (-1, STEPS + 1, 10_000):
        assert f"has no step {at}: its steps are 0 to {STEPS}" in refused(ended.run_dir, at)


def test_steps_between_need_the_contributions(tmp_path: Path) -> None:
    run = Played(tmp_path, CONFIG.replace("keep_contributions = true", ""))
    run.to_the_end(STEPS)
    versions = versions_at(run)
    assert same(model_of(tmp_path, 0).parameters(), parameters_of(run, versions[0]))
    assert "durability.keep_contributions = true" in refused(tmp_path, 12)
    assert f"its steps are 0 to {STEPS}" in refused(tmp_path, STEPS + 1)
    assert "durability.keep_contributions = true" in refused(tmp_path, STEPS)
    leave_model(run)
    assert same(model_of(tmp_path, STEPS).parameters(), parameters_of(run, versions[STEPS]))


def test_lost_contribution_is_named(ended: Played) -> None:
    lost = next((ended.run_dir / "contributions").rglob("*.safetensors"))
    lost.unlink()
    words = refused(ended.run_dir, STEPS)
    assert "the model cannot be read" in words
    assert lost.name in words


def export(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main(["export", *map(str, arguments)])
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.parametrize("form", ["safetensors", "orbax"])
@pytest.mark.parametrize("at", [None, 12])
def test_export_has_the_arrays_by_the_paths_of_the_task(
    ended: Played,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    at: int | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / ("out.safetensors" if form == "safetensors" else "out")
    step = () if at is None else ("--at", at)
    assert export("first", out, "--format", form, *step, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"run": "first", "path": str(out), "format": form, "step": at}
    source = open_source(str(out) if form == "safetensors" else f"orbax:{out}")
    wanted = parameters_of(ended, versions_at(ended)[STEPS if at is None else at])
    assert same({path: source.read(path) for path in source.leaves}, wanted)
    assert same(archipelago.connect(ended.run_dir).params(at), wanted)
    assert export("first", out, "--format", form) == 2
    assert f"{out} exists already" in capsys.readouterr().err
    if form == "safetensors" and at is None:
        assert same(load_file(out), load_file(ended.run_dir / "model.safetensors"))


def test_export_into_a_new_folder_is_named_as_a_runs_model(ended: Played, tmp_path: Path) -> None:
    path = archipelago.connect(ended.run_dir).export(tmp_path / "models" / "first")
    assert path == str(tmp_path / "models" / "first")
    wanted = parameters_of(ended, versions_at(ended)[STEPS])
    assert same(load_file(tmp_path / "models" / "first" / "model.safetensors"), wanted)


def test_path_of_a_run_stays_a_directory_beside_an_address(
    ended: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing listens at the address; the name alone would be looked up there."""
    monkeypatch.chdir(ended.run_dir.parent)
    run = archipelago.connect(f"./{ended.run_dir.name}", address="127.0.0.1:1")
    assert not run.live
    assert same(run.params(), parameters_of(ended, versions_at(ended)[STEPS]))


def test_export_that_is_refused_leaves_nothing(
    ended: Played,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def words(*arguments: object) -> str:
        before = {*tmp_path.rglob("*")}
        assert export(*arguments) == 2
        assert {*tmp_path.rglob("*")} == before
        out, err = capsys.readouterr()
        assert out == ""
        assert "Traceback" not in err
        return err

    run, out = ended.run_dir, tmp_path / "out.safetensors"
    monkeypatch.chdir(tmp_path)
    assert "no run 'other'" in words("other", out)
    assert f"its steps are 0 to {STEPS}" in words(run, out, "--at", 99)
    assert "--format onnx: not known" in words(run, out, "--format", "onnx")
    (tmp_path / "several.safetensors.index.json").write_text("{}")
    assert "exists already" in words(run, tmp_path / "several.safetensors")
    with pytest.raises(UserMistake, match="'onnx': not known"):
        archipelago.connect(run).export(out, format="onnx")
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)  # as if it were not installed
    said = words(run, tmp_path / "out", "--format", "orbax")
    assert "pip install -c constraints.txt '.[orbax]'" in said
    (run / "model.safetensors").write_bytes(b"short")
    assert "is no safetensors file" in words(run, out)


def test_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path, None)
    (tmp_path / "config.toml").write_text(CONFIG)
    assert "not the directory of a run that was begun" in refused(tmp_path, None)


def test_saved_model_has_its_versions(ended: Played, tmp_path: Path) -> None:
    model = model_of(ended.run_dir)
    saved = save_model(tmp_path / "again", LAYOUT, model.public())
    assert tuple(saved.versions) == versions_at(ended)[STEPS]
    assert saved.fingerprint == summary(ended)["global_sha256"]
