"""The actor of the fleet: a thread of its own keeps the run, so that calls are always answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray

from cluster.actors.directory import Actor, setup_logging
from cluster.actors.fault_injection import Breakable
from cluster.actors.start import Home
from cluster.config.schema import Config, Harm
from cluster.fleet.controller import Fleet
from cluster.fleet.outcome import Outcome
from cluster.fleet.queue_message import RunMessage
from cluster.fleet.ray_backend import RayBackend
from cluster.names import FLEET, Seat
from cluster.status import RunStatus
from cluster.tasks import watch_process
from coordinator.protocol import Island

FLEET_THREADS = 16
"""Threads of the fleet's process: no call takes long, but many may arrive at once."""


class FleetActor(Breakable):
    """The fleet of a run as a Ray actor."""

    def __init__(
        self,
        config: str,
        run_dir: str,
        namespace: str,
        detached: bool,
        auth: str,
        token: str,
        resumes: bool,
        from_stored: bool = False,
        since_s: float | None = None,
    ) -> None:
        setup_logging()
        parsed_config, folder = Config.model_validate_json(config, strict=False), Path(run_dir)
        self._fleet = Fleet(
            parsed_config,
            folder,
            namespace,
            RayBackend(parsed_config, folder, Home(namespace, detached=detached)),
            detached=detached,
            auth=auth,
            token=token,
            resumes=resumes,
            from_stored=from_stored,
            since_s=since_s,
        )
        watch_process(self._fleet.lost_thread)
        threading.Thread(target=self._fleet.keep, name="keep", daemon=True).start()

    def status(self) -> RunStatus:
        """Return the status of the run as of the last look."""
        return self._fleet.status()

    def outcome(self) -> Outcome | None:
        """Return how the run ended; None while it is running."""
        return self._fleet.outcome

    def scale(self, counts: Mapping[str, int]) -> None:
        """Set the number of islands of these groups."""
        self._fleet.scale(counts)

    def drain(self, island: Island) -> None:
        """Have an island hand in everything it has, and leave for good."""
        self._fleet.drain(island)

    def save(self, path: str) -> str:
        """Write the public model to this path of the fleet's machine; return where it is."""
        return self._fleet.save(Path(path))

    def stop(self, why: str, by_command: bool = False) -> None:
        """Have the run end."""
        self._fleet.stop(why, by_command=by_command)

    def queue_report(self) -> RunMessage:
        """Return the run as the queue of the cluster sees it."""
        return self._fleet.queue_report()

    def withhold(self, islands: Mapping[Island, str]) -> None:
        """Have the run do without these islands, and with all others."""
        self._fleet.withhold(islands)

    def starting(self, seat: Seat) -> float:
        """Note that a process begins at this seat; return how many seconds it waits first."""
        return self._fleet.starting(seat)

    def role(self, seat: Seat, warm: bool) -> Island | None:
        """Return the island of the process at this seat; None for a spare."""
        return self._fleet.role(seat, warm=warm)

    def broke(self, seat: Seat, words: str) -> None:
        """Note that the process at this seat ended with an exception."""
        self._fleet.broke(seat, words)

    def notice(self, seat: Seat, why: str, within_s: float, node: str | None) -> None:
        """Note that the process at this seat, or its node, will be taken away in `within_s`."""
        self._fleet.notice(seat, why, within_s, node)

    def harm(self, harm: Mapping[str, Any]) -> None:
        """Inject a fault now."""
        self._fleet.harm(Harm.model_validate(harm))

    def dismiss(self) -> None:
        """Let the fleet end, now that the caller has the outcome of the run."""
        self._fleet.dismiss()


def start_fleet(
    config: Config,
    run_dir: Path,
    home: Home,
    auth: str,
    *,
    resumes: bool = False,
    from_stored: bool = False,
    since_s: float | None = None,
) -> Actor:
    """Start the fleet, which starts everything else.

    A fleet that is not detached ends with the process of its run. `resumes`: another fleet has
    begun the run. `from_stored`: it resumes from the newest stored fragments. `since_s`: the time
    of the submission, in seconds since 1970; None: now. A process that Ray restarts gets the same.
    """
    options = home.options(FLEET, {})
    if not home.detached:
        options["max_restarts"] = 0  # all actors that it started have ended with it
    actor = ray.remote(FleetActor).options(
        **options, **home.near(), num_cpus=0, max_concurrency=FLEET_THREADS
    )
    token, config_json = uuid4().hex, config.model_dump_json()
    arguments = (config_json, str(run_dir), home.namespace, home.detached)
    submitted_s = time.time() if since_s is None else since_s
    return actor.remote(*arguments, auth, token, resumes, from_stored, submitted_s)
