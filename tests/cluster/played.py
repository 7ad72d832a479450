"""A run that writes every file of a real one, without Ray and without JAX.

The rules, the shard, the tape and the stores are the real ones; the learners hand in random
numbers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from cluster.config.load import load
from cluster.config.rule import rule_of, wire_of_moments
from cluster.config.schema import Config
from cluster.names import group_name
from cluster.shard.arrays import fresh
from cluster.shard.build import shard_of
from cluster.storage.files import write, write_json
from cluster.storage.folder import Folder
from cluster.storage.fragments import Arrays, FragmentStore
from cluster.storage.layout import save_layout
from cluster.storage.model_file import fingerprint
from cluster.storage.open_depot import contribution_store
from cluster.storage.runs import SUMMARY
from cluster.storage.snapshots import Snapshot, forget_before, name_of, save_snapshot
from cluster.storage.tape import Tape
from cluster.syncer.journal import Notes
from cluster.syncer.measures import Measures
from cluster.syncer.resume_point import rules_sha256
from coordinator import ledger
from coordinator.advance import advance
from coordinator.codec import encode, joined
from coordinator.fragments import Flat, Leaf, cut
from coordinator.protocol import (
    Arrived,
    Ask,
    ContributionId,
    Event,
    Fragment,
    Granted,
    HandIn,
    Join,
    Lease,
    Life,
    Merge,
    Missing,
    Progress,
    Publish,
    Report,
    Stop,
    Store,
    Stored,
)
from coordinator.state import State, initial
from islands.own_wire import encoded

LAYOUT = cut([Leaf("w", (6, 5), stacked=True), Leaf("b", (7,))], 2)
CONFIG = """
[task]
preset = "byte-tiny"
[sync]
every = 4
fragments = 2
grace = 0.0
max_staleness = 100
[[islands]]
count = 2
batch_size = 1
[durability]
keep_contributions = true
"""
TOKENS = 100
"""The tokens of one step."""


def measures_of(config: Config) -> Measures:
    islands = {island: group_name(island) for island in config.island_names}
    down, moments = config.sync.wire_down, wire_of_moments(config)
    return Measures("played", islands, LAYOUT.sizes, down, now_s=0.0, wire_moments=moments)


def copied(arrays: Arrays) -> Arrays:
    master, momentum = np.array(arrays.master), np.array(arrays.momentum)
    return replace(arrays, master=master, momentum=momentum, public=np.array(arrays.public))


class Played:
    """Two learners that take turns, and the files that they leave in `run_dir`."""

    def __init__(self, run_dir: Path, config: str = CONFIG) -> None:
        self.run_dir = run_dir
        write(run_dir / "config.toml", config.encode())
        save_layout(Folder(run_dir), LAYOUT)
        self._config = load(run_dir / "config.toml")
        self.rule = rule_of(self._config, LAYOUT)
        self.state: State = initial(self.rule)
        self.kept: State | None = None  # the state in the newest snapshot
        self._rng = np.random.default_rng(0)
        self._store = FragmentStore(
            Folder(run_dir), LAYOUT, keep=self._config.durability.keep_snapshots
        )
        self._kept = contribution_store(self._config, run_dir)
        arrays = fresh([self._drawn(p) for p in range(2)])
        self.history = {(p, each.version): copied(each) for p, each in arrays.items()}
        for p, each in arrays.items():
            self._store.save(p, each, first=True)
        self._shard = shard_of(self._config, LAYOUT, arrays)
        self._tape = Tape(Folder(run_dir), 0, LAYOUT.fingerprint)
        self._now_s = 0.0
        self.measures = measures_of(self._config)
        self.notes = Notes(Folder(run_dir), self.measures, lambda: self._now_s)
        self._steps: dict[Life, int] = {}
        self._reads: dict[Life, Lease] = {}  # the first lease that was granted to each life
        self._given: dict[tuple[Life, Fragment], int] = {}

    def _drawn(self, p: int) -> Flat:
        return self._rng.normal(size=LAYOUT.sizes[p]).astype(np.float32)

    def to_the_end(self, steps: int, snapshot_every: int | None = None) -> None:
        """Train `steps` steps on each learner, then stop as a run does on request.

        Takes a snapshot every `snapshot_every` steps, and one at the end.
        """
        self.train(steps, snapshot_every)
        self.feed(Stop("enough"))
        self.keep_snapshot()
        self.close()
        flats = [flat for _, flat in self._shard.whole([Fragment(0), Fragment(1)])]
        totals = asdict(ledger.totals(self.state.ledger, LAYOUT.sizes))
        counts = {f"tokens_{fate}": count for fate, count in totals.items()}
        write_json(self.run_dir / SUMMARY, {"global_sha256": fingerprint(flats), **counts})

    def train(self, steps: int, snapshot_every: int | None = None) -> None:
        """Let both learners join, and take `steps` steps on each."""
        self._steps = {}
        for island in self._config.island_names:
            self.feed(Join(island, group_name(island), LAYOUT.fingerprint))
        for step in range(1, steps + 1):
            for life in self._steps:
                self._steps[life] = step
                self.feed(Report(life, self._progress(life), 1.0))
            if snapshot_every is not None and step % snapshot_every == 0:
                self.keep_snapshot()

    @property
    def lives(self) -> list[Life]:
        """The current lives of the islands."""
        return [*self._steps]

    def close(self) -> None:
        self._tape.close()
        self.notes.close()

    def keep_snapshot(self) -> None:
        """Take a snapshot in the same way as the syncer's actor."""
        depot, layout, tape = Folder(self.run_dir), LAYOUT.fingerprint, self._tape
        self.kept = self.state
        sealed = tape.seal()
        tape.sync()
        rules = rules_sha256(self.rule)
        memory, notes = self.measures.memory(), self.notes.length
        kept = Snapshot(self.state, tape.seq, self._now_s, memory, notes, rules, tape.place)
        save_snapshot(depot, kept, layout)
        if sealed:
            save_snapshot(depot, kept, layout, name_of(tape.place.segment))
            forget_before(depot, self._config.durability.keep_segments)

    def feed(self, event: Event) -> None:
        """Feed an event, and every event that follows from it."""
        coming = deque([event])
        while coming:
            event = coming.popleft()
            self._now_s += 0.1
            before = self.state
            self.state, effects = advance(self.rule, before, event, self._now_s)
            self._tape.append(self._now_s, event, effects)
            self.measures.saw(before, event, self.state, effects, self._now_s)
            for effect in effects:
                match effect:
                    case Granted():
                        self._steps[effect.life] = 0
                        self._reads[effect.life] = effect.leases[0]
                    case Ask():
                        coming.append(self._hand_in(effect))
                    case Merge():
                        if self._config.durability.keep_contributions:
                            self._keep(effect)
                        coming.append(self.merged(effect))
                    case Store():
                        self._store.save(effect.fragment, self._shard.staged(effect.fragment))
                        coming.append(Stored(effect.fragment, effect.version, durable=True))
                    case Publish():
                        self._tape.sync()
                        self._shard.publish(effect)
                        public = self._shard.arrays(effect.fragment)
                        self.history[effect.fragment, effect.version] = copied(public)
                    case _:
                        pass

    def merged(self, order: Merge) -> Event:
        """Return the shard's answer to a merge."""
        return self._shard.merge(order)

    def _progress(self, life: Life) -> Progress:
        steps = self._steps[life]
        lease = self._reads[life]
        return Progress(steps, TOKENS * steps, replace(lease, start=lease.start + steps))

    def _hand_in(self, ask: Ask) -> Event:
        life, p = ask.life, ask.fragment
        start, stop = self._given.get((life, p), 0), self._steps[life]
        if start == stop:
            return Missing(life, p, "nothing to hand in")
        self._given[life, p] = stop
        said = HandIn(
            id=ContributionId(life, p, start, stop),
            base=self.state.fragments[p].version,
            since_step=start,
            tokens=TOKENS * (stop - start),
            fingerprint=LAYOUT.fingerprint,
            progress=self._progress(life),
        )
        payload = encoded(self._config.sync.wire_up, self._drawn(p))
        wire, moments = wire_of_moments(self._config), None
        if wire is not None and (stop // 4 + life.incarnation) % 3:  # some contributions have none
            moments = encode(wire, self._drawn(p))
        return Arrived(self._shard.receive(said, joined(payload, moments)))

    def _keep(self, order: Merge) -> None:
        for item in order.items:
            payload = self._shard.inbox.payload(item.contribution.reference)
            self._kept.save(item.contribution.id, payload, LAYOUT.fingerprint)
