"""Speaking to a run from another terminal; light, since people wait for it: no configuration, no
arrays, no JAX.
"""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from cluster.names import CALL_TIMEOUT_S, FLEET
from coordinator.errors import ArchipelagoError, RunFailed, Unreachable, UserMistake

if TYPE_CHECKING:
    from cluster.runs import Live
    from cluster.status import Status
    from coordinator.protocol import Island

Actor = Any
"""A handle of an actor: Ray gives it no type."""
Asking = Callable[[Callable[[Actor], "ray.ObjectRef"]], Any]
KNOCK_TIMEOUT_S = 10.0
"""A cluster that does not even accept a connection in this time is taken to be unreachable."""


def status_of(live: Live) -> Status:
    """Ask a live run how it is."""
    return _ask(live, lambda fleet: fleet.status.remote())


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


def _ask(live: Live, call: Callable[[Actor], ray.ObjectRef]) -> Any:
    with reached(live) as ask:
        return ask(call)


@contextmanager
def reached(live: Live) -> Generator[Asking]:
    """A run's fleet, to be asked more than once; each time for its answer to a call, or
    `Unreachable` if it is being restarted.

    Errors: `UserMistake` if it is not there, cannot be heard, or refuses.
    """
    with redirect_stdout(sys.stderr):  # Ray prints what it hears of nodes, also as it leaves
        connect(live.address, live.namespace)
        try:
            yield _asking(ray.get_actor(FLEET, namespace=live.namespace))
        except ValueError as error:
            raise UserMistake(
                f"no run named {live.run} goes on in the cluster at {live.address}"
            ) from error
        except (RayError, Unreachable, RunFailed) as error:
            raise UserMistake(f"run {live.run} cannot be heard: {error}") from error
        finally:
            ray.shutdown()


def _asking(fleet: Actor) -> Asking:
    def ask(call: Callable[[Actor], ray.ObjectRef]) -> Any:
        try:
            return answer(call(fleet))
        except RayError as error:
            raise Unreachable(type(error).__name__) from error

    return ask


def answer(reference: ray.ObjectRef, timeout_s: float = CALL_TIMEOUT_S) -> Any:
    """An answer of one of the run's actors.

    Errors: what it refuses; `RunFailed` if it has died for good; Ray's own if it is being restarted
    or takes longer.
    """
    try:
        return ray.get(reference, timeout=timeout_s)
    except ActorUnavailableError:
        raise
    except RayTaskError as error:
        raise error.cause if isinstance(error.cause, ArchipelagoError) else error from None
    except RayActorError as error:
        raise RunFailed(f"an actor of the run has died: {error}") from error


def connect(address: str, namespace: str) -> None:
    """Join a Ray cluster that is there already, as a driver.

    Errors: `UserMistake` if it cannot be reached.
    """
    try:
        _knock(address)
        ray.init(
            address=address,
            namespace=namespace,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (OSError, RuntimeError, ValueError, RayError) as error:
        reason = " ".join(str(error).split()) or repr(error)
        raise UserMistake(
            f"no Ray cluster at {address}: {reason}; is it up (ray start --head), is the address "
            "right (HOST:6379), and does RAY_AUTH_TOKEN hold its token?"
        ) from error


def _knock(address: str) -> None:
    """Is anybody there? Ray itself asks for minutes, and prints while it does.

    Errors: `OSError` if nobody is; `ValueError` if it is no address.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("that is not HOST:PORT")
    socket.create_connection((host.strip("[]"), int(port)), KNOCK_TIMEOUT_S).close()
