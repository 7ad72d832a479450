"""Who writes a run's depot: one fleet at a time, with the syncer and the shards that it starts.

    owner-1.json    the first that had it; whoever has it now is in the one with the largest number

The next one is taken by making its file, which only one can. An owner writes its own anew again and
again, and looks for a newer one: then it is *fenced*, and neither it nor what it has started writes
any more. A number and its token belong to one fleet for good, also when Ray starts that again.
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
"""Between two times that an owner says that it is there, and looks whether it still is."""
SILENCE_S = 20.0
"""Whoever has not said so for this long, watched by the clock of whoever wants the run, is dead;
what an owner that only seemed so writes after that is stopped within `BEAT_S`."""
LOOK_S = 1.0
"""Between two looks at somebody who may be dead."""
_OWNER = re.compile(r"owner-([1-9][0-9]*)\.json")


@dataclass(frozen=True, slots=True)
class Owner:
    """What an owner says of itself. `token`: of its fleet; `life`: of that one's processes, from 1;
    `host`: machine, boot and process namespace, where `pid` and `born` mean something; `machine`:
    for people. `beat`: counts. `left`: it is done with the run."""

    token: str
    life: int
    host: str
    machine: str
    pid: int
    born: int | None
    beat: int = 0
    left: bool = False

    def __str__(self) -> str:
        return f"process {self.pid} on {self.machine}"


def me(token: str) -> Owner:
    """This process, in the first life of this fleet."""
    pid = os.getpid()
    return Owner(token, 1, _host(), platform.node(), pid, born(pid))


def _host() -> str:
    parts = [platform.node()]
    with suppress(OSError):  # a system without /proc
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def name_of(number: int) -> str:
    return f"owner-{number}.json"


def newest(depot: Depot) -> int:
    """The number of whoever has the run; 0 if nobody ever had."""
    named = map(_OWNER.fullmatch, depot.names())
    return max((int(each[1]) for each in named if each is not None), default=0)


def lives_here(depot: Depot) -> Owner | None:
    """Who has the run, if that is a process of this machine and goes on; of others nobody knows at
    once."""
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
    """None if it cannot be read: whoever made it may be just writing it, or have died then."""
    try:
        return Owner(**json.loads(content))
    except (ValueError, TypeError):
        return None


class Fence:
    """Stands before what an actor of a run writes."""

    def __init__(self, depot: Depot, number: int) -> None:
        """`number`: its owner's; 0: nobody asks."""
        self._depot, self._number = depot, number
        self._looked_s = -BEAT_S

    def check(self) -> None:
        """To be called before anything is written that another owner would miss, or stumble over.

        Errors: `RunFailed` if there is a newer owner; it may have been there for `BEAT_S`.
        """
        if self._number == 0 or (now_s := time.monotonic()) - self._looked_s < BEAT_S:
            return
        if (words := _taken(self._depot, self._number)) is not None:
            raise RunFailed(words)
        self._looked_s = now_s


def _taken(depot: Depot, number: int) -> str | None:
    """Who has taken the run over from this owner; None if nobody has, or that is not to be had."""
    try:
        if not depot.has(name_of(number + 1)):
            return None
        owner = _parsed(_read(depot, newest(depot)))
    except OSError as error:
        log.warning("whether somebody has taken the run over is not to be had: %s", error)
        return None
    return f"the run has been taken over by {owner or 'another process'}: nothing is written here"


