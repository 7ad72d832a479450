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
    """Return a hint on how to resume a run that ended without its result."""
    return f"resume with `archipelago run {run_dir / 'config.toml'} --resume --run-dir {run_dir}`"


def not_live(run_dir: Path) -> str:
    """Return the message of a command that needs a live run, for one that is not live."""
    return (
        f"run {run_dir} is not live, so this command can do nothing; `archipelago export` writes "
        f"its model; if it was killed, {resume_hint(run_dir)}"
    )


@contextmanager
def printed_if_killed(words: str) -> Generator[None]:
    """Have `words` printed to standard error if this process dies inside the block."""
    read_end, write_end = os.pipe()
    try:
        helper = subprocess.Popen(
            ["sh", "-c", _SCRIPT, words], stdin=read_end, start_new_session=True
        )
    finally:
        os.close(read_end)
    try:
        yield
    finally:
        with suppress(BrokenPipeError):  # another process has ended the helper
            os.write(write_end, b"over\n")
        os.close(write_end)
        with suppress(subprocess.TimeoutExpired):
            helper.wait(GONE_S)
