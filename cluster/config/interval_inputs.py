"""The inputs of `sync.every = "auto"` that the configuration holds, and its resolved form."""

from __future__ import annotations

from cluster.config.checks import CHECKS
from cluster.config.modes import preset_of
from cluster.config.rule import wire_of_moments
from cluster.config.schema import Config
from cluster.config.values import AUTO, Mode
from coordinator.errors import UserMistake
from coordinator.fragments import Leaf, most_of
from coordinator.interval import MOST_FRAGMENTS, Bounds, Interval, ModelBytes

SAMPLE = 2**20
"""Elements from which the bytes per parameter are computed."""


def model_bytes(config: Config, parameters: float) -> ModelBytes:
    """Return what an island exchanges for the whole model; shared moments are counted."""
    up, down = (w.bytes_of(SAMPLE) / SAMPLE for w in (config.sync.wire_up, config.sync.wire_down))
    wire = wire_of_moments(config)
    moments = 0.0 if wire is None else wire.bytes_of(SAMPLE) / SAMPLE / config.sync.moments_every
    return ModelBytes(parameters, up + moments, down + moments)


def bounds_of(config: Config, leaves: tuple[Leaf, ...]) -> Bounds:
    """Return the bounds of H and P: overlap, shards, what the mode fixes, what can be cut."""
    sync = config.sync
    overlap = None if sync.overlap == AUTO else sync.overlap
    if (preset := preset_of(config)) is not None and "fragments" in preset.fixed:
        return Bounds(overlap, sync.fragments, sync.fragments)
    least = max(sync.shards, 2 if config.run.mode is Mode.STREAMING else 1)
    return Bounds(overlap, least, max(least, most_of(leaves, max(least, MOST_FRAGMENTS))))


def with_interval(config: Config, chosen: Interval) -> Config:
    """Return the configuration with the chosen numbers in place of "auto".

    Errors: `UserMistake` if no H works, with the numbers and the remedies.
    """
    if not chosen.fits:
        raise UserMistake(
            f'sync.every: "auto" finds no interval: {chosen.why}; send fewer bits (sync.wire_up '
            'and sync.wire_down = "int4"), use fewer islands or longer steps, or give sync.every '
            "a number to run nevertheless"
        )
    update = {"every": chosen.every, "fragments": chosen.fragments}
    resolved = config.model_copy(update={"sync": config.sync.model_copy(update=update)})
    if problems := [str(problem) for check in CHECKS for problem in check.problems(resolved)]:
        raise UserMistake("\n".join(problems))
    return resolved
