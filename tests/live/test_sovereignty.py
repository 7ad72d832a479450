"""Data of a region on real Ray: canaries in its corpus are in nothing outside its own log file.

The task of the run is careless: it prints samples, logs them and raises errors with them. The
second test adds one deliberate leak to the same run, and the search must find it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.canaries import corpus_with_canaries, leaks, public_corpus
from tests.live.careless import CARELESS_TASK, back
from tests.live.cli import TINY, Finished, Place, finish, place, until

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(390)]

FAILING_TASK = """
from dataclasses import replace

import numpy as np

from islands.task import load_task


def task(data):
    made = load_task("byte-tiny", None, {}, data)

    def heldout(size):
        batches = made.heldout(size)
        text = bytes(np.asarray(batches[0], np.uint8).ravel()).decode("latin-1")
        if "canary" in text:
            print("printed", text, flush=True)
            raise ValueError(f"cannot parse {text!r}")
        return batches

    return replace(made, heldout=heldout)
"""
CONFIG = """
[[islands]]
group = "eu"
batch_size = 4
resources = {{CPU = 0.5}}
region = "eu"
speed = 0.5
[[islands]]
group = "us"
batch_size = 4
resources = {{CPU = 0.5}}
speed = 0.5
[regions.eu]
data = "{eu}"
logs = "{logs}"
"""


def trained(here: Place, tmp: Path, *, leak: bool) -> tuple[Finished, Path]:
    """Train until the island is back from both errors; return the output and the region's logs."""
    (raised := here.folder / "raised").mkdir()
    if leak:
        (raised / "leak").touch()
    (here.folder / "careless_task.py").write_text(CARELESS_TASK)
    logs = tmp / "logs"
    own = CONFIG.format(eu=corpus_with_canaries(tmp / "eu"), logs=logs)
    base, _, _ = TINY.read_text().partition("[[islands]]")
    config = here.folder / "careless.toml"
    config.write_text(base.replace('preset = "byte-tiny"', 'target = "careless_task:task"') + own)
    process = here.start(
        "run", str(config), "--json", "--run-dir", str(here.run_dir),
        "--set", f"data.source={public_corpus(tmp / 'public')}",
        "--set", "run.steps=1000000", "--set", "monitor.refresh_s=0.2",
    )  # fmt: skip
    until(lambda: process.poll() is not None or back(here, raised))
    assert process.poll() is None, process.communicate()
    assert here.run("stop", str(here.run_dir)).code == 0
    return finish(process), logs


def test_canaries_of_a_region_are_only_in_its_own_log(tmp_path: Path) -> None:
    with place() as here:
        finished, logs = trained(here, tmp_path, leak=False)
        assert finished.code == 0, finished.err
        assert leaks([here.folder, finished.out, finished.err]) == []
        log, evaluator, probe = sorted(logs.iterdir())
        assert probe.name == "corpus-probe-eu.log", "what the check before the start printed"
        kept = log.read_text(errors="replace")
        for said in ("printed", "logged", "written", "cannot parse", "cannot hand in"):
            assert f"{said} " in kept
        for said in ("judged", "cannot judge"):
            assert f"{said} " in evaluator.read_text(errors="replace")
        assert leaks([log])
        assert leaks([evaluator])
        assert finished.json["heldout_by_region"]["eu"] > 0
        found = re.search("(ValueError|RuntimeError), error code", finished.err)
        assert found, "the operator gets class and code"
        audit = here.run("audit", str(here.run_dir), "--json")
        assert audit.code == 0, audit.err
        regions = {each["region"]: each for each in json.loads(audit.out)["regions"]}
        assert regions["eu"]["violations"] == []
        assert regions["eu"]["up"]["error code"]["messages"] >= 1
        assert regions["eu"]["up"]["delta"]["bytes"] > 0


def test_deliberate_leak_is_found(tmp_path: Path) -> None:
    with place() as here:
        finished, _ = trained(here, tmp_path, leak=True)
        found = leaks([here.folder, finished.out, finished.err])
        for where in ("tracebacks", "tape-", "metrics.jsonl", "events.jsonl"):
            assert any(where in each for each in found), (where, found)
        audit = here.run("audit", str(here.run_dir))
        assert audit.code == 1
        assert "NOT ALLOWED: errors left the region" in audit.out


@pytest.mark.parametrize("own_task", [False, True])
def test_corpus_that_cannot_be_used_is_refused_before_the_start(
    tmp_path: Path, *, own_task: bool
) -> None:
    with place() as here:
        (here.folder / "failing_task.py").write_text(FAILING_TASK)
        eu = corpus_with_canaries(tmp_path / "eu") if own_task else tmp_path / "not-there"
        base, _, _ = TINY.read_text().partition("[[islands]]")
        if own_task:
            base = base.replace('preset = "byte-tiny"', 'target = "failing_task:task"')
        config = here.folder / "failing.toml"
        config.write_text(base + CONFIG.format(eu=eu, logs=tmp_path / "logs"))
        finished = here.run(
            "run", str(config), "--run-dir", str(here.run_dir),
            "--set", f"data.source={public_corpus(tmp_path / 'public')}",
        )  # fmt: skip
        expected = "cannot be used: ValueError, error code" if own_task else "there is no such file"
        assert (finished.code, expected in finished.err) == (2, True), finished.err
        assert f"regions.eu.data = '{eu}'" in finished.err
        assert not here.run_dir.exists(), "no actor of the run was started"
        assert leaks([here.folder, finished.out, finished.err]) == []
