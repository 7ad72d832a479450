"""The capture of packets: a text is found in it however TCP has cut, repeated or ordered it."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packets import LENGTH, packets, streams

TEXT = b"a text that goes over several packets, of which some are sent twice"
SOURCE, DESTINATION = ("10.0.0.1", 1000), ("10.0.0.2", 2000)


def packet(number: int, payload: bytes, padding: int = 0) -> bytes:
    ethernet = bytes(12) + (0x0800).to_bytes(2)
    length = 20 + 32 + len(payload)
    addresses = socket.inet_aton(SOURCE[0]) + socket.inet_aton(DESTINATION[0])
    ip = bytes([0x45, 0]) + length.to_bytes(2) + bytes(5) + bytes([6]) + bytes(2) + addresses
    ports = SOURCE[1].to_bytes(2) + DESTINATION[1].to_bytes(2)
    tcp = ports + (number % 2**32).to_bytes(4) + bytes(4) + bytes([8 << 4]) + bytes(19)
    return ethernet + ip + tcp + payload + bytes(padding)


def cut(start: int, step: int) -> Iterator[bytes]:
    for at in range(0, len(TEXT), step):
        yield packet(start + at, TEXT[at : at + step])


@pytest.mark.parametrize("start", [7, 2**32 - 20])
def test_stream_is_joined_in_order_without_repeated_bytes(start: int) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    shuffled = [packet(start, TEXT[:3]), *cut(start, 5), *cut(start, 8), packet(start + 9, b"", 6)]
    random.Random(seed).shuffle(shuffled)
    assert streams(shuffled) == [(SOURCE, DESTINATION, TEXT, 0)]


def test_missing_bytes_are_counted() -> None:
    whole = list(cut(7, 10))
    (stream,) = streams([*whole[:2], *whole[4:]])
    assert stream.missing == 20
    assert stream.content == TEXT[:20] + TEXT[40:]


def test_other_packets_are_left_out() -> None:
    assert streams([b"", bytes(60), packet(7, TEXT)[:12] + b"\x86\xdd" + bytes(60)]) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="a capture needs root")
def test_capture_has_what_was_sent(tmp_path: Path) -> None:
    file = tmp_path / "packets"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.packets", "lo", str(file)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            with accepted:
                client.sendall(TEXT * 1000)
                client.shutdown(socket.SHUT_WR)
                while accepted.recv(2**16):
                    pass
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()
    assert out == "0\n", "nothing was dropped"
    (stream,) = [each for each in streams(packets(file)) if each.destination[1] == port]
    assert (stream.content, stream.missing) == (TEXT * 1000, 0)
    assert file.stat().st_size > len(TEXT) * 1000 + LENGTH.size
