"""The connection to an existing Ray cluster."""

from __future__ import annotations

import logging
import socket

import ray
from ray._raylet import Config as RayConfig  # pyright: ignore[reportAttributeAccessIssue]
from ray.exceptions import RayError

from cluster.launch.ray_messages import messages_to_stderr
from coordinator.errors import UserMistake

KNOCK_TIMEOUT_S = 10.0
"""Timeout of the first TCP connection to a cluster, in seconds."""


def connect(address: str, namespace: str) -> str | None:
    """Join an existing Ray cluster as a driver, and return its job server; None if it has none.

    Errors: `UserMistake` if it cannot be reached.
    """
    try:
        _knock(address)
        messages_to_stderr()
        RayConfig.initialize("")  # as Ray does: variables may be set since a script imported it
        context = ray.init(
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
    return f"http://{context.dashboard_url}" if context.dashboard_url else None


def _knock(address: str) -> None:
    """Check that the address accepts a TCP connection: Ray itself retries for minutes, and prints.

    Errors: `OSError` if nothing accepts it; `ValueError` if that is no HOST:PORT.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("that is not HOST:PORT")
    socket.create_connection((host.strip("[]"), int(port)), KNOCK_TIMEOUT_S).close()
