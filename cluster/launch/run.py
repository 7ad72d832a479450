"""One run in the terminal's process, from its configuration to the clean-up.

The terminal's process owns everything that it starts. However the run ends, it stops
all of it, and nothing else.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, redirect_stdout, suppress
from pathlib import Path

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError

from cluster.actors.call_errors import STORE_FULL, answer
from cluster.actors.directory import Actor
from cluster.actors.start import Home
from cluster.config.schema import Config
from cluster.fleet.actor import start_fleet
from cluster.fleet.outcome import Outcome
from cluster.fleet.placement import unplaceable
from cluster.fleet.ray_backend import cluster_nodes
from cluster.launch.auto_interval import settle
from cluster.launch.cluster_checks import region_problems
from cluster.launch.corpus_check import check_corpora
from cluster.launch.exit_message import printed_if_killed, resume_hint
from cluster.launch.hub_links import address_of
from cluster.launch.initial_source import begin
from cluster.launch.interrupts import Interrupts
from cluster.launch.link_check import PaceWatch, watched
from cluster.launch.page_link import announced
from cluster.launch.ray_cluster import Stores, check_room, cluster_of
from cluster.names import CALL_TIMEOUT_S, FLEET, namespace_of
from cluster.queue.line import RayQueueLine
from cluster.queue.place import QueuePlace
from cluster.status import RunStatus
from cluster.storage import runs
from cluster.storage.ladder import ask_to_go_back
from cluster.storage.open_depot import depot_of
from coordinator.errors import RunFailed, UserMistake
from coordinator.fragments import Layout
from coordinator.protocol import Island

log = logging.getLogger("archipelago")
LOST = "the fleet of the run has died with its node"


def _name_is_free(run: str, namespace: str) -> None:
    """Check that no run of this name is running in the cluster.

    Errors: `UserMistake` if one is.
    """
    try:
        ray.get_actor(FLEET, namespace=namespace)
    except ValueError:
        return
    raise UserMistake(
        f"a run named {run} is live in this cluster; give this one another name with "
        "--set run.name=NAME or --run-dir DIR"
    )


def run(
    config: Config,
    run_dir: Path,
    layout: Layout,
    *,
    address: str | None,
    show: Callable[[RunStatus], None],
    interrupts: Interrupts,
    say: Callable[[str], None] = log.warning,
    page: Callable[[str], None] | None = None,
    resumes: bool = False,
    from_stored: bool = False,
    from_step: int | None = None,
) -> Outcome:
    """Run one training run to its end, owned by this process.

    `say`: prints a line about what was measured. `page`: receives a link to the live page once.

    `resumes`: an earlier process has begun the run. `from_stored`: start from the newest stored
    version of each fragment, even if events are missing from the log. `from_step`: go back to the
    kept state of this step.

    Errors: `UserMistake` before anything was started; `RunFailed` after.
    """
    namespace = namespace_of(run_dir.name)
    with ExitStack() as stack:
        stores = Stores.of(config, layout)
        devnull = stack.enter_context(Path(os.devnull).open("w"))
        stack.enter_context(redirect_stdout(devnull))  # Ray's reports of processes that we ended
        stack.enter_context(cluster_of(config, address, namespace, stores))
        interrupts.listen()
        _name_is_free(run_dir.name, namespace)
        config, watch = _settled(config, layout, address, say, interrupts)
        run_dir.mkdir(parents=True, exist_ok=True)
        config = config if resumes else begin(config, run_dir, layout.leaves)
        # Ray's driver prints news of its nodes: keep it in a file, off a terminal that shows a
        # table and off a stream from which a script reads JSON.
        log_file = stack.enter_context((run_dir / "ray.log").open("a", buffering=1))
        stack.enter_context(redirect_stdout(log_file))
        if resumes:
            ask_to_go_back(depot_of(config, run_dir), from_step)
        home, hint = Home(namespace, detached=False), resume_hint(run_dir)
        stack.enter_context(
            printed_if_killed(f"archipelago: the run has ended with its Ray node; {hint}")
        )
        fleet = start_fleet(
            config,
            run_dir.absolute(),
            home,
            _auth(),
            resumes=resumes,
            from_stored=from_stored,
        )
        shown = announced(_both(show, watch), run_dir, page if config.monitor.metrics else None)
        return follow(fleet, config, shown, interrupts, f"{LOST}; {hint}")


def keep_as_job(
    config: Config,
    run_dir: Path,
    layout: Layout,
    *,
    show: Callable[[RunStatus], None],
    interrupts: Interrupts,
    say: Callable[[str], None] = log.warning,
    page: Callable[[str], None] | None = None,
) -> Outcome:
    """Run the entrypoint of a submitted run: start a fleet that outlives this process, and follow.

    The run first waits in the queue of the cluster. `say` prints for what.

    Errors: the errors of `run`.
    """
    namespace = namespace_of(run_dir.name)
    with cluster_of(config, "auto", namespace, Stores.of(config, layout)):
        interrupts.listen()
        _name_is_free(run_dir.name, namespace)
        if problems := unplaceable(config, cluster_nodes()):
            raise UserMistake("\n".join(problems))
        with QueuePlace(config, run_dir.name, RayQueueLine()) as place:
            place.wait(say, lambda: _stop_if_asked(interrupts))
            config, watch = _settled(config, layout, "auto", say, interrupts)
            run_dir.mkdir(parents=True, exist_ok=True)
            config = begin(config, run_dir, layout.leaves)
            home = Home(namespace, detached=True)
            fleet = start_fleet(config, run_dir.absolute(), home, _auth(), since_s=place.since_s)
            _start_without(fleet, place.optional)
        shown = announced(_both(show, watch), run_dir, page if config.monitor.metrics else None)
        return follow(fleet, config, shown, interrupts)


def _settled(
    config: Config,
    layout: Layout,
    address: str | None,
    say: Callable[[str], None],
    interrupts: Interrupts,
) -> tuple[Config, PaceWatch]:
    """Return the configuration without "auto", and a watch that compares links with it.

    The connected cluster is checked first.

    Errors: `UserMistake`; `KeyboardInterrupt` if a signal came while something was measured.
    """
    nodes, here = cluster_nodes(), ray.get_runtime_context().get_node_id()
    if problems := region_problems(config, nodes, address_of(nodes, here)):
        raise UserMistake("\n".join(problems))
    check_corpora(config, nodes, say, lambda: _stop_if_asked(interrupts))
    made = settle(config, layout, say, lambda: _stop_if_asked(interrupts))
    check_room(made.config, address, Stores.of(made.config, made.layout))
    return made.config, watched(made.config, made.layout, made.measured, say)


def _stop_if_asked(interrupts: Interrupts) -> None:
    """Raise `KeyboardInterrupt` if a signal has asked for the end."""
    interrupts.check()
    if interrupts.asked is not None:
        raise KeyboardInterrupt


def _start_without(fleet: Actor, islands: Mapping[Island, str]) -> None:
    """Have a new fleet begin without these islands, until the queue grants them.

    This waits until the fleet answers. If it cannot start, `follow` reports that.
    """
    with suppress(RunFailed):
        while True:
            try:
                return answer(fleet.withhold.remote(dict(islands)))
            except (ActorUnavailableError, GetTimeoutError, *STORE_FULL) as error:
                log.warning("the fleet does not answer yet: %s", type(error).__name__)


def _both(show: Callable[[RunStatus], None], watch: PaceWatch) -> Callable[[RunStatus], None]:
    """Return a function that shows a status and then compares the links, if it is time."""

    def both(status: RunStatus) -> None:
        show(status)
        watch.see(status)

    return both


def _auth() -> str:
    """Return Ray's authentication mode."""
    return os.environ.get(runs.AUTH_MODE, "disabled")  # Ray has set it if the cluster is local


