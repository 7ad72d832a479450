"""The names of trackers in `monitor.track`."""

from __future__ import annotations

import re

from pydantic_core import PydanticCustomError

from cluster.config.values import TARGET, nearest

TRACKERS = {"tensorboard": "tensorboardX", "wandb": "wandb"}
"""The trackers that are built in, each with the module that it needs; the extra has its name."""


def tracker_name(value: str) -> str:
    """Validate the name of a tracker: one of `TRACKERS`, or the user's own "module:attribute".

    Errors: `PydanticCustomError`.
    """
    if value in TRACKERS or re.match(TARGET, value):
        return value
    known = " or ".join(f'"{name}"' for name in TRACKERS)
    why = f'"{value}" is no tracker; use {known}, or your own "module:attribute"'
    if (hint := nearest(value, [*TRACKERS])) and "did you mean" in hint:
        why = f"{why} ({hint})"
    raise PydanticCustomError("tracker", "{why}", {"why": why})
