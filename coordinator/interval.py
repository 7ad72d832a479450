"""The choice of H and P from a link, the step time and the bytes: `sync.every = "auto"`.

H is the first of a ladder at which every link is used to at most `MOST_USE`, and a fragment's round
fits into the overlap. Shorter intervals than `LADDER` learn better, but are chosen only if a round
takes less than a fifth of a step. docs/explanation/decisions/wan.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LADDER = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""The values of H to try, in steps."""
SHORT = (1, 2, 4)
"""The values of H below the ladder: only if a round takes less than `SHORT_ROUND` of a step."""
SHORT_ROUND = 0.2
MOST_USE = 0.7
"""The largest share of a link, in each direction, that the plan may use."""
ROUND_TRIPS = 4
"""Round trips of the transfer of one fragment (docs/howto/wan.md: 2 to 4 for small objects)."""
MOST_FRAGMENTS = 32
"""The largest P: more fragments than that do not make traffic more even."""
ROUND_SHARE = 0.5
"""The largest share of H steps that a round may take if `sync.overlap` is "auto"."""
WAIT_SHARE = 0.2
"""The largest waiting time, as a share of the training time, if the overlap is 0."""


@dataclass(frozen=True, slots=True)
class HubLink:
    """A link between the hub, where syncer and shards are, and some of the islands."""

    name: str
    up_bit_s: float
    """The rate towards the hub, in bit/s."""
    down_bit_s: float
    """The rate from the hub, in bit/s."""
    rtt_s: float
    """The round trip, in seconds."""
    islands: float
    """The number of islands behind the link, times the share of the model that is not behind it."""
    served: float = 0.0
    """The number of other islands, times the share of the model whose shards are behind it."""

    @property
    def exchanges(self) -> float:
        """The number of times that the link carries the whole model each way in a period."""
        return self.islands + self.served

    @property
    def text(self) -> str:
        """The link with its figures, in words."""
        slower = min(self.up_bit_s, self.down_bit_s)
        return f"{self.name} ({slower / 1e9:.3g} Gbit/s, {1000 * self.rtt_s:.3g} ms)"


@dataclass(frozen=True, slots=True)
class ModelBytes:
    """The bytes that one island exchanges for the whole model."""

    parameters: float
    up: float
    """Bytes per parameter from an island to the hub."""
    down: float
    """Bytes per parameter from the hub to an island."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The other settings that limit H and P."""

    overlap: int | None = None
    """tau, in steps; None: as many as the round takes."""
    least_fragments: int = 1
    most_fragments: int = MOST_FRAGMENTS


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """The load of one link with one H and one P."""

    link: HubLink
    use: float
    """Share of the link in use, in its busier direction; above 1 it cannot carry the plan."""
    needs_bit_s: float
    """The mean rate in the busier direction."""
    round_s: float
    """Seconds of a fragment's round: all islands send it, and all receive the merged one."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The chosen H and P, with the reason."""

    every: int
    """H, in steps."""
    fragments: int
    """P."""
    busiest: LinkLoad
    """The load of the busiest link."""
    fits: bool
    """Whether every link carries the plan; if not, H is the largest one that was tried."""
    why: str
    """The reason for H and P, or for the refusal."""


def load(
    model: ModelBytes, link: HubLink, step_s: float, *, every: int, fragments: int
) -> LinkLoad:
    """Return the load of a link with this H and this P.

    Shards behind the link receive towards the islands and publish towards the hub.
    """
    up = 8 * model.parameters * (link.islands * model.up + link.served * model.down)
    down = 8 * model.parameters * (link.islands * model.down + link.served * model.up)
    needs_up, needs_down = up / (every * step_s), down / (every * step_s)
    uses = (needs_up / link.up_bit_s, needs_up), (needs_down / link.down_bit_s, needs_down)
    transfers_s = (up / link.up_bit_s + down / link.down_bit_s) / fragments
    return LinkLoad(link, *max(uses), transfers_s + 2 * ROUND_TRIPS * link.rtt_s)


def choose(
    model: ModelBytes, links: Sequence[HubLink], step_s: float, bounds: Bounds | None = None
) -> Interval:
    """Return the shortest H that all links carry, and the largest useful P.

    `links`: at least one.
    """
    bounds, refused = bounds or Bounds(), ""
    tried = [h for h in (*SHORT, *LADDER) if h >= _least(bounds)]
    for every in tried:
        plan = _Plan(model, links, step_s, every, bounds)
        if not (refused_now := plan.refusal):
            found = plan.interval(plan.fragments, fits=True)
            because = f"; {refused}" if refused else ""
            return Interval(found.every, found.fragments, found.busiest, True, found.why + because)
        if every >= LADDER[0] or not refused:
            refused = refused_now
    last = _Plan(model, links, step_s, tried[-1], bounds)
    return last.interval(last.most, fits=False)


