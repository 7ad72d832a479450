"""The fleet's HTTP port: the live page, `/metrics`, `/status`, `/events`, `/link` and `/healthz`.

The run's token is in the run directory, readable by its owner alone. The port is read-only:
`http_access` has the rules of access, `page_feed` the content of the page.
"""

from __future__ import annotations

import asyncio
import logging
import mimetypes
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from aiohttp import web

from cluster.fleet import http_server
from cluster.fleet.exposition import CONTENT_TYPE, OF_THE_FLEET, metrics_text
from cluster.fleet.http_access import Access, AskedPage, Verdict, page_url
from cluster.fleet.http_server import Connections, HttpServer
from cluster.fleet.page_feed import PageFeed
from cluster.status import RunStatus
from cluster.storage.files import aside_of, json_text
from cluster.storage.runs import TOKEN
from cluster.tasks import Failed, log_only

log = logging.getLogger("archipelago.fleet")
TOKEN_VARIABLE = "ARCHIPELAGO_HTTP_TOKEN"
"""The variable of the fleet's node with the token of its runs, for a Prometheus elsewhere."""
LEAST_TOKEN = 16
"""The fewest characters of such a token."""
LOOK_S = 0.25
"""Seconds between two looks at the published status, and between two events of a stream."""
SILENT_LOOKS = 40
"""Looks without news after which a stream sends an empty line."""
STREAMS = 16
"""Pages that are open at the same time; connections are left for scrapes and for `top`."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer: the page loads nothing from elsewhere, and no page may hold it."""
REFUSALS = {
    Verdict.NO_TOKEN: "a token is needed: open the link that `archipelago run` has printed, which "
    "works once; `archipelago page RUN` prints a new one. Programs send the bearer token in the "
    "run directory, file `token`\n",
    Verdict.WRONG_HOST: "the request names another host than this one; use the address that "
    "`archipelago page RUN` prints, or the bearer token\n",
    Verdict.READ_ONLY: "this port is read-only\n",
}
USED = "this link was opened before, or is too old; `archipelago page RUN` prints a new one\n"
OPENED = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Archipelago</title>'
    '<link rel="icon" href="data:,"><meta http-equiv="refresh" content="0;url=/">'
)
"""The answer to a link: the browser goes to the page from here, and so sends the new cookie."""


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


def page_files() -> dict[str, tuple[str, bytes]]:
    """Return the files of the page by their path: content type and bytes."""
    found: dict[str, tuple[str, bytes]] = {}
    for file in files("cluster.fleet").joinpath("assets").iterdir():
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        path = "/" if file.name == "index.html" else f"/assets/{file.name}"
        found[path] = kind, file.read_bytes()
    return found


