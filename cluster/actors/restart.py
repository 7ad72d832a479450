"""Restarts of the syncer's and shards' processes, and refusals of code that has changed."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import NoReturn

from cluster.source import source_sha256


def code_changed(targets: Mapping[str, str | None], was: str, now: str) -> str | None:
    """Return why the code that the user plugged in is not the run's code; None if it is.

    `targets`: the keys that name the code, with their values. `was`, `now`: its `user_sha256` at
    the start of the run, and in the calling process.
    """
    if now == was:
        return None
    named = ", ".join(f"{key} = {target!r}" for key, target in targets.items())
    return (
        f"the code of {named} is {now or 'gone'}, and was {was or 'none'} when the run "
        "began: put its files back, or end the run, since --resume uses the code that is there then"
    )


def source_differs(source: str, ours: str) -> str | None:
    """Return why an island with this source may not join; None if its source is the same.

    `ours`: names the process to compare with, such as "the syncer's".
    """
    if source == (own_source := source_sha256()):
        return None
    return f"its source is {source}, {ours} is {own_source}: update its node"


def start_over(why: str) -> NoReturn:
    """End this process so that Ray restarts it.

    The syncer comes back as a new generation, a shard with its stored versions. A process that Ray
    no longer lists is not restarted.
    """
    logging.error("this process starts over: %s", why)
    logging.shutdown()
    os._exit(1)
