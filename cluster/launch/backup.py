"""A copy of a run's directory that verifies and resumes, taken while the run may be live.

The order makes it a state that the run was in:

1. Copy the configuration, the layout, sealed segments of the log, and every retained version of
   each fragment.
2. Copy the newest snapshots, then the rest of the log: its end is the moment of the backup.
3. Copy the versions that were stored since step 1, and the contributions. Each version that the
   log's end names was stored before it was named, so it is there by now.
4. Compute the state at the log's end. Delete versions that are later than that from the copy.
5. Copy the files for people, verify the copy, and give the folder its name.

If the run's syncer is restarted meanwhile, or a version is missing, the copy begins again. In a run
that merges faster than it can be copied, the last attempt may lack some merges. The
owner and the addresses of the live run are not copied: the copy has no owner.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from cluster.allreduce.saved_state import FOLDER, MEMORY, TAPE
from cluster.config.load import load
from cluster.config.schema import Config
from cluster.launch.resume_state import resume_state
from cluster.launch.verify import verify
from cluster.storage.contributions import ContributionStore
from cluster.storage.depot import Depot
from cluster.storage.files import write
from cluster.storage.fleet_file import FLEET_FILE
from cluster.storage.folder import Folder
from cluster.storage.format import Damaged
from cluster.storage.fragments import stored_versions
from cluster.storage.identity import IDENTITY
from cluster.storage.layout import COPY, LAYOUT, has_layout, load_layout
from cluster.storage.open_depot import depot_of
from cluster.storage.playback import UNREADABLE
from cluster.storage.runs import CONFIG, SUMMARY
from cluster.storage.segments import Segment, generations, segments
from cluster.storage.snapshots import STATE, STATES
from cluster.syncer.journal import NOTES, VITALS
from coordinator.errors import RunFailed, UserMistake
from coordinator.protocol import Fragment, Version

log = logging.getLogger("archipelago")
LOOKS = 4
"""Attempts to read the newest version of a fragment before the run deletes it."""
ATTEMPTS = 5
"""Attempts to copy a run whose syncer is restarted meanwhile."""
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
"""The last bytes of a closed segment (the IPC streaming format of Apache Arrow)."""
LOSSY_ATTEMPTS = 2
"""Attempts to copy a run without a lost merge; a run may store fewer versions than it merges."""
OF_THE_DEPOT = (LAYOUT, COPY, IDENTITY)
FOR_PEOPLE = (SUMMARY, "init.json", "initial.safetensors", "metrics.jsonl", "ray.log")
"""Files of the run directory that a restart does not need; the model comes on top."""


@dataclass(frozen=True, slots=True)
class Backup:
    """The result of a backup."""

    path: Path
    """The folder of the copy: a run directory whose durable store is the folder itself."""
    t: int | None
    """The syncer step of the copy; None if the run had not begun, or sums gradients."""
    events: int
    """Events on the tape of the copy."""
    merges_lost: int
    """Merges up to step `t` that the copy lacks, because the run deleted their versions too soon.

    Versions that the run never stored (`durability.every`) count, too.
    """
    files: int
    """Files of the copy."""
    nbytes: int
    """Bytes of the copy."""


class _Moved(Exception):
    """The run has changed in a way that the copy cannot follow; it begins again."""


def backup(run_dir: Path, path: Path, source: Depot | None = None) -> Backup:
    """Copy a run to a new folder, and verify the copy.

    `source`: the run's durable store; None: the one of its configuration.

    Errors: `UserMistake` if there is no run, or the folder exists; `RunFailed` if the copy could
    not be made or does not verify.
    """
    if not (run_dir / CONFIG).exists():
        raise UserMistake(f"{run_dir} is not the directory of a run: it has no {CONFIG}")
    if path.exists():
        raise UserMistake(f"{path} exists; name a folder that does not, for the backup")
    config = load(run_dir / CONFIG)
    depot, aside = source or depot_of(config, run_dir), path.with_name(f".{path.name}.partial")
    try:
        t, events, lost = _attempted(config, depot, run_dir, aside)
    except (_Moved, Damaged, OSError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise RunFailed(f"{run_dir} cannot be copied to {path}: {error}") from error
    if problems := verify(aside).problems:
        raise RunFailed(f"the copy {aside} does not verify: {'; '.join(problems)}")
    aside.rename(path)
    files = [each for each in path.rglob("*") if each.is_file()]
    return Backup(path, t, events, lost, len(files), sum(each.stat().st_size for each in files))


def _attempted(
    config: Config, depot: Depot, run_dir: Path, to: Path
) -> tuple[int | None, int, int]:
    """Copy a run, again if it has moved on in a way that the copy cannot follow.

    Errors: the errors of `_copied` at the last attempt.
    """
    attempt = 0
    while True:
        attempt += 1
        shutil.rmtree(to, ignore_errors=True)
        try:
            t, events, lost = _copied(config, depot, run_dir, to)
        except (_Moved, Damaged) as error:
            if attempt == ATTEMPTS:
                raise
            log.warning("the copy begins again: %s", error)
            continue
        if lost == 0 or attempt >= LOSSY_ATTEMPTS:
            return t, events, lost
        log.warning("the copy lacks %d merges, and begins again", lost)


def _copied(config: Config, depot: Depot, run_dir: Path, to: Path) -> tuple[int | None, int, int]:
    """Copy a run; return the syncer step, the events, and the merges that the copy lacks.

    Errors: `_Moved`; `Damaged`; `OSError`.
    """
    target = Folder(to)
    alone = config.model_copy(
        update={"durability": config.durability.model_copy(update={"dir": None})}
    )
    write(to / CONFIG, alone.toml().encode())
    _copy(depot, target, OF_THE_DEPOT)
    if config.run.mode.sums_gradients:
        _copy(depot, target, (MEMORY,))  # states that are newer than the memory do no harm
        _copy(depot, target, _below(depot, FOLDER))
        _copy(depot, target, (TAPE,))
        reached: tuple[int | None, int, int] = None, 0, 0
    else:
        reached = _copied_state(config, depot, target, run_dir.absolute().name)
    _copy(depot, target, (NOTES, VITALS, FLEET_FILE))
    for source in (Folder(run_dir), depot):
        models = [name for name in source.names() if name.startswith("model")]
        _copy(source, target, [*FOR_PEOPLE, *models, *_below(source, "tracebacks")])
    return reached


def _copied_state(
    config: Config, depot: Depot, to: Folder, run: str
) -> tuple[int | None, int, int]:
    """Copy log, fragments and snapshots, so that they are of one moment."""
    before = generations(depot)
    _copy_segments(depot, to, segments(depot)[:-1])  # these are sealed, and never written again
    _copy_fragments(depot, to)
    _copy(depot, to, (STATE, *_below(depot, STATES)))
    _copy_segments(depot, to, segments(depot))
    _copy_fragments(depot, to)
    _copy(depot, to, (name for _, name in ContributionStore(depot).kept()))  # not those of regions
    if generations(depot) != before:
        raise _Moved("the syncer was restarted")
    if not has_layout(to):
        return None, 0, 0
    reached = resume_state(config, to, load_layout(to), run)
    if reached is None:
        return None, 0, 0
    lost = _drop_later(to, reached.wanted, config.durability.keep_snapshots)
    return reached.state.t, reached.seq, lost


def _copy_segments(depot: Depot, to: Folder, tape: Sequence[Segment]) -> None:
    """Copy segments that the copy lacks, the last one up to its last whole message.

    Errors: `_Moved` if the run has deleted an old one.
    """
    for each in tape:
        if to.has(each.name):
            continue
        try:
            content = depot.grown(each.name).content
        except FileNotFoundError as error:
            raise _Moved(f"{each.name} was deleted meanwhile") from error
        to.write(each.name, content[: whole_length(content)])


def _copy_fragments(depot: Depot, to: Folder) -> None:
    """Copy the stored versions of each fragment that the copy lacks, the newest one first.

    A fast run may delete a version between the look and the read; then this looks again.
    """
    for p in stored_versions(depot):
        for _ in range(LOOKS):
            names = [each.name for each in stored_versions(depot).get(p, ()) if not each.orphan]
            _copy(depot, to, [name for name in reversed(names) if not to.has(name)])
            if names and to.has(names[-1]):
                break


def _drop_later(to: Folder, wanted: Iterable[Version], keep: int) -> int:
    """Delete versions that a restart would not consider; return the merges that the copy lacks.

    Errors: `_Moved` if the newest usable version of a fragment is its first one, before training.
    """
    lost = 0
    for p, version in enumerate(wanted):
        files = [each for each in stored_versions(to).get(Fragment(p), ()) if not each.orphan]
        good = [each for each in files if each.version <= version]
        if files and (not good or (good[-1].version.number == 0 and version.number > 0)):
            raise _Moved(f"fragment {p} has moved on from version {version.number}")
        kept = {*good[:1], *good[-keep:]}
        for each in files:
            if each not in kept:
                to.remove(each.name)
        lost += version.number - good[-1].version.number if good else 0
    return lost


def whole_length(content: bytes) -> int:
    """Return the bytes of a segment up to the end of its last whole message.

    A live segment may end in the middle of a write.
    """
    whole = 0
    with pa.BufferReader(content) as buffer:
        reader = pa.ipc.MessageReader.open_stream(buffer)
        while True:
            try:
                reader.read_next_message()
            except StopIteration:
                ends = content[whole:].startswith(END_OF_STREAM)
                return whole + len(END_OF_STREAM) * ends
            except UNREADABLE:
                return whole
            whole = buffer.tell()


def _below(depot: Depot, folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in sorted(depot.names(folder)) if not name.startswith(".")]


def _copy(depot: Depot, to: Folder, names: Iterable[str]) -> None:
    """Copy files as a whole; one that the run deletes meanwhile, or does not have, is left out."""
    for name in names:
        try:
            to.write(name, depot.read(name))
        except (FileNotFoundError, IsADirectoryError):
            continue
