"""Models of a script or a notebook travel to other processes, whatever library they are of."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from islands.pickled_task import load_pickled
from islands.state_tree import in_one_tree
from islands.task import leaf_path
from islands.trainable import of_loss, of_parameters, shapes_of
from tests.given import data_spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "archipelago" / "examples"
SENDER = """
import json, runpy, sys
from archipelago.travelling_task import settings_of
found = runpy.run_path(sys.argv[1], run_name="a_script_of_a_reader")
print(json.dumps(settings_of(found["task"])))
"""
NESTED = """
import equinox as eqx
import jax
import jax.numpy as jnp
import archipelago as ap
from typing import ClassVar

class Base(eqx.Module):
    kind: ClassVar[str] = "made in a script"
    weight: jax.Array
    scale: float = eqx.field(static=True, default=2.0)

class Model(Base):
    inner: Base
    count: int = eqx.field(static=True)

    def __init__(self, key):
        super().__init__(jnp.ones(3))
        self.inner = Base(jnp.ones(2), scale=3.0)
        self.count = 4

    def __call__(self, x):
        assert isinstance(self, Model)
        return self.weight.sum() * self.scale + self.inner.weight.sum() * self.inner.scale

def loss(model, batch):
    return model(batch) + 0.0 * batch.sum() + model.count

def task(data):
    return ap.equinox_task(Model, loss, data)
"""


def travelled(path: Path) -> dict[str, str]:
    """Return the settings that a script's task becomes in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", SENDER, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
@pytest.mark.parametrize("name", ["digits_jax", "digits_nnx", "digits_equinox"])
def test_example_travels(name: str) -> None:
    settings = travelled(EXAMPLES / f"{name}.py")
    make = load_pickled(settings["pickled"], settings["target"])
    task = in_one_tree(make(data_spec("", heldout_percent=10.0)))
    shapes = shapes_of(task)
    assert of_parameters(task, shapes) + of_loss(task, shapes, task.heldout(32)[0]) == []


def test_equinox_classes_keep_their_fields(tmp_path: Path) -> None:
    """Static fields, defaults, a base class, and a method that refers to its own class."""
    path = tmp_path / "script.py"
    path.write_text(NESTED)
    settings = travelled(path)
    make = load_pickled(settings["pickled"], settings["target"])
    task = make(data_spec("", window=8))
    params = task.init(0)
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    assert [leaf_path(keys) for keys, _ in leaves] == ["inner/weight", "weight"]
    loss, _ = task.loss(params, jax.numpy.ones((1, 9), "int32"), key=None)
    assert float(loss) == 3 * 2.0 + 2 * 3.0 + 4
