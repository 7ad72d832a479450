"""Speaking to a run from another terminal; light, since people wait for it: no configuration, no
arrays, no JAX.
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
from cluster.names import CALL_TIMEOUT_S, FLEET
from coordinator.errors import RunFailed, Unreachable, UserMistake

if TYPE_CHECKING:
    from cluster.storage.runs import Live
    from coordinator.protocol import Island


Asking = Callable[[Callable[[Actor], "ray.ObjectRef"]], Any]


def stop(live: Live) -> None:
    """Have all islands hand in what they have, and the run end."""
    _ask(live, lambda fleet: fleet.stop.remote("archipelago stop"))


def scale(live: Live, counts: Mapping[str, int]) -> None:
    """Set how many islands these groups have: all of them, or none if one is refused.

    Errors: `UserMistake` if there is no such group, or it could never be.
    """
    _ask(live, lambda fleet: fleet.scale.remote(dict(counts)))


def drain(live: Live, island: Island) -> None:
    """Have one island hand in what it has and leave.

    Errors: `UserMistake` if there is no such island, or too few would be left.
    """
    _ask(live, lambda fleet: fleet.drain.remote(island))


def save(live: Live, path: Path) -> str:
    """Have the fleet write the public model to a path of its machine; return where it is.

    Errors: `UserMistake` if the path does not take it.
    """
    with reached(live, within_s=None) as ask:
        return ask(lambda fleet: fleet.save.remote(str(path)))


def _ask(live: Live, call: Callable[[Actor], ray.ObjectRef]) -> Any:
    with reached(live) as ask:
        return ask(call)


@contextmanager
def reached(live: Live, within_s: float | None = CALL_TIMEOUT_S) -> Generator[Asking]:
    """A run's fleet, to be asked more than once; each time for its answer to a call, or
    `Unreachable` if it is being restarted. `within_s`: of each answer; None: however long it takes.

    Errors: `UserMistake` if it is not there, cannot be heard, or refuses.
    """
    with redirect_stdout(sys.stderr):  # Ray prints what it hears of nodes, also as it leaves
        connect(live.address, live.namespace)
        try:
            yield _asking(ray.get_actor(FLEET, namespace=live.namespace), within_s)
        except ValueError as error:
            raise UserMistake(
                f"no run named {live.run} goes on in the cluster at {live.address}"
            ) from error
        except (RayError, Unreachable, RunFailed) as error:
            raise UserMistake(f"run {live.run} cannot be heard: {error}") from error
        finally:
            ray.shutdown()


def _asking(fleet: Actor, within_s: float | None = CALL_TIMEOUT_S) -> Asking:
    def ask(call: Callable[[Actor], ray.ObjectRef]) -> Any:
        try:
            reference = call(fleet)
        except TypeError as error:  # where Ray cannot import an actor's class it makes one up
            raise UserMistake(
                f"what this archipelago asks is not what the run's fleet can be asked ({error}): "
                "it is of another version than the run's, or cannot import cluster.fleet"
            ) from error
        try:
            return answer(reference, within_s)
        except RayError as error:
            raise Unreachable(type(error).__name__) from error

    return ask
