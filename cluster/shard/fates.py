"""What has become of each life's contributions, for as long as its learner may have to be told.

An acknowledgement rides on a publication, which a learner may never see: it fetches the differences
that it missed, or the whole. Words may be lost as well, and what dies on its way to a shard nobody
tells of. So whoever asks a learner for more says what it knows of all that came before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from coordinator.protocol import ContributionId, Fragment, Island, Known, Life

MERGED_KEPT = 8
"""Of one life and fragment. Between two hand-ins no more is merged than was in hand: that of the
round before, one that was late for its round, and one that a draining learner was asked for."""


@dataclass(slots=True)
class _Of:
    """One life's contributions to one fragment."""

    life: Life
    held: list[ContributionId] = field(default_factory=list[ContributionId])
    merged: deque[ContributionId] = field(
        default_factory=lambda: deque[ContributionId](maxlen=MERGED_KEPT)
    )


class Fates:
    """Of the newest life of each island that was heard of."""

    def __init__(self) -> None:
        self._of: dict[tuple[Island, Fragment], _Of] = {}
        self._deaths = self._asked = 0

    def _newest(self, life: Life, p: Fragment) -> _Of | None:
        """What is known of this life; None if there is a newer one."""
        known = self._of.get((life.island, p))
        if known is None or known.life.incarnation < life.incarnation:
            known = self._of[life.island, p] = _Of(life)
        return known if known.life == life else None

    def arrived(self, said: ContributionId) -> None:
        """It is held for a merge."""
        if (known := self._newest(said.life, said.fragment)) and said not in known.held:
            known.held.append(said)

    def freed(self, said: ContributionId) -> None:
        """It is not held any more, and was not merged if it was not before."""
        known = self._of.get((said.life.island, said.fragment))
        if known and said in known.held:
            known.held.remove(said)

    def published(self, merged: Iterable[ContributionId]) -> None:
        """They are part of a public version."""
        for said in merged:
            self.freed(said)
            if (known := self._newest(said.life, said.fragment)) and said not in known.merged:
                known.merged.append(said)

    def died(self, deaths: int) -> None:
        """The shard has died so often, and holds nothing any more."""
        self._deaths, self._asked = deaths, 0
        for known in self._of.values():
            known.held.clear()

    def known(self, life: Life, p: Fragment) -> Known:
        """What to tell this life when it is asked for more of the fragment."""
        self._asked += 1
        asked, known = (self._deaths, self._asked), self._of.get((life.island, p))
        if known is None or known.life != life:
            return Known(asked)
        return Known(asked, tuple(known.held), tuple(known.merged))

    def merged(self, fragments: Collection[Fragment]) -> list[ContributionId]:
        """All that is known to be part of a public version of these."""
        return [
            said for (_, p), known in self._of.items() if p in fragments for said in known.merged
        ]
