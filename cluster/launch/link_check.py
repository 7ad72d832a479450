"""The comparison of the measured links with what a run sends: a warning, or a refusal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import ray
from ray.exceptions import RayError

from cluster.config.interval_inputs import bounds_of, model_bytes
from cluster.config.schema import Config
from cluster.fleet.ray_backend import cluster_nodes
from cluster.launch.hub_links import PATIENT_S, HubMeasured, measured_meanwhile, to_regions
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
        f"{_behind(thin.link)} send "
        f"{thin.needs_bit_s / 1e9:.3g} Gbit/s, it carries {has / 1e9:.3g}, and at most "
        f"{MOST_USE:.0%} of that should be used; use "
        f"{', '.join(remedies)}, or fewer islands"
    )


def _behind(link: HubLink) -> str:
    """Return what sends over a link, in words."""
    if link.served:
        return f"the islands and shards behind it ({link.exchanges:.3g} exchanges of the model)"
    return f"the islands behind it ({link.islands:.3g})"


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


Pending = Callable[[], HubMeasured | None]
"""A function that returns the measured links as soon as they are known; None before that."""


class PaceWatch:
    """The pace of the fastest island, from successive statuses, and the comparison with the links.

    Each link is mentioned once. Islands speed up once others have started, so all windows count.
    A link cannot be judged before the step time is known. In lock-step a step includes the wait for
    merges, so that a thin link looks better than it is.
    """

    def __init__(
        self,
        config: Config,
        layout: Layout,
        pending: Pending,
        say: Callable[[str], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create it; `pending` returns the links as soon as they are measured."""
        self._config, self._layout, self._pending = config, layout, pending
        self._say, self._now_s = say, now_s
        self._since: dict[tuple[str, int], tuple[float, int]] = {}
        self._measured: HubMeasured | None = None
        self._said = set[str]()

    def see(self, status: RunStatus) -> None:
        """Compare whenever a pace has been measured, and print links that are too thin."""
        if self._measured is None and (measured := self._pending()) is not None:
            self._measured = measured
            for text in (*unreadable(self._config, measured), *unmeasured(measured)):
                self._say(text)
        if self._measured is None or len(self._said) == len(self._measured.links):
            return
        if (step_s := self._step_s(status)) is None:
            return
        for one in too_thin(self._config, self._layout, self._measured.links, step_s):
            if one.link.name not in self._said:
                self._said.add(one.link.name)
                self._say(line(self._config, self._layout, one, step_s))

    def _step_s(self, status: RunStatus) -> float | None:
        """Return the step time of the fastest island in a window that ends now; None: no such."""
        now_s, found = self._now_s(), list[float]()
        for each in status["islands"]:
            key = each["island"], each["incarnation"]
            if each["state"] != "live" or each["steps"] < WARM_STEPS:
                continue
            began_s, steps = self._since.setdefault(key, (now_s, each["steps"]))
            lasted_s, made = now_s - began_s, each["steps"] - steps
            if lasted_s >= WINDOW_S and made >= LEAST_STEPS:
                found.append(lasted_s / made)
                self._since[key] = now_s, each["steps"]
        return min(found, default=None)


def unreadable(config: Config, measured: HubMeasured) -> list[str]:
    """Return one line for each region that cannot read `data.source`."""
    return [
        f"data.source: {config.data.source} cannot be read in the region {each}; put it there, "
        "under the same path on every node"
        for each in measured.unreadable
    ]


def unmeasured(measured: HubMeasured) -> list[str]:
    """Return one line for each region without a measurement."""
    return [f"a link was not measured: {each}" for each in measured.missing]


def watched(
    config: Config, layout: Layout, measured: HubMeasured | None, say: Callable[[str], None]
) -> PaceWatch:
    """Return the watch of a run, which compares the links as soon as its pace is known.

    `measured`: the links if they are known. Otherwise they are measured while the run starts, or,
    if `sync.step_s` gives the step time, now. Nothing is measured if all nodes are on this machine,
    or if gradients are summed.

    Errors: `UserMistake` if the links are known and a region cannot read `data.source`; those of
    `refuse_or_warn` if the step time is known, too.
    """
    nodes, step_s = cluster_nodes(), config.sync.step_s
    if config.run.mode.sums_gradients:
        return PaceWatch(config, layout, HubMeasured, say)
    if measured is None and step_s is None:
        reference = measured_meanwhile(config, nodes)
        pending = HubMeasured if reference is None else _polled(reference)
        return PaceWatch(config, layout, pending, say)
    found = to_regions(config, nodes, PATIENT_S) if measured is None else measured
    if problems := unreadable(config, found):
        raise UserMistake("\n".join(problems))
    if step_s is None:
        return PaceWatch(config, layout, lambda: found, say)
    for text in unmeasured(found):
        say(text)
    refuse_or_warn(config, layout, found.links, step_s, say)
    return PaceWatch(config, layout, HubMeasured, say)


def _polled(reference: ray.ObjectRef) -> Pending:
    """Return a function that looks whether the measurement is there."""

    def look() -> HubMeasured | None:
        ready, _ = ray.wait([reference], timeout=0)
        if not ready:
            return None
        try:
            return ray.get(reference, timeout=0)
        except RayError as error:
            return HubMeasured(missing=(f"all regions: {type(error).__name__}",))

    return look
