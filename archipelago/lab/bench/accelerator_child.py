"""The bench's handle on a part of `bench accelerator` that runs in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
"""The folder that has the packages."""
QUICK_FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""Flags for XLA in the quick form, where compilation takes nearly all the time."""
GRACE_S = 3.0
"""Seconds that a part has to end before it is killed."""


@dataclass(slots=True)
class Child:
    """A part in its process."""

    name: str
    path: Path
    """The file of its figures."""
    log: Path
    """The file of its output."""
    process: subprocess.Popen[bytes]
    figures: dict[str, Any] = field(default_factory=dict[str, Any])
    """The figures that it has written so far."""
    ended: str | None = None
    """The reason for its end, empty if it has done everything; None while it runs."""

    def read(self) -> None:
        """Read the figures that it has written so far."""
        if self.path.exists():
            self.figures = json.loads(self.path.read_text(encoding="utf-8"))

    def look(self) -> bool:
        """Read the figures, and return whether it still runs."""
        if self.ended is not None:
            return False
        code = self.process.poll()
        self.read()
        if code is None:
            return True
        self.ended = "" if code == 0 else f"it ended with {code}: {self.tail}"
        return False

    @property
    def tail(self) -> str:
        """The last lines of its output."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return " | ".join(text.strip().splitlines()[-4:])[-800:]

    def stop(self, why: str) -> None:
        """Stop it for this reason, unless it has ended."""
        if not self.look():
            return
        self.process.terminate()
        try:
            self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.read()
        self.ended = why


def start_part(folder: Path, name: str, limit_s: float, *, quick: bool, alone: bool) -> Child:
    """Start a part, with its figures and its log in `folder`. `alone`: see `environment`."""
    path, log = folder / f"{name}.json", folder / f"{name}.log"
    path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "archipelago.lab.bench.accelerator_parts", name]
    command += ["--into", str(path), "--for", f"{limit_s:.1f}"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command + ["--quick"] * quick,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            env=environment(quick=quick, alone=alone),
            cwd=folder,
            process_group=0,
        )
    return Child(name, path, log, process)


def environment(*, quick: bool, alone: bool) -> dict[str, str]:
    """Return the environment of a part; `alone` if no other part shares its device."""
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    env["PYTHONUNBUFFERED"] = "1"
    if quick:
        env.setdefault("JAX_PLATFORMS", "cpu")
        env.setdefault("XLA_FLAGS", QUICK_FLAGS)
    first = env.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    env["CUDA_VISIBLE_DEVICES"] = first
    if alone:
        env.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.90")
    else:
        env["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    return env
