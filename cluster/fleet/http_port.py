"""The fleet's HTTP port: `/metrics` for Prometheus, `/status` and `/healthz` to look.

The run's token is in the run directory, for its owner alone. Nothing can be changed here.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from socketserver import ThreadingMixIn
from threading import Lock, Thread
from typing import Any
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from cluster.status import RunStatus
from cluster.storage.files import aside_of, json_text
from cluster.storage.runs import TOKEN

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""As WSGI has it (PEP 3333)."""


CONNECTIONS = 32
"""At once; one more is closed at once."""
SILENCE_S, LONGEST_S = 10.0, 30.0
"""A connection is closed that is silent for so long, and any that is open for longer."""


class _Server(ThreadingMixIn, WSGIServer):
    """One thread for each connection, of which there are a few, each for a while."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = CONNECTIONS

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._open: dict[socket.socket, float] = {}
        self._lock = Lock()
        super().__init__(*arguments, **named)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread of its own, if there is room for one more."""
        with self._lock:
            room = len(self._open) < CONNECTIONS
            if room:
                self._open[request] = time.monotonic()
        if room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close the connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close what has been open for too long, however slowly it goes on talking."""
        before_s = time.monotonic() - LONGEST_S
        with self._lock:
            late = [request for request, since_s in self._open.items() if since_s < before_s]
        for request in late:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)  # its thread notices, and closes it

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a connection that breaks is its caller's affair."""


class _Quiet(WSGIRequestHandler):
    timeout = SILENCE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a scrape every second is no news."""


def serve(application: Application, host: str, port: int) -> tuple[WSGIServer, Thread]:
    """Listen on a thread; `port` 0 takes a free one.

    Errors: `OSError` if the port is not to be had.
    """
    family = socket.getaddrinfo(host, port)[0][0]
    kind = type("Server", (_Server,), {"address_family": family})
    server = make_server(host, port, application, kind, _Quiet)
    thread = Thread(target=server.serve_forever, name="http", daemon=True)
    thread.start()
    return server, thread


def make_token() -> str:
    """Return a new token."""
    return secrets.token_urlsafe(32)


def write_token(run_dir: Path, token: str) -> None:
    """Write the token into the run directory, readable by its owner alone.

    Errors: `OSError`; then there is none.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    path, aside = run_dir / TOKEN, aside_of(run_dir / TOKEN)
    try:
        aside.unlink(missing_ok=True)
        aside.touch(mode=0o600, exist_ok=False)
        aside.write_text(token)
        aside.replace(path)
    except OSError:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def application(
    metrics: Application, status: Callable[[], RunStatus | None], token: str
) -> Application:
    """Return the port's application; `metrics` answers everything that is not ours.

    `/healthz` is open. `/status` needs the token, wherever the caller is: behind a proxy everybody
    seems to be on this machine. Metrics need it unless the caller is on this machine and asks for
    it by an address of its own, not by a name that may lead anywhere (DNS rebinding).
    """

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        def said(state: str, text: str, kind: str) -> list[bytes]:
            body = text.encode()
            headers = [("Content-Type", kind), ("Content-Length", str(len(body)))]
            start_response(state, headers)
            return [body]

        match environ.get("PATH_INFO"):
            case "/healthz":
                there = status() is not None
                state = "200 OK" if there else "503 Service Unavailable"
                return said(state, "ok\n" if there else "starting\n", "text/plain")
            case path if not (_has(token, environ) or (path != "/status" and _local(environ))):
                why = "a bearer token is needed: it is in the run directory, file `token`\n"
                return said("401 Unauthorized", why, "text/plain")
            case "/status":
                if (seen := status()) is None:
                    return said("503 Service Unavailable", "starting\n", "text/plain")
                return said("200 OK", json_text(seen), "application/json")
            case _:
                return metrics(environ, start_response)

    return answer


def _has(token: str, environ: Mapping[str, Any]) -> bool:
    given = str(environ.get("HTTP_AUTHORIZATION", ""))
    return hmac.compare_digest(given.encode(), f"Bearer {token}".encode())


def _local(environ: Mapping[str, Any]) -> bool:
    """Return whether the caller is on this machine, and knows that it speaks to this machine."""
    host = str(environ.get("HTTP_HOST", ""))
    try:
        named = urlsplit(f"//{host}").hostname if host else None
    except ValueError:
        return False
    return _loopback(str(environ.get("REMOTE_ADDR", ""))) and (
        named in (None, "localhost") or _loopback(named)
    )


def _loopback(text: str) -> bool:
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:  # a name
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
