"""The status of a run, repeated until the run ends, through its own port or through Ray."""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path

from cluster.launch.remote_status import from_json, status_at
from cluster.status import RunStatus
from cluster.storage import runs
from cluster.storage.metrics_log import LOOKS, last_look
from coordinator.errors import UserMistake


def status_stream(name: str | None, address: str | None, every_s: float) -> Generator[RunStatus]:
    """Yield the status of a run every `every_s` seconds until it is over, the last one included.

    A run on this machine is asked through its HTTP port, which needs no client of Ray. Any other
    run is asked through one client, which stays connected.

    Errors: `UserMistake` if there is no such run, or it cannot be reached. For a submitted run that
    has not started, the message states that.
    """
    try:
        live = runs.reach(name, address)
    except UserMistake as error:
        if (not_started := _not_started(name)) is not None:
            raise not_started from error
        raise
    if isinstance(live, Path):
        yield _last_status(live)
        return
    run_dir = runs.here(name) if live.pid else None
    while run_dir is not None and (seen := status_at(run_dir)) is not None:
        yield seen
        time.sleep(every_s)
    if run_dir is not None and runs.live_of(run_dir) is None:  # the run has ended meanwhile
        yield _last_status(run_dir)
        return
    live.prepare()
    from cluster.launch.client import reached

    with reached(live) as ask:
        while True:
            shown: RunStatus = ask(lambda fleet: fleet.status.remote())
            yield shown
            if shown["phase"] == "finished":
                return
            time.sleep(every_s)


def _not_started(name: str | None) -> UserMistake | None:
    """Return the error for a run of a job on this machine's cluster; None if there is no such job.

    A job makes the run directory only when it starts.
    """
    if name is None or Path(name).name != name:
        return None
    from cluster.launch.job_state import state_of_job

    job = state_of_job(name)
    return None if job is None else UserMistake(job)


def _last_status(run_dir: Path) -> RunStatus:
    """Return the last status of a run that is over.

    Errors: `UserMistake` if the run ended before its first status.
    """
    if (text := last_look(run_dir / LOOKS)) is None:
        raise _not_started(run_dir.name) or UserMistake(
            f"run {run_dir} is not live, and ended before it wrote a status"
        )
    return from_json(text)
