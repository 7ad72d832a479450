"""The settings of boards and rules: thresholds, addresses and names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from cluster.config.values import nearest
from cluster.fleet.contribution_effects import IN_A_ROW
from coordinator.errors import UserMistake


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The limits of the alerts."""

    merge_age_rounds: float = 20.0
    """Rounds without a merge, beside a minute, until `ArchipelagoNoMerges`."""
    first_merge_s: float = 1800.0
    """Seconds from the first inner step to the first merge until `ArchipelagoNoMerges`."""
    refusals: float = 10.0
    """Refused contributions in 10 minutes until `ArchipelagoRefusals`."""
    largest_share: float = 3.9
    """Share of a contribution over that of its steps until `ArchipelagoOneIslandWeighsAll`."""
    loss_rise: float = 0.05
    """Rise of the held-out loss over its best of an hour until `ArchipelagoNotLearning`."""
    late_share: float = 0.5
    """Share of late transfers of a link until `ArchipelagoTransfersLate`."""
    goodput: float = 0.5
    """Goodput of five minutes below which `ArchipelagoGoodputLow` fires."""
    evaluation_failures: float = 2.0
    """Evaluations without a result in 15 minutes until `ArchipelagoEvaluatorFailing`."""
    merges_without: float = 5.0
    """Merges in 10 minutes without an island until `ArchipelagoContributionsAgeing`."""
    harmful_contributions: float = float(IN_A_ROW)
    """Harmful contributions of an island in a row until `ArchipelagoContributionsHarmful`."""


@dataclass(frozen=True, slots=True)
class BoardSettings:
    """The settings of boards and rules."""

    at: str = "/home/you/dashboards"
    """The folder of the written files on the machine of Prometheus and Grafana."""
    targets: str = "/home/you/.archipelago/targets"
    """The folder of the target files of runs, `monitor.targets`, on the fleet's node."""
    docs_url: str | None = None
    """The address of this documentation; None: the runbooks are paths of the repository."""
    grafana_url: str = "http://127.0.0.1:3000"
    """The address of Grafana, for links from alerts to boards."""
    prometheus_url: str = "http://127.0.0.1:9090"
    """The address of Prometheus, for Grafana."""
    name: str = "archipelago"
    """The first part of the names of Kubernetes objects."""
    namespace: str = "monitoring"
    """The namespace of Kubernetes objects."""
    release: str = "prometheus"
    """The label `release` by which the Prometheus operator finds rules and monitors."""
    thresholds: Thresholds = field(default_factory=Thresholds)

    def runbook(self, page: str) -> str:
        """Return the address of an alert's page, such as no-quorum."""
        if self.docs_url is None:
            return f"docs/howto/alerts/{page}.md"
        return f"{self.docs_url.rstrip('/')}/howto/alerts/{page}/"

    def board(self, uid: str) -> str:
        """Return the address of a board, with the run of an alert chosen."""
        return f"{self.grafana_url.rstrip('/')}/d/{uid}?var-run={{{{ $labels.run }}}}"


def thresholds_of(given: Sequence[str]) -> Thresholds:
    """Return the thresholds with these changes, each NAME=VALUE.

    Errors: `UserMistake` with every unknown name and every value that is no positive number.
    """
    known = [each.name for each in fields(Thresholds)]
    changed: dict[str, float] = {}
    problems: list[str] = []
    for text in given:
        name, _, value = text.partition("=")
        if name not in known:
            problems.append(f"--threshold {text}: unknown name; {nearest(name, known)}")
            continue
        try:
            changed[name] = float(value)
        except ValueError:
            changed[name] = math.nan
        if not 0 < changed[name] < math.inf:
            problems.append(f"--threshold {text}: the value must be a number above 0")
    if problems:
        raise UserMistake("\n".join(problems))
    return Thresholds(**changed)
