"""A learner without a model: it steps, reports, hands in and adopts as `islands.learner` does.

It keeps the same tracks and says the same words in the same order; what is threads there is
callbacks here. One `Process` lives one life after another, until it dies or is let go.
"""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import dataclass, replace
from typing import Protocol

from cluster.checks.truth import Made, Poison, TokenWindow
from cluster.sim.loop import VirtualLoop, settle
from cluster.sim.plan import LAYOUT, Trait
from cluster.sim.shard import Parcel, SimDifference
from coordinator.protocol import (
    Adopted,
    Answer,
    ContributionId,
    Fragment,
    Granted,
    HandIn,
    Island,
    Join,
    Lease,
    LeaseGranted,
    LeaseWanted,
    Life,
    Progress,
    Publication,
    Refused,
    Report,
    Version,
    Vitals,
    Void,
)
from coordinator.state import Rule

HEARTBEAT_S, STEP_SMOOTHING = 1.0, 0.2
"""As in islands.learner, which would bring JAX along; a test compares them."""
LOUDER = 1000.0
"""How much too large the deltas of a learner poisoned so are."""
SILENT_VITALS = Vitals(math.nan)

HandedIn = tuple[HandIn, Parcel]


class SimLink(Protocol):
    """A process's way to the rest; answers come later, or `failed` is called instead."""

    def join(self, who: SimLearner, event: Join) -> None: ...
    def whole(self, who: SimLearner) -> None: ...
    def missed(
        self, p: Fragment, older: Version, newer: Version
    ) -> list[SimDifference] | tuple[Version, int]: ...
    def follow(self, p: Fragment, version: Version, value: int) -> None: ...
    def report(self, who: SimLearner, event: Report) -> None: ...
    def adopted(self, who: SimLearner, event: Adopted) -> None: ...
    def lease(self, who: SimLearner, event: LeaseWanted) -> None: ...
    def made(self, id_: ContributionId, made: Made) -> None: ...
    def ended(self, who: SimLearner, life: Life) -> None: ...
    def left(self, who: SimLearner) -> None: ...


@dataclass(slots=True)
class SimTrack:
    """One fragment: the public value as followed, and whence the next delta counts."""

    base: Version
    from_step: int
    from_tokens: int
    known: tuple[Version, int]


