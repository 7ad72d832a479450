"""A check that learners receive the true outcomes of their contributions.

When a learner is asked for more, it also receives the outcome of everything that it handed in
before. It gives back, or drops, rounding errors accordingly (`islands.exchange.Uplink`). A
contribution reported as merged must be merged, and one reported as not merged must never be.
Otherwise numbers are lost or count twice. The contributions that a learner keeps in place beside a
version that it adopts must still be waiting, according to the notices that it received.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from archipelago.lab.checks.facts import Violation
from coordinator.protocol import ContributionId, Fragment, Island, Known, Life


class FateChecker:
    """The reported fate of each life's contributions, checked against the published versions."""

    def __init__(self) -> None:
        self._open = defaultdict[tuple[Life, Fragment], dict[ContributionId, None]](dict)
        self._asked: dict[tuple[Life, Fragment], tuple[int, int]] = {}
        self._over = set[ContributionId]()  # reported to learners as no longer waiting
        self._given_back, self._published = set[ContributionId](), set[ContributionId]()
        self._newest: dict[tuple[Island, Fragment], Life] = {}  # newest life with a hand-in

    def made(self, contribution: ContributionId) -> None:
        """Record that a life has handed in this contribution."""
        place = contribution.life.island, contribution.fragment
        self._newest[place] = max(contribution.life, self._newest.get(place, contribution.life))
        self._open[contribution.life, contribution.fragment][contribution] = None

    def hears(self, life: Life, p: Fragment, known: Known) -> bool:
        """Record the outcomes sent to a life; return False if they are older than those before.

        A shard only tracks the newest life of an island. A message to a life that was replaced does
        no harm: nothing that it hands in from now on will be merged.

        Errors: `Violation` if a contribution that is not public is reported as merged.
        """
        is_followed = self._newest.get((life.island, p), life) > life
        is_old_news = known.asked <= self._asked.get((life, p), (0, 0))
        if is_followed or is_old_news:
            return False
        self._asked[life, p], waiting = known.asked, self._open[life, p]
        for contribution_id in [*waiting]:
            if contribution_id in known.held:
                continue
            del waiting[contribution_id]
            self._over.add(contribution_id)
            if contribution_id not in known.merged:
                self._given_back.add(contribution_id)
            elif contribution_id not in self._published:
                raise Violation(
                    "learners receive true outcomes", f"{contribution_id} is not public"
                )
        return True

    def kept(self, keeps: Iterable[ContributionId]) -> None:
        """Check the contributions that a life keeps in place beside the version that it adopts.

        Errors: `Violation` if one of them was reported to the life as no longer waiting.
        """
        for contribution_id in keeps:
            if contribution_id in self._over:
                raise Violation(
                    "contributions kept in place still wait", f"{contribution_id} does not"
                )

    def published(self, merged: Iterable[ContributionId]) -> None:
        """Record that a version with these contributions was ordered to be public.

        Errors: `Violation` if one of them was reported to a learner as not merged.
        """
        for contribution_id in merged:
            self._published.add(contribution_id)
            if contribution_id in self._given_back:
                raise Violation(
                    "learners receive true outcomes", f"{contribution_id} is merged after all"
                )
