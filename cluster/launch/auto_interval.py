"""The resolution of `sync.every = "auto"` at the start of a run, before its layout is cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cluster.config.interval_inputs import bounds_of, model_bytes, with_interval
from cluster.config.schema import Config
from cluster.config.values import AUTO
from cluster.fleet.placement import unplaceable
from cluster.fleet.ray_backend import cluster_nodes
from cluster.launch.hub_links import PATIENT_S, HubMeasured, this_machine, to_regions
from cluster.launch.step_probe import fastest_step_s
from coordinator.errors import UserMistake
from coordinator.fragments import Layout, cut
from coordinator.interval import choose


class IntervalSettled(NamedTuple):
    """A configuration without "auto", and what was measured for it."""

    config: Config
    layout: Layout
    measured: HubMeasured | None
    """The links to the regions; None if they were not measured."""


def settle(
    config: Config, layout: Layout, say: Callable[[str], None], check: Callable[[], None]
) -> IntervalSettled:
    """Choose H and P if the configuration leaves them to the run; Ray must be connected.

    `layout`: any cut of the model. `check`: called twice a second; it raises after an interrupt.

    Errors: `UserMistake` if islands can never be placed, a measurement fails, or no H works.
    """
    if config.sync.every != AUTO:
        return IntervalSettled(config, layout, None)
    nodes = cluster_nodes()
    if problems := unplaceable(config, nodes):
        raise UserMistake("\n".join(problems))
    measured = to_regions(config, nodes, PATIENT_S)
    if measured.missing:
        raise UserMistake(
            'sync.every: "auto" could not measure every link: '
            f"{'; '.join(measured.missing)}; `archipelago doctor --links` measures them one by "
            "one, or give sync.every a number"
        )
    links = (this_machine(config), *measured.links)
    step_s = fastest_step_s(config, check)
    bounds = bounds_of(config, layout.leaves)
    chosen = choose(model_bytes(config, layout.parameters), links, step_s, bounds)
    resolved = with_interval(config, chosen)
    say(f'sync.every = "auto": H = {chosen.every}, P = {chosen.fragments}: {chosen.why}')
    return IntervalSettled(resolved, cut(layout.leaves, chosen.fragments), measured)
