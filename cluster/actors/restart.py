"""How a process of the core starts over, and what is said where code has changed."""

from __future__ import annotations

import logging
import os
from typing import NoReturn


def code_changed(key: str, target: str | None, was: str, now: str) -> str:
    return (
        f"the code of {key} = {target!r} is {now or 'gone'}, and was {was or 'none'} when the run "
        "began: put its files back, or end the run, since --resume goes on with what is there then"
    )


def start_over(why: str) -> NoReturn:
    """End this process, so that Ray restarts it: the syncer as a new generation, a shard with what
    is stored; unless it is one that Ray knows of no more."""
    logging.error("this process starts over: %s", why)
    logging.shutdown()
    os._exit(1)