class SimLearner:
    """One process of one island."""

    def __init__(
        self, rule: Rule, trait: Trait, carry: bool, loop: VirtualLoop, link: SimLink, seed: str
    ) -> None:
        self.rule, self.trait, self.carry, self.loop, self.link = rule, trait, carry, loop, link
        self.rng = random.Random(seed)
        self.poison: Poison | None = None
        self.incurable = False  # what is wrong with it outlives its lives
        self.layout = self.joining_as = LAYOUT
        self.dead = self.let_go = False
        self.frozen_s = 0.0  # stands still until then
        self.stuck_s = 0.0  # no step of it ends before
        self.drag, self.dragged_s = 1.0, 0.0  # its steps take so many times as long, until then
        self.life: Life | None = None
        self.over: Void | None = None
        self.stepping = self.staying = True
        self.waiting = True  # not within a step: what is asked is served at once
        self.steps = self.tokens = self.offset = 0
        self.step_s = self.stepped_s = 0.0
        self.tracks: list[SimTrack] = []
        self.asks: dict[Fragment, asyncio.Future[HandedIn | None]] = {}
        self.news: dict[Fragment, tuple[Version, int]] = {}
        self.awaiting: dict[Fragment, Version] = {}
        self.said: list[Adopted] = []
        self.saying: list[Adopted] = []
        self.leases: list[Lease] = []
        self.read: list[TokenWindow] = []  # every window of this life, in order
        self.cursor = Lease(0)
        self.progress = Progress(0, 0, self.cursor)
        self.left = 0  # windows for which it has leases
        self.spoke = self.talking = self.beating = False
        self.spoke_s = 0.0

    # --- lives ------------------------------------------------------------------------------------

    @property
    def island(self) -> Island:
        return self.trait.island

    def begin(self) -> None:
        self.joining_as = self.layout
        self.link.join(self, Join(self.island, "group", self.layout, self.trait.region))

    def granted(self, answer: Granted | Refused) -> None:
        if isinstance(answer, Refused):
            if answer.retry_s is not None:
                self.loop.at(self.loop.now_s + answer.retry_s, self._ask_again)
            elif not self.staying:
                self._leaves()
            elif self.layout != self.joining_as:
                self.begin()  # mended, while the refusal was on its way
            else:
                self.let_go = True
        else:
            self.over = None
            self.grant = answer
            self.link.whole(self)

    def _ask_again(self) -> None:
        """It was told to wait, and has; unless it was let go meanwhile."""
        if self.dead:
            return
        if self.staying:
            self.begin()
        else:
            self._leaves()

    def _leaves(self) -> None:
        """The process of an island that was drained is over."""
        self.let_go = True
        self.link.left(self)

    def start(self, public: list[tuple[Version, int]]) -> None:
        """The public fragments have come: live."""
        grant = self.grant
        self.life, self.offset = grant.life, grant.offset
        self.steps = self.tokens = 0
        self.stepping = True  # who is let in shall step, whatever it was told before
        self.stepped_s = self.loop.now_s
        self.tracks = [SimTrack(known[0], 0, 0, known) for known in public]
        self.asks, self.news, self.awaiting, self.said, self.saying = {}, {}, {}, [], []
        self.leases, self.read = list(grant.leases), []
        self.left = sum(self.rule.lease_windows - lease.start for lease in grant.leases)
        self.cursor = grant.leases[0]
        self.progress = Progress(0, 0, self.cursor)
        self.spoke = self.talking = False
        if not self.beating:
            self._beat()
        self._go_on()

    def end(self) -> None:
        """Nobody is kept waiting for a life that is over."""
        life, self.life = self.life, None
        for waiter in self.asks.values():
            settle(waiter, None)
        self.asks = {}
        if life is not None:
            self.link.ended(self, life)
        if self.over is not None and self.over.distrusted and not self.incurable:
            self.poison = None  # new moments, new parameters
        if self.staying:
            self.begin()
        else:
            self._leaves()

    # --- called by others -------------------------------------------------------------------------

    def hand_in(self, life: Life, p: Fragment) -> asyncio.Future[HandedIn | None] | None:
        if self.life != life:
            return None
        waiter = self.asks.get(p)
        if waiter is None:
            waiter = self.asks[p] = asyncio.Future(loop=self.loop)
            self._if_waiting()
        return waiter

    def offer(self, life: Life, said: Publication, payload: SimDifference) -> None:
        if self.life != life:
            return
        p, track = said.fragment, self.tracks[said.fragment]
        version, value = track.known
        if said.version <= version:
            return
        found: list[SimDifference] | tuple[Version, int] = []
        if said.previous != version:
            found = self.link.missed(p, version, said.previous)
        match found:
            case list() as differences:
                added = sum(each.tokens for each in (*differences, payload))
                track.known = (said.version, value + added)
            case whole:
                track.known = whole
        self.link.follow(p, *track.known)
        self.news[p] = track.known
        self._if_waiting()

    def cease(self, over: Void) -> None:
        if self.life == over.life:
            self.over = over
            if self.waiting:
                self.end()

    def park(self, life: Life) -> None:
        if self.life == life:
            self.stepping = False
            self._if_waiting()

    def leave(self) -> Progress:
        progress = self.progress
        self.stepping = self.staying = False
        if self.waiting and self.life is not None:
            self.end()
        return progress

    # --- training ---------------------------------------------------------------------------------

    def _alive(self) -> bool:
        return self.staying and self.over is None

    def _go_on(self) -> None:
        """Begin the next step, or wait for what it needs."""
        if self.life is None:
            return
        if not self._alive():
            self.end()
            return
        if self.awaiting or not self.stepping or self.left < self.trait.windows:
            self.waiting = True
            if self.stepping and not self.awaiting:
                self._talk()  # it is out of data
            return
        self.waiting = False
        trait = self.trait
        takes_s = trait.step_s * (1 + trait.jitter * (2 * self.rng.random() - 1))
        if self.loop.now_s < self.dragged_s:
            takes_s *= self.drag
        self.loop.at(self.loop.now_s + takes_s, self._stepped, self.life)

    def _stepped(self, life: Life) -> None:
        """A step is over; what is due at its end."""
        if self.dead or self.life is not life:
            return
        now_s = self.loop.now_s
        if now_s < (held_s := max(self.frozen_s, self.stuck_s)):
            self.loop.at(held_s, self._stepped, life)
            return
        clock = self.steps + 1 + self.offset
        self.steps += 1
        self.tokens += self.trait.tokens
        self._consume(self.trait.windows)
        self.progress = Progress(self.steps, self.tokens, self.cursor)
        awaiting: dict[Fragment, Version] = {}
        if self.rule.overlap == 0 and self.stepping:
            due = self.rule.schedule.due(after=clock - 1, upto=clock)
            awaiting = {p: self.tracks[p].base for p in due}
        self._boundary()
        took_s, self.stepped_s = now_s - self.stepped_s, now_s
        known = self.step_s
        self.step_s = took_s if known == 0 else known + STEP_SMOOTHING * (took_s - known)
        if any(self.tracks[p].base == version for p, version in awaiting.items()):
            self.awaiting = awaiting
        if self._is_news():
            self.spoke = True
            self._talk()
        self._go_on()

    def _is_news(self) -> bool:
        """Must the syncer hear of this step at once, and not by the next heartbeat?"""
        clock = self.steps + self.offset
        return self.steps == 1 or bool(self.rule.schedule.due(after=clock - 1, upto=clock))

    def _consume(self, windows: int) -> None:
        self.left -= windows
        length = self.rule.lease_windows
        while windows:
            lease = self.leases[0]
            if lease.start == length:
                self.leases.pop(0)
                continue
            taken = min(windows, length - lease.start)
            first = lease.number * length + lease.start
            self.read += [(self.trait.region, n) for n in range(first, first + taken)]
            self.leases[0] = self.cursor = Lease(lease.number, lease.start + taken)
            windows -= taken

    def _if_waiting(self) -> None:
        """Serve at once what comes while no step is under way; go on if that was waited for."""
        if not self.waiting or self.life is None:
            return
        self._boundary()
        if self.awaiting and all(self.tracks[p].base != v for p, v in self.awaiting.items()):
            self.awaiting = {}
            self._go_on()

    def _boundary(self) -> None:
        """Hand in first, so that nothing is overwritten that was asked for."""
        for p in list(self.asks):
            track = self.tracks[p]
            if not self.stepping or track.from_step < self.steps:
                settle(self.asks.pop(p), self._hand_over(p, track))
        if self.news:
            news, self.news = self.news, {}
            for p, (version, _) in news.items():
                self._adopt(p, self.tracks[p], version)

    def _hand_over(self, p: Fragment, track: SimTrack) -> HandedIn | None:
        if track.from_step == self.steps or self.life is None:
            return None
        id_ = ContributionId(self.life, p, track.from_step, self.steps)
        tokens = self.tokens - track.from_tokens
        norm = (self.steps - track.from_step) * self.rng.uniform(0.8, 1.25)
        windows = self.trait.windows
        made = tuple(self.read[track.from_step * windows : self.steps * windows])
        hand_in = HandIn(id_, track.base, track.from_step, tokens, LAYOUT, self.progress)
        track.from_step, track.from_tokens = self.steps, self.tokens
        if self.poison is not None:
            hand_in, norm = self._spoil(hand_in, norm)
        self.link.made(hand_in.id, Made(self.poison, made))
        sign = -1 if self.poison is Poison.FLIPPED else 1
        return hand_in, Parcel(tokens, norm, sign, rotten=self.poison is Poison.ROTTEN)

    def _spoil(self, said: HandIn, norm: float) -> tuple[HandIn, float]:
        match self.poison:
            case Poison.NAN:
                return said, self.rng.choice((math.nan, math.inf))
            case Poison.LOUD:
                return said, norm * LOUDER
            case Poison.FLIPPED | Poison.ROTTEN:
                return said, norm
            case Poison.LAYOUT:
                return replace(said, fingerprint="another"), norm
            case Poison.FUTURE:
                return replace(said, base=Version(said.base.generation + 9, 0)), norm
            case _:
                id_, tokens = said.id, said.tokens
                wrong = (
                    replace(said, tokens=0),
                    replace(said, tokens=-tokens),
                    replace(said, tokens=said.progress.tokens + 1),
                    replace(said, id=id_._replace(from_step=-1), since_step=-1),
                    replace(said, since_step=-1),
                    replace(said, since_step=id_.to_step),
                    replace(said, id=id_._replace(from_step=id_.to_step)),
                    replace(said, id=id_._replace(to_step=id_.to_step + 1)),
                )
                return self.rng.choice(wrong), norm

    def _adopt(self, p: Fragment, track: SimTrack, version: Version) -> None:
        if self.life is None:
            return
        from_step, tokens = self.steps, 0
        if not self.carry:
            from_step, tokens = track.from_step, self.tokens - track.from_tokens
            track.from_step, track.from_tokens = self.steps, self.tokens
        track.base = version
        self.said.append(Adopted(self.life, p, version, from_step, tokens, self.progress))
        self._talk()

    # --- talking ----------------------------------------------------------------------------------

    def _talk(self) -> None:
        """Say what happened, one message at a time; what comes meanwhile is joined."""
        if self.talking or self.life is None:
            return
        self.talking = True
        self.saying, self.said, self.spoke = self.said, [], False
        self.sent = 0
        self.report = Report(self.life, self.progress, self.step_s)
        wanted = max(self.rule.lease_windows, self.trait.windows)
        self.hungry = self.stepping and self.left < wanted
        self._say_next()

    def _say_next(self) -> None:
        if self.sent < len(self.saying):
            self.link.adopted(self, self.saying[self.sent])
        elif self.sent == len(self.saying):
            self.link.report(self, self.report)
        elif self.hungry and self.life is not None:
            self.hungry = False
            self.link.lease(self, LeaseWanted(self.life))
        else:
            self.talking = False
            self.spoke_s = self.loop.now_s
            if self.said or self.spoke:
                self._talk()
            return
        self.sent += 1

    def heard(self, life: Life, answer: Answer | LeaseGranted | Void | None) -> None:
        """The answer to what was said last."""
        if self.life != life:
            return
        match answer:
            case Void():
                self.talking = False
                self.cease(answer)
                return
            case Answer():
                self.spoke = self.spoke or answer.offset != self.offset
                self.offset = answer.offset
                if answer.stopping:
                    self.stepping = False
                    self._if_waiting()
            case LeaseGranted(_, lease):
                self.leases.append(lease)
                self.left += self.rule.lease_windows - lease.start
                if self.waiting:
                    self._go_on()
            case None:
                pass
        self._say_next()

    def unheard(self, life: Life) -> None:
        """No answer came: what was said will be said again."""
        if self.life == life:
            self.said = self.saying + self.said  # saying it twice does no harm
            self.loop.at(self.loop.now_s + HEARTBEAT_S, self._talk_again, life)

    def _talk_again(self, life: Life) -> None:
        if not self.dead and self.life == life:
            self.talking = False
            self._talk()

    def _beat(self) -> None:
        """Say that it is there, if it has said nothing for a while."""
        self.beating = not self.dead and not self.let_go
        if not self.beating:
            return
        now_s = self.loop.now_s
        if now_s >= max(self.spoke_s + HEARTBEAT_S, self.frozen_s):
            self._talk()
            self.spoke_s = now_s
        self.loop.at(max(self.spoke_s + HEARTBEAT_S, self.frozen_s), self._beat)
