"""The HTTP port of a run: a Prometheus target, and the file by which it is found."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cluster.config.schema import Config, MonitorConfig
from cluster.fleet.http_port import HttpPort, make_token, write_token
from cluster.status import RunStatus
from cluster.storage.files import write, write_json
from cluster.storage.limited_calls import LimitedCalls
from cluster.storage.metrics_log import LOOKS
from cluster.storage.runs import CONFIG, TARGET, TOKEN, Live, announce
from cluster.tasks import Failed, log_only
from coordinator.errors import UserMistake

log = logging.getLogger("archipelago.fleet")


class Exporter:
    """A run's HTTP port, and the files by which port and run are found.

    Files that cannot be written are retried at each `tend`; the run continues without them.
    """

    def __init__(
        self,
        run_dir: Path,
        monitor: MonitorConfig,
        status: Callable[[], RunStatus | None],
        starting: Callable[[], RunStatus] | None = None,
        *,
        failed: Failed = log_only,
    ) -> None:
        """Open nothing yet; `status`, `starting` and `failed`: as for `HttpPort`."""
        self._monitor, self._run = monitor, run_dir.name
        self._run_dir, self._status, self._starting = run_dir, status, starting
        self._failed = failed
        self._files = [run_dir / TARGET]
        if not monitor.ray_metrics:
            self._files.append(targets_of(monitor) / target_name(run_dir))
        self._server: HttpPort | None = None
        self._token = make_token()
        self._wanted = False
        self._storage = LimitedCalls()  # the keeper must not hang with it
        self._left: list[Callable[[], None]] = []  # each writes a file that is not written yet

    def start(self, *, needed: bool = True) -> None:
        """Listen, and write where.

        `needed`: the run is just starting, so a port that cannot be opened is an error; else it is
        retried at each `tend`.

        Errors: `UserMistake` if the port is needed and cannot be opened.
        """
        self._wanted = self._monitor.metrics
        problem = self.tend()
        if needed and self._wanted and self._server is None:
            raise UserMistake(problem)

    def describe(self, config: Config) -> None:
        """Write the configuration to the run directory, if it is not there: on a new node."""
        file, content = self._run_dir / CONFIG, config.toml().encode()
        self._left.append(lambda: None if file.exists() else write(file, content))

    def announce(self, live: Live) -> None:
        """Write how the run is reached to `live.json`, at the next `tend` that can."""
        self._left.append(partial(announce, self._run_dir, live))

    def tend(self) -> str | None:
        """Retry whatever could not be done yet; return why it still cannot."""
        problem = None
        if self._wanted and self._server is None:
            problem = self._listen()
        for write_file in [*self._left]:
            try:
                self._storage.call(write_file)
                self._left.remove(write_file)
            except OSError as error:
                message = f"other terminals or Prometheus cannot find the run: {error}"
                problem = problem or message
        return problem

    def _listen(self) -> str | None:
        """Begin to listen; return why that is not possible."""
        host, port = self._monitor.metrics_host, self._monitor.metrics_port
        history = self._run_dir / LOOKS
        try:
            self._server = HttpPort(
                self._status, self._token, host, port, history, self._starting, failed=self._failed
            )
        except OSError as error:
            return (
                f"monitor.metrics_port: {host}:{port} cannot be listened at: {error.strerror}; "
                "0 takes a free one"
            )
        address = f"{f'[{host}]' if ':' in host else host}:{self._server.port}"
        targets = [{"targets": [address], "labels": {"job": "archipelago"}}]
        self._left.append(partial(write_token, self._run_dir, self._token))
        self._left += [partial(write_json, file, targets) for file in self._files]
        return None

    def stop(self) -> None:
        """Stop listening, and remove the files; a file that cannot be removed is logged."""
        self._wanted, self._left = False, []
        if (server := self._server) is None:
            return
        self._server = None
        server.stop()
        for file in (*self._files, self._run_dir / TOKEN):
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                log.error("%s of the run that is over stays: %s", file, error)


def target_name(run_dir: Path) -> str:
    """Return the name of a run's file in the folder that Prometheus watches.

    Runs of one name in two folders have two files.
    """
    where = hashlib.sha256(os.fsencode(run_dir.absolute())).hexdigest()
    return f"{run_dir.name}-{where[:8]}.json"


def targets_of(monitor: MonitorConfig) -> Path:
    """Return the folder that Prometheus watches: one file for each live run of this machine."""
    return Path(monitor.targets).expanduser()
