"""A ring all-reduce over plain TCP: data-parallel training, DiLoCo and streaming at their best.

It is a stand-in: a step is idle time, and the buffers are 16-bit integers in the place of bf16 or
packed fours. The bytes, the hops and the sums are those of a real ring. One process runs in each
region: `python -m archipelago.lab.bench.wan_ring JSON`.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cluster.storage.files import json_text

PORT = 5200
"""The port of the first stream; each further stream has the next one."""
WITHIN_S = 300.0
"""Timeout of a connection and of each transfer, in seconds."""
Buffer = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class RingPlan:
    """The steps and all-reduces of the members of a ring."""

    addresses: tuple[str, ...]
    """The members' addresses, in the order of the ring."""
    nbytes: int
    """Bytes of one all-reduce."""
    every: int
    """Steps between two all-reduces."""
    overlap: int
    """Steps for which an all-reduce may go on beside training; -1: training waits for it.

    0 gives it the step that it belongs to, as if all gradients were there at its start.
    """
    step_s: float
    streams: int
    """Connections to the next member, used side by side."""
    buckets: int
    """Buckets of one stream in an all-reduce, one after another."""
    warm: int
    """All-reduces that are not measured."""
    measured: int
    """All-reduces that are."""


class RingStream:
    """One connection to the next member and one from the previous, with a thread that sends."""

    def __init__(self, plan: RingPlan, rank: int, number: int) -> None:
        size = len(plan.addresses)
        self._rank, self._size = rank, size
        port = PORT + number
        with socket.create_server((plan.addresses[rank], port)) as server:
            server.settimeout(WITHIN_S)
            self._next = _connected(plan.addresses[(rank + 1) % size], port)
            self._previous, _ = server.accept()
        for each in (self._next, self._previous):
            each.settimeout(WITHIN_S)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sender = ThreadPoolExecutor(1, f"send-{number}")

    def reduce(self, buffer: Buffer) -> None:
        """Replace the buffer by the sum over all members: reduce-scatter, then all-gather."""
        chunks = np.array_split(buffer, self._size)
        room = np.empty_like(chunks[0])
        for hop in range(self._size - 1):
            target = chunks[(self._rank - hop - 1) % self._size]
            self._exchange(chunks[(self._rank - hop) % self._size], room[: target.size])
            target += room[: target.size]
        for hop in range(self._size - 1):
            target = chunks[(self._rank - hop) % self._size]
            self._exchange(chunks[(self._rank + 1 - hop) % self._size], target)

    def _exchange(self, outgoing: Buffer, incoming: Buffer) -> None:
        """Send one chunk to the next member while one comes from the previous."""
        sent = self._sender.submit(self._next.sendall, outgoing.data.cast("B"))
        view = incoming.data.cast("B")
        while view:
            if not (count := self._previous.recv_into(view)):
                raise ConnectionError("the previous member of the ring has ended")
            view = view[count:]
        sent.result()

    def close(self) -> None:
        """Close both connections."""
        self._sender.shutdown()
        for each in (self._next, self._previous):
            each.close()


def _connected(address: str, port: int) -> socket.socket:
    end_s = time.monotonic() + WITHIN_S
    while True:
        try:
            return socket.create_connection((address, port), 5.0)
        except OSError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.1)


class TcpRing:
    """This process's member of a ring."""

    def __init__(self, plan: RingPlan, rank: int) -> None:
        made = ThreadPoolExecutor(plan.streams)
        self._streams = [*made.map(lambda n: RingStream(plan, rank, n), range(plan.streams))]
        made.shutdown()
        self._pool = ThreadPoolExecutor(plan.streams, "stream")
        self._buckets = plan.buckets

    def reduce(self, buffer: Buffer) -> None:
        """Sum a buffer over all members, in place."""
        parts = np.array_split(buffer, len(self._streams))

        def run(stream: RingStream, part: Buffer) -> None:
            for bucket in np.array_split(part, self._buckets):
                stream.reduce(bucket)

        pairs = zip(self._streams, parts, strict=True)
        for done in [self._pool.submit(run, *pair) for pair in pairs]:
            done.result()

    def close(self) -> None:
        """Close all connections."""
        self._pool.shutdown()
        for stream in self._streams:
            stream.close()


def train(plan: RingPlan, rank: int) -> dict[str, Any]:
    """Step and reduce as planned; return the seconds of the measured part and of each all-reduce.

    `steps`: the steps of the measured part.
    """
    ring, buffer = TcpRing(plan, rank), np.ones(plan.nbytes // 2, np.uint16)
    ring.reduce(np.ones(64, np.uint16))  # all members are there
    took_s, lock, beside = list[float](), threading.Lock(), ThreadPoolExecutor(1, "beside")

    def reduce() -> None:
        began_s = time.monotonic()
        ring.reduce(buffer)
        with lock:
            took_s.append(time.monotonic() - began_s)

    waiting: list[tuple[int, Future[None]]] = []
    began_s = time.monotonic()
    steps = plan.every * (plan.warm + plan.measured)
    for step in range(1, steps + 1):
        if plan.overlap == 0 and step % plan.every == 0:
            waiting.append((step, beside.submit(reduce)))
        time.sleep(plan.step_s)
        if plan.overlap != 0 and step % plan.every == 0:
            waiting.append((step + max(0, plan.overlap), beside.submit(reduce)))
        while waiting and waiting[0][0] <= step:
            waiting.pop(0)[1].result()
        if step == plan.every * plan.warm:
            began_s = time.monotonic()
            took_s.clear()
    seconds = time.monotonic() - began_s
    for _, done in waiting:
        done.result()
    ring.close()
    return {"seconds": seconds, "steps": plan.every * plan.measured, "reduce_s": took_s}


def plan_from(text: str) -> tuple[RingPlan, int]:
    """Return the plan and the rank that a process was started with."""
    fields: Any = json.loads(text)
    rank = fields.pop("rank")
    fields["addresses"] = tuple(fields["addresses"])
    return RingPlan(**fields), rank


def main(arguments: Sequence[str]) -> None:
    """Train by the plan in the first argument, in JSON, and print the figures as JSON."""
    print(json_text(train(*plan_from(arguments[0]))))


if __name__ == "__main__":
    main(sys.argv[1:])
