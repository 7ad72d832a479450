"""A run as a job of a Ray cluster, submitted through Ray's job API from a machine outside it."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import ray
from ray.exceptions import RayError
from ray.job_submission import JobStatus, JobSubmissionClient

from cluster.config.schema import Config, MonitorConfig
from cluster.fleet.http_access import page_url
from cluster.fleet.queue_message import owner_of
from cluster.package_guard import intruders
from cluster.source import ALL_PACKAGES, package_roots
from cluster.storage import runs
from cluster.storage.layout import LAYOUT
from cluster.storage.metrics_log import LOOKS
from coordinator.errors import RunFailed, UserMistake

CONFIG = "archipelago.toml"
ENTRYPOINT = f"python -m archipelago job {CONFIG}"
"""The command of the job; its working directory holds `CONFIG` and our packages."""
RUN_MARKS = (LAYOUT, LOOKS, runs.LIVE, runs.SUMMARY, runs.TOKEN)
"""The files beside `config.toml` of which a run directory has at least one."""
SETTLE_S = 0.5
"""Seconds between two polls of a job that is about to end, or two attempts to submit one."""
NOT_YET = "No available agent"
"""The answer of a head that has only just started."""
TRACEBACK = "Traceback (most recent call last)"
AGENT_TIMEOUT_S = 180.0
"""Seconds for which such a head is asked again: on two busy cores 60 s were too few."""


@dataclass(frozen=True, slots=True)
class Job:
    """A submitted job of a Ray cluster."""

    client: JobSubmissionClient
    name: str
    """The submission id, which is the run's name."""
    address: str
    """The address of the cluster's job server."""


def submit(
    config: Config,
    name: str,
    address: str,
    working_dir: Path | None,
    labels: Mapping[str, str] | None = None,
) -> Job:
    """Submit a run: our packages, the configuration, and the user's own folder if given.

    Without `run.owner` the owner is the user of this process.

    `labels`: Ray labels of the node for the driver, and so for the fleet; None: the head.

    Errors: `UserMistake` if the cluster cannot be reached, refuses access, or has such a job.
    """
    if wrong := problems(address, working_dir):
        raise UserMistake("\n".join(wrong))
    client = _client(address)
    owned = config.run.model_copy(update={"owner": owner_of(config)})
    config = config.model_copy(update={"run": owned})  # there, all jobs run as one user
    with TemporaryDirectory(prefix="archipelago-") as folder:
        staged = Path(folder)
        if working_dir is not None:
            shutil.copytree(working_dir, staged, dirs_exist_ok=True, ignore=_not_worth_sending)
        for package, root in package_roots().items():
            shutil.copytree(root, staged / package, dirs_exist_ok=True, ignore=_not_worth_sending)
        (staged / CONFIG).write_text(config.toml())
        job = Job(client, name, address)
        _hand_over(job, config, staged, labels or {})
    return job


def problems(address: str, working_dir: Path | None) -> list[str]:
    """Return the problems of a submission that can be found without asking the cluster."""
    found = intruders()
    if not address.startswith(("http://", "https://")):
        found.append(f"--address {address}: that is not the job server's, such as http://HEAD:8265")
    if working_dir is not None and (clashes := _clashes(working_dir)):
        found.append(
            f"--working-dir {working_dir}: its {' and '.join(clashes)} would take the place of "
            "ours; name them otherwise, or send another folder"
        )
    return found


def metadata(monitor: MonitorConfig, job: Job) -> dict[str, str]:
    """Return what Ray's dashboard shows of a job: the run, and its page if the port is fixed."""
    found = {"run": job.name, "job_name": f"archipelago {job.name}"}
    if monitor.metrics and monitor.metrics_port:
        head = urlsplit(job.address).hostname or "localhost"
        found["page"] = page_url(monitor.metrics_host, monitor.metrics_port, head)
    return found


