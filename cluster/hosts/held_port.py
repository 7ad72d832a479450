"""A port that is reserved for a server that starts later, perhaps in another process.

To bind a port, release it and hope is a race: meanwhile another process may get it. A socket that
is bound with `SO_REUSEPORT` and never listens reserves the port: others cannot bind it, and the
system does not hand it out. A server of the same user that sets the option too, as gRPC's does, can
still listen there.
"""

from __future__ import annotations

import socket


class HeldPort:
    """A free port of this machine, reserved until `close`."""

    def __init__(self) -> None:
        """Reserve a port, on IPv6 and IPv4 if possible.

        Errors: `OSError` if there is none.
        """
        dual_stack = socket.has_dualstack_ipv6()
        self._socket = socket.socket(socket.AF_INET6 if dual_stack else socket.AF_INET)
        if dual_stack:
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._socket.bind(("", 0))
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Release the port."""
        self._socket.close()
