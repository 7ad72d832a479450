"""The check of a run's files: every digest, the tape, and versions against snapshots.

Nothing is written. A run may be live: a file that the run deletes meanwhile is not counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cluster.allreduce.saved_state import read_back
from cluster.config.load import load
from cluster.config.schema import Config
from cluster.launch.resume_state import resume_state
from cluster.launch.run_model import model_of
from cluster.storage.contributions import ContributionStore
from cluster.storage.depot import Depot
from cluster.storage.fleet_file import load_fleet_memory
from cluster.storage.format import Damaged
from cluster.storage.fragments import FragmentStore, stored_versions
from cluster.storage.identity import IDENTITY, identity_of
from cluster.storage.layout import check_layout, load_layout
from cluster.storage.model_file import fingerprint
from cluster.storage.open_depot import contribution_store, depot_of
from cluster.storage.playback import Playback
from cluster.storage.runs import SUMMARY
from cluster.storage.sealed import unseal_all
from cluster.storage.segments import Segment, segments
from cluster.storage.snapshots import STATE, beginning_of, beginnings, load_snapshot, name_of
from coordinator.errors import ArchipelagoError, RunFailed, UserMistake
from coordinator.fragments import Layout
from coordinator.protocol import Fragment

LOOKS = 3
"""Attempts to find the state of a restart in the files of a run that may be live."""
BEGINNING = Segment(0, -1)
"""The first segment of a run's tape."""
TORN = "ends in the middle of a write"
"""The words of `Playback` for an end that a crash may have cut off, which costs nothing."""


@dataclass(slots=True)
class Verified:
    """The result of a check."""

    problems: list[str] = field(default_factory=list[str])
    """Each file that is damaged or missing, and each contradiction; empty if the run is sound."""
    notes: list[str] = field(default_factory=list[str])
    """Unusual findings that cost nothing."""
    checked: dict[str, int] = field(default_factory=dict[str, int])
    """The number of files, or of events, that were read, by kind."""

    @property
    def ok(self) -> bool:
        """True if there is no problem."""
        return not self.problems

    def count(self, kind: str, number: int = 1) -> None:
        """Count what was read."""
        self.checked[kind] = self.checked.get(kind, 0) + number

    def attempt(self, kind: str, read: Callable[[], object]) -> bool:
        """Read something, and count it; on an error of the files, note the problem."""
        try:
            read()
        except (ArchipelagoError, OSError) as error:
            self.problems.append(str(error))
            return False
        self.count(kind)
        return True


def verify(run_dir: Path) -> Verified:
    """Check every file of a run.

    Errors: `UserMistake` if there is no run.
    """
    config_path = run_dir / "config.toml"
    if not config_path.exists():
        raise UserMistake(f"{run_dir} is not the directory of a run: it has no config.toml")
    found = Verified()
    try:
        config = load(config_path)
        depot = depot_of(config, run_dir)
        layout = load_layout(depot)
    except ArchipelagoError as error:
        found.problems.append(str(error))
        return found
    found.count("layout")
    found.problems += check_layout(depot)
    if depot.has(IDENTITY) and not identity_of(depot):
        found.problems.append(f"{IDENTITY} in {depot} is not as it was written")
    found.attempt("fleet", lambda: load_fleet_memory(depot))
    if config.run.mode.sums_gradients:
        _check_ring(depot, found)
    else:
        _check_snapshots(depot, layout, found)
        _check_tape(config, depot, layout, found, ended=_ended(run_dir, depot))
        _check_fragments(config, depot, layout, found)
        _check_contributions(contribution_store(config, run_dir), layout, found)
        if found.ok:
            _check_restart(config, depot, layout, run_dir.name, found)
    _check_model(run_dir, found)
    return found


def _ended(run_dir: Path, depot: Depot) -> bool:
    return (run_dir / SUMMARY).exists() or depot.has(SUMMARY)


def _check_ring(depot: Depot, found: Verified) -> None:
    """Check the states and the memory of a run that sums gradients."""

    def read() -> None:
        if (damage := read_back(depot).damage) is not None:
            raise Damaged(damage)

    found.attempt("ring", read)


def _check_snapshots(depot: Depot, layout: Layout, found: Verified) -> None:
    names = [*([STATE] if depot.has(STATE) else []), *map(name_of, beginnings(depot))]
    for name in names:

        def read(name: str = name) -> None:
            load_snapshot(depot, layout.fingerprint, name)

        found.attempt("snapshots", read)