def _hand_over(job: Job, config: Config, staged: Path, labels: Mapping[str, str]) -> None:
    """Submit the job, with retries while the head is still starting.

    Errors: `UserMistake` if the cluster refuses the job, or has one of this name.
    """
    end_s = time.monotonic() + AGENT_TIMEOUT_S
    while True:
        try:
            job.client.submit_job(
                entrypoint=f"{ENTRYPOINT} --set run.name={job.name}",
                submission_id=job.name,
                entrypoint_label_selector=dict(labels) or None,
                runtime_env={"working_dir": str(staged)},
                metadata=metadata(config.monitor, job),
            )
            return
        except OSError as error:  # of the connection, below which all of `requests` are
            raise UserMistake(
                f"{job.address} ended the connection: {reason_of(error)}; is the head still up? "
                f"`ray job list` shows whether it has taken {job.name}"
            ) from error
        except RuntimeError as error:
            if NOT_YET in str(error) and time.monotonic() < end_s:
                time.sleep(SETTLE_S)
                continue
            if "already exists" in str(error):
                raise UserMistake(
                    f"{job.address} has a job named {job.name} already; give this run another "
                    "name with --set run.name=NAME"
                ) from error
            reason = reason_of(error)
            if NOT_YET in reason:
                reason += f" Tried for {AGENT_TIMEOUT_S:.0f} s; look at the head's dashboard agent."
            raise UserMistake(f"{job.address} does not take the job: {reason}") from error


def _clashes(folder: Path) -> list[str]:
    """Return the entries of a folder with names that we send ourselves, our own packages aside."""
    clashes = [
        name for name in (CONFIG, *(f"{p}.py" for p in ALL_PACKAGES)) if (folder / name).exists()
    ]
    for package, root in package_roots().items():
        if (entry := folder / package).exists() and not entry.samefile(root):
            clashes.append(f"{package}/")
    return clashes


def _not_worth_sending(folder: str, names: list[str]) -> set[str]:
    """Return the names that are not sent: caches, run directories with their tokens, hidden files.

    A folder named `runs` is not sent, whatever is in it.
    """
    return {
        name
        for name in names
        if name in ("__pycache__", "runs", "node_modules")
        or name.startswith(".")
        or _is_run_directory(Path(folder, name))
    }


def _is_run_directory(path: Path) -> bool:
    """Return whether a path is the directory of a run, live or ended."""
    return (path / runs.CONFIG).exists() and any((path / mark).exists() for mark in RUN_MARKS)


def _client(address: str) -> JobSubmissionClient:
    """Return a client of the job server.

    Errors: `UserMistake` if it cannot be reached, refuses access, or runs another version of Ray.
    """
    try:
        client = JobSubmissionClient(address)
        client.list_jobs()  # this call needs the token
    except (RayError, RuntimeError, OSError) as error:
        raise UserMistake(
            f"the job server at {address} cannot be used: {reason_of(error)}; is the address "
            "right (the head's dashboard, port 8265), and does RAY_AUTH_TOKEN hold its token "
            "(RAY_AUTH_MODE=token)?"
        ) from error
    cluster_version = getattr(client, "_server_ray_version", ray.__version__)  # passed at its start
    if cluster_version != ray.__version__:
        raise UserMistake(
            f"the cluster at {address} runs Ray {cluster_version}, and this is Ray "
            f"{ray.__version__}: use the same on both"
        )
    return client


def reason_of(error: BaseException) -> str:
    """Return an error in one line: the first one, or the last one of a server's traceback.

    An error without words is named by its class.
    """
    lines = [line.strip() for line in str(error).splitlines() if any(map(str.isalpha, line))]
    if not lines:
        return type(error).__name__
    return lines[-1] if TRACEBACK in lines[0] else lines[0]


def follow(job: Job, say: Callable[[str], None]) -> int:
    """Pass on what the job prints until it is over; return its exit code, 130 if it was stopped.

    Errors: `RunFailed` if the cluster could not run it.
    """
    asyncio.run(_tail(job, say))
    while not (details := job.client.get_job_info(job.name)).status.is_terminal():
        asyncio.run(asyncio.sleep(SETTLE_S))
    match details.status:
        case JobStatus.SUCCEEDED:
            return 0
        case JobStatus.STOPPED:
            return 130
        case _ if details.driver_exit_code is not None:
            return details.driver_exit_code
        case _:
            raise RunFailed(f"job {job.name} failed before it began: {details.message}")


async def _tail(job: Job, say: Callable[[str], None]) -> None:
    async for chunk in _chunks(job):
        say(chunk)


def _chunks(job: Job) -> Any:
    return job.client.tail_job_logs(job.name)
