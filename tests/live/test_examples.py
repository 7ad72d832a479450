"""The examples, a tutorial and a Gemma run on real Ray, as a reader runs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.archipelago.test_own_model_tutorial import blocks, patched, script
from tests.given import sums
from tests.live.cli import ROOT, Place, place
from tests.live.test_tutorials import terminal, typed

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(900)]

SCRIPTS = ("digits_jax", "digits_nnx", "digits_equinox", "lora")
"""Examples that take the number of steps, and print the share of right images."""
OTHERS = ("loop_jax", "loop_torch", "ties")
"""Examples that print a held-out loss."""
STEPS = 120
GEMMA_RUN = """
[run]
steps = 6
[task]
preset = "gemma-0.1m"
options = { vocabulary = 300 }
[data]
source = "tokens"
window = 32
lease_windows = 32
heldout_percent = 20.0
[[islands]]
group = "local"
count = 1
batch_size = 4
resources = { CPU = 0.5 }
"""


def test_tutorial_own_model() -> None:
    """The reader's own script trains, and the run's model is better than chance."""
    alone, check, run, judge = blocks("bash")
    _, use = blocks("python")
    with place() as here, terminal(here) as folder:
        (folder / "train.py").write_text(script())
        assert "loss on new images" in typed(here, folder, [alone])
        for name, text in patched({"train.py": script()}, blocks("diff")[0]).items():
            (folder / name).write_text(text)
        assert "no problem was found" in typed(here, folder, [check])
        typed(here, folder, [run])
        summary = json.loads((folder / "first" / "summary.json").read_text())
        assert summary["merges"] > 0
        (folder / "use.py").write_text(use)
        said = typed(here, folder, [judge])
        assert accuracy(said) > 70, said
        assert "loss on new images" in typed(here, folder, [alone]), "it still trains alone"


def accuracy(text: str) -> int:
    """Return the percentage of right images that an example prints last."""
    return int(re.findall(r"(\d+)% of 1000", text)[-1])


def test_notebook_runs_from_the_wheel(wheel: Path) -> None:
    """All cells run in order in a kernel; the run of the notebook ends before its last cell."""
    path = wheel / "archipelago" / "examples" / "digits_notebook.ipynb"
    notebook = nbformat.read(path, as_version=4)
    with place() as here, terminal(here) as folder:
        (config,) = (cell for cell in notebook.cells if "config = {" in cell.source)
        config.source = config.source.replace('"steps": 300', f'"steps": {STEPS}')
        assert str(STEPS) in config.source
        wanted = dict(of_wheel(here, wheel))
        client = NotebookClient(
            notebook, timeout=600, resources={"metadata": {"path": str(folder)}}
        )
        with client.setup_kernel(env=wanted):
            for number, cell in enumerate(notebook.cells):
                client.execute_cell(cell, number)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    tables = [html for each in outputs if (html := each.get("data", {}).get("text/html"))]
    assert len(tables) == 1, "one table of the progress, which is updated"
    assert "<td" in tables[0]
    assert "held-out loss <b>" in tables[0]
    printed = "".join(output.get("text", "") for output in outputs)
    assert "held-out loss" in printed
    assert accuracy(printed) > 20, printed


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the packages of the wheel, built from a copy of the source."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if name.partition("/")[0] not in ("tests", "docs", "runs") and (ROOT / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "source" / name).write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    built = ["wheel", "--no-deps", "--wheel-dir", str(folder), str(folder / "source")]
    subprocess.run([*pip, *built], check=True)
    (found,) = folder.glob("archipelago_diloco-*.whl")
    installed = ["install", "--no-deps", "--target", str(folder / "installed"), str(found)]
    subprocess.run([*pip, *installed], check=True)
    return folder / "installed"


def of_wheel(here: Place, wheel: Path) -> Mapping[str, str]:
    """Return an environment in which the packages are those of the wheel, not of the source."""
    return {**os.environ, **here.environment, "PYTHONPATH": str(wheel)}


def run_example(here: Place, folder: Path, wheel: Path, *words: str) -> tuple[str, Any]:
    """Run an example of the wheel in this folder; return its output and its summary."""
    variables = of_wheel(here, wheel)
    where = "import archipelago; print(archipelago.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", where],
        cwd=folder, env=variables, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(found.stdout.strip()).is_relative_to(wheel)
    name, *arguments = words
    done = subprocess.run(
        [sys.executable, "-m", f"archipelago.examples.{name}", *arguments],
        cwd=folder, env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (summary,) = (folder / "runs").glob("*/summary.json")
    figures = json.loads(summary.read_text())
    assert figures["heldout_loss"] < figures["initial_heldout_loss"]
    return done.stdout, figures


@pytest.mark.parametrize("name", SCRIPTS)
def test_example_runs_from_the_wheel_in_an_empty_directory(wheel: Path, name: str) -> None:
    with place() as here, terminal(here) as folder:
        printed, figures = run_example(here, folder, wheel, name, str(STEPS))
        assert accuracy(printed) > 20, printed
        if name == "lora":
            assert figures["parameters"] == 4 * (64 + 128 + 128 + 128 + 128 + 10)


@pytest.mark.parametrize("name", OTHERS)
def test_example_of_a_loop_or_a_rule_runs_from_the_wheel(wheel: Path, name: str) -> None:
    if name == "loop_torch":
        pytest.importorskip("torch")
    with place() as here, terminal(here) as folder:
        printed, figures = run_example(here, folder, wheel, name)
        assert f"{figures['heldout_loss']:.3f}" in printed
        assert figures["merges"] > 0


def test_gemma_run_from_the_wheel_in_an_empty_directory(wheel: Path) -> None:
    """Text becomes tokens, tokens a run, and the run a folder for transformers."""
    with place() as here, terminal(here) as folder:
        text = sums(here.folder / "text")
        said = typed(
            here,
            folder,
            [
                f"export PYTHONPATH={wheel}",
                "python -c 'import archipelago; print(archipelago.__file__)'",
                "archipelago model gemma-3-270m",
                f"archipelago data tokenize {text} tokens --train-vocab 300",
                f"echo '{GEMMA_RUN}' > run.toml",
                "archipelago run run.toml --run-dir first",
                "archipelago export first out --format hf",
                "archipelago sample first '3 times 1' --tokens 8 --json > sample.json",
                "archipelago eval first --json > eval.json",
            ],
        )
        assert Path(said.splitlines()[0]).is_relative_to(wheel)
        assert "268,098,176" in said, "the parameters of Gemma 3 270M"
        summary, sample, judged = (
            json.loads((folder / name).read_text())
            for name in ("first/summary.json", "sample.json", "eval.json")
        )
        assert summary["merges"] > 0
        assert sample["tokens"] == 8
        assert sample["text"]
        assert judged["heldout_loss"] == summary["heldout_loss"]
        assert json.loads((folder / "out" / "config.json").read_text())["vocab_size"] == 300
        written = {path.name for path in (folder / "out").iterdir()}
        assert {"model.safetensors", "tokenizer.json", "README.md"} <= written
