"""The fleet's HTTP port: `/metrics` for Prometheus, `/status` and `/healthz` for people.

The run's token is in the run directory, readable by its owner alone. The port is read-only.
"""

from __future__ import annotations

import hmac
import logging
import os
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
"""A WSGI application (PEP 3333)."""


log = logging.getLogger("archipelago.fleet")
TOKEN_VARIABLE = "ARCHIPELAGO_HTTP_TOKEN"
"""The variable of the fleet's node with the token of its runs, for a Prometheus elsewhere."""
LEAST_TOKEN = 16
"""The fewest characters of such a token."""
CONNECTIONS = 32
"""Connections at the same time; any further one is closed at once."""
SILENCE_S, LONGEST_S = 10.0, 30.0
"""Timeouts in seconds of a connection: of one that is silent, and of any."""


class _Server(ThreadingMixIn, WSGIServer):
    """A server with one thread for each connection; there are few, and each is short."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = CONNECTIONS

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._open: dict[socket.socket, float] = {}
        self._lock = Lock()
        super().__init__(*arguments, **named)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread of its own, or close the connection if there are too many."""
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
        """Close connections that have been open for too long, even if they still send slowly."""
        before_s = time.monotonic() - LONGEST_S
        with self._lock:
            late = [request for request, since_s in self._open.items() if since_s < before_s]
        for request in late:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)  # its thread then closes it

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: a broken connection concerns its caller only."""


class _Quiet(WSGIRequestHandler):
    timeout = SILENCE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: there may be a scrape every second."""


def serve(application: Application, host: str, port: int) -> tuple[WSGIServer, Thread]:
    """Listen on a thread; `port` 0 takes a free one.

    Errors: `OSError` if the port cannot be opened.
    """
    family = socket.getaddrinfo(host, port)[0][0]
    kind = type("Server", (_Server,), {"address_family": family})
    server = make_server(host, port, application, kind, _Quiet)
    thread = Thread(target=server.serve_forever, name="http", daemon=True)
    thread.start()
    return server, thread


def make_token() -> str:
    """Return the token that the node's environment gives, else a new random one.

    A token that is too short is not used, so that it cannot be guessed.
    """
    given = os.environ.get(TOKEN_VARIABLE, "")
    if 0 < len(given) < LEAST_TOKEN:
        log.error("%s has fewer than %d characters and is ignored", TOKEN_VARIABLE, LEAST_TOKEN)
    return given if len(given) >= LEAST_TOKEN else secrets.token_urlsafe(32)


def write_token(run_dir: Path, token: str) -> None:
    """Write the token to the run directory, readable by its owner alone.

    Errors: `OSError`; then no token is written.
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
    """Return the port's application; `metrics` answers every path that is not ours.

    `/healthz` is open. `/status` needs the token even for local callers: behind a proxy all callers
    seem to be on this machine. Metrics need it unless the caller is on this machine and uses one of
    its addresses, or "localhost": another name may resolve to anything (DNS rebinding).
    """

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        def respond(state: str, text: str, kind: str) -> list[bytes]:
            body = text.encode()
            headers = [("Content-Type", kind), ("Content-Length", str(len(body)))]
            start_response(state, headers)
            return [body]

        match environ.get("PATH_INFO"):
            case "/healthz":
                is_up = status() is not None
                state = "200 OK" if is_up else "503 Service Unavailable"
                return respond(state, "ok\n" if is_up else "starting\n", "text/plain")
            case path if not (_has(token, environ) or (path != "/status" and _local(environ))):
                why = "a bearer token is needed: it is in the run directory, file `token`\n"
                return respond("401 Unauthorized", why, "text/plain")
            case "/status":
                if (seen := status()) is None:
                    return respond("503 Service Unavailable", "starting\n", "text/plain")
                return respond("200 OK", json_text(seen), "application/json")
            case _:
                return metrics(environ, start_response)

    return answer


def _has(token: str, environ: Mapping[str, Any]) -> bool:
    header = str(environ.get("HTTP_AUTHORIZATION", ""))
    return hmac.compare_digest(header.encode(), f"Bearer {token}".encode())


def _local(environ: Mapping[str, Any]) -> bool:
    """Return whether the caller is on this machine, and has addressed it as such."""
    host = str(environ.get("HTTP_HOST", ""))
    try:
        hostname = urlsplit(f"//{host}").hostname if host else None
    except ValueError:
        return False
    return _loopback(str(environ.get("REMOTE_ADDR", ""))) and (
        hostname in (None, "localhost") or _loopback(hostname)
    )


def _loopback(text: str) -> bool:
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:  # it is a name
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
