"""A part of `bench accelerator` that runs in a process of its own, as the bench sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
QUICK_FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""For XLA: nearly all the time of the quick form is compilation."""
STUDY_FLAGS = "--xla_gpu_autotune_level=0"
"""For XLA: trying algorithms takes longer than so few steps could gain."""
GRACE_S = 3.0
"""A part that is asked to end has so long before it is killed."""


@dataclass(slots=True)
class Child:
    """A part that runs; `figures`: what it has written so far."""

    name: str
    path: Path
    log: Path
    process: subprocess.Popen[bytes]
    figures: dict[str, Any] = field(default_factory=dict[str, Any])
    ended: str | None = None
    """Why it ended, empty if it has done everything; None while it runs."""

    def read(self) -> None:
        """Read what it has written since."""
        if self.path.exists():
            self.figures = json.loads(self.path.read_text(encoding="utf-8"))

    def look(self) -> bool:
        """Read what there is; return whether it runs on."""
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
        """The last lines that it wrote for people."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return " | ".join(text.strip().splitlines()[-4:])[-800:]

    def stop(self, why: str) -> None:
        """End it, if it has not ended."""
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
    """Start a part; its figures and its log are in `folder`. `alone`: see `environment`."""
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
    """Return what a part has in its environment; `alone`: no other part shares its device."""
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
        env.setdefault("XLA_FLAGS", STUDY_FLAGS)
    return env
