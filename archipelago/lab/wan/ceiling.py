"""The most that the forwarder can carry on this machine, measured before anything depends on it.

`python -m archipelago.lab.wan.ceiling serve ADDRESS` and `... send ADDRESS SECONDS` are the ends.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

from archipelago.lab.wan.kernel import inside
from archipelago.lab.wan.network import MARK, Network
from coordinator.errors import RunFailed

PORT = 5177
FOR_S, RAMP_S, WITHIN_S = 3.0, 1.0, 20.0
"""Seconds of sending, uncounted seconds at its start, and the limit of the measurement."""
PIECE_BYTES = 1 << 20
SHARE = 0.5
"""The part of the ceiling that the links of a network may use together."""


def measure(network: Network) -> float:
    """Return the Gbit/s from the second region to the first through links without limits.

    Errors: `RunFailed` if nothing arrives.
    """
    first, second = network.regions[:2]
    ends = (
        (first, ["serve", network.address(first.number)]),
        (second, ["send", network.address(first.number), str(FOR_S)]),
    )
    started = [
        subprocess.Popen(
            inside(network.namespace(region), sys.executable, "-m", __name__, *words),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, MARK: network.name},
        )
        for region, words in ends
    ]
    try:
        out, _ = started[0].communicate(timeout=WITHIN_S)
        started[1].communicate(timeout=WITHIN_S)
        return float(out)
    except (ValueError, subprocess.TimeoutExpired) as cause:
        raise RunFailed(f"the regions of {network.name} cannot reach each other") from cause
    finally:
        for each in started:
            each.kill()
            each.communicate()


def _serve(address: str) -> None:
    with socket.create_server((address, PORT)) as server:
        server.settimeout(WITHIN_S)
        connection, _ = server.accept()
        with connection:
            print(arriving_gbit(connection))


def arriving_gbit(connection: socket.socket, within_s: float = WITHIN_S) -> float:
    """Return the Gbit/s that arrive over a connection until its other end is closed.

    Errors: `TimeoutError` if nothing arrives for `within_s` seconds.
    """
    connection.settimeout(within_s)
    buffer, total = bytearray(PIECE_BYTES), 0
    counts_from_s = time.monotonic() + RAMP_S
    while count := connection.recv_into(buffer):
        if time.monotonic() > counts_from_s:
            total += count
    return 8e-9 * total / (time.monotonic() - counts_from_s)


def _send(address: str, for_s: float) -> None:
    end_s = time.monotonic() + WITHIN_S
    while True:
        try:
            connection = socket.create_connection((address, PORT), 2.0)
            break
        except OSError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.1)
    with connection:
        connection.settimeout(WITHIN_S)
        piece, end_s = bytes(PIECE_BYTES), time.monotonic() + for_s
        while time.monotonic() < end_s:
            connection.sendall(piece)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2])
    else:
        _send(sys.argv[2], float(sys.argv[3]))
