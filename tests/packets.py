"""A capture of the packets of a network device, and the TCP streams in it.

`python -m tests.packets DEVICE FILE` writes all packets of a device to a file until SIGTERM, and
then prints how many the kernel has dropped because the capture was too slow.
"""

from __future__ import annotations

import signal
import socket
import struct
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ALL_PROTOCOLS = 3
"""ETH_P_ALL of <linux/if_ether.h>: packets in both directions."""
STATISTICS = (263, 6)
"""SOL_PACKET and PACKET_STATISTICS of <linux/if_packet.h>."""
FORCED_BUFFER = 33
"""SO_RCVBUFFORCE of <asm/socket.h>."""
BUFFER = 128 * 2**20
LONGEST = 2**17
"""More than the bytes of the longest packet of a device with segmentation offload."""
LENGTH = struct.Struct("<I")
IPV4, TCP = 0x0800, 6


class Stream(NamedTuple):
    """The bytes that one side of a TCP connection has sent."""

    source: tuple[str, int]
    destination: tuple[str, int]
    content: bytes
    missing: int
    """The bytes between the first and the last byte that the capture does not have."""


def capture(device: str, file: Path) -> int:
    """Write the packets of a device to a file until SIGTERM; return how many were dropped."""
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS)) as tap,
        file.open("wb") as out,
    ):
        tap.setsockopt(socket.SOL_SOCKET, FORCED_BUFFER, BUFFER)
        tap.bind((device, ALL_PROTOCOLS))
        tap.settimeout(0.2)
        ends = list[int]()
        signal.signal(signal.SIGTERM, lambda number, _: ends.append(number))
        print("ready", flush=True)
        while True:
            try:
                packet = tap.recv(LONGEST)
            except TimeoutError:
                if ends:
                    break
                continue
            out.write(LENGTH.pack(len(packet)) + packet)
        _, dropped = struct.unpack("II", tap.getsockopt(*STATISTICS, 8))
    return dropped


def packets(file: Path) -> Iterator[bytes]:
    """Yield the packets of a capture, from the Ethernet header on."""
    content, place = file.read_bytes(), 0
    while place < len(content):
        (length,) = LENGTH.unpack_from(content, place)
        place += LENGTH.size + length
        yield content[place - length : place]


def streams(captured: Iterable[bytes]) -> list[Stream]:
    """Return the streams of all TCP connections, each byte once and in the order of sending.

    A word that two packets share is whole again in a stream.
    """
    segments = defaultdict[tuple[tuple[str, int], tuple[str, int]], list[tuple[int, bytes]]](list)
    for packet in captured:
        if (found := _segment(packet)) is not None:
            source, destination, number, payload = found
            segments[source, destination].append((number, payload))
    return [_joined(*sides, each) for sides, each in segments.items()]


def _segment(packet: bytes) -> tuple[tuple[str, int], tuple[str, int], int, bytes] | None:
    """Return source, destination, sequence number and payload; None: it is no TCP over IPv4."""
    if len(packet) < 14 or int.from_bytes(packet[12:14]) != IPV4 or packet[23] != TCP:
        return None
    header = 14 + 4 * (packet[14] & 15)
    end = 14 + int.from_bytes(packet[16:18])  # the device pads short frames
    source, destination = (socket.inet_ntoa(packet[at : at + 4]) for at in (26, 30))
    ports = struct.unpack_from("!HH", packet, header)
    start = header + 4 * (packet[header + 12] >> 4)
    number = int.from_bytes(packet[header + 4 : header + 8])
    return (source, ports[0]), (destination, ports[1]), number, packet[start:end]


def _joined(
    source: tuple[str, int], destination: tuple[str, int], segments: list[tuple[int, bytes]]
) -> Stream:
    """Join segments; sequence numbers are counted from the first one, because they wrap."""
    first = segments[0][0]
    placed = sorted(
        ((((number - first + 2**31) % 2**32) - 2**31, payload) for number, payload in segments),
        key=lambda each: each[0],
    )
    content, missing, place = bytearray(), 0, None
    for start, payload in placed:
        if not payload:
            continue
        if place is None or start > place:
            missing += 0 if place is None else start - place
            place = start
        content += payload[place - start :]
        place = max(place, start + len(payload))
    return Stream(source, destination, bytes(content), missing)


if __name__ == "__main__":
    print(capture(sys.argv[1], Path(sys.argv[2])))
