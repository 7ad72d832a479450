"""Trains the cells that are missing, each in a process of its own choosing, on all cores."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

from cluster.host.environment import take_one_thread
from cluster.study.cells import Broken, Cell, CellFiles, Made, source
from cluster.virtual.door import load, refuse
from cluster.virtual.looks import Look
from coordinator.errors import ArchipelagoError


def found(files: CellFiles, cells: Mapping[str, Cell], *, retry: bool) -> dict[str, Made]:
    """What was made before; `retry`: without those that came to nothing.

    Errors: `UserMistake` with every file that is broken.
    """
    made, problems = dict[str, Made](), list[str]()
    for key in cells:
        try:
            each = files.find(key)
        except Broken as error:
            problems.append(str(error))
            continue
        if each is not None and not (retry and each.failed):
            made[key] = each
    refuse(str(files.folder), problems)
    return made


def make(
    files: CellFiles, cells: Mapping[str, Cell], jobs: int, done: Callable[[str, Made], None]
) -> None:
    """Train these cells; `done` is told of each one once its file is there.

    They are begun in their order, in so many processes at once. Whoever interrupts this finds the
    finished ones again.
    """
    for cell in cells.values():
        files.ask(cell)
    if not cells:
        return
    take_one_thread()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # they share a GPU
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(cells)), mp_context=context) as pool:
        waiting: dict[Future[Made], str] = {
            pool.submit(trained, files.config_path(key)): key for key in cells
        }
        try:
            while waiting:
                over, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in over:
                    key = waiting.pop(future)
                    made = future.result()
                    files.keep(key, made)
                    done(key, made)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def nothing(figures: Mapping[str, object]) -> str:
    """Why a run that has ended has come to nothing; empty if it has not."""
    loss, refused = figures["heldout_loss"], figures["rejected_contributions"]
    if not figures["merges"]:
        return f"nothing was merged, and {refused} contributions were refused: it diverged"
    if isinstance(loss, float) and not math.isfinite(loss):
        return "it diverged: the held-out loss is not finite"
    return ""


def trained(path: Path) -> Made:
    """Train what this file says, in this process."""
    from cluster.virtual.train import train

    began_s = time.monotonic()
    config, virtual = load(path)
    figures, curve, failed = dict[str, object](), list[Look](), ""
    try:
        learned = train(config, virtual, virtual.look_every)
        figures, curve = learned.figures, [*learned.curve]
        failed = nothing(figures)
    except ArchipelagoError as error:
        failed = str(error)
    return Made(figures, curve, failed, time.monotonic() - began_s, source())
