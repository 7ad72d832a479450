"""The owner of a run's depot: one fleet at a time, with the syncer and the shards that it starts.

    owner-1.json    the first owner; the present one is in the file with the largest number

The next owner takes the run by creating the next file, which only one process can. An owner
rewrites its file as a heartbeat, and looks for a newer one. If it finds one it is *fenced*: neither
the owner nor its actors write any more. The number is the fencing token. A number and its `token`
belong to one fleet for good, even if Ray restarts that fleet.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cluster.storage.depot import Depot
from cluster.storage.files import json_text
from cluster.storage.pids import born, is_alive
from coordinator.errors import RunFailed, UserMistake

log = logging.getLogger("archipelago.ownership")

BEAT_S = 5.0
"""Seconds between two heartbeats of an owner; with each it checks that it still has the run."""
SILENCE_S = 20.0
"""The timeout in seconds after which an owner without heartbeats is dead.

The process that claims the run measures it by its own clock. An owner that was wrongly taken for
dead stops writing within `BEAT_S`.
"""
LOOK_S = 1.0
"""Seconds between two looks at an owner that may be dead."""
_OWNER = re.compile(r"owner-([1-9][0-9]*)\.json")


@dataclass(frozen=True, slots=True)
class Owner:
    """The file of an owner."""

    token: str
    """The token of its fleet."""
    life: int
    """The number of this process among those of its fleet, from 1."""
    host: str
    """Machine, boot and process namespace, hashed: there `pid` and `born` are valid."""
    machine: str
    """The name of the machine, for people."""
    pid: int
    born: int | None
    beat: int = 0
    """Heartbeats so far."""
    left: bool = False
    """Whether the owner is done with the run."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.machine}"


def me(token: str) -> Owner:
    """Return this process as the first of its fleet."""
    pid = os.getpid()
    return Owner(token, 1, _host(), platform.node(), pid, born(pid))


def _host() -> str:
    parts = [platform.node()]
    with suppress(OSError):  # a system without /proc
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def name_of(number: int) -> str:
    """Return the file of the owner with this number."""
    return f"owner-{number}.json"


def newest(depot: Depot) -> int:
    """Return the number of the present owner; 0 if there never was one."""
    named = map(_OWNER.fullmatch, depot.names())
    return max((int(each[1]) for each in named if each is not None), default=0)


def lives_here(depot: Depot) -> Owner | None:
    """Return the owner if it is a live process on this machine.

    It takes a while to detect whether an owner elsewhere is alive: the caller has to wait.
    """
    if (number := newest(depot)) == 0:
        return None
    owner = _parsed(_read(depot, number))
    return owner if owner is not None and _is_here(owner) and not owner.left else None


def _is_here(owner: Owner) -> bool:
    return owner.host == _host() and is_alive(owner.pid, owner.born)


def _read(depot: Depot, number: int) -> bytes:
    try:
        return depot.read(name_of(number))
    except FileNotFoundError:
        return b""


def _parsed(content: bytes) -> Owner | None:
    """Return the owner in a file, None if unreadable: its writer may be at work or have died."""
    try:
        return Owner(**json.loads(content))
    except (ValueError, TypeError):
        return None


class Fence:
    """The fencing check before the writes of a run's actor."""

    def __init__(self, depot: Depot, number: int) -> None:
        """Check for the owner with this number; 0 turns the check off."""
        self._depot, self._number = depot, number
        self._looked_s = -BEAT_S

    def check(self) -> None:
        """Check the fencing token before a write that another owner would miss or trip over.

        Errors: `RunFailed` if there is a newer owner; it may have been there for `BEAT_S`.
        """
        if self._number == 0 or (now_s := time.monotonic()) - self._looked_s < BEAT_S:
            return
        if (words := _taken(self._depot, self._number)) is not None:
            raise RunFailed(words)
        self._looked_s = now_s


def _taken(depot: Depot, number: int) -> str | None:
    """Return the owner that has taken the run over from this one; None if none is known."""
    try:
        if not depot.has(name_of(number + 1)):
            return None
        owner = _parsed(_read(depot, newest(depot)))
    except OSError as error:
        log.warning("cannot check whether another process has taken the run over: %s", error)
        return None
    return f"the run has been taken over by {owner or 'another process'}: nothing is written here"


