"""The problems of documents: refused with one message, or counted and left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from coordinator.errors import UserMistake

SHOWN = 5
"""Messages that are kept for the report."""
REMEDY = "repair it, or set data.skip_damaged = true to leave such parts out and count them"
EMPTY, UNANSWERED = "empty documents", "conversations without an answer"
"""The names under which these are counted; they are left out and never refused."""


class DamageKind(StrEnum):
    """A problem of a part of a source; the value names it where it is counted."""

    ROW_GROUP = "damaged row groups"
    BATCH = "damaged record batches"
    NOT_UTF8 = "documents that are not UTF-8"
    TOO_LARGE = "documents that are too large"
    NOT_JSON = "lines that are no JSON object with the field"
    NO_CHAT = "conversations that cannot be used"


@dataclass(slots=True)
class Damage:
    """The damage that was found so far."""

    skip: bool
    """Count damaged parts and leave them out, in place of an error."""
    counts: Counter[str] = field(default_factory=Counter[str])
    """Parts that were left out, by kind, empty documents included."""
    messages: list[str] = field(default_factory=list[str])
    """The first few messages."""
    _last: str = ""

    def found(self, kind: DamageKind, message: str) -> None:
        """Count a damaged part; a part that two consecutive readers find is counted once.

        Errors: `UserMistake` unless damaged parts are skipped.
        """
        if not self.skip:
            raise UserMistake(f"{message}; {REMEDY}")
        if message == self._last:
            return
        self._last = message
        self.counts[kind.value] += 1
        if len(self.messages) < SHOWN:
            self.messages.append(message)

    def empty(self, count: int, kind: str = EMPTY) -> None:
        """Count documents without any content, or conversations without an answer."""
        if count:
            self.counts[kind] += count

    @property
    def text(self) -> str:
        """The counts in one line; empty if nothing was left out."""
        return ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.counts.items()))
