"""A small HTTP server on a thread of its own, with limits on connections and their time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import Event, Thread
from typing import Any, cast

from aiohttp import web

from cluster.tasks import Failed, Tasks

CONNECTIONS = 32
"""Connections at the same time; any further one is closed at once."""
SILENCE_S, LONGEST_S = 10.0, 30.0
"""Timeouts in seconds of a connection: of one that is silent, and of any that is not a stream."""


class Connections:
    """The open connections of a server; for its event loop alone."""

    def __init__(self) -> None:
        self._timers: dict[asyncio.BaseTransport, list[asyncio.TimerHandle]] = {}

    def opened(self, transport: asyncio.Transport) -> bool:
        """Note a new connection, and limit its time; return False if there are too many."""
        if len(self._timers) >= CONNECTIONS:
            return False
        loop = asyncio.get_running_loop()
        limits_s = (SILENCE_S, LONGEST_S)
        self._timers[transport] = [loop.call_later(each, transport.abort) for each in limits_s]
        return True

    def received(self, transport: asyncio.Transport) -> None:
        """Note that a connection is not silent."""
        if timers := self._timers.get(transport):
            timers[0].cancel()
            loop = asyncio.get_running_loop()
            timers[0] = loop.call_later(SILENCE_S, transport.abort)

    def keep(self, transport: asyncio.BaseTransport | None) -> None:
        """Lift the limits of a connection's time: it is a stream that an admitted caller reads."""
        if transport is not None:
            for timer in self._timers.get(transport, ()):
                timer.cancel()
            self._timers[transport] = []

    def closed(self, transport: asyncio.BaseTransport) -> None:
        """Forget a connection."""
        for timer in self._timers.pop(transport, ()):
            timer.cancel()


class _Limited(asyncio.Protocol):
    """A protocol that passes all on to the one of the library, within the limits."""

    def __init__(self, inner: asyncio.Protocol, connections: Connections) -> None:
        self._inner, self._connections = inner, connections
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)
        if not self._connections.opened(transport):
            transport.abort()
            return
        self._transport = transport
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._transport is not None:
            self._connections.received(self._transport)
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._transport is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._connections.closed(self._transport)
            self._inner.connection_lost(exc)


class HttpServer:
    """A server that listens on a thread; `port` is the port that it has."""

    def __init__(
        self,
        make: Callable[[Connections], web.Application],
        host: str,
        port: int,
        beside: Callable[[], Coroutine[Any, Any, None]],
        failed: Failed,
    ) -> None:
        """Listen. `port` 0 takes a free one; `beside`: a task that runs beside the answers.

        `failed`: receives the exception that ends this task, on the server's thread.

        Errors: `OSError` if the port cannot be opened.
        """
        family = socket.getaddrinfo(host, port)[0][0]
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, port))
            self._socket.listen(CONNECTIONS)
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]
        self._make, self._beside, self._failed = make, beside, failed
        self._ready = Event()
        self._thread = Thread(target=self._run, name="http", daemon=True)
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Close all connections, and end the thread."""
        with suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        connections = Connections()
        runner = web.AppRunner(
            self._make(connections),
            access_log=None,  # there may be a scrape every second
            handle_signals=False,
            keepalive_timeout=SILENCE_S,
            shutdown_timeout=0.1,
        )
        await runner.setup()
        http = runner.server
        assert http is not None
        server = await self._loop.create_server(
            lambda: _Limited(http(), connections), sock=self._socket
        )
        tasks = Tasks(self._failed)
        tasks.spawn(self._beside())
        self._ready.set()
        await self._stopping.wait()
        server.close()
        tasks.cancel()
        await runner.cleanup()
