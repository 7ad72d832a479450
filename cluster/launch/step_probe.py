"""The measurement of a step before a run starts, on the devices of one island of each kind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from cluster.actors.call_errors import answer, cause_of
from cluster.actors.hosts.host_group import devices_of
from cluster.config.schema import Config, IslandGroup
from cluster.fleet.placement import selector
from cluster.workers.border import border_of
from cluster.workers.environment import environment_of
from coordinator.errors import RunFailed, UserMistake

MEASURE_S = 900.0
"""Timeout of one measurement, with the time to compile the step."""
LOOK_S = 0.5
"""Seconds between two looks at a signal while a measurement runs."""
REMEDY = "give the seconds of a step with sync.step_s, or give sync.every a number"


class StepProbe:
    """An actor on the devices of one island that measures a step."""

    def step_s(self, config: str, group: str) -> float:
        """Return the median time of a step of this group, in seconds."""
        from cluster.workers.step_timing import step_s

        parsed = Config.model_validate_json(config)
        own_group = parsed.group(group)
        border = border_of(parsed, own_group, f"step-probe-{group}")
        if border.log_file is None:
            return step_s(parsed.within(own_group), own_group)
        border.keep_output()
        try:
            return step_s(parsed.within(own_group), own_group)
        except BaseException as error:  # noqa: BLE001 - of the user's code and data; also SystemExit
            why = border.error_text(error)
        raise RunFailed(why)  # here, where the error is no context of it


def fastest_step_s(config: Config, check: Callable[[], None]) -> float:
    """Return the step time of the fastest island, in seconds.

    `check`: called twice a second; it raises if the run was interrupted.

    Errors: `UserMistake` if no group can be measured.
    """
    if config.sync.step_s is not None:
        return config.sync.step_s
    kinds = [*_kinds(config)]
    if not kinds:
        raise UserMistake(
            'sync.every: "auto" measures no step of islands of several hosts, of a TPU topology '
            f"or that wait for machines, and there are no others; {REMEDY}"
        )
    measured = [(_measured_s(config, group, check), alike) for group, alike in kinds]
    return min(
        max(took_s / each.speed, each.step_s) for took_s, alike in measured for each in alike
    )


def _kinds(config: Config) -> Iterator[tuple[IslandGroup, list[IslandGroup]]]:
    """Yield one group of each kind of machine and batch, with all groups of that kind."""
    kinds: dict[str, list[IslandGroup]] = {}
    for group in config.islands:
        if group.hosts == 1 and group.topology is None and not group.opportunistic:
            kind = group.model_dump_json(
                include={
                    "resources",
                    "accelerator",
                    "mesh",
                    "batch_size",
                    "encode",
                    "compute_dtype",
                }
            )
            kinds.setdefault(kind, []).append(group)
    for alike in kinds.values():
        yield alike[0], alike


def _measured_s(config: Config, group: IslandGroup, check: Callable[[], None]) -> float:
    """Return the time of a step of this group, from an actor on its devices."""
    options: dict[str, Any] = {
        **devices_of(group),
        "label_selector": selector(group),
        "runtime_env": {"env_vars": environment_of(group)},
        "max_restarts": 0,
        "enable_task_events": False,
    }
    probe: Any = ray.remote(StepProbe).options(**options).remote()
    asked = probe.step_s.remote(config.model_dump_json(), group.group)
    end_s = time.monotonic() + MEASURE_S
    try:
        while True:
            check()
            try:
                return answer(asked, LOOK_S)
            except GetTimeoutError:
                if time.monotonic() > end_s:
                    raise
    except (RayError, RunFailed) as error:
        cause = str(cause_of(error)).strip() or type(error).__name__
        raise UserMistake(
            f'sync.every: "auto" could not measure a step of group {group.group}: '
            f"{cause.splitlines()[0]}; {REMEDY}"
        ) from error
    finally:
        ray.kill(probe)  # its devices are the island's
