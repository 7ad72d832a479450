"""How the fleet breaks something on purpose."""

from __future__ import annotations

import math
from collections.abc import Callable

from cluster.actors.directory import Actor
from cluster.config.schema import Harm
from coordinator.protocol import Island


def break_on_purpose(victim: Actor, harm: Harm, drain: Callable[[Island], None]) -> None:
    match harm.kind:
        case "kill":
            victim.kill.remote()
        case "stop":
            victim.halt.remote(harm.for_s)
        case "nan":
            victim.spoil.remote(math.nan)
        case "scale":
            victim.spoil.remote(harm.factor)
        case "slow":
            victim.slow.remote(harm.factor, harm.for_s)
        case "cut":
            victim.cut.remote(harm.for_s)
        case "node":
            victim.kill_node.remote()
        case "drain":
            drain(Island(harm.island))
        case "disk":
            victim.fill.remote(harm.for_s)
