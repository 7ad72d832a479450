"""The connections between the hosts of one island, over which the first host sends orders.

The hosts are one program, so they live and die together. Each has a connection to the first host,
and both ends send heartbeats over it. A host that receives nothing for `SILENCE_S`, or whose
connection ends, ends its own process, whatever its devices wait for. JAX's coordination service
runs in the first host's process.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from typing import Generic, TypeVar

from cluster.hosts.held_port import HeldPort
from cluster.hosts.news_threads import NewsThreads
from coordinator.errors import HostLost
from islands.hosts.orders import FateNotice, News, Word

log = logging.getLogger("archipelago.gang")
BEAT_S = 1.0
"""Seconds between two heartbeats."""
SILENCE_S = 30.0
"""Timeout of a host's heartbeats in seconds; after that it counts as hung."""
LET_IN_S = 10.0
"""Timeout for a new connection to authenticate, in seconds."""
FORM_S = 300
"""Timeout for all hosts of an island to meet, in seconds.

Their processes start one by one, and import JAX.
"""


@dataclass(frozen=True, slots=True)
class GangAddress:
    """The address where the hosts of an island meet."""

    orders: tuple[str, int]
    """Host and port of the first host's server for orders."""
    service: str
    """HOST:PORT of JAX's coordination service."""
    hosts: int
    key: bytes
    """The shared secret; a connection without it is refused."""


@dataclass(frozen=True, slots=True)
class HostHeartbeat:
    """A heartbeat between two hosts."""


SomeOrder = TypeVar("SomeOrder")


class First:
    """The first host's connections to the other hosts."""

    def __init__(
        self, address: str, hosts: int, key: bytes, lost: Callable[[HostLost], None]
    ) -> None:
        """Listen for the other hosts.

        `address`: of this machine. `lost`: called once, when a host is lost.
        """
        self._lost, self._others = lost, hosts - 1
        self._server = socket.create_server((address, 0), backlog=hosts)
        self._server.settimeout(BEAT_S)
        own_address: tuple[str, int] = self._server.getsockname()[:2]
        self._port = HeldPort()  # reserved for JAX's service
        self.meeting = GangAddress(own_address, f"{address}:{self._port.port}", hosts, key)
        self._to: dict[int, Connection] = {}
        self._heard_s: dict[int, float] = {}
        self._sending, self._losing = threading.Lock(), threading.Lock()
        self._ended = threading.Event()
        self._hear: Callable[[Word], None] = _nothing
        threading.Thread(target=self._gather, name="hosts", daemon=True).start()

    def hear(self, hear: Callable[[Word], None]) -> None:
        """Pass messages of other hosts to `hear`; each host has a thread of its own."""
        self._hear = hear

    def entered(self) -> None:
        """Release the port that was reserved for JAX's service, which listens by now."""
        self._port.close()

    def send(self, order: object) -> None:
        """Send an order to all other hosts.

        Errors: `OSError` if one of them is gone.
        """
        with self._sending:
            for connection in self._to.values():
                connection.send(order)

    def _gather(self) -> None:
        """Accept connections until all hosts are there, and then watch their heartbeats."""
        with self._server:
            while len(self._to) < self._others:
                try:
                    connected, _ = self._server.accept()
                except TimeoutError:
                    continue  # check again whether all are there
                except OSError as error:
                    log.warning("no host can be accepted: %s", error)
                    time.sleep(BEAT_S)
                    continue
                threading.Thread(
                    target=self._let_in, args=(connected,), name="a host", daemon=True
                ).start()
        threading.Thread(target=self._beat, name="beats", daemon=True).start()
        while not self._ended.wait(BEAT_S):
            now_s = time.monotonic()
            for number, heard_s in self._heard_s.items():
                if now_s - heard_s > SILENCE_S:
                    self._lose(f"host {number} of this island has sent nothing for {SILENCE_S:g} s")

    def _let_in(self, connected: socket.socket) -> None:
        """Authenticate a connecting host, on its own thread; hang up after `LET_IN_S` seconds."""
        late = threading.Timer(LET_IN_S, _hang_up, (connected,))
        late.daemon = True
        late.start()
        connection = Connection(os.dup(connected.fileno()))
        try:
            deliver_challenge(connection, self.meeting.key)
            answer_challenge(connection, self.meeting.key)
            number: object = connection.recv()
        except (AuthenticationError, EOFError, OSError) as error:
            log.warning("a connection was refused: %s", str(error) or type(error).__name__)
            connection.close()
            return
        finally:
            late.cancel()
            connected.close()
        with self._sending:
            if not isinstance(number, int) or number in self._to:
                log.warning("a connection was refused: it claims to be host %s", number)
                connection.close()
                return
            self._heard_s[number] = time.monotonic()
            self._to[number] = connection
        self._listen(number, connection)

    def _beat(self) -> None:
        """Send heartbeats; on its own thread, since sending to a halted host may block forever."""
        while not self._ended.wait(BEAT_S):
            try:
                self.send(HostHeartbeat())
            except OSError as error:
                self._lose(f"a host of this island cannot be reached: {error}")

    def _listen(self, number: int, connection: Connection) -> None:
        """Receive a host's messages until its connection ends."""
        while True:
            try:
                word: Word | HostHeartbeat = connection.recv()
                self._heard_s[number] = time.monotonic()
                if not isinstance(word, HostHeartbeat):
                    self._hear(word)
            except (EOFError, OSError):
                self._lose(f"the connection to host {number} of this island has ended")
                return
            except Exception as error:
                log.exception("a message of host %d of this island could not be read", number)
                self._lose(f"a message of host {number} could not be read: {error!r}")
                return

    def _lose(self, why: str) -> None:
        """Report the loss of a host, the first time only."""
        with self._losing:
            if self._ended.is_set():
                return
            self._ended.set()
        self._lost(HostLost(why))


