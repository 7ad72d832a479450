"""The lines of a full log that stay: evenly spread over the run, with its evaluations and troubles.

Time is cut into spans of equal length, and the first line of each span stays. The length doubles
until the lines fit. The spans of one length are halves of those of the next one, so lines that were
thinned out before are thinned out evenly: a log can be thinned out any number of times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

HEAD = 512
"""Bytes at the beginning of a line that have its time and its evaluation."""
UNIX_S = re.compile(rb'"unix_s": ?(\d+(?:\.\d*)?)')
HELDOUT_T = re.compile(rb'"heldout_t": ?(\d+)')
TROUBLE = re.compile(rb'"kind": ?"(?:alert|alert over|durability|band)"')
"""The events that come in pairs: the beginning of a trouble, and its end."""
LONGEST_S = 2**36
"""Seconds that are later than the time of any line."""
IMPORTANT_SHARE = 0.75
"""The largest share of the bytes that troubles and the first lines of evaluations take."""


class StoredLine(NamedTuple):
    """The facts about one line by which it stays or is deleted."""

    size: int
    """Bytes, the newline included."""
    unix_s: float | None
    """The time of the line, in seconds since 1970; None: it has none."""
    heldout_t: int | None
    """The syncer step of its newest evaluation; None: it has none."""
    trouble: bool = False
    """Whether it is an event at which a trouble begins or ends."""


def stored_line(line: bytes) -> StoredLine:
    """Return the facts about a line; one that is damaged, or of another program, has no time."""
    head = line[:HEAD]
    time, step = UNIX_S.search(head), HELDOUT_T.search(head)
    unix_s = float(time[1]) if time else LONGEST_S
    return StoredLine(
        len(line),
        unix_s if unix_s < LONGEST_S else None,
        int(step[1]) if step else None,
        TROUBLE.search(head) is not None,
    )


def kept_lines(lines: Sequence[StoredLine], most_bytes: int) -> set[int]:
    """Return the indices of the lines that stay.

    These are the first line, the first line of each evaluation, all events about troubles, and
    others evenly in time, together at most `most_bytes` if the first line is not larger.
    Evaluations and troubles that are too many are thinned out evenly, too. Lines without a time are
    deleted first.
    """
    first = {0} if lines else set[int]()
    important = _spread(lines, [*_important_lines(lines)], first, IMPORTANT_SHARE * most_bytes)
    return _spread(lines, range(len(lines)), important, most_bytes)


def thinned_lines(file: BinaryIO, older: int, most_bytes: int) -> Iterator[bytes]:
    """Yield the lines of a file that stay; the file is read twice.

    `older`: the bytes at its beginning that are thinned out, to at most `most_bytes`. All lines
    after them stay.
    """
    lines, place = list[StoredLine](), 0
    for line in file:
        if place >= older:
            break
        lines.append(stored_line(line))
        place += len(line)
    kept = kept_lines(lines, most_bytes)
    file.seek(0)
    for number, line in enumerate(file):
        if number in kept or number >= len(lines):
            yield line


def _important_lines(lines: Sequence[StoredLine]) -> Iterator[int]:
    """Yield the index of each trouble, and of each line with an evaluation newer than before."""
    before = None
    for number, line in enumerate(lines):
        if line.trouble or (line.heldout_t is not None and line.heldout_t != before):
            yield number
        before = line.heldout_t


def _spread(
    lines: Sequence[StoredLine], numbers: Sequence[int], kept: set[int], most_bytes: float
) -> set[int]:
    """Return `kept` and as many of these lines as fit, evenly in time; all of them if they fit."""
    found, span_s = kept.union(numbers), 1
    while sum(lines[number].size for number in found) > most_bytes and span_s < LONGEST_S:
        found, span_s = kept.union(_one_for_each_span(lines, numbers, span_s)), 2 * span_s
    return found


def _one_for_each_span(
    lines: Sequence[StoredLine], numbers: Iterable[int], span_s: int
) -> Iterator[int]:
    """Yield the index of the first line in each span of this many seconds."""
    before = -1.0
    for number in numbers:
        unix_s = lines[number].unix_s
        if unix_s is not None and (span := unix_s // span_s) != before:
            before = span
            yield number
