"""Calls to a run from another terminal.

The module imports no configuration, no arrays and no JAX, so that these commands start fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError

from cluster.actors.call_errors import answer
from cluster.actors.directory import Actor
from cluster.launch.connect import connect
from cluster.launch.job_state import state_of_job
from cluster.names import CALL_TIMEOUT_S, FLEET
from coordinator.errors import RunFailed, Unreachable, UserMistake

if TYPE_CHECKING:
    from cluster.storage.runs import Live
    from coordinator.protocol import Island


Asking = Callable[[Callable[[Actor], "ray.ObjectRef"]], Any]
"""A function that makes a call of the fleet's handle and returns the fleet's answer."""


def stop(live: Live) -> None:
    """Stop the run gracefully: all islands hand in what they have, and then the run ends.

    Errors: `UserMistake` if the run forbids it.
    """
    _ask(live, lambda fleet: fleet.stop.remote("archipelago stop", True))


def scale(live: Live, counts: Mapping[str, int]) -> None:
    """Set the number of islands of these groups; if one group is refused, none is changed.

    Errors: `UserMistake` if there is no such group, or the number can never be reached.
    """
    _ask(live, lambda fleet: fleet.scale.remote(dict(counts)))


def drain(live: Live, island: Island) -> None:
    """Drain one island: it hands in what it has, and leaves.

    Errors: `UserMistake` if there is no such island, or too few islands would remain.
    """
    _ask(live, lambda fleet: fleet.drain.remote(island))


def save(live: Live, path: Path) -> str:
    """Have the fleet write the public model to a path on its machine, and return where it is.

    Errors: `UserMistake` if the model cannot be written to the path.
    """
    with reached(live, within_s=None) as ask:
        return ask(lambda fleet: fleet.save.remote(str(path)))


def _ask(live: Live, call: Callable[[Actor], ray.ObjectRef]) -> Any:
    with reached(live) as ask:
        """Connect for a single call, and return its answer."""
        return ask(call)


@contextmanager
def reached(live: Live, within_s: float | None = CALL_TIMEOUT_S) -> Generator[Asking]:
    """Connect to a run's fleet for several calls, and yield the function that makes them.

    `within_s`: timeout of each call in seconds; None: no timeout. A call raises `Unreachable` if
    the fleet is being restarted.

    Errors: `UserMistake` if the run is not there, cannot be reached, or refuses a call.
    """
    with redirect_stdout(sys.stderr):  # Ray prints news of its nodes, also at shutdown
        server = connect(live.address, live.namespace)
        try:
            yield asking(ray.get_actor(FLEET, namespace=live.namespace), within_s)
        except ValueError as error:
            job = None if server is None else state_of_job(live.run, server)
            raise UserMistake(
                job or f"no run named {live.run} is live in the cluster at {live.address}"
            ) from error
        except (RayError, Unreachable, RunFailed) as error:
            raise UserMistake(f"run {live.run} does not answer: {error}") from error
        finally:
            ray.shutdown()


def asking(fleet: Actor, within_s: float | None = CALL_TIMEOUT_S) -> Asking:
    """Return a function that makes a call of the fleet and waits for its answer.

    Errors: `UserMistake` if the fleet has no such method; `Unreachable` for Ray's own errors.
    """

    def ask(call: Callable[[Actor], ray.ObjectRef]) -> Any:
        try:
            reference = call(fleet)
        except TypeError as error:  # where Ray cannot import an actor's class, it makes one up
            raise UserMistake(
                f"this archipelago made a call that the run's fleet does not have ({error}): it "
                "is of another version than the run's, or cannot import cluster.fleet"
            ) from error
        try:
            return answer(reference, within_s)
        except RayError as error:
            raise Unreachable(type(error).__name__) from error

    return ask
