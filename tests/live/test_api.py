"""The Python API on real Ray: one process trains, another watches, scales and stops the run."""

from __future__ import annotations

import json

import pytest

from tests.live.cli import TINY, finish, place

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
TRAIN = """
import json, sys
import archipelago

seen = []
result = archipelago.run(
    sys.argv[1], {"run.steps": 1_000_000, "islands.0.step_s": 0.1}, run_dir=sys.argv[2],
    on_status=lambda status: seen.append(status["phase"]),
)
shapes = {path: array.shape for path, array in result.parameters().items()}
print(json.dumps({"loss": result.heldout_loss, "seen": len(seen), "leaves": len(shapes)}))
"""
STEER = """
import json, sys, time
import ray  # before the run's mode of authentication is known, as a user's script may
import archipelago

for attempt in range(600):
    try:
        run = archipelago.connect(sys.argv[1])
        if run.live and run.status()["t"] >= 20:
            break
    except archipelago.UserMistake:
        pass
    time.sleep(0.2)
try:
    run.result()
except archipelago.RunFailed as error:
    early = str(error)
run.scale({"local": 1})
while sum(each["state"] == "live" for each in run.status()["islands"]) > 1:
    time.sleep(0.2)
path = run.save(sys.argv[1] + "/now.safetensors")
run.stop()
result = run.wait(timeout_s=120)
last = run.status()["phase"]
print(json.dumps({"loss": result.heldout_loss, "early": early, "path": path, "last": last}))
"""


def test_python_trains_watches_scales_saves_and_stops_a_run() -> None:
    with place() as here:
        trainer = here.start_python("-c", TRAIN, str(TINY), str(here.run_dir))
        steered = finish(here.start_python("-c", STEER, str(here.run_dir)))
        assert steered.code == 0, steered.err  # otherwise the run is not stopped, and never ends
        trained = finish(trainer)
        assert trained.code == 0, trained.err
        steer, train = json.loads(steered.out.splitlines()[-1]), json.loads(trained.out)
        assert steer["loss"] == train["loss"] < 5.0
        assert "has not ended" in steer["early"]
        assert steer["last"] == "finished"
        assert (here.run_dir / "now.safetensors").is_file()
        assert train["seen"] > 3
        assert train["leaves"] > 5
