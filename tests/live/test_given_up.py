"""Actors that Ray gives up, beside those that start, that wait and that come back."""

from __future__ import annotations

import json

import pytest

from tests.live.cli import finish, place

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(300)]
STORY = """
import json, os, signal, time
from pathlib import Path
import ray
from cluster.actors.start import Home
from cluster.config.load import load
from cluster.fleet.ray_backend import RayBackend
from cluster.names import Seat, island_actor

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=10**8)
home = Home("given-up", detached=False)
backend = RayBackend(load(Path("examples/tiny.toml")), Path("."), home)

@ray.remote(num_cpus=0)
class Island:
    def __init__(self, breaks):
        if breaks:
            raise ImportError("a module that is not there")

    def progress(self):
        return os.getpid()

def start(name, breaks=False, **options):
    made = Island.options(**{**home.options(island_actor(Seat(name)), {}), **options})
    return made.remote(breaks)

def given_up(actor, within_s):
    end_s, alive, why = time.monotonic() + within_s, backend.alive(actor), ""
    while not why and time.monotonic() < end_s:
        is_over, why = alive()
        if is_over:
            alive = backend.alive(actor)
        time.sleep(0.1)
    return why

def again(name, actor):
    # start another actor of this name, as the fleet does
    backend.end(actor)
    return backend.sign(start(name))(60.0)

well = start("well-0")
before = backend.sign(well)(60.0)
broken = start("broken-0", breaks=True)
waits = start("waits-0", num_gpus=1)
told = {"broken": given_up(broken, 60.0)}
told |= {"waits": given_up(waits, 3.0), "well": given_up(well, 3.0)}
told["again"] = again("broken-0", broken) > 0
os.kill(before, signal.SIGKILL)
told["killed"] = given_up(well, 5.0)
told["back"] = backend.sign(well)(60.0) != before
print(json.dumps(told))
"""


@pytest.mark.parametrize("detached", [False, True])
def test_only_an_actor_that_cannot_be_made_is_given_up(detached: bool) -> None:
    story = STORY.replace("detached=False", f"detached={detached}")
    with place() as here:
        finished = finish(here.start_python("-c", story))
    assert finished.code == 0, finished.err
    told = json.loads(finished.out.splitlines()[-1])
    assert "a module that is not there" in told.pop("broken")
    assert told == {"waits": "", "well": "", "again": True, "killed": "", "back": True}
