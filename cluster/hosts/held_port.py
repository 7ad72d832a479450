"""A port that is held for a server that begins later, perhaps in another process.

To bind a port, release it and hope is a race: meanwhile anybody may get it. A socket that is bound
with `SO_REUSEPORT` and never listens keeps the port from everybody else, and from being given out,
while a server of the same user that sets the option too, as gRPC's does, can listen there.
"""

from __future__ import annotations

import socket


class HeldPort:
    """A free port of this machine; `close` releases it."""

    def __init__(self) -> None:
        """Errors: `OSError` if there is none."""
        six = socket.has_dualstack_ipv6()
        self._socket = socket.socket(socket.AF_INET6 if six else socket.AF_INET)
        if six:
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._socket.bind(("", 0))
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()
