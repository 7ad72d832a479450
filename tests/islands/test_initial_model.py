"""Initial parameters from safetensors files and Orbax checkpoints in place of a task's `init`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from coordinator.errors import UserMistake
from islands.initial_model import (
    OtherShapes,
    digest_of,
    match,
    open_source,
    shapes_by_path,
    started_from,
)
from islands.orbax_checkpoint import orbax, write_orbax
from islands.task import Params, Task, leaf_path, load_task
from tests.given import data_spec

ROOT = Path(__file__).parents[2]
SMALL = {"width": 16, "layers": 2, "heads": 1, "hidden": 32}
Arrays = dict[str, NDArray[Any]]


@pytest.fixture
def task() -> Task:
    return load_task("byte-tiny", None, SMALL, data_spec())


@pytest.fixture
def arrays(task: Task) -> Arrays:
    """Return arrays for each leaf of the task; no leaf of `init` is equal to one."""
    rng = np.random.default_rng(1)
    return {
        path: rng.normal(size=shape).astype(np.float32)
        for path, shape in shapes_by_path(task).items()
    }


def by_path(params: Params) -> Arrays:
    pairs = jax.tree_util.tree_flatten_with_path(params)[0]
    return {leaf_path(keys): np.asarray(leaf) for keys, leaf in pairs}


def same(left: Mapping[str, NDArray[Any]], right: Mapping[str, NDArray[Any]]) -> bool:
    return [*left] == [*right] and all(
        a.dtype == b.dtype and np.array_equal(a, b)
        for a, b in zip(left.values(), right.values(), strict=True)
    )


def written(path: Path, arrays: Arrays) -> str:
    save_file(arrays, path)
    return str(path)


def as_checkpoint(path: Path, arrays: Arrays) -> str:
    write_orbax(path.with_suffix(""), arrays)
    return f"orbax:{path.with_suffix('')}"


def loaded(
    task: Task, given: str, sha256: str | None = None, rule: OtherShapes = OtherShapes.REFUSE
) -> Arrays:
    """Return the leaves that the task starts with; both ways to them must agree."""
    started = started_from(task, given, sha256, rule)
    one_by_one = [np.asarray(leaf) for leaf in started.initial_leaves(3)]
    whole = by_path(started.init(3))
    assert same(whole, dict(zip(whole, one_by_one, strict=True)))
    return whole


def refused(task: Task, given: str, **more: Any) -> str:
    with pytest.raises(UserMistake) as error:
        loaded(task, given, **more)
    return str(error.value)


WRITERS = pytest.mark.parametrize("write", [written, as_checkpoint])
Writer = Callable[[Path, Arrays], str]


@WRITERS
def test_all_leaves_are_those_of_the_source(
    task: Task, arrays: Arrays, tmp_path: Path, write: Writer
) -> None:
    given = write(tmp_path / "base.safetensors", arrays)
    assert same(loaded(task, given), arrays)


@WRITERS
def test_leaves_that_the_source_lacks_are_kept_from_init(
    task: Task, arrays: Arrays, tmp_path: Path, write: Writer
) -> None:
    some = {p: a for p, a in arrays.items() if p != "head"} | {"more/of/it": np.ones(3, np.float32)}
    given = write(tmp_path / "base.safetensors", some)
    wanted = arrays | {"head": by_path(task.init(3))["head"]}
    assert same(loaded(task, given), wanted)
    plain = replace(task, init=task.init.__call__)  # a method, which cannot make single leaves
    assert same(loaded(plain, given), wanted)
    found = match(shapes_by_path(task), open_source(given).leaves)
    assert (found.missing, found.unused, found.misfits) == (("head",), ("more/of/it",), ())
    assert len(found.taken) == len(arrays) - 1
    assert started_from(plain, given, None, OtherShapes.REFUSE).init_is_whole
    assert not started_from(task, given, None, OtherShapes.REFUSE).init_is_whole


def test_init_is_not_called_if_the_source_has_all_leaves(
    task: Task, arrays: Arrays, tmp_path: Path
) -> None:
    def fails(seed: int) -> Params:
        raise AssertionError("init was called")

    class Init:
        __call__ = staticmethod(fails)
        shapes = staticmethod(lambda: task.shapes)

    given = written(tmp_path / "base.safetensors", arrays)
    mine = replace(task, init=Init())
    assert same(loaded(mine, given), arrays)
    assert not started_from(mine, given, None, OtherShapes.REFUSE).init_is_whole


@WRITERS
@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, np.float16, np.float64])
def test_other_floats_are_cast_to_float32(
    task: Task, arrays: Arrays, tmp_path: Path, write: Writer, kind: Any
) -> None:
    stored = {path: array.astype(kind) for path, array in arrays.items()}
    given = write(tmp_path / "base.safetensors", stored)
    wanted = {path: array.astype(np.float32) for path, array in stored.items()}
    assert same(loaded(task, given), wanted)


@WRITERS
def test_all_leaves_of_another_shape_or_type_are_named(
    task: Task, arrays: Arrays, tmp_path: Path, write: Writer
) -> None:
    arrays["embedding"] = np.zeros((300, 16), np.float32)
    arrays["norm"] = np.zeros(16, np.int32)
    given = write(tmp_path / "base.safetensors", arrays)
    words = refused(task, given)
    assert "embedding is float32[256,16] in the task and float32[300,16] there" in words
    there = "int32[16]" if given.startswith("orbax:") else "I32[16]"
    assert f"norm is float32[16] in the task and {there} there" in words
    assert 'init_other_shapes = "skip"' in words
    drawn = by_path(task.init(3))
    wanted = arrays | {path: drawn[path] for path in ("embedding", "norm")}
    assert same(loaded(task, given, rule=OtherShapes.SKIP), wanted)


def test_only_the_first_leaves_of_another_shape_are_named(
    task: Task, arrays: Arrays, tmp_path: Path
) -> None:
    given = written(tmp_path / "base.safetensors", {p: np.zeros(1, "f4") for p in arrays})
    named = [f"task.init_from = {given!r}: {path} is " for path in arrays]
    lines = refused(task, given).splitlines()
    assert all(line.startswith(name) for line, name in zip(lines, named[:8], strict=False))
    more = f"task.init_from = {given!r}: and {len(named) - 8} more leaves of another shape or type"
    assert len(named) > 9
    assert lines[8] == more
    assert 'init_other_shapes = "skip"' in lines[9]
    assert len(lines) == 10


def test_file_of_transformers_is_refused_with_the_folder_to_name(
    task: Task, arrays: Arrays, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    given = written(tmp_path / "model.safetensors", {"model.norm.weight": np.ones(3, "f4")})
    assert f'write task.init_from = "hf:{tmp_path}"' in refused(task, given)
    other = written(tmp_path / "model.safetensors", {p: np.zeros(1, "f4") for p in arrays})
    assert f'write task.init_from = "hf:{tmp_path}"' in refused(task, other)
    fitting = written(tmp_path / "model.safetensors", arrays)
    assert same(loaded(task, fitting), arrays)


@pytest.mark.parametrize("rule", OtherShapes)
def test_source_of_another_model_is_refused(task: Task, tmp_path: Path, rule: OtherShapes) -> None:
    given = written(tmp_path / "x.safetensors", {"model.embedding": np.ones(3, np.float32)})
    words = refused(task, given, rule=rule)
    assert "no leaf matches" in words
    assert "model.embedding" in words
    assert "blocks/attention/key" in words


def test_changed_source_is_refused(task: Task, arrays: Arrays, tmp_path: Path) -> None:
    given = written(tmp_path / "base.safetensors", arrays)
    source = open_source(given)
    digest = digest_of(given, source, match(shapes_by_path(task), source.leaves))
    assert same(loaded(task, given, digest), arrays)
    arrays["norm"][3] += 1e-6
    written(tmp_path / "base.safetensors", arrays)
    assert "has changed since the run began" in refused(task, given, sha256=digest)
    arrays["norm"][3] -= 1e-6
    del arrays["norm"]  # a leaf that is taken no more changes the digest, too
    written(tmp_path / "base.safetensors", arrays)
    assert "has changed since the run began" in refused(task, given, sha256=digest)


def test_digest_is_of_the_leaves_whatever_the_format(
    task: Task, arrays: Arrays, tmp_path: Path
) -> None:
    shapes, digests = shapes_by_path(task), set[str]()
    more = arrays | {"unused": np.ones(2, np.float32)}
    reversed_order = dict(reversed(more.items()))
    for write, given_arrays in (
        (written, arrays),
        (as_checkpoint, more),
        (written, reversed_order),
    ):
        given = write(tmp_path / f"{len(digests)}-{id(given_arrays)}.safetensors", given_arrays)
        source = open_source(given)
        digests.add(digest_of(given, source, match(shapes, source.leaves)))
    assert len(digests) == 1


def test_nan_is_refused(task: Task, arrays: Arrays, tmp_path: Path) -> None:
    arrays["norm"][0] = np.nan
    given = written(tmp_path / "base.safetensors", arrays)
    source = open_source(given)
    with pytest.raises(UserMistake, match="NaN or infinity is in norm"):
        digest_of(given, source, match(shapes_by_path(task), source.leaves))


def several(folder: Path, arrays: Arrays) -> Path:
    """Write a model in two files with an index, and return the path of the index."""
    halves = [dict([*arrays.items()][:3]), dict([*arrays.items()][3:])]
    places = dict[str, str]()
    for number, half in enumerate(halves):
        save_file(half, folder / f"part-{number}.safetensors")
        places |= dict.fromkeys(half, f"part-{number}.safetensors")
    index = folder / "base.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    return index


def test_model_in_several_files(task: Task, arrays: Arrays, tmp_path: Path) -> None:
    index = several(tmp_path, arrays)
    assert same(loaded(task, str(index)), arrays)
    assert same(loaded(task, str(index).removesuffix(".index.json")), arrays)
    places = json.loads(index.read_text())
    places["weight_map"]["lost"] = "part-0.safetensors"
    index.write_text(json.dumps(places))
    assert "its files have no lost" in refused(task, str(index))
    (tmp_path / "part-1.safetensors").unlink()
    assert "part-1.safetensors: there is no such file" in refused(task, str(index))
    index.write_text("[]")
    assert "is no index" in refused(task, str(index))


def test_file_that_cannot_be_read_is_named(task: Task, arrays: Arrays, tmp_path: Path) -> None:
    path = Path(written(tmp_path / "base.safetensors", arrays))
    content = path.read_bytes()
    path.write_bytes(content[:-10])
    words = refused(task, str(path))
    assert f"task.init_from = '{path}': {path} is no safetensors file, or not all of one" in words
    path.write_text("this is a text\n" * 100)
    assert "is no safetensors file" in refused(task, str(path))
    path.unlink()
    assert "there is no such file" in refused(task, str(path))
    path.mkdir()
    assert "is a folder" in refused(task, str(path))
    assert "this is none of them" in refused(task, "weights.bin")
    assert "archipelago export" in refused(task, "run:somewhere")


def test_orbax_checkpoints_of_other_programs(task: Task, arrays: Arrays, tmp_path: Path) -> None:
    ocp = orbax()
    tree: dict[str, Any] = {}
    for path, array in arrays.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = jax.numpy.asarray(array)
    with ocp.CheckpointManager(tmp_path / "steps") as manager:
        for step in (7, 10):
            manager.save(step, args=ocp.args.StandardSave(tree))
        manager.wait_until_finished()
    assert same(loaded(task, f"orbax:{tmp_path / 'steps' / '10'}"), arrays)
    words = refused(task, f"orbax:{tmp_path / 'steps'}")
    assert f"has several steps; name one, such as {tmp_path / 'steps' / '10'}" in words


def test_checkpoint_with_lists_is_named_by_their_numbers(tmp_path: Path) -> None:
    ocp = orbax()
    tree = {"layers": [np.ones(2, np.float32), np.zeros((), np.float32)], "step": 3}
    with ocp.StandardCheckpointer() as writer:
        writer.save(tmp_path / "listed", tree)
    source = open_source(f"orbax:{tmp_path / 'listed'}")
    assert {"layers/0", "layers/1", "step"} == {*source.leaves}
    assert source.read("layers/0").tolist() == [1.0, 1.0]
    assert not source.leaves["step"].is_float


def test_folder_that_is_no_checkpoint_is_refused(
    task: Task, arrays: Arrays, tmp_path: Path
) -> None:
    assert "there is no such folder" in refused(task, f"orbax:{tmp_path / 'nowhere'}")
    assert "is no Orbax checkpoint: it has no _METADATA" in refused(task, f"orbax:{tmp_path}")
    given = as_checkpoint(tmp_path / "broken", arrays)
    metadata = tmp_path / "broken" / "_METADATA"
    content = metadata.read_bytes()
    metadata.write_bytes(content[:30])
    assert "its _METADATA cannot be read" in refused(task, given)
    metadata.write_bytes(content)


READ = """
import sys
from islands.initial_model import open_source
from coordinator.errors import UserMistake
try:
    source = open_source(sys.argv[1])
    print([source.read(path) for path in source.leaves])
except UserMistake as error:
    print(error)
"""


def test_checkpoint_with_cut_files_is_refused(arrays: Arrays, tmp_path: Path) -> None:
    """Read it in a process of its own: Orbax leaves callbacks behind that fail later."""
    given = as_checkpoint(tmp_path / "broken", arrays)
    for file in (tmp_path / "broken" / "d").iterdir():
        file.write_bytes(file.read_bytes()[:20])
    command = [sys.executable, "-c", READ, given]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "cannot be read" in done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_missing_orbax_is_reported_with_the_command_that_installs_it(
    task: Task, arrays: Arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = as_checkpoint(tmp_path / "sound", arrays)
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)  # as if it were not installed
    assert "pip install -c constraints.txt '.[orbax]'" in refused(task, given)


def test_model_without_a_name_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match="single array without a name"):
        write_orbax(tmp_path / "single", {"": np.ones(3, np.float32)})
    assert not (tmp_path / "single").exists()
