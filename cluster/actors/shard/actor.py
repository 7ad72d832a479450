"""The actor of a shard: the data path between the learners and the fragments that it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.actors.directory import Directory, setup_logging
from cluster.actors.fault_injection import Breakable
from cluster.actors.object_store.publish import Boxed, Probe, Shared
from cluster.actors.object_store.ranges import Range
from cluster.actors.shard.hand_ins import HandIns
from cluster.actors.shard.offers import Offers
from cluster.actors.shard.process import ShardProcess
from cluster.actors.shard.public_fragments import ANY, WHOLE, PublicFragments
from cluster.config.schema import Config
from cluster.failures import Answered, Reason, raised
from cluster.names import Seat
from cluster.shard.fates import Fates
from cluster.storage.open_depot import contribution_store, depot_of
from cluster.syncer.collect import HandInAnswers
from cluster.tasks import watch_process
from cluster.workers.contribution_effect import SampledContribution
from coordinator.fragments import Flat, Layout
from coordinator.protocol import (
    ContributionId,
    Discard,
    Fragment,
    Life,
    Merge,
    Merged,
    Publish,
    Unsound,
    Version,
)


class ShardActor(Breakable):
    """A shard and its data path: the shard calls the learners, and their answers are the data.

    A new process has no model until `seed` or `recover` is called.
    """

    def __init__(
        self, config: str, namespace: str, run_dir: str, code: str = "", owner: int = 0
    ) -> None:
        """Prepare the process.

        `code`: the digest of the user's code in a shard when the run began (`user_sha256`).
        `owner`: the number of the run's owner, for its `Fence`.
        """
        setup_logging()
        watch_process(self._unheard)
        parsed_config = Config.model_validate_json(config, strict=False)
        depot = depot_of(parsed_config, Path(run_dir))
        kept = contribution_store(parsed_config, Path(run_dir))
        self.process = ShardProcess(parsed_config, code, depot, kept, owner, self._unheard)
        self._shard = self.process.shard
        self._public = PublicFragments(self._shard, lambda: self.process.storing.pace.sizes)
        self._actors, self._fates = Directory(namespace), Fates()
        self._hand_ins = HandIns(self.process, self._actors, self._fates)
        self._offers = Offers(parsed_config, self._actors, self._public.sharing)

    def _unheard(self, error: BaseException) -> None:
        """Record an exception that was never awaited, for the next answer to `publish`."""
        self._offers.fail(None, raised(Reason.UNHEARD, error))

    async def progress(self) -> int:
        """Return the number of stored versions, as a sign of life while a large model is seeded."""
        return self.process.storing.pace.count

    async def seed(self, layout: Layout, p: Fragment, flat: Flat) -> tuple[list[Fragment], str]:
        """See `ShardProcess.seed`."""
        return await self.process.seed(layout, p, flat)

    async def recover(
        self,
        targets: Mapping[Fragment, Version],
        generation: int,
        deaths: int = 0,
        merged: Sequence[ContributionId] = (),
    ) -> dict[Fragment, Version]:
        """Go back to these published versions, or to the newest stored ones before them.

        From now on, obey only this generation of the syncer or later ones. `deaths`: of this shard,
        in this generation. `merged`: contributions of continuing lives that are part of these
        versions.

        Errors: `Outdated`; `RunFailed` if this process has other code of the user's.
        """
        self._shard.obey(generation)
        self.process.check_code()
        self._hand_ins.forget()
        found = await self.process.recover(targets, generation)
        self._public.sharing.forget()
        self._fates.died(deaths)
        self._fates.published(merged)
        return found

    async def watch(self) -> None:
        """Block while this process has a model, as a liveness probe.

        Return at once in a freshly restarted process, which is not the one that is being watched.
        """
        if self._shard.has_model:
            await asyncio.Event().wait()

    async def collect(self, fragment: Fragment, seats: Mapping[Life, Seat]) -> HandInAnswers:
        """See `HandIns.collect`."""
        return await self._hand_ins.collect(fragment, seats)

    async def merge(self, order: Merge) -> tuple[Merged | Unsound, bool | str]:
        """Merge and store in one call; see `ShardProcess.merge`.

        Storing follows in any case, and a Ray call costs more than the merge of a small fragment.
        """
        return await self.process.merge(order)

    async def publish(self, order: Publish, seats: Sequence[Seat]) -> Answered:
        """Publish the staged version, and send every learner the reference to the difference.

        The difference is put into the object store once; a small one is sent with the message.
        `seats`: the seats of the lives in `order.to`, in order.

        Errors: an exception of our own code while an earlier publication was offered.
        """
        self._offers.check()
        published = await self.process.publish(order)
        self._fates.published(order.merged)
        reached = None
        if published is not None:
            self._public.ranges.published(*published)
            reached = await self._offers.send(order, seats, *published)
        return Answered(self._offers.failed(), reached, self._hand_ins.uploads())

    async def discard(self, order: Discard) -> None:
        """Free a contribution that will not be merged."""
        await self.process.drop(order.contribution.reference)
        self._fates.freed(order.contribution.id)

    async def whole(self, fragments: Sequence[Fragment]) -> list[tuple[Version, Flat]] | None:
        """Return public fragments; without a model None, or [] if it is read and none is wanted."""
        if not self._shard.has_model:
            return None if fragments or not self.process.recovers else []
        return await asyncio.to_thread(self._shard.whole, fragments)

    async def contribution(self, judge: str) -> SampledContribution | None:
        """See `ContributionSamples.take`; `judge`: the name of the evaluator that asks."""
        return await self.process.compute(self.process.samples.take, judge)

    async def probe(self, nbytes: int) -> Probe | None:
        """Return an object of that many bytes to measure a link; None while there is no model."""
        return await self._public.sharing.probe(nbytes) if self._shard.has_model else None

    async def shared(
        self,
        fragments: Sequence[Fragment],
        bytes_s: float,
        owns: Mapping[Fragment, Range] = WHOLE,
        least: Mapping[Fragment, Version] = ANY,
    ) -> list[Shared | None] | None:
        """See `PublicFragments.shared`; return None as in `whole`."""
        if not self._shard.has_model:
            return None
        return await self._public.shared(fragments, bytes_s, owns, least)

    async def renew(self, fragments: Sequence[Fragment]) -> None:
        """See `FragmentPublisher.renew`."""
        self._public.sharing.renew(fragments)

    async def mean_moments(
        self, fragments: Sequence[Fragment], bytes_s: float, owns: Mapping[Fragment, Range] = WHOLE
    ) -> list[Sequence[Boxed] | None] | None:
        """See `PublicFragments.mean_moments`; return None as in `whole`."""
        if not self._shard.has_model:
            return None
        return await self._public.mean_moments(fragments, bytes_s, owns)

    async def missed(
        self, p: Fragment, older: Version, newer: Version, bytes_s: float, own: Range | None = None
    ) -> Sequence[Boxed] | Shared | None:
        """See `PublicFragments.missed`; return None as in `whole`."""
        if not self._shard.has_model:
            return None
        return await self._public.missed(p, older, newer, bytes_s, own)
