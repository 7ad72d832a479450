"""The merged contributions that a shard keeps for the evaluators, which measure their effect.

Nothing is kept until an evaluator asks, and nothing is copied: the payload of one merged
contribution is only freed later. An evaluator that is slow or dead therefore costs at most two
payloads, and no merge waits for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from cluster.shard.arithmetic import Held
from cluster.workers.contribution_effect import SampledContribution
from coordinator.codec import Sent, split
from coordinator.protocol import Fragment, Island, Item, Merge, Reference, Version


def chosen(items: Sequence[Item], taken: Mapping[Island, int]) -> Item | None:
    """Return the contribution to measure: of the island with the fewest samples taken so far.

    The first name decides between equals. Return None if there is no contribution.
    """

    def order(item: Item) -> tuple[int, Island]:
        island = item.contribution.id.life.island
        return taken.get(island, 0), island

    return min(items, key=order, default=None)


class ContributionSamples:
    """One public contribution for each evaluator, of a recent merge.

    One thread at a time may call. `state_fragment`: the fragment whose contributions are values and
    not deltas; none of them is kept. None: there is no such fragment.
    """

    def __init__(self, judge_of: Callable[[Island], str | None]) -> None:
        """Prepare; `judge_of` returns the evaluator that measures an island's contributions."""
        self.state_fragment: Fragment | None = None
        self._judge_of = judge_of
        self._asked: set[str] = set()
        self._staged: dict[str, SampledContribution] = {}
        self._public: dict[str, SampledContribution] = {}
        self._taken = Counter[Island]()

    def of(
        self, order: Merge, held: Mapping[Reference, Held[Sent]]
    ) -> Mapping[str, SampledContribution]:
        """Return what to keep of a merge that has yet to happen, by evaluator.

        An evaluator whose sample waits for its publication gets no other one.
        """
        if order.fragment == self.state_fragment:
            return {}
        found: dict[str, SampledContribution] = {}
        for judge in self._asked - self._staged.keys():
            item = chosen([each for each in order.items if self._is_for(judge, each)], self._taken)
            if item is None or item.contribution.reference not in held:
                continue
            delta, _ = split(held[item.contribution.reference].payload)
            found[judge] = SampledContribution(
                item.contribution.id.life.island, order.fragment, order.version, item.weight, delta
            )
        return found

    def _is_for(self, judge: str, item: Item) -> bool:
        return self._judge_of(item.contribution.id.life.island) == judge

    def merged(self, found: Mapping[str, SampledContribution]) -> None:
        """Keep the samples of a merge that is staged, until it is public."""
        self._staged.update(found)

    def published(self, p: Fragment, version: Version) -> None:
        """Offer the samples of this version to the evaluators, in place of earlier ones."""
        for judge, sample in [*self._staged.items()]:
            if (sample.fragment, sample.version) == (p, version):
                self._public[judge] = self._staged.pop(judge)

    def take(self, judge: str) -> SampledContribution | None:
        """Return the sample for an evaluator and drop it; None if there is none yet.

        From the first call on, samples are kept for this evaluator.
        """
        self._asked.add(judge)
        sample = self._public.pop(judge, None)
        if sample is not None:
            self._taken[sample.island] += 1
        return sample

    def forget(self) -> None:
        """Drop all samples: the fragments may go back to earlier versions."""
        self._staged.clear()
        self._public.clear()
