"""A run that leaves everything on the disk that a real one leaves, without Ray and without JAX.

The rules, the shard, the tape and the stores are the real ones; the learners hand in numbers that
a generator draws.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import numpy as np

from cluster.config.load import load
from cluster.config.rule import rule_of, wire_of_moments
from cluster.shard.arrays import fresh
from cluster.shard.build import shard_of
from cluster.storage.contributions import save_contribution
from cluster.storage.files import write, write_json
from cluster.storage.folder import Folder
from cluster.storage.fragments import FragmentStore
from cluster.storage.layout import save_layout
from cluster.storage.model_file import fingerprint
from cluster.storage.runs import SUMMARY
from cluster.storage.snapshots import Snapshot, forget_before, name_of, save_snapshot
from cluster.storage.tape import Tape
from cluster.syncer.restore import rules_sha256
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
    Island,
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
"""Of one step."""


class Played:
    """Two learners that take turns, and what they leave in `run_dir`."""

    def __init__(self, run_dir: Path, config: str = CONFIG) -> None:
        self.run_dir = run_dir
        write(run_dir / "config.toml", config.encode())
        save_layout(Folder(run_dir), LAYOUT)
        self._config = load(run_dir / "config.toml")
        self.rule = rule_of(self._config, LAYOUT)
        self.state: State = initial(self.rule)
        self._rng = np.random.default_rng(0)
        self._store = FragmentStore(
            Folder(run_dir), LAYOUT, keep=self._config.durability.keep_snapshots
        )
        arrays = fresh([self._drawn(p) for p in range(2)])
        for p, each in arrays.items():
            self._store.save(p, each, first=True)
        self._shard = shard_of(self._config, LAYOUT, arrays)
        self._tape = Tape(Folder(run_dir), 0, LAYOUT.fingerprint)
        self._now_s = 0.0
        self._steps: dict[Life, int] = {}
        self._given: dict[tuple[Life, Fragment], int] = {}

    def _drawn(self, p: int) -> Flat:
        return self._rng.normal(size=LAYOUT.sizes[p]).astype(np.float32)

    def to_the_end(self, steps: int, snapshot_every: int | None = None) -> None:
        """So many steps of each, then what a run does when it is asked to stop; a snapshot each so
        many steps, and one at the end."""
        for number in range(2):
            self.feed(Join(Island(f"local-{number}"), "local", LAYOUT.fingerprint))
        for step in range(1, steps + 1):
            for life in self._steps:
                self._steps[life] = step
                self.feed(Report(life, self._progress(life), 1.0))
            if snapshot_every is not None and step % snapshot_every == 0:
                self.keep_snapshot()
        self.feed(Stop("enough"))
        self.keep_snapshot()
        self._tape.close()
        flats = [flat for _, flat in self._shard.whole([Fragment(0), Fragment(1)])]
        write_json(self.run_dir / SUMMARY, {"global_sha256": fingerprint(flats)})

    def keep_snapshot(self) -> None:
        """As the syncer's actor does it."""
        depot, layout, tape = Folder(self.run_dir), LAYOUT.fingerprint, self._tape
        sealed = tape.seal()
        tape.flush()
        rules = rules_sha256(self.rule)
        kept = Snapshot(self.state, tape.seq, self._now_s, None, 0, rules, tape.place)
        save_snapshot(depot, kept, layout)
        if sealed:
            save_snapshot(depot, kept, layout, name_of(tape.place.segment))
            forget_before(depot, self._config.durability.keep_segments)

    def feed(self, event: Event) -> None:
        """Feed an event, and whatever follows from it."""
        coming = deque([event])
        while coming:
            event = coming.popleft()
            self._now_s += 0.1
            self.state, effects = advance(self.rule, self.state, event, self._now_s)
            self._tape.append(self._now_s, event, effects)
            for effect in effects:
                match effect:
                    case Granted():
                        self._steps[effect.life] = 0
                    case Ask():
                        coming.append(self._hand_in(effect))
                    case Merge():
                        self._keep(effect)
                        coming.append(self._shard.merge(effect))
                    case Store():
                        self._store.save(effect.fragment, self._shard.staged(effect.fragment))
                        coming.append(Stored(effect.fragment, effect.version, durable=True))
                    case Publish():
                        self._tape.flush()
                        self._shard.publish(effect)
                    case _:
                        pass

    def _progress(self, life: Life) -> Progress:
        steps = self._steps[life]
        return Progress(steps, TOKENS * steps, Lease(2 * (life.incarnation - 1), steps))

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
        payload = encode(self._config.sync.wire_up, self._drawn(p))
        wire, moments = wire_of_moments(self._config), None
        if wire is not None and (stop // 4 + life.incarnation) % 3:  # not everyone, and not always
            moments = encode(wire, self._drawn(p))
        return Arrived(self._shard.receive(said, joined(payload, moments)))

    def _keep(self, order: Merge) -> None:
        for item in order.items:
            payload = self._shard.payload(item.contribution.reference)
            save_contribution(
                Folder(self.run_dir), item.contribution.id, payload, LAYOUT.fingerprint
            )
