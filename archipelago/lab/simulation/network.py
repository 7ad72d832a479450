"""The links between islands and the rest of a simulated cluster, which lose and delay messages."""

from __future__ import annotations

from collections.abc import Sequence

from archipelago.lab.checks.facts import ContributionTruth, Poison
from archipelago.lab.simulation import lies
from archipelago.lab.simulation.payloads import SimDifference
from archipelago.lab.simulation.process import SimProcess
from archipelago.lab.simulation.site import Machine, SimSite
from archipelago.lab.virtual.network import NOTICED_S, Call, VirtualNetwork
from coordinator.protocol import (
    Adopted,
    ContributionId,
    Fragment,
    Island,
    Known,
    LeaseWanted,
    Life,
    Publication,
    Report,
    Version,
    Vitals,
)

AWAY_S, BACK_S = 10.0, 2.0
"""Seconds at most until a drained island comes back, and until a broken process restarts."""
BAD_LUCK = 0.35
"""The share of messages that a bad link loses, or delivers twice."""
SLOWNESS = 25.0
"""The factor by which slow links, disks and shards are slower."""


class SimNetwork(VirtualNetwork[SimProcess, Machine]):
    """The network of a simulated cluster; every process's link."""

    timeout_s, resends = 12.0, False

    def __init__(self, site: SimSite) -> None:
        super().__init__(site)
        self.site, self.rng, self.shards = site, site.rng, site.shards

    # --- processes --------------------------------------------------------------------------------

    def process_at(self, place: Machine, seed: str) -> SimProcess:
        """Return a new process for a machine."""
        return SimProcess(self.site.plan, place.trait, self.loop, self, seed)

    def ended(self, process: SimProcess, life: Life) -> None:
        """Notify the watchers of a life that it is over."""
        self.notify(life, NOTICED_S, "its learner ended it")

    def left(self, process: SimProcess) -> None:
        """Bring a drained island back later, whether or not it had a life when it left."""
        back_s = self.loop.now_s + self.rng.random() * AWAY_S
        self.loop.at(back_s, self.start, self.places[process.island])

    # --- messages ---------------------------------------------------------------------------------

    def delay_s(self, place: Machine) -> float:
        """Draw the delay of one message, one way."""
        slow = SLOWNESS if self.loop.now_s < place.slow_s else 1.0
        return place.trait.latency_s * slow * (0.5 + self.rng.random())

    def lost(self, place: Machine, cut_s: float) -> bool:
        """Draw whether a message is lost; `cut_s` is the end of the cut in its direction."""
        now_s = self.loop.now_s
        return now_s < cut_s or (now_s < place.loss_s and self.rng.random() < BAD_LUCK)

    def received(self, place: Machine, call: Call) -> None:
        """Draw whether a message that has reached the syncer arrives again."""
        if self.loop.now_s < place.twice_s and self.rng.random() < BAD_LUCK:
            late_s = self.rng.random() * SLOWNESS * place.trait.latency_s
            self.loop.at(self.loop.now_s + late_s, self._arrives_again, place.island, call)

    def _arrives_again(self, island: Island, call: Call) -> None:
        self.site.suspect(island)
        if self.site.syncer is not None:
            call(self.site.syncer)

    # --- messages of a process --------------------------------------------------------------------

    def whole(self, process: SimProcess) -> None:
        """Fetch all public fragments; a process whose fetch fails dies and restarts."""
        place = self.places[process.island]
        if self.lost(place, max(place.up_cut_s, place.down_cut_s)):
            self.crash(place, process)
            self.loop.at(self.loop.now_s + BACK_S, self.start, place)
            return
        self.loop.at(
            self.loop.now_s + 2 * self.delay_s(place), process.reached, self._give, process
        )

    def _give(self, process: SimProcess) -> None:
        if self.shards.all_there:
            process.start(self.shards.whole())
        else:
            self.loop.at(self.loop.now_s + NOTICED_S, process.reached, self._give, process)

    def report(
        self, process: SimProcess, event: Report, vitals: Vitals, adopted: Sequence[Adopted]
    ) -> None:
        """Send a report; a lying learner may change a number in it."""
        if process.poison is Poison.LYING:
            self.site.lied.add(event.life)
            event, adopted = lies.report(
                event, adopted, self.site.plan.rule.schedule.fragments, process.rng
            )
        super().report(process, event, vitals, adopted)

    def lease(self, process: SimProcess, event: LeaseWanted) -> None:
        """Ask for data; a lying learner may ask many times."""
        if process.poison is Poison.LYING:
            self.site.lied.add(event.life)
            for _ in range(lies.floods(process.rng)):
                self.call(process, lambda syncer: syncer.lease(event), lambda _: None, lambda: None)
        super().lease(process, event)

    # --- what a learner reaches at once -----------------------------------------------------------

    def can_follow(self, known: tuple[Version, int], publication: Publication) -> bool:
        """Return whether a learner can fetch what it missed between `known` and a publication."""
        return self.shards.can_follow(known, publication)

    def follow(
        self, known: tuple[Version, int], publication: Publication, payload: SimDifference
    ) -> tuple[Version, int]:
        """Return the public fragment after a publication."""
        return self.shards.follow(known, publication, payload)

    def hears(self, life: Life, p: Fragment, known: Known) -> bool:
        """Check the reported outcomes; return False if they are older than those before."""
        return self.site.told.hears(life, p, known)

    def made(self, id_: ContributionId, made: ContributionTruth) -> None:
        """Record the truth about a contribution."""
        self.site.made_of[id_] = made
        if made.poison is Poison.LYING:
            self.site.lied.add(id_.life)
        self.site.told.made(id_)

    def kept(self, keeps: Sequence[ContributionId]) -> None:
        """Check the contributions that stay in place beside an adopted version."""
        self.site.told.kept(keeps)
