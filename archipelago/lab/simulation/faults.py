"""The faults of a simulated cluster; each occurs at its time in the plan, and all are repaired."""

from __future__ import annotations

import math

from archipelago.lab.checks.facts import Poison
from archipelago.lab.simulation.network import BACK_S, SimNetwork
from archipelago.lab.simulation.plan import EVERYWHERE, LAYOUT, SimFault, Trouble
from archipelago.lab.simulation.process import SimProcess
from archipelago.lab.simulation.shard_faults import ShardFaults
from archipelago.lab.simulation.site import Machine, SimSite
from archipelago.lab.simulation.stray_messages import echo, stray
from archipelago.lab.simulation.syncer import SyncerSlot
from archipelago.lab.virtual.network import NOTICED_S
from coordinator.membership import Status
from coordinator.protocol import LeaseWanted, Lost

UNNOTICED_S = 40.0
"""Seconds until the death of a process is detected if its end is not reported."""
STUCK_S = 200.0
"""The longest time, in seconds, that a learner is stuck when the run ends."""
LONGEST_JUMP_S = 60.0
"""The longest forward jump of the syncer's clock, in seconds."""
DRAINING_STEPS = 2.0
"""The steps within which a draining island gets into trouble."""
STRAYS = 3
"""The number of times that stray words arrive for an island whose poison is incurable."""
ECHOES = 4
"""The events that an echo repeats."""


