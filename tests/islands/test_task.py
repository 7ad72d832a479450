"""Presets, a user's own task, and the messages when a task cannot be loaded."""

from __future__ import annotations

import hashlib
import math
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from coordinator.errors import UserMistake
from coordinator.protocol import Lease
from islands.sources import DataSpec
from islands.task import Option, Task, leaf_path, load_task
from islands.trainable import first_heldout
from tests.given import data_spec


def parameters(task: Task) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(task.init(0)))


@pytest.fixture
def text(tmp_path: Path) -> DataSpec:
    for number in range(10):
        (tmp_path / f"{number}.txt").write_text(f"{number} and some more text\n" * 50)
    return data_spec(str(tmp_path), heldout_percent=30, window=32, lease_windows=8)


@pytest.mark.long
@pytest.mark.parametrize(
    ("preset", "millions"), [("byte-tiny", (0.10, 0.14)), ("byte-1m", (0.85, 1.1))]
)
def test_presets_have_their_size_and_shapes(
    preset: str, millions: tuple[float, float], text: DataSpec
) -> None:
    task = load_task(preset, None, {}, text)
    assert task.name == preset
    assert millions[0] * 1e6 < parameters(task) < millions[1] * 1e6
    stream = task.stream(4)
    stream.add(Lease(0))
    for batch in (stream.next(), task.heldout(4)[0]):
        assert batch.shape == (4, 33)
        assert task.tokens(batch) == 4 * 32
        assert float(task.loss(task.init(0), batch)) == pytest.approx(math.log(256), abs=1e-4)
    assert (stream.batch_size, stream.remaining, stream.cursor) == (4, 4, Lease(0, 4))
    assert task.vocabulary == 256


def test_leaves_are_named_and_marked_as_stacked_or_embedding(text: DataSpec) -> None:
    task = load_task("byte-tiny", None, {"layers": 3}, text)
    leaves = jax.tree_util.tree_flatten_with_path(task.init(0))[0]
    shapes = {leaf_path(path): leaf.shape for path, leaf in leaves}
    assert len(shapes) == len(leaves) == 12
    assert shapes["blocks/attention/query"] == (3, 64, 64)
    assert {path for path in shapes if task.embedding(path)} == {"embedding"}
    assert all(task.stacked(path) == (shape[0] == 3) for path, shape in shapes.items())


