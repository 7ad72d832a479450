"""The check of a task's own source of data before a run: its members, its leases and one batch."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Iterator
from typing import Any

import jax

from coordinator.errors import UserMistake
from coordinator.protocol import Lease
from islands.stream_like import Batch, StreamLike
from islands.task import Task, leaf_path
from islands.user_lines import place_of, raised_by

log = logging.getLogger("archipelago.data")
MEMBERS = ("batch_size", "add", "next", "cursor", "remaining")
"""The members of `StreamLike`."""
LONGEST_S = 60.0
"""Seconds that the check of a stream may take; a source may have to wait for its data."""
SHOWN = 6
"""Arrays of a batch that a message names before it only counts them."""


def stream_problems(
    task: Task,
    stream: object,
    batch_size: int,
    lease_windows: int,
    heldout: Batch,
    *,
    longest_s: float = LONGEST_S,
) -> list[str]:
    """Return why this cannot be the data source of an island; empty if it can.

    A message begins with the file and line of the stream's class. The check ends at the first
    problem. If a batch is not there in time, nothing is reported: the source may still be waiting.

    Args:
        task: The task that made the stream.
        stream: The result of `task.stream(batch_size)`. Its first batch is consumed.
        batch_size: Windows in each batch.
        lease_windows: Windows in one lease (`data.lease_windows`).
        heldout: A held-out batch of the task, of this size if there are as many windows.
        longest_s: Seconds that the stream may take.
    """
    found = list[str]()

    def check() -> None:
        place, kind = place_of_stream(task, stream), type(stream).__name__
        setting = f"task {task.name}: stream({batch_size}) returns a {kind}, which"
        try:
            own_evaluation = task.loop is not None or task.eval_loss is not None
            compared = None if own_evaluation else heldout
            for problem in _problems(stream, batch_size, lease_windows, compared):
                found.append(f"{place}{setting} {problem}")
                return
        except UserMistake as error:
            found.append(str(error))
        except Exception as error:  # noqa: BLE001 - of the user's code
            found.append(raised_by(setting, error, place))

    thread = threading.Thread(target=check, name="stream-check", daemon=True)
    thread.start()
    thread.join(longest_s)
    if thread.is_alive():
        log.warning(
            "task %s: its stream gave no batch within %g s, and is not checked",
            task.name,
            longest_s,
        )
        return []
    return found


def place_of_stream(task: Task, stream: object) -> str:
    """Return "FILE:LINE: " of the class of a stream; of the task's `stream` if it has no source."""
    kind = type(stream)
    members = [getattr(each, "fget", each) for each in vars(kind).values()]  # of properties, too
    methods = [each for each in members if inspect.isfunction(each)]
    first = min(methods, key=lambda each: each.__code__.co_firstlineno, default=None)
    try:
        file, line = inspect.getsourcefile(kind), inspect.getsourcelines(kind)[1]
        if first is None or file == first.__code__.co_filename:
            return f"{file}:{line}: "
    except (OSError, TypeError):  # there is no module, as for a class of a notebook
        pass
    return place_of(task.stream if first is None else first)


def _problems(
    stream: Any, batch_size: int, lease_windows: int, heldout: Batch | None
) -> Iterator[str]:
    """Yield the problems of a new stream; the first one makes all others doubtful."""
    if lacking := [name for name in MEMBERS if not _has(stream, name)]:
        yield f"has no {', '.join(f'`{name}`' for name in lacking)}: see archipelago.StreamLike"
    if uncallable := [name for name in ("add", "next") if not callable(getattr(stream, name))]:
        yield f"has `{uncallable[0]}`, which is no method: see archipelago.StreamLike"
    if (given := stream.batch_size) != batch_size:
        yield f"has batch_size = {given!r}: it must be {batch_size}"
    leases = [Lease(number) for number in range(-(-batch_size // lease_windows))]
    for count, lease in enumerate(leases, start=1):
        stream.add(lease)
        if (left := stream.remaining) != count * lease_windows:
            yield (
                f"has remaining = {left!r} after add() of {count} leases: it must be "
                f"{count * lease_windows}, as a lease has data.lease_windows = {lease_windows} "
                "windows"
            )
    yield from _of_cursor(stream, leases[0], "after the first add()")
    before, batch = stream.remaining, stream.next()
    if heldout is not None:
        yield from _of_batch(batch, batch_size, heldout)
    consumed = before - stream.remaining
    if consumed <= 0:
        yield f"has remaining = {stream.remaining!r} after next(), as before it: count what is read"
    number = (consumed - 1) // lease_windows
    reached = Lease(number, consumed - number * lease_windows)
    yield from _of_cursor(stream, reached, f"after next() has consumed {consumed} windows")


def _has(stream: object, name: str) -> bool:
    try:
        getattr(stream, name)
    except AttributeError:
        return False
    except Exception:  # noqa: BLE001 - a property of the user's that needs a lease
        return True
    return True


def _of_cursor(stream: StreamLike, wanted: Lease, when: str) -> Iterator[str]:
    if (cursor := stream.cursor) != wanted:
        yield f"has cursor = {cursor!r} {when}: it must be {wanted!r}, where a restart continues"


def _of_batch(batch: Batch, batch_size: int, heldout: Batch) -> Iterator[str]:
    """Yield how a batch differs from a held-out one, which may have other and fewer windows."""
    try:
        ours, theirs = (jax.eval_shape(_same, each) for each in (batch, heldout))
    except TypeError:
        yield f"gives a batch that is no tree of arrays, but a {type(batch).__name__}"
        return
    forms = [[*_form(each)] for each in (ours, theirs)]
    whole = [leaf.shape[:1] == (batch_size,) for leaf in jax.tree.leaves(ours)]
    if forms[0] != forms[1] or not all(whole):
        yield (
            f"gives a batch of {_batch_text(ours)}, and held-out batches have "
            f"{_batch_text(theirs)}: both must have the same arrays, axes and types, with "
            f"{batch_size} windows on the first axis of this one"
        )


def _same(batch: Batch) -> Batch:
    return batch


def _form(batch: Batch) -> Iterator[tuple[str, int, str]]:
    """Yield path, number of axes and type of each array."""
    for keys, leaf in jax.tree_util.tree_flatten_with_path(batch)[0]:
        yield leaf_path(keys), leaf.ndim, str(leaf.dtype)


def _batch_text(batch: Batch) -> str:
    leaves = jax.tree_util.tree_flatten_with_path(batch)[0]
    texts = [
        f"{leaf_path(keys)} {leaf.dtype}[{','.join(map(str, leaf.shape))}]".strip()
        for keys, leaf in leaves[:SHOWN]
    ]
    more = len(leaves) - SHOWN
    return ", ".join(texts or ["no arrays"]) + (f" and {more} more" if more > 0 else "")