def _least(bounds: Bounds) -> int:
    """Return the smallest H that the other settings allow."""
    return max(1, bounds.least_fragments, 0 if bounds.overlap is None else bounds.overlap + 1)


@dataclass(frozen=True, slots=True)
class _Plan:
    """One H on the given links."""

    model: ModelBytes
    links: Sequence[HubLink]
    step_s: float
    every: int
    bounds: Bounds

    @property
    def most(self) -> int:
        """The largest P that this H and the other settings allow."""
        return max(self.bounds.least_fragments, min(self.every, self.bounds.most_fragments))

    def loads(self, fragments: int) -> list[LinkLoad]:
        """Return the load of each link."""
        return [
            load(self.model, link, self.step_s, every=self.every, fragments=fragments)
            for link in self.links
        ]

    def busiest(self, fragments: int) -> LinkLoad:
        """Return the load of the link that is used most."""
        return max(self.loads(fragments), key=lambda each: each.use)

    def slowest(self, fragments: int) -> LinkLoad:
        """Return the load of the link with the longest round."""
        return max(self.loads(fragments), key=lambda each: each.round_s)

    def most_round_s(self, fragments: int) -> float:
        """Return the longest round that these settings allow."""
        overlap, period_s = self.bounds.overlap, self.every * self.step_s
        if overlap is None:
            allowed_s = ROUND_SHARE * period_s
        else:
            allowed_s = overlap * self.step_s or WAIT_SHARE * period_s / fragments
        return allowed_s if self.every >= LADDER[0] else min(allowed_s, SHORT_ROUND * self.step_s)

    def round_fits(self, fragments: int) -> bool:
        """Return whether a fragment's round ends in time."""
        return self.slowest(fragments).round_s <= self.most_round_s(fragments)

    @property
    def fitting(self) -> list[int]:
        """The values of P with which a round ends in time."""
        return [p for p in range(self.bounds.least_fragments, self.most + 1) if self.round_fits(p)]

    @property
    def fragments(self) -> int:
        """The largest useful P with which a round ends in time.

        More fragments make traffic more even. They are useful while a round takes at most a step,
        or while the bytes of a fragment take at least as long as one round trip.
        """
        fitting = self.fitting
        useful = next(
            (p for p in range(self.most, self.bounds.least_fragments, -1) if self._useful(p)),
            self.bounds.least_fragments,
        )
        return min((p for p in fitting if p >= useful), default=fitting[-1])

    def _useful(self, fragments: int) -> bool:
        slowest = self.slowest(fragments)
        bytes_s = slowest.round_s - 2 * ROUND_TRIPS * slowest.link.rtt_s
        return slowest.round_s <= self.step_s or bytes_s / 2 >= slowest.link.rtt_s

    @property
    def refusal(self) -> str:
        """The reason why this H does not work; empty if it does."""
        if (busiest := self.busiest(self.most)).use > MOST_USE:
            return f"with H = {self.every} it would be used to {busiest.use:.0%}"
        if not self.fitting:
            slowest = self.slowest(self.most)
            limit_s = self.most_round_s(self.most)
            if self.every < LADDER[0]:
                return (
                    f"H is below {LADDER[0]} only if a round takes less than "
                    f"{SHORT_ROUND * self.step_s:.3g} s, a fifth of a step"
                )
            return (
                f"with H = {self.every} a round of {slowest.round_s:.3g} s would not end within "
                f"{limit_s:.3g} s"
            )
        return ""

    def interval(self, fragments: int, *, fits: bool) -> Interval:
        """Return this H with this P, and the reason."""
        busiest, slowest = self.busiest(fragments), self.slowest(fragments)
        why = (
            f"{busiest.link.text} is used to {busiest.use:.0%}, of {MOST_USE:.0%} at most; a round "
            f"of a fragment takes {slowest.round_s:.3g} s, and a step {self.step_s:.3g} s"
            if fits
            else self._no_plan(busiest, slowest, fragments)
        )
        return Interval(self.every, fragments, busiest, fits, why)

    def _no_plan(self, busiest: LinkLoad, slowest: LinkLoad, fragments: int) -> str:
        """Return why no H works, with the numbers."""
        link = busiest.link
        if busiest.use > MOST_USE:
            needs = busiest.needs_bit_s / MOST_USE / 1e9
            exchanges = f"{link.islands:g} islands"
            if link.served:
                exchanges = f"{link.exchanges:g} exchanges of the model"
            return (
                f"{link.text} carries no plan: even H = {self.every}, with {exchanges} and "
                f"steps of {self.step_s:.3g} s, needs {needs:.3g} Gbit/s"
            )
        return (
            f"a round over {slowest.link.text} takes {slowest.round_s:.3g} s, and with H = "
            f"{self.every}, P = {fragments} and steps of {self.step_s:.3g} s it must end within "
            f"{self.most_round_s(fragments):.3g} s"
        )
