"""A tape as a long run leaves it, for `bench large`: played once by the rules, and kept.

64 learners without a model step at the same time, one syncer step per second of virtual time. The
tape has all of their events and the shard's, as on Ray. A restart does not read sealed segments. A
run of ten times the length therefore has the same segments ten times, under the names that they
would have had.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from archipelago.lab.bench.scale import config_of, layout_of
from archipelago.lab.simulation.lease_reader import Pages
from cluster.config.rule import rule_of
from cluster.config.schema import Config
from cluster.names import group_name
from cluster.storage.folder import Folder
from cluster.storage.format import FORMAT
from cluster.storage.fragments import Arrays, FragmentStore
from cluster.storage.layout import save_layout
from cluster.storage.playback import read_tape
from cluster.storage.segments import Segment, segments, tape_name
from cluster.storage.snapshots import Snapshot, load_snapshot, save_snapshot
from cluster.storage.tape import Tape
from cluster.syncer.measures import Measures
from cluster.syncer.resume_point import rules_sha256
from coordinator.advance import advance
from coordinator.fragments import Layout
from coordinator.protocol import (
    Adopted,
    Arrived,
    Ask,
    Contribution,
    ContributionId,
    Event,
    Fragment,
    Granted,
    Join,
    LeaseGranted,
    LeaseWanted,
    Life,
    Merge,
    Merged,
    Missing,
    Progress,
    Publish,
    Reference,
    Report,
    Store,
    Stored,
)
from coordinator.state import Rule, initial

SYNC = ("sync.every=8", "sync.fragments=8")
"""The defaults of a configuration, unlike those of `bench scale`."""
STEP_S, WIRE_S = 1.0, 1e-4
"""Virtual seconds of one step of a learner, and of one message."""
SNAPSHOT_STEPS = 10
"""Steps between snapshots: ten seconds, as in a run. A restart replays as many again."""
WHOLE = "whole"
"""The file that marks a completely played tape."""
NORM = 1.0
"""The norm of a delta over one step."""


class Crew:
    """Learners in step, the shard, and the rules for their events; a tape records it all."""

    def __init__(self, config: Config, layout: Layout, folder: Path) -> None:
        self.depot, self._layout, self._config = Folder(folder), layout, config
        self.rule: Rule = rule_of(config, layout)
        self.state, self.now_s = initial(self.rule), 0.0
        groups = {island: group_name(island) for island in config.island_names}
        down = config.sync.wire_down
        self.measures = Measures("bench", groups, layout.sizes, down, now_s=0.0)
        self.tape = Tape(self.depot, 0, layout.fingerprint)
        self.tail: Tape | None = None  # a second tape for the same events
        self._batch, self._window = config.islands[0].batch_size, config.data.window
        self._pages: dict[Life, Pages] = {}
        self._done: dict[Life, int] = {}  # inner steps
        self._given: dict[tuple[Life, Fragment], int] = {}
        self.steps = 0
        for island in config.island_names:
            self.feed(Join(island, group_name(island), layout.fingerprint))

    def step(self) -> None:
        """Take one step of each learner."""
        self.steps += 1
        self.now_s += STEP_S
        for life in [*self._done]:
            self._done[life] += 1
            self._pages[life].turn(self._batch)
            self.feed(Report(life, self._progress(life), STEP_S))
            if self._pages[life].remaining < self._config.data.lease_windows:
                self.feed(LeaseWanted(life))

    def _progress(self, life: Life) -> Progress:
        """Return the progress of a life."""
        steps = self._done[life]
        tokens = steps * self._batch * self._window
        return Progress(steps, tokens, self._pages[life].cursor)

    def feed(self, event: Event) -> None:
        """Apply an event and all events that follow from its effects; append them to the tape."""
        coming = deque([event])
        while coming:
            event = coming.popleft()
            self.now_s += WIRE_S
            before = self.state
            self.state, effects = advance(self.rule, before, event, self.now_s)
            self.tape.append(self.now_s, event, effects)
            if self.tail is not None:
                self.tail.append(self.now_s, event, effects)
            self.measures.saw(before, event, self.state, effects, self.now_s)
            for effect in effects:
                match effect:
                    case Granted():
                        length = self._config.data.lease_windows
                        self._pages[effect.life] = Pages(length, effect.leases)
                        self._done[effect.life] = 0
                    case LeaseGranted():
                        self._pages[effect.life].add(effect.lease)
                    case Ask():
                        coming.append(self._handed_in(effect))
                    case Merge():
                        coming.append(Merged(effect.fragment, effect.version))
                    case Store():
                        coming.append(Stored(effect.fragment, effect.version, durable=True))
                    case Publish():
                        coming.extend(self._adopted(effect))
                    case _:
                        pass

    def _handed_in(self, ask: Ask) -> Event:
        """Return the answer to a request for a hand-in."""
        life, p = ask.life, ask.fragment
        start, stop = self._given.get((life, p), 0), self._done[life]
        if start == stop:
            return Missing(life, p, "nothing to hand in")
        self._given[life, p] = stop
        contribution_id = ContributionId(life, p, start, stop)
        return Arrived(
            Contribution(
                id=contribution_id,
                base=self.state.fragments[p].version,
                since_step=start,
                tokens=(stop - start) * self._batch * self._window,
                fingerprint=self._layout.fingerprint,
                progress=self._progress(life),
                norm=NORM * (stop - start),
                bytes=self._config.sync.wire_up.bytes_of(self._layout.sizes[p]),
                reference=Reference(f"{life} {p} {stop}"),
            )
        )

    def _adopted(self, order: Publish) -> Sequence[Event]:
        """Return the adoptions of a publication; all steps are carried over."""
        return [
            Adopted(
                life,
                order.fragment,
                order.version,
                self._done[life],
                0,
                self._progress(life),
            )
            for life in order.to
        ]

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the current state, after making the tape durable up to it."""
        self.tape.seal()
        self.tape.sync()
        memory, rules = self.measures.memory(), rules_sha256(self.rule)
        return Snapshot(self.state, self.tape.seq, self.now_s, memory, 0, rules, self.tape.place)


