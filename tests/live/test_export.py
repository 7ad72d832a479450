"""A run from another one's model, and the export of a live run and of an ended one, on real Ray."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from islands.initial_model import open_source
from tests.live.cli import TINY, finish, place

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
FROM_LIVE = """
import json, sys, time
import archipelago

for attempt in range(3000):
    try:
        run = archipelago.connect(sys.argv[1])
        if run.live and run.status()["merges"] >= 2:
            break
    except archipelago.UserMistake:
        pass
    time.sleep(0.2)
start, now = run.params(at=0), run.params()
run.export(sys.argv[1] + "-live.safetensors")
moved = sum(bool((start[path] != now[path]).any()) for path in start)
run.stop()
result = run.wait(timeout_s=120)
same = all((array == run.params()[path]).all() for path, array in result.parameters().items())
print(json.dumps({"leaves": len(start), "moved": moved, "same": same}))
"""


@pytest.mark.long
def test_run_starts_from_the_step_of_another_run() -> None:
    with place() as here:
        again, keep = here.run_dir, "durability.keep_contributions=true"
        steps = ("--set", "run.steps=24")
        done = here.run("run", str(TINY), "--run-dir", str(again), "--set", keep, *steps, "--json")
        assert done.code == 0, done.err
        first = again.rename(here.folder / "first")  # the place watches the progress of one run
        source = f"task.init_from=run:{first}@16"
        done = here.run("run", str(TINY), "--run-dir", str(again), "--set", source, *steps)
        assert done.code == 0, done.err
        assert f"leaves from run:{first}@16" in done.out
        out = here.folder / "checkpoint"
        for run, at, where, form in (
            (first, "16", here.folder / "out.safetensors", "safetensors"),
            (again, "0", out, "orbax"),
        ):
            done = here.run("export", str(run), str(where), "--at", at, "--format", form, "--json")
            assert done.code == 0, done.err
        wanted, source = load_file(here.folder / "out.safetensors"), open_source(f"orbax:{out}")
        assert {*wanted} == {*source.leaves} == {*load_file(again / "initial.safetensors")}
        assert all(np.array_equal(array, source.read(p)) for p, array in wanted.items())
        report = json.loads((again / "init.json").read_text())
        assert {*report["taken"]} == {*wanted}
        replayed = here.run("replay", str(again), "--json")
        assert replayed.code == 0, replayed.out
        assert replayed.json["compared"]["effects"] is True


@pytest.mark.long
def test_live_run_gives_its_parameters() -> None:
    with place() as here:
        run = here.start(
            "run", str(TINY), "--run-dir", str(here.run_dir), "--set", "run.steps=99999"
        )
        steered = finish(here.start_python("-c", FROM_LIVE, str(here.run_dir)))
        trained = finish(run)
        assert steered.code == 0, steered.err
        assert trained.code == 0, trained.err
        said = json.loads(steered.out.splitlines()[-1])
        assert said["leaves"] >= said["moved"] > 0
        assert said["same"]
        live = load_file(f"{here.run_dir}-live.safetensors")
        assert len(live) == said["leaves"]
