"""The held-out loss of each region on a real cluster, whose nodes have the labels of two regions.

The losses are computed again from the files of the run and from each region's text.
"""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from cluster.config.load import parse
from cluster.names import region_evaluator
from cluster.workers.evaluator import Evaluator
from coordinator.fragments import take
from coordinator.protocol import Fragment
from tests.live.cli import until
from tests.live.test_cluster import RUN, WITHIN_S, Raylets, held, processes, up

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(390)]

TABLES: dict[str, Any] = {
    "task": {"preset": "byte-tiny"},
    "sync": {"every": 8, "fragments": 4},
}
DATA = {"window": 32, "lease_windows": 64}
REGIONS = ("eu", "us")
CONFIG = """
[run]
name = "{run}"
steps = 1000000
[task]
preset = "byte-tiny"
[data]
source = "{public}"
window = 32
lease_windows = 64
[sync]
every = 8
fragments = 4
[monitor]
evaluate_every_s = 2.0
"""
REGION = """
[[islands]]
group = "{name}"
region = "{name}"
batch_size = 4
resources = {{CPU = 0.5}}
label_selector = {{region = "{name}"}}
speed = 0.3
[regions.{name}]
data = "{data}"
logs = "{logs}"
"""
LETTERS = {"eu": "abcdef ", "us": "0123456789", "public": "uvwxyz,"}


def corpus(folder: Path, letters: str) -> Path:
    """Write text of these letters alone, drawn by a seed."""
    draw = random.Random(letters)
    folder.mkdir(parents=True)
    for number in range(8):
        (folder / f"{number}.txt").write_text("".join(draw.choices(letters, k=20_000)))
    return folder


def evaluators(cluster: Raylets, logs: Path) -> dict[str, int]:
    """Return the process of each region's evaluator, which is known by the file that it writes."""
    files = {
        logs / f"archipelago-{RUN}-{region_evaluator(name).replace(' ', '_')}.log": name
        for name in REGIONS
    }
    found = dict[str, int]()
    for pid in processes(cluster, "RegionEvaluator"):
        name = files.get(Path(f"/proc/{pid}/fd/1").resolve())
        if name is not None:
            found[name] = pid
    return found


def labels(pid: int) -> str:
    """Return the words of the command line of a process's raylet that name its labels."""
    parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    return " ".join(
        word
        for word in Path(f"/proc/{parent}/cmdline").read_bytes().decode().split("\0")
        if "label" in word
    )


def loss_of(model: Path, source: Path) -> float:
    """Return the held-out loss of a saved model on this text."""
    judge = Evaluator(parse({**TABLES, "data": {**DATA, "source": str(source)}, "islands": [{}]}))
    tensors = load_file(model)
    leaves = [tensors[leaf.path] for leaf in judge.layout.leaves]
    fragments = range(len(judge.layout.fragments))
    return judge.loss([take(judge.layout, Fragment(p), leaves) for p in fragments])


def test_loss_of_each_region_is_that_of_its_own_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHIPELAGO_CACHE", str(tmp_path / "cache"))
    texts = {name: corpus(tmp_path / name, letters) for name, letters in LETTERS.items()}
    logs, config = tmp_path / "logs", tmp_path / "regions.toml"
    groups = (REGION.format(name=name, data=texts[name], logs=logs) for name in REGIONS)
    config.write_text(CONFIG.format(run=RUN, public=texts["public"]) + "".join(groups))
    with up() as (cluster, _):
        submitted = cluster.run("submit", str(config), "--address", cluster.jobs, "--no-wait")
        assert submitted.code == 0, submitted.err

        def steps() -> dict[str, int]:
            return cluster.last.get("heldout_by_region_t", {})

        until(lambda: {*steps()} == {*REGIONS}, WITHIN_S)
        found = evaluators(cluster, logs)
        assert {*found} == {*REGIONS}
        for name, pid in found.items():
            assert f'"region":"{name}"' in labels(pid).replace(" ", "")
        lives = {each["island"]: each["life"] for each in cluster.last["islands"]}
        before = steps()["eu"]
        os.kill(found["eu"], signal.SIGKILL)
        until(lambda: steps()["eu"] > before and "eu" in evaluators(cluster, logs), WITHIN_S)
        assert evaluators(cluster, logs)["eu"] != found["eu"], "Ray has restarted it"
        assert {each["island"]: each["life"] for each in cluster.last["islands"]} == lives
        assert cluster.last["figures"]["generation"] == 0
        shown = cluster.ask("status")
        assert "by region eu " in shown.out
        assert cluster.ask("stop").code == 0
        until((cluster.run_dir / "summary.json").exists, WITHIN_S)
        until(lambda: held(cluster) == ([], 0), WITHIN_S)
        summary = json.loads((cluster.run_dir / "summary.json").read_text())
        model = cluster.run_dir / "model.safetensors"
        own = {name: loss_of(model, texts[name]) for name in REGIONS}
        assert summary["heldout_by_region"] == pytest.approx(own, abs=1e-4)
        assert summary["heldout_loss"] == pytest.approx(loss_of(model, texts["public"]), abs=1e-4)
        assert abs(own["eu"] - own["us"]) > 0.01, "another region's text would be noticed"
        assert cluster.last["heldout_by_region"] == pytest.approx(own, abs=1e-4)
        assert processes(cluster, "RegionEvaluator") == []
