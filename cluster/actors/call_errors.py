"""Classification by type of the errors that Ray raises for a call to an island.

A call raises only `RayError`s. An exception of the callee comes as a `RayTaskError`, or as an
`UnserializableException` if its class cannot be rebuilt here. An answer that cannot be read comes
as a `RaySystemError`. Any other exception around a call is a bug in our code.
"""

from __future__ import annotations

import logging
from typing import Any

import ray
from ray.exceptions import (
    ActorUnavailableError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OwnerDiedError,
    RayActorError,
    RayError,
    RaySystemError,
    RayTaskError,
    UnserializableException,
)

from cluster.actors.directory import Directory
from cluster.failures import Failure, Reason, in_short, origin_of, raised
from cluster.names import CALL_TIMEOUT_S
from coordinator.errors import ArchipelagoError, RunFailed
from coordinator.protocol import Life

LOST_OBJECTS = (ObjectLostError, OwnerDiedError)
"""Errors for an object that was lost with the process or the node that held it."""
STORE_FULL = (ObjectStoreFullError, OutOfDiskError)
"""Errors for an object store that is full, in memory and on the disk to which Ray spills."""


def failure_of(reason: Reason, error: RayError) -> Failure | str:
    """Return the failure of the island that a failed call shows, for this reason.

    Return only a message if it is no fault of the island: the island, its node or the network is
    gone, and the watch of that life will report it.
    """
    origin = origin_of(error)
    if isinstance(origin, STORE_FULL):
        why = f"{type(origin).__name__} in {reason}: the object store had no room"
        return Failure(Reason.STORE, why, ends=False)
    if isinstance(origin, LOST_OBJECTS):
        return f"{type(origin).__name__}: lost on its way"
    if isinstance(error, (RayTaskError, UnserializableException)):
        return raised(reason, error)
    if isinstance(error, RaySystemError):
        if isinstance(error.client_exc, MemoryError):  # in this process, not in the island's
            return Failure(Reason.STORE, f"MemoryError in {reason}", ends=False)
        return Failure(Reason.SENT, f"it cannot be read: {in_short(str(error.client_exc))}")
    return f"{type(error).__name__}: could not be asked"


def unanswered(
    actors: Directory, name: str, life: Life, reason: Reason, error: RayError
) -> Failure | str:
    """Log that a call to an island, in the actor `name`, failed; return as `failure_of` does."""
    if isinstance(error, RayActorError):  # the handle may be outdated
        actors.forget(name)
    failure = failure_of(reason, error)
    if isinstance(failure, str):
        logging.info("%s: %s", life, failure)
    else:  # `error` has the callee's traceback
        logging.error("%s failed, %s: %s", life, failure.why, error)
    return failure


def cause_of(error: Exception) -> Exception:
    """Return the exception that another process raised, without its remote traceback."""
    return error.cause if isinstance(error, RayTaskError) else error


def message_of(error: Exception) -> str:
    """Return the message of a failed call's cause in one line, or its class if it has none.

    The text of a `RayTaskError` begins with the remote traceback, which names no reason.
    """
    cause = cause_of(error)
    return in_short(str(cause)) or type(cause).__name__


def answer(reference: ray.ObjectRef, timeout_s: float | None = CALL_TIMEOUT_S) -> Any:
    """Return the answer to a call of one of the run's actors.

    Errors: the actor's own `ArchipelagoError`; `RunFailed` if the actor has died for good; Ray's
    errors if it is being restarted, if its answer takes longer than `timeout_s`, or for any other
    exception of the actor.
    """
    try:
        return ray.get(reference, timeout=timeout_s)
    except ActorUnavailableError:
        raise
    except RayTaskError as error:
        raise error.cause if isinstance(error.cause, ArchipelagoError) else error from None
    except RayActorError as error:
        raise RunFailed(f"an actor of the run has died: {error}") from error
