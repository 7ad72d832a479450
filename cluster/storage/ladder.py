"""The ladder of a run: kept states, hourly and daily, to which it can go back.

    ladder/t000000001200-u1764115200.json          the versions of the fragments, which stay stored
    ladder/t000000001200-u1764115200.state.json    the snapshot of rules and measures
    aside/g3-t1200/                                the states that were newer when a run went back

A rung is no copy: the versions that it names stay in `fragments/` (`FragmentStore`). Its versions
are written first, and its snapshot follows once all of them are there. A shard that has listed the
rungs before may still delete one; `Ladder.look` notices that at the next snapshot.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone

from cluster.storage.depot import Depot
from cluster.storage.files import json_bytes
from cluster.storage.format import Damaged
from cluster.storage.fragments import ORPHAN, StoredFragment, fragment_name, stored_versions
from cluster.storage.rungs import LADDER, NAMED, Rung, versions_of
from cluster.storage.snapshots import STATE, Snapshot, load_snapshot, save_snapshot
from coordinator.errors import UserMistake
from coordinator.protocol import Fragment, Version

log = logging.getLogger("archipelago.ladder")
ASIDE, FROM_STEP = "aside", "from-step.json"
"""The folder of states that a run has left, and the request to go back."""
VITALS = "vitals.json"
HOUR_S, DAY_S = 3600, 86400


@dataclass(frozen=True, slots=True)
class LadderPolicy:
    """The number of kept states."""

    hourly: int
    """States to keep of the last hours, one of each; 0: none."""
    daily: int
    """States to keep of the last days, one of each; 0: none."""

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The seconds of each kind, and how many of it are kept."""
        return tuple(
            (span, count) for span, count in ((HOUR_S, self.hourly), (DAY_S, self.daily)) if count
        )


NO_LADDER = LadderPolicy(0, 0)


