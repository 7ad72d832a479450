"""The job of a submitted run that cannot be reached: pending, starting, failed or ended."""

from __future__ import annotations

import time

from ray.exceptions import RayError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

LOCAL_SERVER = "http://127.0.0.1:8265"
"""The job server of a cluster whose head is this machine, unless another port was configured."""


def state_of_job(run: str, server: str | None = None) -> str | None:
    """Return a message about the job of a submitted run, from a job server; the default is local.

    Returns None if the server cannot be asked, or has no job of this name.
    """
    server = server or LOCAL_SERVER
    try:
        details = JobSubmissionClient(server).get_job_info(run)
    except (RayError, RuntimeError, OSError, ValueError):
        return None
    return _message(run, server, details)


def _message(run: str, server: str, details: JobDetails) -> str:
    logs = f"`ray job logs {run} --address {server}`"
    if details.status.is_terminal():
        reason = "" if details.status is JobStatus.SUCCEEDED else f": {details.message}"
        return (
            f"the job of run {run} has ended ({details.status.value.lower()}{reason}); see {logs}; "
            f"its files are in ~/archipelago/runs/{run} on the head, unless run.dir is set: give "
            "that path instead of the name"
        )
    age = ""
    if details.start_time is not None:
        age = f" {max(0.0, time.time() - details.start_time / 1000):.0f} s ago"
    return (
        f"run {run} was submitted{age} and has not started yet: its job is "
        f"{details.status.value.lower()}; repeat this command, or follow {logs[:-1]} --follow`"
    )
