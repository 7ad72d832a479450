"""Ray's messages about the cluster, which go to the standard error."""

from __future__ import annotations

import functools
from typing import Any

from ray._private import worker

_TO_STREAM = worker.print_to_stdstream


def messages_to_stderr() -> None:
    """Let this process print Ray's messages to the standard error; call it before `ray.init`.

    Ray prints some to the standard output, also without `log_to_driver`: the end of a node, for
    example. There they are between the lines of `--json`, and break what reads them.
    """
    worker.print_to_stdstream = _to_stderr


@functools.wraps(_TO_STREAM)
def _to_stderr(data: dict[str, Any], ignore_prefix: bool) -> None:
    _TO_STREAM({**data, "is_err": True}, ignore_prefix)
