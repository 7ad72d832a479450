"""Between the hosts of one island: who they are, and how orders get from the first to the others.

They are one program, so they live and die together. Each has a connection to the first host, over
which both ends say that they are there: whoever hears nothing for `SILENCE_S`, or that a connection
has ended, ends its own process, whatever its devices wait for. JAX's coordination service lives in
the first host's process.
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
from islands.hosts.orders import Fate, News, Word

log = logging.getLogger("archipelago.gang")
BEAT_S = 1.0
SILENCE_S = 30.0
"""A host that says nothing for so long hangs."""
LET_IN_S = 10.0
"""Whoever connects has so long to say who it is."""
FORM_S = 300
"""So long all hosts of an island may take to be there: their processes begin one by one, and import
JAX."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the hosts of an island meet. `key`: who does not know it is not let in."""

    orders: tuple[str, int]
    service: str  # JAX's, HOST:PORT
    hosts: int
    key: bytes


@dataclass(frozen=True, slots=True)
class Beat:
    """Is there."""


SomeOrder = TypeVar("SomeOrder")


class First:
    """The first host's connections to the others."""

    def __init__(
        self, address: str, hosts: int, key: bytes, lost: Callable[[HostLost], None]
    ) -> None:
        """`address`: of this machine. `lost`: what to do when a host is gone; it is called once."""
        self._lost, self._others = lost, hosts - 1
        self._server = socket.create_server((address, 0), backlog=hosts)
        self._server.settimeout(BEAT_S)
        where: tuple[str, int] = self._server.getsockname()[:2]
        self._port = HeldPort()  # for JAX's service
        self.meeting = Meeting(where, f"{address}:{self._port.port}", hosts, key)
        self._to: dict[int, Connection] = {}
        self._heard_s: dict[int, float] = {}
        self._sending, self._losing = threading.Lock(), threading.Lock()
        self._ended = threading.Event()
        self._hear: Callable[[Word], None] = _nothing
        threading.Thread(target=self._gather, name="hosts", daemon=True).start()

    def hear(self, hear: Callable[[Word], None]) -> None:
        """`hear`: is told what other hosts say, each on a thread of its own."""
        self._hear = hear

    def entered(self) -> None:
        """JAX's service listens: its port is not held for it any more."""
        self._port.close()

    def send(self, order: object) -> None:
        """To all others. Errors: `OSError` if one of them is gone."""
        with self._sending:
            for connection in self._to.values():
                connection.send(order)

    def _gather(self) -> None:
        """Let connections in until all hosts are there; then watch over those."""
        with self._server:
            while len(self._to) < self._others:
                try:
                    connected, _ = self._server.accept()
                except TimeoutError:
                    continue  # look whether all are there
                except OSError as error:
                    log.warning("nobody can be let in: %s", error)
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
                    self._lose(f"host {number} of this island says nothing for {SILENCE_S:g} s")

    def _let_in(self, connected: socket.socket) -> None:
        """Let a host in, on a thread of its own; hang up on whoever takes too long to show that it
        is one."""
        late = threading.Timer(LET_IN_S, _hang_up, (connected,))
        late.daemon = True
        late.start()
        connection = Connection(os.dup(connected.fileno()))
        try:
            deliver_challenge(connection, self.meeting.key)
            answer_challenge(connection, self.meeting.key)
            number: object = connection.recv()
        except (AuthenticationError, EOFError, OSError) as error:
            log.warning("somebody was not let in: %s", str(error) or type(error).__name__)
            connection.close()
            return
        finally:
            late.cancel()
            connected.close()
        with self._sending:
            if not isinstance(number, int) or number in self._to:
                log.warning("somebody was not let in: it says that it is host %s", number)
                connection.close()
                return
            self._heard_s[number] = time.monotonic()
            self._to[number] = connection
        self._listen(number, connection)

    def _beat(self) -> None:
        """Not where silence is noticed: to a host that stands still, sending may block for ever."""
        while not self._ended.wait(BEAT_S):
            try:
                self.send(Beat())
            except OSError as error:
                self._lose(f"a host of this island cannot be told anything: {error}")

    def _listen(self, number: int, connection: Connection) -> None:
        while True:
            try:
                word: Word | Beat = connection.recv()
                self._heard_s[number] = time.monotonic()
                if not isinstance(word, Beat):
                    self._hear(word)
            except (EOFError, OSError):
                self._lose(f"host {number} of this island is gone")
                return
            except Exception as error:
                log.exception("what host %d of this island says could not be taken in", number)
                self._lose(f"what host {number} says could not be taken in: {error!r}")
                return

    def _lose(self, why: str) -> None:
        with self._losing:
            if self._ended.is_set():
                return
            self._ended.set()
        self._lost(HostLost(why))


