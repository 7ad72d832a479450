"""For all tests: what is read of a corpus is kept where the machine's temporary files are, what
they start hears Ctrl-C, and no search has a deadline."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from islands import token_files

HERE = Path(tempfile.gettempdir()) / f"archipelago-tests-{os.getuid()}"
os.environ.setdefault(token_files.FOLDER, str(HERE))  # also for the processes that tests start

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell without job control has what it starts in the background ignore Ctrl-C, and all that
    # comes from it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Two busy cores make a deadline a matter of luck; the blob repeats a failure without the database.
settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")


@pytest.fixture(autouse=True)
def excepthook() -> Generator[None]:
    """An actor that a test makes in this process hears of threads that die, until the test ends."""
    before = threading.excepthook
    yield
    threading.excepthook = before