def _check_tape(
    config: Config, depot: Depot, layout: Layout, found: Verified, *, ended: bool
) -> None:
    """Read the whole tape; the newest snapshot must not be later than its end."""
    if not segments(depot):
        if depot.has(STATE):
            found.problems.append(f"{depot} has no tape, and {STATE} is there")
        return
    if config.durability.keep_segments == 0 and segments(depot)[0] != BEGINNING:
        found.problems.append(
            f"{BEGINNING.name} is not there, and durability.keep_segments = 0 keeps all of the tape"
        )
    try:
        first = beginning_of(depot, layout.fingerprint)
        kept = load_snapshot(depot, layout.fingerprint)
        begun, place = (0, None) if first is None else (first.seq, first.place)
        played = Playback(depot, layout.fingerprint, begun, place)
        events = sum(1 for _ in played)
    except Damaged as error:
        found.problems.append(str(error))
        return
    found.count("events", events)
    if (damage := played.damage) is not None:
        is_torn = TORN in damage and damage.startswith(segments(depot)[-1].name)
        (found.notes if is_torn and not ended else found.problems).append(damage)
    if kept is not None and kept.seq > played.length:
        found.problems.append(
            f"{STATE} is of event {kept.seq}, and the tape can be read up to event {played.length}"
        )


def _check_fragments(config: Config, depot: Depot, layout: Layout, found: Verified) -> None:
    """Read every stored version of every fragment."""
    store = FragmentStore(depot, layout, keep=config.durability.keep_snapshots)
    versions = stored_versions(depot)
    for p, files in versions.items():
        for each in files:
            if each.orphan:
                continue
            try:
                store.load(p, each.version)
                found.count("fragments")
            except Damaged as error:
                if depot.has(each.name):  # a live run deletes old versions
                    found.problems.append(str(error))
    for p in map(Fragment, range(len(layout.fragments))):
        if versions and not versions.get(p):
            found.problems.append(f"{depot} has no version of fragment {p}")


def _check_contributions(store: ContributionStore, layout: Layout, found: Verified) -> None:
    try:
        kept = list(store.kept())
    except OSError as error:  # a region's store may be closed to this machine
        found.problems.append(f"the kept contributions cannot be listed: {error}")
        return
    for depot, name in kept:

        def read(depot: Depot = depot, name: str = name) -> None:
            unseal_all(depot, name, layout.fingerprint)

        found.attempt("contributions", read)


def _check_restart(config: Config, depot: Depot, layout: Layout, run: str, found: Verified) -> None:
    """Check that a restart would be possible; look again, since a live run moves on meanwhile."""
    for attempt in range(1, LOOKS + 1):
        try:
            _check_versions(config, depot, layout, run)
        except (ArchipelagoError, OSError) as error:
            if attempt == LOOKS:
                found.problems.append(str(error))
        else:
            found.count("restart")
            return


def _check_versions(config: Config, depot: Depot, layout: Layout, run: str) -> None:
    """Check that a restart finds a version for each fragment.

    Errors: `Damaged` or `RunFailed` with the reason for which a restart would be refused.
    """
    if (comeback := resume_state(config, depot, layout, run)) is None:
        return
    store = FragmentStore(depot, layout, keep=config.durability.keep_snapshots)
    for p, version in enumerate(comeback.wanted):
        found = store.newest(Fragment(p), version).version
        if found.number == 0 and version.number > 0:
            raise Damaged(
                f"fragment {p} has its first version only, and the run is at version "
                f"{version.number} of generation {version.generation}"
            )


def _check_model(run_dir: Path, found: Verified) -> None:
    """Compare the final model with the digest in the summary, if the run has ended with one."""
    summary = run_dir / SUMMARY
    if not summary.exists():
        return

    def read() -> None:
        try:
            wanted = json.loads(summary.read_text(encoding="utf-8")).get("global_sha256")
        except (ValueError, AttributeError) as error:
            raise Damaged(f"{SUMMARY} cannot be read: {error!r}") from error
        model = model_of(run_dir)
        if wanted is None or model.file is None:
            return
        digest = fingerprint(flat for _, flat in model.public())
        if digest != wanted:
            raise RunFailed(f"{model.file.name} has the digest {digest:.12}, not {wanted:.12}")

    found.attempt("model", read)
