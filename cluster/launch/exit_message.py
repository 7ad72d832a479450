"""A message for the case that Ray ends the terminal's process from within.

If Ray's node dies under `archipelago run`, Ray ends this process, and no Python code runs any
more. A small helper process waits for that, and prints how to resume the run.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

GONE_S = 5.0
"""Timeout for the helper process to end, in seconds."""
_SCRIPT = 'IFS= read -r said || printf "%s\\n" "$0" >&2'


def resume_hint(run_dir: Path) -> str:
    """Return a hint that says how to resume a run that ended without its result."""
    return f"go on with `archipelago run {run_dir / 'config.toml'} --resume --run-dir {run_dir}`"


@contextmanager
def last_words(words: str) -> Generator[None]:
    """Have `words` printed to standard error if this process dies inside the block."""
    ours, theirs = os.pipe()
    try:
        beside = subprocess.Popen(["sh", "-c", _SCRIPT, words], stdin=ours, start_new_session=True)
    finally:
        os.close(ours)
    try:
        yield
    finally:
        with suppress(BrokenPipeError):  # the helper was ended by somebody
            os.write(theirs, b"over\n")
        os.close(theirs)
        with suppress(subprocess.TimeoutExpired):
            beside.wait(GONE_S)
