"""The forwarder: it holds back each packet between two regions for the time light would take.

Where the kernel has no `netem`, the backbone routes packets from regions into a TUN device, and
this process writes them back into it later. TCP stays end to end, so windows and congestion control
behave as on a real link. The device has `IFF_VNET_HDR` and TSO: the kernel hands over up to 64 KB
at once. `python -m archipelago.lab.wan.delay NAME` runs it in the backbone's namespace.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import signal
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

from archipelago.lab.wan.network import FILE, FOLDER, Network, parsed

DEVICE = "delay"
"""The name of the TUN device in the backbone's namespace."""
HEADER_BYTES = 10
"""The size of the virtio network header in front of each packet."""
MOST_BYTES = 70_000
"""A bound in bytes that no packet with its header reaches."""
BATCH = 256
"""Packets that are read before those that are due are written."""
LOOK_S = 0.2
"""Seconds between two looks at the network's file, and the longest wait."""

_TUNSETIFF, _TUNSETVNETHDRSZ, _TUNSETOFFLOAD = 0x400454CA, 0x400454D8, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02
_IP_VERSION, _SOURCE, _DESTINATION = HEADER_BYTES, HEADER_BYTES + 14, HEADER_BYTES + 18
"""Places in a packet: the version, and the third number of either IPv4 address."""


def opened() -> int:
    """Create the TUN device in this process's network namespace; it ends with the process."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), flags))
    fcntl.ioctl(device, _TUNSETVNETHDRSZ, struct.pack("i", HEADER_BYTES))
    fcntl.ioctl(device, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
    return device


class Delays:
    """The one-way delay between any two regions, from the network's file as it is now."""

    def __init__(self, file: Path) -> None:
        self._file, self._read_at = file, 0
        self._delay_s: dict[int, float] = {}
        self._jitter_s: dict[int, float] = {}
        self.look()

    def look(self) -> None:
        """Read the file again if it has changed."""
        changed_at = self._file.stat().st_mtime_ns
        if changed_at != self._read_at:
            self._read_at = changed_at
            network: Network = parsed(self._file.read_text())
            self._delay_s = {each.number: each.delay_s for each in network.regions}
            self._jitter_s = {each.number: each.jitter_ms / 1000 for each in network.regions}

    def of(self, source: int, destination: int) -> float:
        """Return the seconds that a packet from one region to another is held back."""
        held_s = self._delay_s.get(source, 0.0) + self._delay_s.get(destination, 0.0)
        jitter_s = max(self._jitter_s.get(source, 0.0), self._jitter_s.get(destination, 0.0))
        return held_s + (random.uniform(0.0, jitter_s) if jitter_s else 0.0)


class HeldPackets:
    """The packets that are held back, in the order in which they are due.

    Packets between the same two regions never overtake each other.
    """

    def __init__(self, delays: Delays) -> None:
        self._delays = delays
        self._heap: list[tuple[float, int, bytes]] = []
        self._last_s: dict[tuple[int, int], float] = {}
        self._count = 0

    def take(self, packet: bytes, now_s: float) -> None:
        """Hold a packet back; drop what is not IPv4."""
        if packet[_IP_VERSION] >> 4 != 4:
            return
        ends = packet[_SOURCE], packet[_DESTINATION]
        due_s = max(now_s + self._delays.of(*ends), self._last_s.get(ends, 0.0))
        self._last_s[ends] = due_s
        self._count += 1
        heapq.heappush(self._heap, (due_s, self._count, packet))

    def next_s(self) -> float | None:
        """Return when the next packet is due; None if none is held."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_s: float) -> bytes | None:
        """Return the next packet if it is due, and keep it until `sent`."""
        return self._heap[0][2] if self._heap and self._heap[0][0] <= now_s else None

    def sent(self) -> None:
        """Forget the packet that `due` returned."""
        heapq.heappop(self._heap)


def forward(device: int, file: Path) -> None:
    """Hold packets back until the network's file is gone or a signal ends the process."""
    delays = Delays(file)
    held, looked_s = HeldPackets(delays), time.monotonic()
    while True:
        now_s = time.monotonic()
        while (packet := held.due(now_s)) is not None:
            try:
                os.write(device, packet)
            except BlockingIOError:
                break
            except OSError:
                pass  # a region has gone: the packet is lost, as on a real link
            held.sent()
        if now_s - looked_s > LOOK_S:
            looked_s = now_s
            try:
                delays.look()
            except FileNotFoundError:
                return
        next_s = held.next_s()
        wait_s = LOOK_S if next_s is None else min(LOOK_S, max(0.0, next_s - now_s))
        if select.select([device], (), (), wait_s)[0]:
            with suppress(BlockingIOError):
                for _ in range(BATCH):
                    held.take(os.read(device, MOST_BYTES), time.monotonic())


def main() -> None:
    """Forward packets of the network whose name is the first argument."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    device = opened()
    print("ready", flush=True)
    forward(device, FOLDER / sys.argv[1] / FILE)


if __name__ == "__main__":
    main()
