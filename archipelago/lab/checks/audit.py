"""An audit of a run from its tape: the data that each region read, and what crossed its border.

The tape has every message that the rules have received and every order that they gave. So the audit
counts the payloads of the protocol to the byte. It does not count headers, retries, or copies of
messages that never arrived. Each kind of message in each direction has a digest of its records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from archipelago.lab.checks.audit_errors import kind_of_reason
from archipelago.lab.checks.audit_lineage import Lineage
from archipelago.lab.checks.audit_result import (
    Audit,
    RegionAudit,
    Traffic,
    TrafficKind,
)
from cluster.config.load import load
from cluster.config.region_tables import Leaving
from cluster.config.rule import rule_of, wire_of_moments
from cluster.config.schema import Config
from cluster.storage.contributions import ContributionStore
from cluster.storage.format import Damaged
from cluster.storage.layout import load_layout
from cluster.storage.open_depot import contribution_store, depot_of
from cluster.storage.playback import Playback, TapeRow, edition_of
from cluster.storage.snapshots import beginning_of
from cluster.storage.state_history import OtherRules, ReplayedEvent, relive
from cluster.syncer.payload_bytes import PayloadBytes
from coordinator.codec import Wire
from coordinator.errors import UserMistake
from coordinator.fragments import Layout
from coordinator.protocol import (
    Arrived,
    Contribution,
    ContributionId,
    Effect,
    Event,
    Granted,
    Island,
    Join,
    Lease,
    LeaseGranted,
    Life,
    Lost,
    Merge,
    Missing,
    MomentsTaken,
    Publish,
    Report,
    Resume,
)
from coordinator.state import Rule, State
from coordinator.tape import record

NO_REGION = "(none)"
"""The name of the islands without a region."""


def audit(run_dir: Path, *, digests: bool = False) -> Audit:
    """Audit the run in `run_dir`. `digests`: read the payloads that the run kept.

    Errors: `UserMistake` if there is no run, if it sums gradients, or if the beginning of its tape
    is gone.
    """
    config = load(run_dir / "config.toml")
    if (mode := config.run.mode).sums_gradients:
        raise UserMistake(
            f'run {run_dir} is of run.mode = "{mode}", which has no tape of merges: only runs that '
            "merge contributions can be audited"
        )
    depot = depot_of(config, run_dir)
    layout = load_layout(depot)
    if beginning_of(depot, layout.fingerprint) is not None:
        raise UserMistake(
            f"run {run_dir}: the beginning of its tape is gone (durability.keep_segments = "
            f"{config.durability.keep_segments}), and an audit needs all of it"
        )
    rule = rule_of(config, layout, edition_of(depot))
    tape = Playback(depot, layout.fingerprint)
    keeps = digests and config.durability.keep_contributions
    auditor = _Auditor(config, layout, contribution_store(config, run_dir) if keeps else None)
    events, replaced, uncounted = 0, [*tape.replaced()], list[str]()
    try:
        for replayed in relive(rule, tape):
            for generation, begins, rows in replaced:
                if begins == events:
                    uncounted += _hear_replaced(auditor, rule, replayed.before, generation, rows)
            auditor.hear(replayed)
            events += 1
    except OtherRules as error:
        raise UserMistake(f"run {run_dir}: {error}") from error
    for generation, begins, rows in replaced:
        if begins is None or begins >= events:
            uncounted.append(_uncounted(generation, sum(1 for _ in rows)))
    lineage = auditor.lineage.rows
    return Audit(
        run_dir.name,
        events,
        sum(not each.lost and not each.has_unknown_origin for each in lineage),
        sum(each.lost and not each.has_unknown_origin for each in lineage),
        sum(each.has_unknown_origin for each in lineage),
        auditor.regions(),
        auditor.lineage.sha256,
        lineage,
        "; ".join(filter(None, [tape.damage, *uncounted])) or None,
        bool(uncounted) or not tape.is_torn_only,
        auditor.unconfirmed,
    )


def _hear_replaced(
    auditor: _Auditor, rule: Rule, before: State, generation: int, rows: Iterator[TapeRow]
) -> list[str]:
    """Count the traffic of events that a later generation replaced; return what is not counted."""
    try:
        for old in relive(rule, rows, before):
            auditor.hear(old, replaced=True)
    except OtherRules:
        return [_uncounted(generation, 1 + sum(1 for _ in rows))]
    return []


def _uncounted(generation: int, count: int) -> str:
    return f"{count} replaced events of generation {generation} are not counted"


def lineage_of(run_dir: Path) -> str | None:
    """Return the digest of all merges of a run; None if it has no whole tape, or no merge."""
    try:
        found = audit(run_dir)
    except (UserMistake, Damaged, OSError):
        return None
    return found.lineage_sha256 if found.merges else None


class _Auditor:
    """The counts of an audit, event by event."""

    def __init__(self, config: Config, layout: Layout, kept: ContributionStore | None) -> None:
        self._config, self._layout, self._kept = config, layout, kept
        self._bytes = PayloadBytes(
            layout.sizes, config.sync.wire_down, wire_of_moments(config), layout.state_fragment
        )
        self._regions = dict[str, RegionAudit]()
        self._of = dict[Island, RegionAudit]()
        self._leases = dict[str, set[int]]()
        self._given = set[Life]()  # lives whose moments of a donor are counted
        self.unconfirmed = list[str]()  # why kept payloads have no digest
        self._payloads = dict[ContributionId, str]()  # digests of those that are not merged yet
        self.lineage = Lineage(len(layout.fragments))

    def hear(self, replayed: ReplayedEvent, *, replaced: bool = False) -> None:
        """Count one event and its effects.

        `replaced`: a later generation did not continue from it, so it only counts as traffic.
        """
        if isinstance(replayed.event, Join):
            self._enter(replayed.event)
        if isinstance(replayed.event, Resume) and not replaced:
            self.lineage.resumed(replayed.event, replayed.before, replayed.now_s)
        self._event(replayed.event)
        for effect in replayed.effects:
            self._effect(effect, replayed)
            if not replaced:
                self._merge(effect, replayed.now_s)

    def regions(self) -> list[RegionAudit]:
        """Return all regions by name."""
        for name, found in self._regions.items():
            found.leases = _ranges(sorted(self._leases.get(name, ())))
            found.islands.sort()
        return [self._regions[name] for name in sorted(self._regions)]

    def _enter(self, join: Join) -> None:
        """Note the region of an island that joins: what follows is traffic of that region."""
        name = NO_REGION if join.region is None else join.region
        table = self._config.regions.get(name)
        may_leave = None if table is None else [kind.value for kind in table.may_leave]
        found = self._regions.setdefault(name, RegionAudit(name, may_leave=may_leave))
        if join.island not in found.islands:
            found.islands.append(join.island)
        self._of[join.island] = found

    def _event(self, event: Event) -> None:
        match event:
            case Report():
                _of_kind(self._of[event.life.island].up, TrafficKind.REPORT).add(_text(event))
                if event.moments is not None and event.life not in self._given:  # not sent again
                    self._given.add(event.life)
                    self._moments_of_donor(event.life, event.moments, _text(event))
            case Lost(life, why) | Missing(life, _, why):
                region = self._of[life.island]
                if (kind := self._error(region, why)) is not None:
                    _of_kind(region.up, kind).add(_text(event))
            case Arrived(contribution):
                up, moments = (
                    self._of[contribution.id.life.island].up,
                    self._bytes.moments_in(contribution),
                )
                text, payload = _text(event), self._sha256(contribution)
                if payload is not None:
                    self._payloads[contribution.id] = payload
                _of_kind(up, TrafficKind.DELTA).add(text, contribution.bytes - moments, payload)
                if moments:
                    _of_kind(up, TrafficKind.MOMENTS).add(text, moments)
            case _:
                pass

    def _moments_of_donor(self, life: Life, moments: MomentsTaken, text: str) -> None:
        """Count moments that a joining life took, if they crossed a border."""
        to, of = self._of[life.island], self._of.get(moments.donor.island)
        if of is not None and of is not to:
            for kinds in (of.up, to.down):
                _of_kind(kinds, TrafficKind.MOMENTS).add(text, moments.nbytes)

    def _error(self, region: RegionAudit, why: str) -> TrafficKind | None:
        """Return the kind of an island's message about its error; None if there was none.

        Texts are only looked for in regions that must keep them.
        """
        if region.may_leave is None or Leaving.ERRORS in region.may_leave:
            return None
        return kind_of_reason(why, region.region)

    def _effect(self, effect: Effect, replayed: ReplayedEvent) -> None:
        match effect:
            case Granted():
                region = self._of[effect.life.island]
                self._read(region, effect.leases)
                text = json.dumps([str(effect.life), *map(str, effect.versions)])
                size = sum(map(Wire.F32.bytes_of, self._layout.sizes))
                _of_kind(region.down, TrafficKind.MODEL).add(text, size)
            case LeaseGranted():
                self._read(self._of[effect.life.island], [effect.lease])
            case Publish():
                before = replayed.before.fragments[effect.fragment]
                size = self._bytes.published(before, effect)
                for life in effect.to:
                    text = json.dumps([str(life), effect.fragment, str(effect.version)])
                    down = self._of[life.island].down
                    _of_kind(down, TrafficKind.DIFFERENCE).add(text, size)
            case _:
                pass

    def _merge(self, effect: Effect, now_s: float) -> None:
        match effect:
            case Merge():
                self.lineage.ordered(effect, now_s)
            case Publish():
                self.lineage.published(effect, self._of, self._payloads)
            case _:
                pass

    def _read(self, region: RegionAudit, leases: Sequence[Lease]) -> None:
        self._leases.setdefault(region.region, set()).update(lease.number for lease in leases)

    def _sha256(self, contribution: Contribution) -> str | None:
        """Return the digest of a payload; None unless it is wanted, was kept and is unchanged."""
        if self._kept is None:
            return None
        try:
            return self._kept.sha256(contribution.id, self._layout.fingerprint)
        except (Damaged, OSError) as error:
            self.unconfirmed.append(str(error))
            return None


def _of_kind(kinds: dict[TrafficKind, Traffic], kind: TrafficKind) -> Traffic:
    return kinds.setdefault(kind, Traffic())


def _text(event: Event) -> str:
    """Return an event as the tape has it."""
    return json.dumps(record(event), separators=(",", ":"))


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return sorted numbers as ranges of neighbours: first and last."""
    if not numbers:
        return []
    ends = [i for i, (a, b) in enumerate(pairwise(numbers), 1) if b != a + 1]
    bounds = [0, *ends, len(numbers)]
    return [(numbers[start], numbers[stop - 1]) for start, stop in pairwise(bounds)]
