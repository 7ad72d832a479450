"""The storage of a running run hangs while the process that needs it restarts, on real Ray.

A file becomes a named pipe without a writer, so that the kernel never answers the call that opens
it. No error is raised, and no timeout of an operating system ends it.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.storage.folder import Folder
from cluster.storage.fragments import stored_versions
from coordinator.protocol import Fragment, ShardBack
from tests.live.cli import Place, finish, place, until
from tests.live.test_run import heard, live_run, pids, tapes

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(900)]

HANG_S = 8
"""`durability.hang_s`: a process that answers, but makes no progress, is restarted after 40 s."""
HELD_S = 60


@contextmanager
def hanging(files: Sequence[Path]) -> Generator[None]:
    """Let every call hang that opens one of these files, until the end of the block."""
    whole = {file: file.with_name(f".{file.name}.whole") for file in files}
    for file, aside in whole.items():
        file.rename(aside)
        os.mkfifo(file)
    try:
        yield
    finally:
        woken = [os.open(file, os.O_RDWR) for file in files]  # a call that waits gets an error now
        for file, aside in whole.items():
            aside.replace(file)
        for pipe in woken:
            os.close(pipe)


def test_restarted_processes_wait_for_a_storage_that_hangs() -> None:
    """The syncer was once killed every five minutes until the run ended, and a shard was away.

    The status names the process that waits, none is restarted for that, and nothing is lost.
    """
    with place() as here:
        process = live_run(here, "--set", f"durability.hang_s={HANG_S}")
        (pid,) = pids(here, "ShardActor")
        os.kill(pid, signal.SIGSTOP)  # from here on it writes nothing
        stored = stored_versions(Folder(here.run_dir))[Fragment(0)]
        kept = [here.run_dir / each.name for each in stored]
        waits_for(here, "ShardActor", kept, "shard-0 has not answered for")
        until(lambda: any(isinstance(each.event, ShardBack) for each in heard(here)))
        merges_on(here)
        assert tapes(here) == 1, "the hang of a shard ends no life of the syncer"
        layout = [here.run_dir / "layout.json"]
        waits_for(here, "SyncerActor", layout, "its recovery has made no progress for")
        until(lambda: tapes(here) == 2)
        merges_on(here)
        assert here.last_status["merges_lost"] == 0
        why = "its recovery has made no progress"
        traces = [each["kind"] for each in events(here) if why in each["why"]]
        assert traces == ["alert", "alert over"]
        os.killpg(process.pid, signal.SIGINT)
        finished = finish(process)
        assert finished.code == 130, finished.err
        assert "Traceback" not in finished.err
        summary = json.loads((here.run_dir / "summary.json").read_text())
        fates = ("merged", "discarded", "lost", "outstanding")
        assert summary["tokens_trained"] == sum(summary[f"tokens_{fate}"] for fate in fates)
        states = [each.after.fragments for each in heard(here)]
        for before, after in itertools.pairwise(states):
            assert all(old.version <= new.version for old, new in zip(before, after, strict=True))


def waits_for(here: Place, actor: str, files: Sequence[Path], why: str) -> None:
    """Kill an actor while the files hang that it needs, and check that the run waits for them.

    `why`: the text in the status meanwhile.
    """

    def reported() -> bool:
        asked = here.run("status", str(here.run_dir), "--json")
        assert asked.code == 0, asked.err
        return why in f"{asked.json['alerts']}{asked.json['figures']['not_durable']}"

    (victim,) = pids(here, actor)
    with hanging(files):
        os.kill(victim, signal.SIGKILL)
        until(reported)
        (waiting,) = pids(here, actor)
        end_s = time.monotonic() + HELD_S
        while time.monotonic() < end_s:
            assert pids(here, actor) == [waiting], "it is not restarted, however long it waits"
            assert reported()
    assert pids(here, actor) == [waiting]


def merges_on(here: Place) -> None:
    """Wait until the run merges again, without an alert."""
    before = here.merges
    until(lambda: here.merges > before + 8)
    until(lambda: not here.last_status.get("alerts") and not here.last_status["not_durable"])
    assert not [each for each in events(here) if each["kind"] == "link"]


def events(here: Place) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (here.run_dir / "events.jsonl").read_text().splitlines()]
