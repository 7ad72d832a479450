"""The choice of `sync.every = "auto"` in virtual time, from the table `[virtual]`."""

from __future__ import annotations

from archipelago.lab.training.timing import Timing
from cluster.config.interval_inputs import bounds_of, model_bytes, with_interval
from cluster.config.schema import Config
from cluster.config.values import AUTO
from cluster.workers.assembly import task_of
from coordinator.errors import UserMistake
from coordinator.interval import HubLink, choose
from islands.adopt import layout_of


def with_virtual_interval(config: Config, timing: Timing) -> Config:
    """Return the configuration with numbers in place of "auto".

    Each island has its own link, and the step is that of the fastest group.

    Errors: `UserMistake` if no bandwidth is given, or no H works.
    """
    if config.sync.every != AUTO:
        return config
    if not timing.gbit_s:
        raise UserMistake(
            'sync.every: "auto" needs a link, and virtual.gbit_s is 0, which is no limit; give '
            "the Gbit/s of an island's link there, or give sync.every a number"
        )
    bit_s, rtt_s = 1e9 * timing.gbit_s, 2 * timing.latency_s
    link = HubLink("an island's link", bit_s, bit_s, rtt_s, 1)
    step_s = min(max(timing.step_s / each.speed, each.step_s) for each in config.islands)
    layout = layout_of(task_of(config), 1)
    model, bounds = model_bytes(config, layout.parameters), bounds_of(config, layout.leaves)
    return with_interval(config, choose(model, [link], step_s, bounds))
