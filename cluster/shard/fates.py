"""The outcomes of each life's contributions, kept while its learner may need them.

An acknowledgement travels with a publication, which a learner may never see: it may fetch the
differences that it missed, or the whole fragment. Messages can be lost too, and a hand-in that is
lost on its way to a shard is never reported. So every request for a further hand-in has the
outcomes of all earlier ones, as far as the shard has them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from coordinator.protocol import ContributionId, Fragment, Island, Known, Life

MERGED_KEPT = 8
"""Merged contributions remembered for each life and fragment.

Between two hand-ins at most three can be merged: the one of the round before, one that was too late
for its round, and one that a draining learner was asked for.
"""


@dataclass(slots=True)
class _Of:
    """The contributions of one life to one fragment."""

    life: Life
    held: list[ContributionId] = field(default_factory=list[ContributionId])
    """One entry for each copy that is held."""
    merged: deque[ContributionId] = field(
        default_factory=lambda: deque[ContributionId](maxlen=MERGED_KEPT)
    )


class Fates:
    """The known contributions of the newest life of each island."""

    def __init__(self) -> None:
        self._of: dict[tuple[Island, Fragment], _Of] = {}
        self._deaths = self._asked = 0

    def _newest(self, life: Life, p: Fragment) -> _Of | None:
        """Return the record of this life, created if needed; None if a newer life is known."""
        known = self._of.get((life.island, p))
        if known is None or known.life.incarnation < life.incarnation:
            known = self._of[life.island, p] = _Of(life)
        return known if known.life == life else None

    def arrived(self, contribution: ContributionId) -> None:
        """Note that a contribution is held for a merge, or a further copy of it."""
        if known := self._newest(contribution.life, contribution.fragment):
            known.held.append(contribution)

    def freed(self, contribution: ContributionId) -> None:
        """Note that one copy of a contribution is no longer held.

        It was merged before, or never will be.
        """
        known = self._of.get((contribution.life.island, contribution.fragment))
        if known and contribution in known.held:
            known.held.remove(contribution)

    def published(self, merged: Iterable[ContributionId]) -> None:
        """Note that these contributions are part of a public version."""
        for contribution in merged:
            if of_life := self._of.get((contribution.life.island, contribution.fragment)):
                of_life.held[:] = [each for each in of_life.held if each != contribution]
            if (
                known := self._newest(contribution.life, contribution.fragment)
            ) and contribution not in known.merged:
                known.merged.append(contribution)

    def died(self, deaths: int) -> None:
        """Note that the shard has died `deaths` times, and holds nothing any more."""
        self._deaths, self._asked = deaths, 0
        for known in self._of.values():
            known.held.clear()

    def known(self, life: Life, p: Fragment) -> Known:
        """Return the outcomes to send with the next request for this fragment to this life."""
        self._asked += 1
        request, known = (self._deaths, self._asked), self._of.get((life.island, p))
        if known is None or known.life != life:
            return Known(request)
        return Known(request, (*dict.fromkeys(known.held),), tuple(known.merged))

    def merged(self, fragments: Collection[Fragment]) -> list[ContributionId]:
        """Return all contributions known to be part of a public version of these fragments."""
        return [
            contribution
            for (_, p), known in self._of.items()
            if p in fragments
            for contribution in known.merged
        ]