def due(rungs: Sequence[Rung], now_unix_s: float, policy: LadderPolicy) -> bool:
    """Return whether the present hour or day has no state yet."""
    return any(
        all(rung.at_s // span != now_unix_s // span for rung in rungs) for span, _ in policy.spans
    )


def expired(
    rungs: Sequence[Rung], policy: LadderPolicy, now_unix_s: float = math.inf
) -> list[Rung]:
    """Return the rungs that are not kept: the first one of an hour, or of a day, stands for it.

    If the clock was set back, there are rungs of later hours than now. They are dropped first, so
    that the state of this hour stays.
    """
    kept = set[Rung]()
    for span, count in policy.spans:
        first_of: dict[int, Rung] = {}
        for rung in sorted(rungs, key=lambda each: each.at_s):
            first_of.setdefault(rung.at_s // span, rung)
        now = now_unix_s // span
        by_age = sorted(first_of, key=lambda number: (number <= now, number))
        kept |= {first_of[number] for number in by_age[-count:]}
    return [rung for rung in rungs if rung not in kept]


def rungs_of(depot: Depot) -> list[Rung]:
    """Return the whole rungs of a run, oldest first."""
    return sorted(_named(depot, snapshot=True))


def _named(depot: Depot, *, snapshot: bool) -> list[Rung]:
    found = (re.fullmatch(NAMED, name) for name in depot.names(LADDER))
    return [
        Rung(int(each["t"]), int(each["at"]))
        for each in found
        if each is not None and bool(each["state"]) is snapshot
    ]


class Ladder:
    """The writer of one run's ladder, beside its snapshots; one thread at a time calls it."""

    def __init__(self, depot: Depot, policy: LadderPolicy) -> None:
        self._depot, self._policy = depot, policy
        self._unsure: Rung | None = None  # its versions may have been deleted meanwhile

    def look(self, snapshot: Snapshot, layout: str, now_unix_s: float) -> None:
        """Keep this state if it is due, and drop those that are no longer kept.

        Errors: `OSError`.
        """
        if not self._policy.spans and self._unsure is None and not self._depot.names(LADDER):
            return
        rungs = rungs_of(self._depot)
        if (rung := self._unsure) is not None:
            self._unsure = None
            if not _is_whole(self._depot, versions_of(self._depot, rung)):
                log.warning("the state of t %d is not kept: a version was deleted", rung.t)
                self._drop(rung)
                rungs = [each for each in rungs if each != rung]
        if due(rungs, now_unix_s, self._policy):
            self._keep(snapshot, layout, int(now_unix_s))
            rungs = rungs_of(self._depot)
        for rung in expired(rungs, self._policy, now_unix_s):
            self._drop(rung)

    def _keep(self, snapshot: Snapshot, layout: str, at_s: int) -> None:
        """Keep a state, unless the versions that a restart would need are not stored any more."""
        versions = _stored_for(self._depot, [each.version for each in snapshot.state.fragments])
        if versions is None:
            return
        rung = Rung(snapshot.state.t, at_s)
        plain = [[each.generation, each.number] for each in versions]
        self._depot.write(rung.name, json_bytes({"versions": plain}))
        if not _is_whole(self._depot, versions):
            self._depot.remove(rung.name)
            return
        save_snapshot(self._depot, snapshot, layout, rung.state_name)
        self._unsure = rung
        log.info("the state of t %d is kept", rung.t)

    def _drop(self, rung: Rung) -> None:
        for name in (rung.state_name, rung.name):
            with suppress(FileNotFoundError):
                self._depot.remove(name)


def _stored_for(depot: Depot, wanted: Sequence[Version]) -> list[Version] | None:
    """Return the newest stored version of each fragment up to the wanted one.

    None if that is the first version of a fragment: it has not been trained yet, or the versions in
    between are deleted, and the next snapshot is nearer to what is stored.
    """
    stored, found = stored_versions(depot), list[Version]()
    for p, version in enumerate(wanted):
        files = [each for each in stored.get(Fragment(p), ()) if not each.orphan]
        good = [each.version for each in files if each.version <= version]
        if not good or good[-1].number == 0:
            return None
        found.append(good[-1])
    return found


def _is_whole(depot: Depot, versions: Sequence[Version]) -> bool:
    names = {each.name for files in stored_versions(depot).values() for each in files}
    return all(fragment_name(Fragment(p), v) in names for p, v in enumerate(versions))


# --- going back -----------------------------------------------------------------------------------


def ask_to_go_back(depot: Depot, t: int | None) -> None:
    """Have the next syncer of the run go back to the kept state of step `t`; None: not so.

    Errors: `UserMistake` if there is no such state, with those that there are; `OSError`.
    """
    if t is None:
        with suppress(FileNotFoundError):
            depot.remove(FROM_STEP)
        return
    chosen_rung(depot, t)
    depot.write(FROM_STEP, json_bytes({"t": t}))


def chosen_rung(depot: Depot, t: int) -> Rung:
    """Return the newest kept state of a step.

    Errors: `UserMistake` if there is none.
    """
    rungs = rungs_of(depot)
    if found := [rung for rung in rungs if rung.t == t]:
        return found[-1]
    kept = ", ".join(f"{rung.t} ({_moment(rung)})" for rung in rungs)
    hint = f"kept are {kept}" if kept else "none is kept; see durability.keep_hourly"
    raise UserMistake(f"--from: {depot} keeps no state of t {t}; {hint}")


def _moment(rung: Rung) -> str:
    return f"{datetime.fromtimestamp(rung.at_s, timezone.utc):%Y-%m-%d %H:%M} UTC"  # noqa: UP017


def asked_to_go_back(depot: Depot) -> Rung | None:
    """Return the kept state to which the run was asked to go back; None if it was not.

    Errors: `Damaged` if that state is gone.
    """
    try:
        return chosen_rung(depot, int(json.loads(depot.read(FROM_STEP))["t"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        log.warning("%s is ignored: %s", FROM_STEP, error)
        return None
    except UserMistake as error:
        raise Damaged(str(error)) from error


def load_rung(depot: Depot, rung: Rung, layout: str) -> tuple[Snapshot, tuple[Version, ...]]:
    """Return the snapshot of a kept state, and the versions of its fragments.

    Errors: `Damaged`.
    """
    versions = versions_of(depot, rung)
    if (kept := load_snapshot(depot, layout, rung.state_name)) is None:
        raise Damaged(f"{rung.state_name} is gone")
    if not versions or len(versions) != len(kept.state.fragments):
        raise Damaged(f"{rung.name} does not have the version of each fragment")
    return kept, tuple(versions)


def set_aside(depot: Depot, rung: Rung, snapshot: Snapshot, layout: str) -> None:
    """Move all newer states to a folder of their own, and make the kept state the newest.

    Call it when all fragments have gone back. It may be repeated after a crash.

    Errors: `OSError`.
    """
    versions = versions_of(depot, rung)
    later = [
        each
        for p, files in stored_versions(depot).items()
        for each in files
        if p < len(versions) and each.version > versions[p]
    ]
    newer = [each for each in rungs_of(depot) if (each.at_s, each.t) > (rung.at_s, rung.t)]
    names = [name for each in newer for name in (each.state_name, each.name)]
    folder = _folder_for(depot, rung, later)
    depot.write(f"{folder}/why.json", json_bytes({"went_back_to_t": rung.t}))
    for name in (STATE, VITALS, *names, *(each.name for each in later)):
        target = f"{folder}/{name.rpartition('/')[2].removesuffix(ORPHAN)}"
        if name == STATE and depot.has(target):
            continue  # a repetition: the newest snapshot is the kept one by now
        with suppress(FileNotFoundError):
            depot.move(name, target)
    save_snapshot(depot, snapshot, layout)


def _folder_for(depot: Depot, rung: Rung, later: Iterable[StoredFragment]) -> str:
    """Return the folder for the states of the generation that the run leaves."""
    generations = [each.version.generation for each in later]
    for name in depot.names(ASIDE):
        if name.endswith(f"-t{rung.t}") and depot.has(FROM_STEP) and not generations:
            return f"{ASIDE}/{name}"  # a repetition
    return f"{ASIDE}/g{max(generations, default=0)}-t{rung.t}"
