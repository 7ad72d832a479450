"""A run directory of a killed run, damage to one of its files, and its resume.

The resume does what `archipelago run --resume` does, step by step and without Ray: it calls the
same classes and functions in the same order on the same files.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cluster.config.load import parse
from cluster.config.rule import rule_of
from cluster.config.schema import Config
from cluster.shard.build import shard_over
from cluster.shard.files import DepotFiles
from cluster.shard.storing_thread import StoringPace
from cluster.status import Figures
from cluster.storage import fleet_file, ladder, ownership, runs
from cluster.storage.folder import Folder
from cluster.storage.fragments import Arrays, FragmentStore, forget_orphans
from cluster.storage.layout import load_layout, same_layout, save_layout
from cluster.storage.ownership import Fence
from cluster.storage.tape import Tape
from cluster.syncer.journal import Notes
from cluster.syncer.restore import Comeback, restore
from coordinator.errors import UserMistake
from coordinator.protocol import Fragment, Island, Version, Vitals
from tests.cluster import played
from tests.cluster.played import LAYOUT, Played, measures_of

NOBODY = 4_194_299
"""A process number that this machine does not use; `born` distinguishes it from a real process."""
CONFIG = played.CONFIG.replace("keep_contributions = true", "")
F = (Fragment(0), Fragment(1))


class Again(Played):
    """A run that resumes from its directory, as the fleet, the shard and the syncer resume it."""

    def __init__(self, run_dir: Path, before: Played, *, from_stored: bool = False) -> None:
        """Resume the run in `run_dir`; `before` gives the initial model that its task would make.

        Errors: the errors of a resume.
        """
        self.run_dir, depot = run_dir, Folder(run_dir)
        self._config = config = parse(tomllib.loads(CONFIG))
        self.rule = rule_of(config, LAYOUT)
        owner, begins = at_the_door(run_dir, config, from_stored=from_stored)
        self._store = FragmentStore(depot, LAYOUT, keep=config.durability.keep_snapshots)
        files = DepotFiles(self._store, Fence(depot, 0), StoringPace(measured=False))
        self._shard = shard_over(config, lambda: (LAYOUT, files), map)
        self.history = dict(before.history)
        if begins:  # a fleet without a memory begins, and the syncer finds the tape
            self._shard.seed({p: before.history[p, Version(0, 0)] for p in F})
            save_layout(depot, LAYOUT)
        load_layout(depot)
        self.measures = measures_of(config)

        async def recover(
            wanted: Mapping[Fragment, Version], generation: int
        ) -> Mapping[Fragment, Version]:
            return self._shard.recover(wanted, generation)

        asked = runs.asked_for_stored(depot, owner)
        assert asked == from_stored
        rung = ladder.asked_to_go_back(depot)
        restoring = restore(depot, self.rule, self.measures, recover, from_stored=asked, rung=rung)
        come = asyncio.run(restoring)
        assert come is not None, "a run that was begun is not begun anew"
        self.back: Comeback
        self.back, resume = come
        self.found = {p: self._shard.version(p) for p in F}
        self.recovered: dict[Fragment, Arrays] = {p: self._shard.arrays(p) for p in F}
        self.state, self.kept, self._now_s = self.back.state, None, self.back.last_s
        self.notes = Notes(depot, self.measures, lambda: self._now_s)
        self._tape = Tape(depot, self.back.generation, LAYOUT.fingerprint, first_seq=self.back.seq)
        self._rng = np.random.default_rng(self.back.generation)
        self._steps, self._given, self._reads = {}, {}, {}
        self.feed(resume)
        self._tape.flush()
        if asked:
            depot.remove(runs.FROM_STORED)
        if rung is not None:
            depot.remove(ladder.FROM_STEP)

    @property
    def damage(self) -> str:
        """The text of `archipelago status` about damaged files."""
        return self._figures["damage"]

    @property
    def merges_lost(self) -> int:
        """The lost merges that `archipelago status` counts."""
        return self._figures["merges_lost"]

    @property
    def _figures(self) -> Figures:
        figures = self.measures.status(self.rule, self.state, self._now_s)["figures"]
        assert figures is not None
        return figures

    def goes_on(self) -> None:
        """Train on, take a snapshot, and close the run."""
        before = self.state.t
        self.train(before + 12)
        self.keep_snapshot()
        forget_orphans(Folder(self.run_dir))
        assert self.state.t > before
        for p in F:
            assert self.state.fragments[p].version.generation == self.back.generation
        self.close()


def at_the_door(run_dir: Path, config: Config, *, from_stored: bool = False) -> tuple[int, bool]:
    """Take the run over as `run --resume` and its fleet do.

    Returns the owner's number, and whether the fleet has to begin because it remembers nothing.

    Errors: the errors of a resume.
    """
    depot, clock = Folder(run_dir), itertools.count()
    runs.resume(config, run_dir)
    if not same_layout(depot, LAYOUT):
        raise UserMistake(f"--resume: the model of {run_dir} is another one")
    me = dead(f"owner of {run_dir}")
    own = ownership.take(depot, run_dir.name, me, now_s=clock.__next__, sleep=lambda _: None)
    runs.reopen(run_dir, config, own.number, from_stored=from_stored)
    return own.number, fleet_file.load_fleet_memory(depot) is None


def beside(run_dir: Path) -> None:
    """Write the files that the fleet of a killed run leaves beside the model."""
    depot = Folder(run_dir)
    ownership.take(depot, run_dir.name, dead("first"))
    runs.announce(run_dir, runs.Live(run_dir.name, "n", "1.2.3.4:5", pid=NOBODY, born=1))
    desired = [Island("local-0"), Island("local-1")]
    kept = fleet_file.FleetMemory(
        desired=desired, held={}, spares={}, withheld={}, stopping=None, faults=[], began=1.0,
        outcome=None,
    )  # fmt: skip
    fleet_file.save_fleet_memory(depot, kept)


def dead(token: str) -> ownership.Owner:
    """Return an owner whose process has ended."""
    return replace(ownership.me(token), pid=NOBODY, born=1)


def killed(run_dir: Path, kind: str) -> Played:
    """Return a run that was killed.

    - `at`: it was killed right after a snapshot.
    - `behind`: so long after its last snapshot that no version of that snapshot is stored any more.
    - `second`: like `behind`, in its second generation.
    """
    run = Played(run_dir, CONFIG)
    beside(run_dir)
    run.train(*((24, 8) if kind == "at" else (23, 12)))
    run.notes.fault(Island("local-0"))
    for life in run.lives:
        run.notes.vitals(life, Vitals(loss=4.0, computing_s=1.0, metrics=(("accuracy", 0.5),)))
    if kind == "second":
        run.close()
        run = Again(run_dir, run)
        run.train(run.state.t + 23, 12)
    run.notes.flush()  # a thread writes the notes
    return run


@dataclass(frozen=True, slots=True)
class Harm:
    """One kind of damage; `files` are those that differ from what was written."""

    how: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.how} {' and '.join(self.files)}"


def names(run_dir: Path) -> list[str]:
    """Return all files of a run directory, sorted."""
    return sorted(str(each.relative_to(run_dir)) for each in run_dir.rglob("*") if each.is_file())


def harms(run_dir: Path, chance: random.Random) -> list[tuple[Harm, Callable[[Path], None]]]:
    """Return every kind of damage to every file, each with a function that applies it to a copy."""
    done: list[tuple[Harm, Callable[[Path], None]]] = []
    there = names(run_dir)
    for name in there:
        content = (run_dir / name).read_bytes()
        length, bit = chance.randrange(len(content)), chance.randrange(8 * len(content))
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        alike = [each for each in there if (run_dir / each).read_bytes() != content]
        other = chance.choice([e for e in alike if kind_of(e) == kind_of(name)] or alike)
        if chance.random() < 0.5:
            other = chance.choice(alike)
        whole = (run_dir / other).read_bytes()
        done += [
            (Harm(f"truncated to {length}", (name,)), _writes({name: content[:length]})),
            (Harm(f"flipped bit {bit} of", (name,)), _writes({name: bytes(flipped)})),
            (Harm("deleted", (name,)), lambda at, name=name: (at / name).unlink()),
            (Harm("swapped", (name, other)), _writes({name: whole, other: content})),
        ]
    return done


def _writes(contents: Mapping[str, bytes]) -> Callable[[Path], None]:
    def write(at: Path) -> None:
        for name, content in contents.items():
            (at / name).write_bytes(content)

    return write


def kind_of(name: str) -> str:
    """Return a file's kind: its folder, or the beginning of its name."""
    return name.partition("/" if "/" in name else "-")[0]


def copy_of(run_dir: Path, to: Path) -> Path:
    shutil.copytree(run_dir, to)
    return to
