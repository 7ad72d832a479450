"""A run of the Python API on real Ray: `ap.Run` in the background of a script."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

from tests.live.cli import TINY, Place, finish, last_status, place, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
GONE_S = 100.0
"""Seconds that a run whose owner has died may take for its graceful end."""
TASK = """
import json, os, sys, threading, time
from dataclasses import replace
from importlib.util import find_spec
import archipelago as ap

if find_spec("pandas"):
    import pandas

SHAPE = {"layers": 1, "heads": 1, "hidden": 32}

def make(data, width=16):
    spec = ap.ModelSpec(width=width, **SHAPE)
    return ap.language_model("of main", spec, data)

def until(run, condition):
    while not condition(status := run.status()):
        assert run.live, run.output()
        time.sleep(0.2)
    return status

CONFIG, RUN_DIR = sys.argv[1:3]
ENDLESS = {"run.steps": 1_000_000, "task.options.width": 32}
"""
STEER = """
seen, lock = [], threading.Lock()
try:
    ap.Run(CONFIG, task=lambda data: lock)
except ap.UserMistake as error:
    refused = str(error)

def stuck(event):
    seen.append(event)
    threading.Event().wait()

began = time.monotonic()
with ap.Run(CONFIG, ENDLESS, task=make, run_dir=RUN_DIR, on_merge=stuck) as run:
    run.start()
    start_s, first = time.monotonic() - began, run.status()["phase"]
    until(run, lambda status: status["alive"] == 2 and status["t"] >= 8)
    run.scale({"local": 1})
    until(run, lambda status: status["alive"] == 1)
    run.scale(local=3)
    until(run, lambda status: status["alive"] == 3)
    run.drain("local-0")
    until(run, lambda status: status["alive"] == 2)
    until(run, lambda status: status["merges"] >= 20)
    try:
        run.drain("local-77")
    except ap.UserMistake as error:
        unknown = str(error)
    other = ap.connect(RUN_DIR).status()["run"]
    rows = run.metrics()
    kind = pandas.DataFrame if find_spec("pandas") else list
    is_table = isinstance(rows, kind)
    run.save(RUN_DIR + "/now.safetensors")
    count = len(run.params())
    run.stop()
print(json.dumps({
    "refused": refused, "start_s": start_s, "first": first, "seen": len(seen), "unknown": unknown,
    "other": other, "rows": len(rows), "is_table": is_table, "last": run.status()["phase"],
    "asked": run.status()["asked"], "loss": run.wait().heldout_loss,
    "leaves": {path: array.shape for path, array in run.result().parameters().items()},
    "params": count, "later": len(run.params()),
    "ray": "ray" in sys.modules and sys.modules["ray"].is_initialized(),
}))
"""
BROKEN_BLOCK = """
try:
    with ap.Run(CONFIG, ENDLESS, task=make, run_dir=RUN_DIR) as run:
        run.start()
        until(run, lambda status: status["t"] >= 8)
        raise KeyError("of the notebook")
except KeyError as error:
    caught = repr(error)
t, merges = run.status()["t"], run.result().summary["merges"]
print(json.dumps({"caught": caught, "live": run.live, "t": t, "merges": merges}))
"""
OWNER = """
run = ap.Run(CONFIG, ENDLESS, task=make, run_dir=RUN_DIR).start()
run.wait()
"""
RESUMED = """
import subprocess
if sys.argv[3] == "begin":
    run = ap.Run(CONFIG, {"run.steps": 100}, task=make, run_dir=RUN_DIR).start()
    status = until(run, lambda status: status["t"] >= 16)
    children = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True
    ).stdout.splitlines()
    (child,) = (int(each.split()[0]) for each in children if "child_main" in each)
    os.kill(child, 9)
    try:
        run.wait()
    except ap.RunFailed as error:
        print(error)
else:
    run = ap.Run(RUN_DIR + "/config.toml", run_dir=RUN_DIR, resume=True).start()
    run.wait()
    print(json.dumps({"t": run.status()["t"]}))
"""


def script(here: Place, text: str, *more: str) -> subprocess.Popen[str]:
    return here.start_python("-c", TASK + text, str(TINY), str(here.run_dir), *more)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_script_starts_watches_scales_drains_and_stops_a_run_with_its_own_task() -> None:
    with place() as here:
        done = finish(script(here, STEER))
        assert done.code == 0, done.err
        found = json.loads(done.out.splitlines()[-1])
        assert "variable lock (lock) cannot be pickled" in found["refused"]
        assert found["start_s"] < 10.0
        assert found["first"] == "starting"
        assert found["seen"] == 1, "the callback that never returns got one event"
        assert "local-77" in found["unknown"]
        assert found["other"] == here.run_dir.name
        assert found["rows"] > 3
        assert found["is_table"], "a data frame where pandas is installed"
        assert (found["last"], found["asked"]) == ("finished", "the program that started it")
        assert found["loss"] < 5.6
        assert found["leaves"]["embedding"] == [256, 32], "the options reach the task of __main__"
        assert found["params"] == found["later"] == len(found["leaves"])
        assert not found["ray"], "the script's own process is no driver of Ray"
        assert (here.run_dir / "now.safetensors").is_file()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_block_that_raises_stops_the_run_gracefully() -> None:
    with place() as here:
        done = finish(script(here, BROKEN_BLOCK))
        assert done.code == 0, done.err
        found = json.loads(done.out.splitlines()[-1])
        assert found["caught"] == "KeyError('of the notebook')"
        assert not found["live"]
        assert 8 <= found["t"] < 1_000_000
        assert found["merges"] > 0


@pytest.mark.long
@pytest.mark.timeout(400)
def test_run_whose_owner_is_killed_ends_and_leaves_no_process() -> None:
    with place() as here:
        owner = script(here, OWNER)
        until(lambda: last_status(here.run_dir).get("t", 0) >= 8)
        os.kill(owner.pid, signal.SIGKILL)
        owner.communicate()
        until(lambda: not here.left_running(), GONE_S)
        assert last_status(here.run_dir)["asked"] == "the end of the program that started it"
        assert (here.run_dir / "summary.json").is_file(), "its work was handed in"


@pytest.mark.long
@pytest.mark.timeout(400)
def test_run_whose_process_is_killed_is_resumed_with_its_own_task() -> None:
    with place() as here:
        begun = finish(script(here, RESUMED, "begin"))
        assert begun.code == 0, begun.err
        assert "its process has ended by signal 9" in begun.out
        assert "resume=True" in begun.out
        until(lambda: not here.left_running())
        resumed = finish(script(here, RESUMED, "resume"))
        assert resumed.code == 0, resumed.err
        assert json.loads(resumed.out.splitlines()[-1])["t"] == 100


@pytest.mark.long
def test_refusal_of_the_child_reaches_the_caller() -> None:
    with place() as here:
        text = """
run = ap.Run(CONFIG, {"data.source": "/no/such/file.txt"}, task=make, run_dir=RUN_DIR).start()
try:
    run.wait()
except ap.UserMistake as error:
    print(error)
try:
    run.scale(local=1)
except ap.UserMistake as error:
    print(error)
"""
        done = finish(script(here, text))
        assert done.code == 0, done.err
        assert "/no/such/file.txt" in done.out
        assert "has ended; there is nothing to do" in done.out