def death_of(error: RunFailed, lost: str) -> str:
    """Return the message for a fleet that has died; `lost` unless it died while it was made.

    In that case the message has the last line of the traceback, such as a module that a node lacks.
    """
    cause = error.__cause__
    if isinstance(cause, RayActorError) and cause.actor_init_failed:
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        return f"the fleet of the run cannot start: {lines[-1]}"
    return lost


def follow(
    fleet: Actor,
    config: Config,
    show: Callable[[RunStatus], None],
    interrupts: Interrupts,
    lost: str = LOST,
) -> Outcome:
    """Show the status until the run is over, and pass a request to stop on to the fleet.

    `lost`: the message if the fleet dies for good.

    Errors: `UserMistake` or `RunFailed`, as the run ended.
    """
    stop_sent = False
    while True:
        time.sleep(config.monitor.refresh_s)
        interrupts.check()
        try:
            show(answer(fleet.status.remote()))
            if interrupts.asked is not None and not stop_sent:
                answer(fleet.stop.remote(interrupts.asked))
                stop_sent = True
            if (outcome := answer(fleet.outcome.remote())) is not None:
                break
        except (ActorUnavailableError, GetTimeoutError, *STORE_FULL) as error:
            log.warning("the fleet does not answer at present: %s", type(error).__name__)
        except RunFailed as error:
            raise RunFailed(death_of(error, lost)) from error
    with suppress(RayActorError, GetTimeoutError):  # the fleet may be gone before it has answered
        ray.get(fleet.dismiss.remote(), timeout=CALL_TIMEOUT_S)
    if outcome.error is not None:
        raise (UserMistake if outcome.mistake else RunFailed)(outcome.error)
    return outcome
