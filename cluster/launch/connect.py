"""Joining a Ray cluster that is there already."""

from __future__ import annotations

import logging
import socket

import ray
from ray.exceptions import RayError

from coordinator.errors import UserMistake

KNOCK_TIMEOUT_S = 10.0
"""A cluster that does not even accept a connection in this time is taken to be unreachable."""


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
