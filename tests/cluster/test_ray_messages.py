"""Ray's messages about the cluster go to the standard error."""

from __future__ import annotations

import subprocess
import sys

PRINTED = """
from ray._private import worker
from cluster.launch.ray_messages import messages_to_stderr

def message(text):
    message = {"lines": [text], "pid": "raylet", "is_err": False}
    worker.print_to_stdstream(message, ignore_prefix=False)

message("The node was marked dead.")
messages_to_stderr()
messages_to_stderr()
message("Another one was.")
"""


def test_message_of_the_cluster_is_not_on_the_standard_output() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRINTED], capture_output=True, text=True, check=True, timeout=90
    )
    assert "marked dead" in done.stdout, "so Ray does by itself"
    assert "Another one" not in done.stdout
    assert done.stderr.count("Another one") == 1
