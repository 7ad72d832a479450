"""Faults that overlap: the longer one decides when the process is well again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from cluster.actors.fault_injection import Cable


class Clock:
    """A virtual clock; `meanwhile` is called once, in the middle of the first sleep."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.meanwhile = list[Callable[[], None]]()

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, for_s: float) -> None:
        self.now_s += for_s / 2
        if self.meanwhile:
            self.meanwhile.pop()()
        self.now_s += for_s / 2


def test_second_cut_during_a_wait_postpones_the_call() -> None:
    clock = Clock()
    cable = Cable(clock.monotonic, clock.sleep)
    clock.meanwhile.append(lambda: cable.cut(30.0))
    cable.cut(10.0)
    assert cable.passes()
    assert clock.now_s == 135.0


def test_shorter_second_cut_does_not_heal_the_first() -> None:
    clock = Clock()
    cable = Cable(clock.monotonic, clock.sleep)
    cable.cut(10.0)
    cable.cut(1.0)
    assert not cable.passes(within_s=5.0)
    assert clock.now_s == 105.0
    assert cable.passes(within_s=5.0)
    assert clock.now_s == 110.0


OVERLAP = """
import resource, threading
from cluster.actors.fault_injection import FULL_BYTES, Breakable
before, process = resource.getrlimit(resource.RLIMIT_FSIZE), Breakable()
process.fill(0.1)
(short,) = set(threading.enumerate()) - {threading.main_thread()}
process.fill(1.5)
short.join()
assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == FULL_BYTES
for thread in set(threading.enumerate()) - {threading.main_thread()}:
    thread.join()
assert resource.getrlimit(resource.RLIMIT_FSIZE) == before
"""


def test_disk_is_full_until_the_longer_of_two_faults_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OVERLAP], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
