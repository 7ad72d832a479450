"""What Ray raises where a call of an island should have been answered, told apart by type.

A call raises nothing but `RayError`s: what the callee raised comes as a `RayTaskError`, or as an
`UnserializableException` if its class cannot be built here; what cannot be read, as a
`RaySystemError`. Everything else that is raised around a call is a defect of ours.
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
"""An object went with the process or the node that held it."""
STORE_FULL = (ObjectStoreFullError, OutOfDiskError)
"""There is no room for an object, neither in memory nor where Ray puts what is too much for it."""


def failure_of(reason: Reason, error: RayError) -> Failure | str:
    """What a call says of the island that was called, for this reason; only words if it is no fault
    of anybody's: the island, its node or the way to it is gone, and whoever watches will hear it.
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
        if isinstance(error.client_exc, MemoryError):  # here, not there
            return Failure(Reason.STORE, f"MemoryError in {reason}", ends=False)
        return Failure(Reason.SENT, f"it cannot be read: {in_short(str(error.client_exc))}")
    return f"{type(error).__name__}: could not be asked"


def unanswered(
    actors: Directory, name: str, life: Life, reason: Reason, error: RayError
) -> Failure | str:
    """Log that a call of an island, in the actor of this name, has come to nothing. Returns what
    `failure_of` does."""
    if isinstance(error, RayActorError):  # perhaps the handle is one of the past
        actors.forget(name)
    failure = failure_of(reason, error)
    if isinstance(failure, str):
        logging.info("%s: %s", life, failure)
    else:  # `error` has the traceback from over there
        logging.error("%s failed, %s: %s", life, failure.why, error)
    return failure


def cause_of(error: Exception) -> Exception:
    """Return what another process raised, without where it was when it raised it."""
    return error.cause if isinstance(error, RayTaskError) else error


def answer(reference: ray.ObjectRef, timeout_s: float | None = CALL_TIMEOUT_S) -> Any:
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
