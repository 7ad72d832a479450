"""Training of the missing cells, in a pool of processes on all cores."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from archipelago.lab.study.cells import Broken, Cell, CellFiles, CellResult
from archipelago.lab.training.evaluations import Evaluation
from archipelago.lab.training.question_sets import QuestionSets
from archipelago.lab.training.virtual_file import load, refuse
from cluster.source import source_sha256
from cluster.workers.environment import take_one_thread
from coordinator.errors import ArchipelagoError


def found(files: CellFiles, cells: Mapping[str, Cell], *, retry: bool) -> dict[str, CellResult]:
    """Return the results made before; with `retry` without the failed ones.

    Errors: `UserMistake` with every file that is broken.
    """
    made, problems = dict[str, CellResult](), list[str]()
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
    files: CellFiles, cells: Mapping[str, Cell], jobs: int, done: Callable[[str, CellResult], None]
) -> None:
    """Train these cells; `done` is called with each one once its file is written.

    They start in their order, in `jobs` processes at once. An early end, such as Ctrl-C, drops the
    cells under way and leaves no process; finished cells are kept.

    Errors: `UserMistake` if a file of questions is broken, before any cell starts.
    """
    for tasks in {cell.virtual.tasks for cell in cells.values()}:
        QuestionSets.of(tasks)
    for cell in cells.values():
        files.ask(cell)
    if not cells:
        return
    take_one_thread()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the workers share a GPU

    with _workers(min(jobs, len(cells))) as pool:
        with _deaf():  # inherited by the workers started here, for good
            waiting = {pool.submit(trained, files.config_path(key)): key for key in cells}
        try:
            while waiting:
                finished, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in finished:
                    made = future.result()
                    files.keep(waiting[future], made)
                    done(waiting.pop(future), made)
        except KeyboardInterrupt:
            for future, key in waiting.items():
                if future.done():
                    files.keep(key, future.result())
            raise


@contextmanager
def _workers(count: int) -> Generator[ProcessPoolExecutor]:
    """Provide processes that are killed at the end of the block, or of this process."""
    context = multiprocessing.get_context("spawn")
    watched, held = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(
        count, mp_context=context, initializer=_end_with, initargs=(watched,)
    )
    try:
        yield pool
    except BaseException:
        with _deaf():  # the shutdown takes a moment
            held.close()
            pool.shutdown(cancel_futures=True)
        raise
    else:
        pool.shutdown()
    finally:
        held.close()
        watched.close()


def _end_with(watched: Connection) -> None:
    """Make this worker exit when the parent closes its side of the pipe."""

    def watch() -> None:
        watched.poll(None)
        os._exit(1)

    threading.Thread(target=watch, name="watch", daemon=True).start()


@contextmanager
def _deaf() -> Generator[None]:
    """Ignore Ctrl-C, which a terminal sends to all processes that it has started."""
    old_handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old_handler)


def nothing(figures: Mapping[str, object]) -> str:
    """Return why a run that has ended counts as failed; empty if it does not."""
    loss, refused = figures["heldout_loss"], figures["rejected_contributions"]
    if not figures["merges"]:
        return f"nothing was merged, and {refused} contributions were refused: it diverged"
    if isinstance(loss, float) and not math.isfinite(loss):
        return "it diverged: the held-out loss is not finite"
    return ""


def trained(path: Path) -> CellResult:
    """Train the run that this file describes, in this process."""
    from archipelago.lab.training.train import train

    began_s = time.monotonic()
    config, virtual = load(path)
    figures, curve, failed = dict[str, object](), list[Evaluation](), ""
    try:
        learned = train(config, virtual, virtual.look_every, virtual.average_shares, virtual.tasks)
        figures, curve = learned.figures, [*learned.curve]
        failed = nothing(figures)
    except ArchipelagoError as error:
        failed = str(error)
    return CellResult(figures, curve, failed, time.monotonic() - began_s, source_sha256())