class Ownership:
    """Of one run, by this process, from `take` to `leave` or until it is `lost`."""

    def __init__(self, depot: Depot, number: int, owner: Owner) -> None:
        self.number, self._depot, self._owner = number, depot, owner
        self.lost: str | None = None
        self.relieved = False  # ... to a later process of the same fleet, to which all belongs
        self._over, self._failing = threading.Event(), False
        self._begun: str | None = None  # set once the run is left: what it is begun with
        self._lock = threading.Lock()  # two may say it at once
        self._thread = threading.Thread(target=self._keep, name="owner", daemon=True)

    @property
    def life(self) -> int:
        """Of this fleet's processes, which one this is."""
        return self._owner.life

    def start(self) -> None:
        """Say that it is there, on a thread of its own, until it is over."""
        self._thread.start()

    def check(self, *, again: bool = False) -> None:
        """As it was found by the last beat; or by another one, made now.

        Errors: `RunFailed` if the run is somebody else's.
        """
        if again:
            self._try_to_beat()
        if self.lost is not None:
            raise RunFailed(self.lost)

    def beat(self) -> None:
        """Say once more that it is there; or find that it is not.

        Errors: `OSError`.
        """
        with self._lock:
            self._beat()

    def _beat(self) -> None:
        self.lost = self.lost or _taken(self._depot, self.number)
        there, mine = _parsed(_read(self._depot, self.number)), self._owner
        if there is not None and there.token == mine.token and there.life > mine.life:
            self.relieved, self.lost = True, f"the run goes on as {there}"
        elif there is not None and there.token != mine.token:
            self.lost = self.lost or f"the run has been taken over by {there}"
        if self.lost is None and self._begun is None:  # else the last word is `left`
            self._say(replace(self._owner, beat=self._owner.beat + 1))

    def _say(self, owner: Owner) -> None:
        self._owner = owner
        self._depot.write(name_of(self.number), _bytes(owner))

    def _keep(self) -> None:
        while self.lost is None and not self._over.wait(BEAT_S):
            self._try_to_beat()
        if self.lost is not None:
            log.error("%s", self.lost)
        self._say_that_it_is_left()

    def _try_to_beat(self) -> None:
        try:
            self.beat()
            self._failing = False
        except OSError as error:  # the run goes on, though others cannot see that it does
            if not self._failing:
                log.error("the depot does not hear that the run goes on: %s", error)
            self._failing = True

    def leave(self, *, begun: str) -> None:
        """End this ownership: the run is over here. If there is not even what is `begun` with, it
        is as if it had never been taken.

        The thread that says that it is there says this, too, and last. A depot that hangs is waited
        for no longer than `BEAT_S`; the thread says so when the depot answers.
        """
        self._begun = begun
        self._over.set()
        if not self._thread.is_alive():
            self._say_that_it_is_left()
            return
        self._thread.join(BEAT_S)
        if self._thread.is_alive():
            log.warning("the depot does not hear yet that the run is left")

    def _say_that_it_is_left(self) -> None:
        with self._lock:
            if self.lost is not None or self._begun is None:
                return
            try:
                if self._depot.has(self._begun):
                    self._say(replace(self._owner, left=True))
                else:
                    self._depot.remove(name_of(self.number))
            except OSError as error:  # then it is waited for, as for one that has died
                log.warning("that the run is left is not to be written: %s", error)


def take(
    depot: Depot,
    run: str,
    owner: Owner,
    *,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Ownership:
    """Have the run, or go on having it in a later life of the same fleet.

    One that was left, or whose owner has died, can be taken. An owner on another machine is watched
    for `SILENCE_S`.
    Errors: `UserMistake` if somebody has it; `OSError`.
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
        ) as error:  # a full disk keeps nobody from a run that is his; the beat says so
            log.error("that the run has another process is not to be written: %s", error)
        return Ownership(depot, number, owner)
    if number and (before is None or not before.left):
        here = before is not None and before.host == owner.host
        end_s = now_s() + SILENCE_S
        while not here and now_s() < end_s:
            sleep(LOOK_S)
            if _read(depot, number) != content or newest(depot) != number:
                raise UserMistake(_going_on(run, _parsed(_read(depot, newest(depot)))))
        if here and before is not None and is_alive(before.pid, before.born):
            raise UserMistake(_going_on(run, before))
    if not depot.claim(name_of(number + 1), _bytes(owner)):
        raise UserMistake(_going_on(run, _parsed(_read(depot, number + 1))))
    return Ownership(depot, number + 1, owner)


def _going_on(run: str, owner: Owner | None) -> str:
    who = owner or "another process, which has just taken it"
    return f"run {run} is going on: {who}; two cannot write one run"


def _bytes(owner: Owner) -> bytes:
    return json_text(asdict(owner)).encode()
