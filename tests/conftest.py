"""Settings of all tests.

A test with the mark `needs` is deselected where a program or a folder is missing, and the last
lines of pytest name it. Token files and compiled programs are kept in the machine's temporary
folder, started processes receive Ctrl-C, and Hypothesis has no deadline.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from islands import token_files

ROOT = Path(__file__).resolve().parents[1]
MISSING = pytest.StashKey[dict[str, int]]()
"""The number of deselected tests, by what is missing."""
HERE = Path(tempfile.gettempdir()) / f"archipelago-tests-{os.getuid()}"
os.environ.setdefault(token_files.FOLDER, str(HERE))  # inherited by the processes that tests start
# Half of the CPU time of the tests of models would be XLA's, for programs that it compiled before.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(HERE / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests whose programs or folders are missing: they could only be skipped."""
    missing = config.stash.setdefault(MISSING, {})
    lacking = {item: absent for item in items if (absent := _absent(item))}
    for absent in lacking.values():
        missing[absent] = missing.get(absent, 0) + 1
    if lacking:
        items[:] = [item for item in items if item not in lacking]
        config.hook.pytest_deselected(items=[*lacking])


def _absent(item: pytest.Item) -> str | None:
    """Return the first thing that a test needs and this machine lacks.

    A name with a slash is a path from the root of the repository, any other one is a program.
    """
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            found = (ROOT / name).exists() if "/" in name else shutil.which(name) is not None
            if not found:
                return name
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what was missing."""
    for name, count in terminalreporter.config.stash.get(MISSING, {}).items():
        terminalreporter.write_line(f"{count} tests were deselected: {name} is not here")


@pytest.fixture(autouse=True)
def loggers_speak() -> None:
    """Enable our loggers, which a library that configures logging may have disabled."""
    logging.disable(logging.NOTSET)
    for name in [*logging.root.manager.loggerDict]:
        if name.partition(".")[0] in ("archipelago", "cluster", "islands", "coordinator"):
            logger = logging.getLogger(name)
            logger.disabled, logger.propagate = False, True
