"""All checks of the user's own code in a merge before the start: sources, merge rule and codecs."""

from __future__ import annotations

from cluster.config.schema import Config
from cluster.shard.own_gate import gate_problems
from cluster.shard.own_merge import merge_problems
from cluster.shard.own_sources import source_problems
from coordinator.fragments import Layout
from islands.own_wire import OwnWire
from islands.own_wire_checks import wire_problems


def own_problems(config: Config, layout: Layout | None) -> list[str]:
    """Return why the user's merge rule, codecs or gate cannot serve this model; empty if they can.

    `layout`: None if the model is not known; the code is then tried with other sizes, or loaded.
    """
    if problems := source_problems(config):
        return problems
    sizes = () if layout is None else layout.sizes
    own = {wire: None for wire in config.sync.fragment_wires.values() if isinstance(wire, OwnWire)}
    of_wires = [problem for wire in own for problem in wire_problems(wire, sizes)]
    return [*merge_problems(config, layout), *of_wires, *gate_problems(config, layout)]