class Ownership:
    """This process's ownership of a run, from `take` to `leave` or until it is `lost`."""

    def __init__(self, depot: Depot, number: int, owner: Owner) -> None:
        self.number, self._depot, self._owner = number, depot, owner
        self.lost: str | None = None
        self.relieved = False  # lost to a later process of the same fleet, which owns all now
        self._over, self._failing = threading.Event(), False
        self._begun: str | None = None  # set once the run is left: the file that begins a run
        self._lock = threading.Lock()  # two threads may send a heartbeat
        self._thread = threading.Thread(target=self._keep, name="owner", daemon=True)

    @property
    def life(self) -> int:
        """The number of this process among those of its fleet."""
        return self._owner.life

    def start(self) -> None:
        """Send heartbeats on a thread until the ownership ends."""
        self._thread.start()

    def check(self, *, again: bool = False) -> None:
        """Check that the last heartbeat found no other owner; with `again`, send one now first.

        Errors: `RunFailed` if another owner has the run.
        """
        if again:
            self._try_to_beat()
        if self.lost is not None:
            raise RunFailed(self.lost)

    def beat(self) -> None:
        """Send a heartbeat, or find that the ownership is lost.

        Errors: `OSError`.
        """
        with self._lock:
            self._beat()

    def _beat(self) -> None:
        self.lost = self.lost or _taken(self._depot, self.number)
        stored, own = _parsed(_read(self._depot, self.number)), self._owner
        if stored is not None and stored.token == own.token and stored.life > own.life:
            self.relieved, self.lost = True, f"the run continues as {stored}"
        elif stored is not None and stored.token != own.token:
            self.lost = self.lost or f"the run has been taken over by {stored}"
        if self.lost is None and self._begun is None:  # `left` must be written last
            self._say(replace(self._owner, beat=self._owner.beat + 1))

    def _say(self, owner: Owner) -> None:
        self._owner = owner
        self._depot.write(name_of(self.number), _bytes(owner))

    def _keep(self) -> None:
        while self.lost is None and not self._over.wait(BEAT_S):
            self._try_to_beat()
        if self.lost is not None:
            log.error("%s", self.lost)
        self._write_left()

    def _try_to_beat(self) -> None:
        try:
            self.beat()
            self._failing = False
        except OSError as error:  # the run continues, though others cannot see its heartbeat
            if not self._failing:
                log.error("the heartbeat of the run cannot be written to the depot: %s", error)
            self._failing = True

    def leave(self, *, begun: str) -> None:
        """End this ownership; if the file `begun` is not in the depot, remove every trace of it.

        The heartbeat thread writes this last. A depot that hangs is waited for up to `BEAT_S`; the
        thread writes when it answers.
        """
        self._begun = begun
        self._over.set()
        if not self._thread.is_alive():
            self._write_left()
            return
        self._thread.join(BEAT_S)
        if self._thread.is_alive():
            log.warning("the end of this ownership is not written to the depot yet")

    def _write_left(self) -> None:
        with self._lock:
            if self.lost is not None or self._begun is None:
                return
            try:
                if self._depot.has(self._begun):
                    self._say(replace(self._owner, left=True))
                else:
                    self._depot.remove(name_of(self.number))
            except OSError as error:  # the next owner then waits, as for one that has died
                log.warning("the end of this ownership cannot be written to the depot: %s", error)


def take(
    depot: Depot,
    run: str,
    owner: Owner,
    *,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Ownership:
    """Take the run, or continue to own it as a later process of the same fleet.

    A run that was left, or whose owner is dead, can be taken. An owner on another machine is
    watched for `SILENCE_S`.

    Errors: `UserMistake` if the run has a live owner; `OSError`.
    """
    number = newest(depot)
    content = _read(depot, number) if number else b""
    before = _parsed(content)
    if before is not None and before.token == owner.token:
        owner = replace(owner, life=before.life + 1, beat=before.beat + 1)
        try:
            depot.write(name_of(number), _bytes(owner))
        except (
            OSError
        ) as error:  # with a full disk the fleet keeps its run; the next heartbeat retries
            log.error("that the run has another process is not to be written: %s", error)
        return Ownership(depot, number, owner)
    if number and (before is None or not before.left):
        is_local = before is not None and before.host == owner.host
        end_s = now_s() + SILENCE_S
        while not is_local and now_s() < end_s:
            sleep(LOOK_S)
            if _read(depot, number) != content or newest(depot) != number:
                raise UserMistake(_live_run(run, _parsed(_read(depot, newest(depot)))))
        if is_local and before is not None and is_alive(before.pid, before.born):
            raise UserMistake(_live_run(run, before))
    if not depot.claim(name_of(number + 1), _bytes(owner)):
        raise UserMistake(_live_run(run, _parsed(_read(depot, number + 1))))
    return Ownership(depot, number + 1, owner)


def _live_run(run: str, owner: Owner | None) -> str:
    other_owner = owner or "another process, which has just taken it"
    return f"run {run} is live: {other_owner}; two processes cannot write one run"


def _bytes(owner: Owner) -> bytes:
    return json_text(asdict(owner)).encode()
