"""Settings of all tests.

Token files are kept in the machine's temporary folder, started processes receive Ctrl-C, and
Hypothesis has no deadline.
"""

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
os.environ.setdefault(token_files.FOLDER, str(HERE))  # inherited by the processes that tests start

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control makes background processes, and all their children, ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# On two busy cores a deadline fails by chance. The blob repeats a failure without the database.
settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")


@pytest.fixture(autouse=True)
def excepthook() -> Generator[None]:
    """Restore `threading.excepthook`, which an actor made in this process may replace."""
    before = threading.excepthook
    yield
    threading.excepthook = before