def config_for(learners: int) -> Config:
    """Return the configuration for this number of learners."""
    return config_of(learners, SYNC)


def prepared(home: Path, learners: int, lengths: Sequence[int], say: Callable[[str], None]) -> Path:
    """Return the folder of a tape of this many learners; play it if it is not there yet.

    At each of the `lengths`, in syncer steps, a snapshot is kept. The events of the ten seconds
    after it are kept apart from the tape, numbered from 0.
    """
    config = config_for(learners)
    layout = layout_of(config)
    description = f"{FORMAT} {rule_of(config, layout)!r} {learners} {sorted(lengths)}"
    folder = home / f"tape-{hashlib.sha256(description.encode()).hexdigest()[:12]}"
    if (folder / WHOLE).exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    say(f"playing {max(lengths)} steps of {learners} learners, once, into {folder}")
    crew = Crew(config, layout, folder)
    for steps in sorted(lengths):
        while crew.steps < steps:
            crew.step()
            if crew.steps % SNAPSHOT_STEPS == 0 and crew.steps < steps:
                crew.tape.seal()
        end_folder = Folder(folder / f"end-{steps}")
        save_snapshot(end_folder, crew.snapshot(), layout.fingerprint)
        crew.tail = Tape(end_folder, 0, layout.fingerprint)
        for _ in range(SNAPSHOT_STEPS):
            crew.step()
        crew.tail.close()
        crew.tail = None
    crew.tape.close()
    (folder / WHOLE).touch()
    return folder


def left_by_a_run(
    folder: Path, run_dir: Path, learners: int, steps: int, times: int = 1
) -> tuple[int, int]:
    """Make the run directory of a syncer that dies after `times` repetitions of these steps.

    The events since the snapshot are answered by the current rules. The stored fragments are zeros,
    of the versions that are public then.

    Return the number of events and of bytes of the tape.
    """
    config = config_for(learners)
    layout = layout_of(config)
    rule, depot = rule_of(config, layout), Folder(run_dir)
    end = Folder(folder / f"end-{steps}")
    kept = load_snapshot(end, layout.fingerprint)
    assert kept is not None
    assert kept.place is not None
    period, last = kept.seq, kept.place.segment
    sealed = [each for each in segments(Folder(folder)) if each <= last]
    run_dir.mkdir(parents=True)
    for time in range(times):
        for each in sealed:
            if each != last or (time < times - 1 and each.first < period):
                segment_path = run_dir / _shifted(each, time * period).name
                os.link(folder / each.name, segment_path)
    seq, segment = period * times, _shifted(last, period * (times - 1))
    state, scratch = kept.state, run_dir / "aside"
    with closing(Tape(Folder(scratch), 0, layout.fingerprint, first_seq=seq)) as tape:
        header = tape.place.offset
        for row in read_tape(end, layout.fingerprint).events:
            state, effects = advance(rule, state, row.event, row.now_s)
            tape.append(row.now_s, row.event, effects)
    head = (folder / last.name).read_bytes()[: kept.place.offset]
    tail = (scratch / tape_name(0)).read_bytes()[header:]
    (run_dir / segment.name).write_bytes(head + tail)
    shutil.rmtree(scratch)
    place = kept.place._replace(segment=segment, chain=0)
    new_snapshot = replace(kept, seq=seq, place=place, rules=rules_sha256(rule))
    save_snapshot(depot, new_snapshot, layout.fingerprint)
    save_layout(depot, layout)
    store = FragmentStore(depot, layout, keep=config.durability.keep_snapshots)
    for p, each in enumerate(state.fragments):
        zeros = np.zeros(layout.sizes[p], np.float32)
        store.save(Fragment(p), Arrays(each.version, zeros, zeros, zeros), first=True)
    return tape.seq, sum((run_dir / each.name).stat().st_size for each in segments(depot))


def _shifted(segment: Segment, by: int) -> Segment:
    """Return the segment as it would be named this many events later."""
    return segment if by == 0 else Segment(segment.generation, max(segment.first, 0) + by)