class Other(Generic[SomeOrder]):
    """Another host's connection to the first, which gives such orders."""

    def __init__(self, meeting: Meeting, number: int, lost: Callable[[HostLost], None]) -> None:
        """`lost`: what to do when the first host is gone; called on any thread.

        Errors: `OSError`, `AuthenticationError`.
        """
        self._lost = lost
        self._connection = Client(meeting.orders, authkey=meeting.key)
        self._connection.send(number)
        self._orders = queue.SimpleQueue[SomeOrder]()
        self._sending, self._heard_s = threading.Lock(), time.monotonic()
        self._news = NewsThreads(_nothing, self._broke)

    def start(self, beside: Callable[[News | Fate], None]) -> None:
        """Listen from here on. `beside`: what is no order is told to it, on other threads
        (`NewsThreads`)."""
        self._news = NewsThreads(beside, self._broke)
        for target in (self._listen, self._beat, self._watch):
            threading.Thread(target=target, name="first host", daemon=True).start()

    def say(self, word: Word | Beat) -> None:
        with self._sending:
            self._connection.send(word)

    def close(self) -> None:
        """Be gone: both ends hear that there is nobody any more."""
        with socket.socket(fileno=os.dup(self._connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    def orders(self) -> Generator[SomeOrder]:
        """In their order, for ever: the end of the first host is that of this process."""
        while True:
            yield self._orders.get()

    def _listen(self) -> None:
        while True:
            try:
                message: SomeOrder | News | Fate | Beat = self._connection.recv()
            except (EOFError, OSError):
                self._lost(HostLost("the first host of this island is gone"))
                return
            except Exception as error:  # noqa: BLE001 - it cannot be read, which ends the process
                self._broke(error)
                return
            self._heard_s = time.monotonic()
            match message:
                case Beat():
                    pass
                case News() | Fate():
                    self._news.tell(message)
                case order:
                    self._orders.put(order)

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_S)
            try:
                self.say(Beat())
            except OSError:
                return  # whoever listens knows it too

    def _broke(self, error: BaseException) -> None:
        log.error("what the first host says could not be taken in", exc_info=error)
        self._lost(HostLost(f"what the first host says could not be taken in: {error!r}"))

    def _watch(self) -> None:
        while time.monotonic() - self._heard_s <= SILENCE_S:
            time.sleep(BEAT_S)
        self._lost(HostLost(f"the first host says nothing for {SILENCE_S:g} s"))


def enter(meeting: Meeting, number: int) -> None:
    """Have this process be one of the island: from here on `jax.devices()` are those of all hosts.

    Errors: `RuntimeError` if the others do not come.
    """
    import jax
    from jax._src.distributed import global_state

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        meeting.service, meeting.hosts, number, initialization_timeout=FORM_S
    )
    jax.devices()
    # JAX 0.10 lets process 0 alone write to its compilation cache
    global_state.process_id = 0


def _hang_up(connected: socket.socket) -> None:
    """Have whoever waits for the other end, at this one, hear that it is gone."""
    with suppress(OSError):  # it is gone already
        connected.shutdown(socket.SHUT_RDWR)


def _nothing(message: object) -> None:
    """Nobody listens yet."""
