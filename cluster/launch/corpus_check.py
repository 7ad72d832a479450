"""The check of each region's corpus on a node of that region, before anything of a run starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import ray
from ray.exceptions import RayError

from cluster.actors.call_errors import cause_of
from cluster.actors.start import NODE_ID
from cluster.config.schema import Config, EvaluatorConfig
from cluster.fleet.placement import Node, expected_islands
from cluster.launch.links import REGION
from cluster.workers.environment import KEEP_PAGES, drop_stale_addresses, environment_of
from coordinator.errors import UserMistake

READ_S = 900.0
"""Timeout of all checks together; the first one on a node may write the text as tokens."""
LOOK_S = 0.5
"""Seconds between two looks at a signal while corpora are read."""


class CorpusSite(NamedTuple):
    """A node that stands for groups of a region whose corpus is read there."""

    region: str
    node: Node
    groups: tuple[str, ...]
    """The names of the groups."""


class CorpusAnswer(NamedTuple):
    """The result of the check at one site; both texts are empty if the corpus can be used."""

    problem: str = ""
    """The reason why the corpus cannot be used."""
    unchecked: str = ""
    """The reason why there is no result."""


AskSites: TypeAlias = Callable[
    [Config, Sequence[CorpusSite], Callable[[], None]], list[CorpusAnswer]
]
"""A function that checks the corpora at these sites; it calls its last argument while it waits."""


class CorpusProbe:
    """An actor on a node of a region that reads the corpus of the region."""

    def __init__(self) -> None:
        drop_stale_addresses()

    def problem(self, config: str, groups: Sequence[str]) -> str:
        """Return the answer of `corpus_problem`."""
        from cluster.workers.region_corpus import corpus_problem

        return corpus_problem(Config.model_validate_json(config, strict=False), groups)


def corpus_sites(config: Config, nodes: Sequence[Node]) -> list[CorpusSite]:
    """Return one node for each group of a region with a table; groups that share one are together.

    A node with the label of the region is preferred, because groups may have no `label_selector`.
    There is none for a group that waits for its nodes.
    """
    groups, places = dict[tuple[str, str], list[str]](), dict[str, Node]()
    for group in config.islands:
        if group.region is None or config.region_of(group) is None:
            continue
        alone = config.model_copy(update={"islands": (group,)})
        expected = expected_islands(alone, nodes)
        there = [node for node in nodes if node.labels.get(NODE_ID, "") in expected]
        there.sort(key=lambda node: node.labels.get(REGION) != group.region)
        for node in there[:1]:
            known = node.labels[NODE_ID]
            places[known] = node
            groups.setdefault((group.region, known), []).append(group.group)
    return [
        CorpusSite(region, places[known], tuple(names)) for (region, known), names in groups.items()
    ]


def asked_on_nodes(
    config: Config, sites: Sequence[CorpusSite], check: Callable[[], None]
) -> list[CorpusAnswer]:
    """Check the corpora in a process on each node, all at once; `check` is called meanwhile."""
    plain = environment_of(EvaluatorConfig())
    env = {name: each for name, each in plain.items() if name not in KEEP_PAGES}
    options: dict[str, Any] = {
        "num_cpus": 0,
        "runtime_env": {"env_vars": env},
        "max_restarts": 0,
        "enable_task_events": False,
    }
    probes: list[Any] = []
    try:
        for site in sites:
            here = {NODE_ID: site.node.labels[NODE_ID]}
            probes.append(ray.remote(CorpusProbe).options(label_selector=here, **options).remote())
        text = config.model_dump_json()
        asked = [
            probe.problem.remote(text, site.groups)
            for probe, site in zip(probes, sites, strict=True)
        ]
        end_s = time.monotonic() + READ_S
        while time.monotonic() < end_s:
            check()
            if not ray.wait(asked, num_returns=len(asked), timeout=LOOK_S)[1]:
                break
        return [_answered(reference) for reference in asked]
    finally:
        for probe in probes:
            ray.kill(probe)


def _answered(reference: ray.ObjectRef) -> CorpusAnswer:
    """Return an answer, or only the class of an exception, whose text may hold data."""
    if not ray.wait([reference], timeout=0)[0]:
        return CorpusAnswer(unchecked=f"no answer within {READ_S:g} s")
    try:
        return CorpusAnswer(ray.get(reference))
    except RayError as error:
        return CorpusAnswer(unchecked=type(cause_of(error)).__name__)


def check_corpora(
    config: Config,
    nodes: Sequence[Node],
    say: Callable[[str], None],
    check: Callable[[], None],
    ask: AskSites = asked_on_nodes,
) -> None:
    """Check that each region with a table can train on its corpus; Ray must be connected.

    `say`: prints a line about a corpus that could not be checked. `check`: called twice a second;
    it raises after an interrupt.

    Errors: `UserMistake` with one line for each corpus that cannot be read, or is too small.
    """
    if not (sites := corpus_sites(config, nodes)):
        return
    problems = list[str]()
    for site, answer in zip(sites, ask(config, sites, check), strict=True):
        where = f"on node {site.node.name}, where islands of region {site.region} will be"
        if answer.problem:
            problems.append(f"{where}: {answer.problem}")
        if answer.unchecked:
            say(f"regions.{site.region}.data was not read {where}: {answer.unchecked}")
    if problems:
        raise UserMistake("\n".join(problems))