class HttpPort:
    """The port of one run; `port` is the number that it listens at."""

    def __init__(
        self,
        status: Callable[[], RunStatus | None],
        token: str,
        host: str,
        port: int,
        history: Path,
        starting: Callable[[], RunStatus] | None = None,
        *,
        failed: Failed = log_only,
    ) -> None:
        """Listen on a thread.

        `history`: the metrics log of an earlier process of the run. `starting`: returns a status
        that has only the alerts of the fleet, while `status` returns None. `failed`: receives an
        exception after which the page shows nothing new, on the port's thread.

        Errors: `OSError` if the port cannot be opened.
        """
        self._status, self._starting, self._feed = status, starting, PageFeed()
        self._history, self._host = history, host
        names = frozenset({host, socket.gethostname()})
        self._access = Access(token, names, lambda: secrets.token_urlsafe(24))
        self._files = page_files()
        self._streams, self._newest = 0, (0, b"")
        self._server = HttpServer(self._application, host, port, self._watch, failed)
        self.port = self._server.port

    def stop(self) -> None:
        """Stop listening, and close all connections."""
        self._server.stop()

    def _application(self, connections: Connections) -> web.Application:
        self._connections = connections
        app = web.Application(middlewares=[self._admit], client_max_size=0)
        app.router.add_get("/", self._page)
        app.router.add_get("/assets/{name}", self._file)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/status", self._status_json)
        app.router.add_get("/events", self._events, allow_head=False)
        app.router.add_get("/link", self._link)
        app.router.add_get("/healthz", self._health)
        return app

    async def _watch(self) -> None:
        """Look at the published status now and then, so that a new page shows the whole run."""
        await asyncio.to_thread(self._feed.read_back, self._history)
        while True:
            if (seen := self._status()) is not None:
                self._feed.see(seen)
            await asyncio.sleep(LOOK_S)

    @web.middleware
    async def _admit(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        name, _ = self._access.cookie
        asked = AskedPage(
            request.method,
            request.path,
            request.remote or "",
            request.headers.get("Host"),
            request.headers.get("Authorization", ""),
            request.cookies.get(name, ""),
        )
        verdict = self._access.verdict(asked)
        key = request.query.get("key") if request.path == "/" else None
        if key and verdict in (Verdict.ADMITTED, Verdict.NO_TOKEN):
            return self._opened(key, admitted=verdict is Verdict.ADMITTED)
        if verdict is not Verdict.ADMITTED:
            return _text(REFUSALS[verdict], verdict.value)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            return _text(f"{error.reason}\n", error.status)
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    def _opened(self, key: str, *, admitted: bool) -> web.Response:
        if not self._access.opens(key, time.monotonic()) and not admitted:
            return _text(USED, Verdict.NO_TOKEN.value)
        response = web.Response(text=OPENED, content_type="text/html", headers=HEADERS)
        name, value = self._access.cookie
        response.set_cookie(name, value, httponly=True, samesite="Strict", path="/")
        return response

    async def _page(self, request: web.Request) -> web.Response:
        return self._answer("/")

    async def _file(self, request: web.Request) -> web.Response:
        return self._answer(request.path)

    def _answer(self, path: str) -> web.Response:
        if (found := self._files.get(path)) is None:
            raise web.HTTPNotFound
        kind, content = found
        return web.Response(body=content, headers={"Content-Type": f"{kind}; charset=utf-8"})

    async def _metrics(self, request: web.Request) -> web.Response:
        text = ""
        if (seen := self._status()) is not None:
            text = metrics_text(seen)
        elif self._starting is not None:  # the counters of an earlier fleet are not known
            text = metrics_text(self._starting(), OF_THE_FLEET)
        response = web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})
        response.enable_compression()
        return response

    async def _status_json(self, request: web.Request) -> web.Response:
        if (seen := self._status()) is None:
            return _text("starting\n", 503)
        return web.Response(text=json_text(seen), content_type="application/json")

    async def _health(self, request: web.Request) -> web.Response:
        is_up = self._status() is not None
        return _text("ok\n" if is_up else "starting\n", 200 if is_up else 503)

    async def _link(self, request: web.Request) -> web.Response:
        """Return a new link to the page, which works once."""
        key = self._access.link(time.monotonic())
        link = f"{page_url(self._host, self.port, socket.gethostname())}?key={key}"
        return web.Response(text=json_text({"link": link}), content_type="application/json")

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Send the content of the page, and then what changes, as server-sent events."""
        if self._streams >= STREAMS:
            return _text(f"{STREAMS} pages are open already; close one\n", 503)
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        self._connections.keep(request.transport)
        self._streams += 1
        seen = silent = 0
        try:
            while True:
                message, silent = b"", silent + 1
                if seen == 0 and self._feed.number:
                    message = _event("whole", self._feed.content())
                elif self._feed.number != seen:
                    message = self._update()
                elif silent >= SILENT_LOOKS:
                    message = b": no news\n\n"  # a caller that is gone is found by it
                if message:
                    seen, silent = self._feed.number, 0
                    await asyncio.wait_for(response.write(message), http_server.SILENCE_S)
                await asyncio.sleep(LOOK_S)
        except (ConnectionError, TimeoutError):
            return response
        finally:
            self._streams -= 1

    def _update(self) -> bytes:
        """Return the newest update; all pages get the same bytes."""
        number, message = self._newest
        if number != self._feed.number:
            message = _event("update", self._feed.update())
            self._newest = self._feed.number, message
        return message


def _event(kind: str, content: object) -> bytes:
    return f"event: {kind}\ndata: {json_text(content)}\n\n".encode()


def _text(text: str, status: int) -> web.Response:
    return web.Response(text=text, status=status, headers=HEADERS)