class Other(Generic[SomeOrder]):
    """The connection of another host to the first one, from which it receives orders."""

    def __init__(self, meeting: GangAddress, number: int, lost: Callable[[HostLost], None]) -> None:
        """Connect to the first host.

        `lost`: called when the first host is lost, on any thread.

        Errors: `OSError`, `AuthenticationError`.
        """
        self._lost = lost
        self._connection = Client(meeting.orders, authkey=meeting.key)
        self._connection.send(number)
        self._orders = queue.SimpleQueue[SomeOrder]()
        self._sending, self._heard_s = threading.Lock(), time.monotonic()
        self._news = NewsThreads(_nothing, self._broke)

    def start(self, beside: Callable[[News | FateNotice], None]) -> None:
        """Start to receive.

        `beside`: called for messages that are not orders, on other threads (`NewsThreads`).
        """
        self._news = NewsThreads(beside, self._broke)
        for target in (self._listen, self._beat, self._watch):
            threading.Thread(target=target, name="first host", daemon=True).start()

    def say(self, word: Word | HostHeartbeat) -> None:
        """Send a message to the first host.

        Errors: `OSError` if it is gone.
        """
        with self._sending:
            self._connection.send(word)

    def close(self) -> None:
        """Close the connection so that both ends notice it."""
        with socket.socket(fileno=os.dup(self._connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    def orders(self) -> Generator[SomeOrder]:
        """Yield orders as they arrive, forever: the loss of the first host ends this process."""
        while True:
            yield self._orders.get()

    def _listen(self) -> None:
        while True:
            try:
                message: SomeOrder | News | FateNotice | HostHeartbeat = self._connection.recv()
            except (EOFError, OSError):
                self._lost(HostLost("the connection to the first host of this island has ended"))
                return
            except Exception as error:  # noqa: BLE001 - it cannot be read, which ends the process
                self._broke(error)
                return
            self._heard_s = time.monotonic()
            match message:
                case HostHeartbeat():
                    pass
                case News() | FateNotice():
                    self._news.tell(message)
                case order:
                    self._orders.put(order)

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_S)
            try:
                self.say(HostHeartbeat())
            except OSError:
                return  # the listening thread notices it too

    def _broke(self, error: BaseException) -> None:
        log.error("a message of the first host could not be read", exc_info=error)
        self._lost(HostLost(f"a message of the first host could not be read: {error!r}"))

    def _watch(self) -> None:
        while time.monotonic() - self._heard_s <= SILENCE_S:
            time.sleep(BEAT_S)
        self._lost(HostLost(f"the first host has sent nothing for {SILENCE_S:g} s"))


def enter(meeting: GangAddress, number: int) -> None:
    """Join the island's JAX program; from here on `jax.devices()` are the devices of all hosts.

    Errors: `RuntimeError` if the other hosts do not come.
    """
    import jax
    from jax._src.distributed import global_state

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        meeting.service, meeting.hosts, number, initialization_timeout=FORM_S
    )
    jax.devices()
    # JAX 0.10 lets only process 0 write to its compilation cache
    global_state.process_id = 0


def _hang_up(connected: socket.socket) -> None:
    """Shut a socket down so that threads waiting at either end notice it."""
    with suppress(OSError):  # it is closed already
        connected.shutdown(socket.SHUT_RDWR)


def _nothing(message: object) -> None:
    """Ignore a message: there is no listener yet."""
