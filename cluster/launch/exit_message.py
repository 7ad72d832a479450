"""The last words of a terminal's process that is ended by what it cannot answer.

If Ray's node dies under `archipelago run`, Ray ends this process from within, and no Python code
runs any more. A small process beside it waits for that, and says how to go on.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

GONE_S = 5.0
"""So long the process beside this one is waited for at the end."""
_SCRIPT = 'IFS= read -r said || printf "%s\\n" "$0" >&2'


def resume_hint(run_dir: Path) -> str:
    """Return how to go on with a run that has ended without its result."""
    return f"go on with `archipelago run {run_dir / 'config.toml'} --resume --run-dir {run_dir}`"


@contextmanager
def last_words(words: str) -> Generator[None]:
    """Have these words said on standard error if this process does not get out of the block."""
    ours, theirs = os.pipe()
    try:
        beside = subprocess.Popen(["sh", "-c", _SCRIPT, words], stdin=ours, start_new_session=True)
    finally:
        os.close(ours)
    try:
        yield
    finally:
        with suppress(BrokenPipeError):  # somebody has ended it
            os.write(theirs, b"over\n")
        os.close(theirs)
        with suppress(subprocess.TimeoutExpired):
            beside.wait(GONE_S)
