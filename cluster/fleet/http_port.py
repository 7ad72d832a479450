"""What the fleet's HTTP port answers: `/metrics` for Prometheus, `/status` and `/healthz` to look.

Whoever is on this machine may look; from elsewhere `/status` needs the run's token, which is in the
run directory for its owner alone. Nothing can be changed here.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from cluster.status import RunStatus
from cluster.storage.files import json_text
from cluster.storage.runs import TOKEN

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""As WSGI has it (PEP 3333)."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
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


def make_token(run_dir: Path) -> str:
    """Write a new token into the run directory, readable by its owner alone."""
    run_dir.mkdir(parents=True, exist_ok=True)
    token, path = secrets.token_urlsafe(32), run_dir / TOKEN
    path.unlink(missing_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(token)
    return token


def application(
    metrics: Application, status: Callable[[], RunStatus | None], token: str
) -> Application:
    """The port's application; `metrics` answers everything that is not ours."""

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
            case "/status" if not _may_look(environ, token):
                why = "a bearer token is needed: it is in the run directory, file `token`\n"
                return said("401 Unauthorized", why, "text/plain")
            case "/status":
                if (seen := status()) is None:
                    return said("503 Service Unavailable", "starting\n", "text/plain")
                return said("200 OK", json_text(seen), "application/json")
            case _:
                return metrics(environ, start_response)

    return answer


def _may_look(environ: Mapping[str, Any], token: str) -> bool:
    address = ip_address(str(environ.get("REMOTE_ADDR", "")).partition("%")[0] or "0.0.0.0")
    mapped = getattr(address, "ipv4_mapped", None)
    if (mapped or address).is_loopback:
        return True
    given = str(environ.get("HTTP_AUTHORIZATION", ""))
    return hmac.compare_digest(given.encode(), f"Bearer {token}".encode())
