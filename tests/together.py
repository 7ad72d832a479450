"""Hosts that compute as one, each in a process of its own, for tests without Ray."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]


def together(
    function: str,
    hosts: int,
    arguments: Callable[[str, int], tuple[object, ...]],
    environment: Mapping[str, str],
) -> list[str]:
    """Call `MODULE:FUNCTION` in `hosts` concurrent processes; return the output of each.

    `arguments`: returns a process's arguments for the common address and its number.
    """
    module, _, name = function.partition(":")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    codes = [f"import {module} as these; these.{name}{arguments(address, n)}" for n in range(hosts)]
    begun = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for code in codes
    ]
    said = [each.communicate() for each in begun]
    errors = "\n".join(err for _, err in said)
    assert [each.returncode for each in begun] == [0] * hosts, errors
    return [out for out, _ in said]
