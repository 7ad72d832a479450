"""From a configuration to a running program, and back to nothing: start, watch, end, clean up.

The terminal's process owns everything that it starts. Whatever happens, what was started is
stopped, and nothing else is.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import ray
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    RayActorError,
)

from cluster import actors, runs
from cluster.calls import STORE_FULL
from cluster.config import Config
from cluster.names import CALL_TIMEOUT_S, FLEET, namespace_of
from cluster.remote import answer, connect
from cluster.status import Status
from cluster.steward import Outcome
from coordinator.errors import RunFailed, UserMistake
from coordinator.fragments import Layout

log = logging.getLogger("archipelago")

RAY_SETTINGS = {
    "RAY_object_manager_pull_timeout_ms": "120000",  # else slow links get each object twice
    "RAY_timeout_ms_task_wait_for_death_info": "100",  # else 2 s until a caller hears of a death
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
STORE_FLOOR_BYTES = 128 * 2**20
"""The smallest object store that an embedded Ray is given."""
STORE_SLACK = 1.5
"""Of what must be in the object store at once, so much is asked for."""


SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class Interrupts:
    """Ctrl-C and SIGTERM: the first one asks for a graceful end, a second Ctrl-C ends at once."""

    asked: str | None = None
    urgent: bool = False
    _before: dict[int, object] = field(default_factory=dict)

    def __enter__(self) -> Interrupts:
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        self.listen()
        return self

    def listen(self) -> None:
        """Hear the signals; to be said again once Ray is up, which puts handlers of its own."""
        for number in self._before:
            signal.signal(number, self._heard)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None and number == signal.SIGINT:
            signal.signal(number, signal.SIG_IGN)  # for good: nothing shall stop the cleaning up
            self._before.pop(number)
            self.urgent = True
            raise KeyboardInterrupt
        self.asked = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"

    def check(self) -> None:
        """Raise again what a finalizer or a callback of Ray, interrupted, has swallowed."""
        if self.urgent:
            raise KeyboardInterrupt


def store_bytes(config: Config, layout: Layout) -> int:
    """What the object store must hold at once, in bytes.

    Each learner that joins reads the model whole in f32; a round keeps one contribution of each
    learner and one publication.
    """
    learners, model = len(config.island_names), 4 * layout.parameters
    largest = max(layout.sizes)
    up, down = config.sync.wire_up.bytes_of(largest), config.sync.wire_down.bytes_of(largest)
    rounds = 2 * (learners * up + down)
    return math.ceil(STORE_SLACK * (learners * model + rounds))


@contextmanager
def cluster_of(
    config: Config, address: str | None, namespace: str, need_bytes: int
) -> Generator[str]:
    """A Ray cluster to run on: an embedded one, ended with the block, or one that is there already.

    Errors: `UserMistake` if it cannot be reached, or has no room; `RunFailed` if an embedded one
    does not start.
    """
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray").setLevel(logging.ERROR)
    if address in (None, "local"):
        cpus = sum((g.count + g.spares) * g.devices.get("CPU", 0.0) for g in config.islands)
        _fits_here(need_bytes)
        try:
            ray.init(
                address="local",
                num_cpus=max(os.cpu_count() or 1, math.ceil(cpus)),
                resources=_other_resources(config),
                include_dashboard=config.monitor.dashboard,
                object_store_memory=max(STORE_FLOOR_BYTES, need_bytes),
                namespace=namespace,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except Exception as error:  # Ray has none narrower for "not within 30 s"
            reason = str(error).strip() or repr(error)
            raise RunFailed(
                f"Ray does not start here: {reason}; is the machine very busy, or short of memory?"
            ) from error
    else:
        connect(address, namespace)
        room = ray.cluster_resources().get("object_store_memory", 0.0)
        if room < need_bytes:
            ray.shutdown()
            raise UserMistake(
                f"no room in the object store of {address}: {need_bytes / 2**20:.0f} MiB are "
                f"needed, it has {room / 2**20:.0f} MiB; start Ray with --object-store-memory, "
                "or use more fragments or fewer islands"
            )
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()


def _name_is_free(run: str, namespace: str) -> None:
    try:
        ray.get_actor(FLEET, namespace=namespace)
    except ValueError:
        return
    raise UserMistake(
        f"a run named {run} is going on in this cluster; give this one another name with "
        "--set run.name=NAME or --run-dir DIR"
    )


def _other_resources(config: Config) -> dict[str, float]:
    """Custom resources of an embedded Ray, which has just what its islands ask for."""
    wanted: dict[str, float] = {}
    for group in config.islands:
        for name, amount in group.devices.items():
            if name not in ("CPU", "GPU", "memory", "object_store_memory"):
                wanted[name] = wanted.get(name, 0.0) + (group.count + group.spares) * amount
    return wanted


def _fits_here(need_bytes: int) -> None:
    shared = Path("/dev/shm")
    free = shutil.disk_usage(shared).free if shared.exists() else need_bytes
    if free < need_bytes:
        raise UserMistake(
            f"no room in the object store: {need_bytes / 2**20:.0f} MiB of shared memory are "
            f"needed and {shared} has {free / 2**20:.0f} MiB free; give it more "
            "(docker run --shm-size=...), or use more fragments or fewer islands"
        )


def run(
    config: Config,
    run_dir: Path,
    layout: Layout,
    *,
    address: str | None,
    show: Callable[[Status], None],
    interrupts: Interrupts,
    resumes: bool = False,
) -> Outcome:
    """One training run to its end, owned by this process. `resumes`: another one has begun it.

    Errors: `UserMistake` before anything was started; `RunFailed` after.
    """
    namespace = namespace_of(run_dir.name)
    with ExitStack() as stack:
        need_bytes = store_bytes(config, layout)
        nobody = stack.enter_context(Path(os.devnull).open("w"))
        stack.enter_context(redirect_stdout(nobody))  # what Ray says of processes that we ended
        stack.enter_context(cluster_of(config, address, namespace, need_bytes))
        interrupts.listen()
        _name_is_free(run_dir.name, namespace)
        run_dir.mkdir(parents=True, exist_ok=True)
        # Ray's driver prints what it hears from its nodes: kept, but neither on a terminal that
        # shows a table nor where a script reads JSON
        words = stack.enter_context((run_dir / "ray.log").open("a", buffering=1))
        stack.enter_context(redirect_stdout(words))
        home = actors.Home(namespace, detached=False)
        fleet = actors.start_fleet(config, run_dir.absolute(), home, _auth(), resumes=resumes)
        return follow(fleet, config, show, interrupts)


def keep_as_job(
    config: Config,
    run_dir: Path,
    layout: Layout,
    *,
    show: Callable[[Status], None],
    interrupts: Interrupts,
) -> Outcome:
    """The entrypoint of a submitted run: start its fleet, which outlasts this process, and follow.

    Errors: as `run`.
    """
    namespace = namespace_of(run_dir.name)
    with cluster_of(config, "auto", namespace, store_bytes(config, layout)):
        interrupts.listen()
        _name_is_free(run_dir.name, namespace)
        run_dir.mkdir(parents=True, exist_ok=True)
        home = actors.Home(namespace, detached=True)
        fleet = actors.start_fleet(config, run_dir.absolute(), home, _auth())
        return follow(fleet, config, show, interrupts)


def _auth() -> str:
    return os.environ.get(runs.AUTH_MODE, "disabled")  # of a local cluster, Ray has set it


def follow(
    fleet: actors.Actor, config: Config, show: Callable[[Status], None], interrupts: Interrupts
) -> Outcome:
    """Look on until the run is over; pass on who asks it to stop.

    Errors: `UserMistake` or `RunFailed`, as the run ended.
    """
    told = False
    while True:
        time.sleep(config.monitor.refresh_s)
        interrupts.check()
        try:
            show(answer(fleet.status.remote()))
            if interrupts.asked is not None and not told:
                answer(fleet.stop.remote(interrupts.asked))
                told = True
            if (outcome := answer(fleet.outcome.remote())) is not None:
                break
        except (ActorUnavailableError, GetTimeoutError, *STORE_FULL) as error:
            log.warning("the fleet cannot be heard at present: %s", type(error).__name__)
    with suppress(RayActorError, GetTimeoutError):  # it may be gone before it has answered
        ray.get(fleet.dismiss.remote(), timeout=CALL_TIMEOUT_S)
    if outcome.error is not None:
        raise (UserMistake if outcome.mistake else RunFailed)(outcome.error)
    return outcome
