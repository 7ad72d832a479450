"""The runs that virtual time supports; without JAX, as this is checked before any import of it."""

from __future__ import annotations

from cluster.config.fault_kinds import SERVICES
from cluster.config.region_tables import Leaving
from cluster.config.schema import Config


def refused(config: Config) -> list[str]:
    """Return why virtual time does not support this run; empty if it does."""
    task = config.task
    if task.init_from is not None and (
        task.init_sha256 is None or task.init_from.startswith("run:")
    ):
        return [
            "task.init_from: in virtual time name a file or an Orbax checkpoint (`archipelago "
            "export` writes the model of a run), and give its digest as task.init_sha256, so that "
            "finished cells of a study are known to be of this model; `archipelago run --check "
            "--json` prints it"
        ]
    return unplayable(config)


def unplayable(config: Config) -> list[str]:
    """Return why virtual time cannot play this run, wherever its first model comes from."""
    mode = config.run.mode
    if config.task.loop is not None:
        return [
            "task.loop: virtual time has no loop of the user's own; leave it out, or run on Ray"
        ]
    if mode.sums_gradients and config.faults.plan:
        return [
            f'faults.plan: run.mode = "{mode}" is played without faults in virtual time; leave the '
            f"plan out, or run it on Ray"
        ]
    return [*_kept_corpora(config), *_impossible(config)]


def _kept_corpora(config: Config) -> list[str]:
    """Return the regions whose corpus may not leave: virtual time reads all of them here."""
    return [
        f"regions.{name}.may_leave: virtual time reads {region.data} on this machine, and it has "
        f'no "{Leaving.CORPUS}"; add that if the corpus may leave the region, or run on Ray'
        for name, region in config.regions.items()
        if Leaving.CORPUS not in region.may_leave
    ]


def _impossible(config: Config) -> list[str]:
    """Return the planned faults that cannot happen here, with the reasons."""
    return [
        f"faults.plan: the {fault.kind} of {fault.island} at step {fault.at_step}: virtual "
        f"time has no process of the {fault.island}; leave it out, or run it on Ray"
        for fault in config.faults.plan
        if fault.island in SERVICES
    ]
