"""Is what learners are told of their contributions true?

A learner that is asked for more hears what has become of all that it handed in before, and gives
back, or lets go of, rounding errors by it (`islands.exchange.Uplink`). What was said to be merged
must be, and what was said not to be must never be; else numbers are lost, or count twice. What it
keeps in place beside what it adopts must be waiting still, as far as it was told.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from archipelago.lab.checks.facts import Violation
from coordinator.protocol import ContributionId, Fragment, Island, Known, Life


class FateChecker:
    """What each life believes of what it has handed in; judged against what is published."""

    def __init__(self) -> None:
        self._open = defaultdict[tuple[Life, Fragment], dict[ContributionId, None]](dict)
        self._asked: dict[tuple[Life, Fragment], tuple[int, int]] = {}
        self._over = set[ContributionId]()  # what learners were told of: it waits no more
        self._given_back, self._published = set[ContributionId](), set[ContributionId]()
        self._newest: dict[tuple[Island, Fragment], Life] = {}  # that has handed something in

    def made(self, said: ContributionId) -> None:
        """A life has handed this in."""
        place = said.life.island, said.fragment
        self._newest[place] = max(said.life, self._newest.get(place, said.life))
        self._open[said.life, said.fragment][said] = None

    def hears(self, life: Life, p: Fragment, known: Known) -> bool:
        """A life is asked for more, and told this; False if that is old news to it.

        A shard knows of the newest life of an island only. What it tells one that is followed by
        another does no harm: nothing that this one hands in from now on will be merged.

        Errors: `Violation` if it is told that something is merged which is not public.
        """
        is_followed = self._newest.get((life.island, p), life) > life
        is_old_news = known.asked <= self._asked.get((life, p), (0, 0))
        if is_followed or is_old_news:
            return False
        self._asked[life, p], waiting = known.asked, self._open[life, p]
        for said in [*waiting]:
            if said in known.held:
                continue
            del waiting[said]
            self._over.add(said)
            if said not in known.merged:
                self._given_back.add(said)
            elif said not in self._published:
                raise Violation("learners are told what is true", f"{said} is not public")
        return True

    def kept(self, keeps: Iterable[ContributionId]) -> None:
        """A life has adopted a version, and keeps these in place beside it.

        Errors: `Violation` if it was told that one of them waits for nothing any more.
        """
        for said in keeps:
            if said in self._over:
                raise Violation("what stays in place waits still", f"{said} does not")

    def published(self, merged: Iterable[ContributionId]) -> None:
        """A version with these is ordered to be public.

        Errors: `Violation` if a learner was told that one of them is not merged.
        """
        for said in merged:
            self._published.add(said)
            if said in self._given_back:
                raise Violation("learners are told what is true", f"{said} is merged after all")