class FaultInjector:
    """The faults of a plan and their repair.

    `struck` counts the faults so far, `met` holds their kinds, and `healed_now_s` is when the
    repair happened on the syncer's clock (infinite before).
    """

    def __init__(self, site: SimSite, network: SimNetwork, seat: SyncerSlot) -> None:
        self.site, self.network, self.seat = site, network, seat
        self.struck, self.met = 0, set[Trouble]()
        self._shards = ShardFaults(site, seat)
        self.healed_now_s = math.inf

    def strike(self, fault: SimFault) -> None:
        """Start one fault, unless the run has finished."""
        site, network = self.site, self.network
        machine, until_s = site.places[fault.island], min(fault.until_s, site.plan.healed_s)
        process, syncer = machine.process, site.syncer
        if syncer is not None and syncer.finished.is_set():
            return
        self.struck += 1
        self.met.add(fault.trouble)
        slack_s = site.plan.aftermath_s
        first_s, last_s = site.now_s(), site.now_s() + until_s - site.loop.now_s
        if fault.trouble in (Trouble.INCURABLE, Trouble.LYING):  # its consequences last
            last_s = site.now_s() + site.plan.healed_s - site.loop.now_s
        spans = site.everywhere if fault.trouble in EVERYWHERE else machine.troubles
        spans.append((first_s - slack_s, last_s + slack_s))
        match fault.trouble:
            case Trouble.CRASH | Trouble.VANISH:
                if process is not None:
                    noticed = fault.trouble is Trouble.CRASH
                    network.crash(machine, process, NOTICED_S if noticed else UNNOTICED_S)
                site.loop.at(until_s, network.start, machine)
            case Trouble.HANG:
                if process is not None:
                    process.frozen_s = until_s
            case Trouble.STUCK:
                if process is not None:
                    process.stuck_s = until_s
            case Trouble.SLOW:
                if process is not None:
                    process.drag, process.dragged_s = fault.factor, until_s
                ends_s = last_s + fault.factor * machine.trait.slowest_s  # end of last slow step
                spans.append((first_s, ends_s + slack_s))
            case Trouble.CUT:
                machine.up_cut_s = machine.down_cut_s = until_s
            case Trouble.CUT_UP:
                machine.up_cut_s = until_s
            case Trouble.CUT_DOWN:
                machine.down_cut_s = until_s
            case Trouble.LOSS:
                machine.loss_s = until_s
            case Trouble.TWICE:
                machine.twice_s = until_s
            case Trouble.DELAY:
                machine.slow_s = until_s
            case Trouble.ECHO:
                echo(self.site, self.seat.tape, ECHOES)
            case (
                Trouble.NAN
                | Trouble.LOUD
                | Trouble.FLIPPED
                | Trouble.ROTTEN
                | Trouble.COUNTERS
                | Trouble.FUTURE
                | Trouble.LYING
            ):
                if process is not None:
                    process.poison = Poison(fault.trouble)
                    process.incurable |= math.isinf(fault.lasts_s)
            case Trouble.INCURABLE:
                if process is not None:
                    process.poison, process.incurable = Poison.NAN, True
                for _ in range(STRAYS if site.plan.unruly else 0):
                    at_s = site.rng.uniform(site.loop.now_s, site.plan.healed_s)
                    site.loop.at(at_s, stray, site, fault.island)
            case Trouble.LAYOUT:
                if process is not None:
                    process.poison, process.layout = Poison.LAYOUT, "another"
            case Trouble.JUMP:
                site.jump_s += site.rng.uniform(0.1, 1) * LONGEST_JUMP_S
                site.everywhere.append((first_s - slack_s, site.now_s() + slack_s))
            case Trouble.DISK:
                site.disk_fails_s = until_s
            case Trouble.SLOW_DISK:
                site.disk_slow_s = until_s
            case Trouble.SLOW_SHARD:
                site.shard_slow_s = until_s
            case Trouble.DRAIN:
                machine.retired = math.isinf(fault.lasts_s)
                if syncer is not None:
                    syncer.drain(fault.island, "asked to")
                if site.plan.unruly and process is not None:
                    after_s = site.rng.uniform(0, DRAINING_STEPS) * machine.trait.step_s
                    site.loop.at(site.loop.now_s + after_s, self._while_draining, machine)
            case Trouble.RUMOUR:
                if syncer is not None and process is not None and process.life is not None:
                    syncer.feed(Lost(process.life, "a rumour"))
            case Trouble.DOUBLE:
                self._double(machine, process, until_s)
            case Trouble.STRAY:
                stray(site, fault.island)
            case Trouble.RESTART:
                self.seat.die()
                site.loop.at(until_s, self.seat.resume)
            case Trouble.SHARD:
                self._shards.strike(until_s)

    def _double(self, machine: Machine, process: SimProcess | None, until_s: float) -> None:
        """Start a second process under the same name; the first one dies at `until_s`."""
        if process is not None:
            machine.process = None
            self.site.loop.at(until_s, self.network.crash, machine, process, NOTICED_S)
        self.network.start(machine)

    def _while_draining(self, machine: Machine) -> None:
        """Drain a leaving island again, ask for data, kill its process, or start a second one."""
        site, syncer, island = self.site, self.site.syncer, machine.trait.island
        member = None if syncer is None else syncer.state.members.get(island)
        if syncer is None or member is None or member.status is not Status.DRAINING:
            return
        if (process := machine.process) is None:
            return
        site.suspect(island)
        match site.rng.randrange(4):
            case 0:
                syncer.drain(island, "once more")
            case 1:
                syncer.lease(LeaseWanted(member.life))
            case 2:
                self.network.crash(machine, process, NOTICED_S)
                site.loop.at(site.loop.now_s + BACK_S, self.network.start, machine)
            case _:
                self._double(machine, process, site.loop.now_s + BACK_S)

    def disturb(self) -> None:
        """Cause a fault that no longer matters, since the run is ending or has ended."""
        island = self.site.rng.choice(self.site.plan.traits).island
        self.site.suspect(island)
        match self.site.rng.randrange(8):
            case 0 if self.site.syncer is not None:
                self.site.syncer.stop("once more")
            case 1 if self.site.syncer is not None:
                self.site.syncer.drain(island, "asked to")
            case 2:
                self.seat.die()
                self.site.loop.at(self.site.loop.now_s + 1, self.seat.resume)
            case 3 if self.site.plan.rule.overlap > 0:
                now_s, slack_s = self.site.now_s(), self.site.plan.aftermath_s
                self.site.everywhere.append((now_s - slack_s, now_s + slack_s))
                self._shards.strike(self.site.loop.now_s + 1)
            case 4 if (process := self.site.places[island].process) is not None:
                lasts_s = self.site.rng.uniform(0, STUCK_S)
                process.stuck_s = self.site.loop.now_s + lasts_s
                now_s, slack_s = self.site.now_s(), self.site.plan.aftermath_s
                span = (now_s - slack_s, now_s + lasts_s + slack_s)
                self.site.places[island].troubles.append(span)
            case _:
                echo(self.site, self.seat.tape, ECHOES)

    def heal(self) -> None:
        """End all faults: nothing breaks from here on."""
        self.seat.resume()
        self.healed_now_s = self.site.now_s()
        for machine in self.site.places.values():
            machine.loss_s = machine.twice_s = machine.slow_s = 0.0
            process = machine.process
            if process is not None:
                process.poison, process.layout, process.incurable = None, LAYOUT, False
                process.dragged_s = 0.0
            back_s = self.site.loop.now_s + self.site.rng.random() * BACK_S
            self.site.loop.at(back_s, self.network.start, machine)
