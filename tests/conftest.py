"""For all tests: what is read of a corpus is kept where the machine's temporary files are."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from islands import token_files

HERE = Path(tempfile.gettempdir()) / f"archipelago-tests-{os.getuid()}"
os.environ.setdefault(token_files.FOLDER, str(HERE))  # also for the processes that tests start
