"""The comparison of the measured links with what a run sends: a warning, or a refusal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from cluster.config.interval_inputs import bounds_of, model_bytes
from cluster.config.schema import Config
from cluster.fleet.ray_backend import cluster_nodes
from cluster.launch.hub_links import BOUND_S, HubMeasured, to_regions
from cluster.status import RunStatus
from coordinator.errors import UserMistake
from coordinator.fragments import Layout
from coordinator.interval import MOST_USE, HubLink, LinkLoad, choose, load

WARM_STEPS, LEAST_STEPS = 3, 5
"""Steps of an island before its pace is measured, and during it."""
WINDOW_S = 5.0
"""The least seconds over which a pace is measured."""


def too_thin(
    config: Config, layout: Layout, links: Sequence[HubLink], step_s: float
) -> list[LinkLoad]:
    """Return the loads above `MOST_USE`, the worst first."""
    every = min(every for _, every in config.sync.stretches)
    model = model_bytes(config, layout.parameters)
    loads = [
        load(model, link, step_s, every=every, fragments=config.sync.fragments) for link in links
    ]
    return sorted((one for one in loads if one.use > MOST_USE), key=lambda one: -one.use)


def line(config: Config, layout: Layout, thin: LinkLoad, step_s: float) -> str:
    """Return what a link needs and has, and what to change."""
    every = min(every for _, every in config.sync.stretches)
    has = thin.needs_bit_s / thin.use
    bounds = bounds_of(config, layout.leaves)
    enough = choose(model_bytes(config, layout.parameters), [thin.link], step_s, bounds)
    remedies = [f"sync.every = {enough.every} or more"] if enough.fits else []
    remedies.append('sync.wire_up and sync.wire_down = "int4"')
    return (
        f"{thin.link.name} is too thin for this run: with H = {every} and steps of {step_s:.3g} s "
        f"its {thin.link.islands:.3g} islands send {thin.needs_bit_s / 1e9:.3g} Gbit/s, it carries "
        f"{has / 1e9:.3g}, and at most {MOST_USE:.0%} of that should be used; use "
        f"{', '.join(remedies)}, or fewer islands"
    )


def refuse_or_warn(
    config: Config,
    layout: Layout,
    links: Sequence[HubLink],
    step_s: float,
    say: Callable[[str], None],
) -> None:
    """Print one line for each link that is too thin.

    Errors: `UserMistake` if one of them does not even carry one fragment in H steps, unless
    `sync.force` is set.
    """
    thin = too_thin(config, layout, links, step_s)
    hopeless = [one for one in thin if one.use > config.sync.fragments]
    if hopeless and not config.sync.force:
        raise UserMistake(
            "\n".join(
                f"not one fragment passes within H steps: {line(config, layout, one, step_s)}, or "
                "sync.force = true to start nevertheless"
                for one in hopeless
            )
        )
    for one in thin:
        say(line(config, layout, one, step_s))


class PaceWatch:
    """The pace of the fastest island, from successive statuses; then the comparison, once.

    A link cannot be judged before the step time is known. In lock-step a step includes the wait for
    merges, so that a thin link looks better than it is.
    """

    def __init__(
        self,
        config: Config,
        layout: Layout,
        links: Sequence[HubLink],
        say: Callable[[str], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create it; `links` are those that were measured before the start."""
        self._config, self._layout, self._links = config, layout, links
        self._say, self._now_s = say, now_s
        self._since: dict[tuple[str, int], tuple[float, int]] = {}
        self._done = not links

    def see(self, status: RunStatus) -> None:
        """Compare and print as soon as the pace of an island is known; later a no-op."""
        if self._done or (step_s := self._step_s(status)) is None:
            return
        self._done = True
        for one in too_thin(self._config, self._layout, self._links, step_s):
            self._say(line(self._config, self._layout, one, step_s))

    def _step_s(self, status: RunStatus) -> float | None:
        """Return the step time of the fastest island; None if no pace is known yet."""
        now_s, found = self._now_s(), list[float]()
        for each in status["islands"]:
            key = each["island"], each["incarnation"]
            if each["state"] != "live" or each["steps"] < WARM_STEPS:
                continue
            began_s, steps = self._since.setdefault(key, (now_s, each["steps"]))
            lasted_s, made = now_s - began_s, each["steps"] - steps
            if lasted_s >= WINDOW_S and made >= LEAST_STEPS:
                found.append(lasted_s / made)
        return min(found, default=None)


def watched(
    config: Config, layout: Layout, measured: HubMeasured | None, say: Callable[[str], None]
) -> PaceWatch:
    """Return the watch of a run whose links are compared once its pace is known.

    `measured`: the links if they are known; None: measure them now, within `BOUND_S`. Nothing is
    measured if all nodes are on this machine, or if gradients are summed.

    Errors: `UserMistake` if a region cannot read its corpus; the errors of `refuse_or_warn` if
    `sync.step_s` gives the step time.
    """
    if config.run.mode.sums_gradients:
        return PaceWatch(config, layout, (), say)
    found = to_regions(config, cluster_nodes(), BOUND_S) if measured is None else measured
    if found.unreadable:
        raise UserMistake(
            "\n".join(
                f"data.source: {config.data.source} cannot be read in the region {each}; put it "
                "there, under the same path on every node"
                for each in found.unreadable
            )
        )
    for each in found.missing:
        say(f"a link was not measured before the start: {each}")
    if config.sync.step_s is None:
        return PaceWatch(config, layout, found.links, say)
    refuse_or_warn(config, layout, found.links, config.sync.step_s, say)
    return PaceWatch(config, layout, (), say)
