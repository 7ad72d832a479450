"""A lock-step run by plain turns, without clock, network or rounds, to compare the rules with.

Every island takes a step. All of them hand in what is due, the real shard merges it, and all adopt
it `overlap` steps later. No island is late or missing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import jax

from archipelago.lab.training.compiled_parts import CompiledParts, compiled_parts
from cluster.config.rule import group_of, schedule_of
from cluster.config.schema import Config
from cluster.shard.build import first_of, shard_of
from cluster.workers.assembly import learner_settings
from cluster.workers.evaluator import Evaluator
from coordinator.codec import Sent
from coordinator.fragments import Flat, sew
from coordinator.orders import sorting_key, weigh
from coordinator.protocol import (
    Contribution,
    ContributionId,
    Fragment,
    HandIn,
    Incarnation,
    Island,
    Lease,
    Life,
    Merge,
    Merged,
    Progress,
    Publication,
    Publish,
    Version,
)
from islands.adopt import AdoptRule
from islands.encoder import ENCODERS
from islands.exchange import Downlink, Uplink
from islands.learner_messages import HandOver, Track
from islands.replica import Replica


class Marcher:
    """One island's learner: the real arrays and wire, with a bookkeeping of its own."""

    def __init__(
        self,
        config: Config,
        island: Island,
        number: int,
        kit: CompiledParts,
        public: dict[Fragment, Flat],
    ) -> None:
        self._kit, self.life = kit, Life(island, Incarnation(number))
        group, habits, first = (
            group_of(config, island),
            learner_settings(config, island),
            Version(0, 0),
        )
        self._replica = Replica(kit.inner, kit.port, group.encode, kit.sharing)
        encoder = ENCODERS[group.encode](config.sync.wire_up)
        wire = habits.wire_moments
        moments = None if wire is None else ENCODERS[group.encode](wire)
        self._uplink = Uplink(self.life, encoder, kit.layout, habits.anchor, moments)
        known = {p: (first, flat) for p, flat in public.items()}
        self._downlink = Downlink(known, lambda p, older, newer: [])
        self.stream = kit.task.stream(group.batch_size)
        leaves = jax.tree.unflatten(kit.structure, sew(kit.layout, [*public.values()]))
        self._replica.begin(leaves, None, public, {}, 0)
        self._tracks = dict.fromkeys(public, Track(first))
        self.progress = Progress(0, 0, Lease(0))

    def step(self) -> None:
        steps, tokens, batch = self.progress.steps, self.progress.tokens, self.stream.next()
        self._replica.step(batch, steps)
        tokens += int(self._kit.task.tokens(batch))
        self.progress = Progress(steps + 1, tokens, self.stream.cursor)

    def hand_in(self, p: Fragment) -> tuple[HandIn, Sent] | None:
        track, now = self._tracks[p], self.progress
        if track.from_step == now.steps:
            return None
        said = ContributionId(self.life, p, track.from_step, now.steps)
        snapshot = self._replica.take(HandOver(p, said, track, now))
        self._tracks[p] = Track(track.base, track.since_step, now.steps, now.tokens)
        return self._uplink.encode(p, snapshot)

    def adopt(self, said: Publication, payload: Sent) -> None:
        for each in said.merged:
            if each.life == self.life:
                self._uplink.settle(each, merged=True)
        p, track, now = said.fragment, self._tracks[said.fragment], self.progress
        found = self._downlink.follow(said, payload)
        assert found is not None
        version, flat = found
        mean, inner = self._downlink.take_mean(p, version), self._kit.inner
        shared = None if mean is None else inner.place_flat(mean, mean.size)
        self._replica.adopt(p, flat, inner.place_flat(flat, flat.size), shared)
        if self._kit.port.rule is AdoptRule.CARRY:
            self._tracks[p] = Track(version, track.from_step, track.from_step, track.from_tokens)
        else:
            self._tracks[p] = Track(version, now.steps, now.steps, now.tokens)


@dataclass(slots=True)
class Turned:
    """The result of a run by turns; tokens are counted over all islands and fragments."""

    public: list[Flat]
    merges: int
    tokens_trained: int
    up_bytes: int


def by_turns(config: Config) -> Turned:
    """Train a configuration by turns, in the order of its islands' names."""
    kit, flats = compiled_parts(config), Evaluator(config).initial()
    fragments = [Fragment(p) for p in range(len(flats))]
    first = {
        p: first_of(config, kit.layout, p, flat) for p, flat in zip(fragments, flats, strict=True)
    }
    shard = shard_of(config, kit.layout, first)
    public = dict(zip(fragments, (flat for _, flat in shard.whole(fragments)), strict=True))
    marchers = [
        Marcher(config, island, number, kit, public)
        for number, island in enumerate(config.island_names)
    ]
    leases = 0
    for marcher in marchers:
        for _ in range(2):
            marcher.stream.add(Lease(leases))
            leases += 1
    turned = Turned([], 0, 0, 0)

    def exchange(p: Fragment, *, last: bool = False) -> tuple[Publication, Sent] | None:
        handed = [each for marcher in marchers if (each := marcher.hand_in(p)) is not None]
        contributions: list[Contribution] = [shard.receive(*each) for each in handed]
        if not contributions:
            return None
        items = weigh(tuple(sorted(contributions, key=sorting_key)))
        before = shard.version(p)
        version = Version(0, before.number + 1)
        assert isinstance(shard.merge(Merge(p, version, items, "all", last=last)), Merged)
        turned.merges += 1
        turned.up_bytes += sum(each.bytes for each in contributions)
        merged = tuple(item.contribution.id for item in items)
        said = shard.publish(Publish(p, version, before, (), merged))
        assert said is not None
        return said

    schedule, flying = schedule_of(config), deque[tuple[int, tuple[Publication, Sent]]]()
    for t in range(1, config.run.steps + 1):
        for marcher in marchers:
            marcher.step()
            if marcher.stream.remaining < config.data.lease_windows:
                marcher.stream.add(Lease(leases))
                leases += 1
        last = t == config.run.steps
        for p in () if last else schedule.due(after=t - 1, upto=t):
            if (said := exchange(p)) is not None:
                flying.append((t + config.sync.least_overlap, said))
        while flying and (last or flying[0][0] <= t):
            _, said = flying.popleft()
            for marcher in marchers:
                marcher.adopt(*said)
    for p in fragments:
        exchange(p, last=True)
    turned.public = [flat for _, flat in shard.whole(fragments)]
    turned.tokens_trained = sum(marcher.progress.tokens for marcher in marchers)
    return turned