def test_leaf_path_names_every_kind_of_node() -> None:
    tree = {"a": [np.zeros(1), (np.zeros(1),)], "b": {"c": np.zeros(1)}}
    found = [leaf_path(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    assert found == ["a/0", "a/1/0", "b/c"]


def test_heldout_batches_are_the_same_on_every_call(text: DataSpec) -> None:
    first, again = (load_task("byte-tiny", None, {}, text).heldout(2) for _ in range(2))
    assert len(first) > 1
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


def test_options_change_a_preset(text: DataSpec) -> None:
    small = load_task("byte-tiny", None, {"layers": 1, "hidden": 32}, text)
    assert parameters(small) < parameters(load_task("byte-tiny", None, {}, text))


MINE = """
from islands.task import load_task
unfit = 3
def make(data, depth, name="mine"):
    import dataclasses
    task = load_task("byte-tiny", None, {"layers": depth}, data)
    return dataclasses.replace(task, name=name)
def wrong(data):
    return "no task"
def imports(data):
    import a_package_that_is_missing
def raises(data):
    raise ValueError("no such shape")
def streams(data):
    import dataclasses
    def stream(batch_size):
        return {}[batch_size]
    return dataclasses.replace(make(data, 1), stream=stream, tokens=lambda batch: 1 / 0)
def ours(data):
    return load_task("byte-tinny", None, {}, data)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a user's module on the path."""
    (tmp_path / "my_module_of_tasks.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("mine")
def test_loads_a_users_own_task(text: DataSpec) -> None:
    task = load_task(None, "my_module_of_tasks:make", {"depth": 1}, text)
    assert task.name == "mine"
    assert load_task(None, "my_module_of_tasks:make", {"depth": 1, "name": "x"}, text).name == "x"


Options = dict[str, Option]


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("preset", "target", "options", "says"),
    [
        (None, None, {}, "either a preset"),
        ("byte-1m", "a:b", {}, "exactly one"),
        ("byte-1n", None, {}, "did you mean 'byte-1m'"),
        ("byte-1m", None, {"layer": 3}, "task.options.layer = 3: did you mean 'layers'"),
        ("byte-1m", None, {"layers": 2.5}, "must be of type int"),
        ("byte-1m", None, {"layers": True}, "must be of type int"),
        ("byte-1m", None, {"heads": 3}, "width = 128 must be a multiple of 2 x heads = 6"),
        ("byte-1m", None, {"layers": 0}, "layers = 0: must be at least 1"),
        ("byte-1m", None, {"compute_dtype": "int8"}, "float32 or bfloat16"),
        (None, "no_colon", {}, "module:attribute"),
        (None, "my_module_of_taks:make", {}, "no module 'my_module_of_taks'"),
        (
            None,
            "my_module_of_tasks:male",
            {},
            "has no male; did you mean make?",
        ),
        (None, "my_module_of_tasks:make", {}, "missing a required argument: 'depth'"),
        (None, "my_module_of_tasks:make", {"deep": 1}, "'dep"),
        (None, "my_module_of_tasks:unfit", {}, "is not a callable object"),
        (None, "my_module_of_tasks:wrong", {}, "returned str, not a Task"),
    ],
)
def test_mistakes_are_explained(
    preset: str | None, target: str | None, options: Options, says: str, text: DataSpec
) -> None:
    with pytest.raises(UserMistake) as caught:
        load_task(preset, target, options, text)
    assert says in str(caught.value)


def line_with(words: str) -> str:
    """Return "file:line" of the first line of the imported module that has these words."""
    number = next(n for n, line in enumerate(MINE.splitlines(), 1) if words in line)
    return f"{sys.modules['my_module_of_tasks'].__file__}:{number}"


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        (
            "imports",
            "import a_package",
            "raises ModuleNotFoundError: No module named 'a_package_that_is_missing' (in imports)",
        ),
        ("raises", "raise ValueError", "raises ValueError: no such shape (in raises)"),
        ("wrong", "def wrong", "returned str, not a Task"),
    ],
)
def test_error_in_user_code_is_reported_with_its_line_first(
    name: str, words: str, says: str, text: DataSpec
) -> None:
    target = f"my_module_of_tasks:{name}"
    with pytest.raises(UserMistake) as caught:
        load_task(None, target, {}, text)
    assert str(caught.value) == f"{line_with(words)}: task.target = '{target}' {says}"


@pytest.mark.usefixtures("mine")
def test_error_in_user_code_keeps_its_traceback(text: DataSpec) -> None:
    with pytest.raises(UserMistake) as caught:
        load_task(None, "my_module_of_tasks:raises", {}, text)
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.usefixtures("mine")
def test_errors_of_the_functions_of_a_task_have_their_line_first(text: DataSpec) -> None:
    task = load_task(None, "my_module_of_tasks:streams", {}, text)
    with pytest.raises(UserMistake) as caught:
        task.stream(4)
    where = line_with("return {}[batch_size]")
    assert str(caught.value) == f"{where}: task mine: stream raises KeyError: 4 (in stream)"
    with pytest.raises(UserMistake) as caught:
        first_heldout(task, 4)
    where = line_with("1 / 0")
    begins = f"{where}: task mine: tokens raises ZeroDivisionError: division by zero"
    assert str(caught.value).startswith(begins)


@pytest.mark.usefixtures("mine")
def test_error_of_ours_in_user_code_is_raised_unchanged(text: DataSpec) -> None:
    with pytest.raises(UserMistake, match=r"^task\.preset = 'byte-tinny': did you mean"):
        load_task(None, "my_module_of_tasks:ours", {}, text)


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("source", "line", "says"),
    [
        ("x = 1\nimport a_package_that_is_missing\n", 2, "no module 'a_package_that_is_missing'"),
        ("x = 1\n\ny = x / 0\n", 3, "the import raises ZeroDivisionError: division by zero"),
        ("x = 1\ny = = 2\n", 2, "the import raises SyntaxError: invalid syntax"),
    ],
)
def test_module_that_cannot_be_imported_is_reported_with_its_line_first(
    source: str, line: int, says: str, text: DataSpec, tmp_path: Path
) -> None:
    module = f"module_{hashlib.sha256(source.encode()).hexdigest()[:8]}"
    (path := tmp_path / f"{module}.py").write_text(source)
    with pytest.raises(UserMistake) as caught:
        load_task(None, f"{module}:make", {}, text)
    assert str(caught.value).startswith(f'{path}:{line}: task.target = "{module}:make": {says}')
