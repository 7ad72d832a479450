"""The alerts, in the manner of kube-prometheus.

Each has a severity, a summary, a description of what to do, and links to its page and its board.
`critical` means that nothing is merged, or that the model or its storage is at risk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from archipelago.boards.panels import Board
from archipelago.boards.recording_rules import CONTRIBUTIONS
from archipelago.boards.settings import BoardSettings, Thresholds

AlertSeverity = Literal["critical", "warning"]
RUN, TIME, ROUNDS = "archipelago", "archipelago-time", "archipelago-rounds"
WIRE, FAILURES, FLEET = "archipelago-wire", "archipelago-failures", "archipelago-fleet"


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert."""

    name: str
    expr: str
    severity: AlertSeverity
    summary: str
    """One line with the labels of the series, as Prometheus fills them in."""
    description: str
    """The consequence, and where to look first."""
    page: str
    """The name of its page in docs/howto/alerts."""
    board: str
    """The id of the board that shows it."""
    for_: str = "0s"
    """The time for which the expression must hold."""


def alerts_of(limits: Thresholds) -> Sequence[Alert]:
    """Return all alerts with these limits."""
    return (*_of_the_run(limits), *_of_the_islands(limits), *_of_the_links(limits))


def alert_groups(settings: BoardSettings) -> list[dict[str, Any]]:
    """Return the alerts as one group of Prometheus."""
    rules = [_rule(alert, settings) for alert in alerts_of(settings.thresholds)]
    return [{"name": "archipelago.alerts", "rules": rules}]


def _rule(alert: Alert, settings: BoardSettings) -> dict[str, Any]:
    waits = {} if alert.for_ == "0s" else {"for": alert.for_}
    return {
        "alert": alert.name,
        "expr": alert.expr,
        **waits,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": settings.runbook(alert.page),
            "dashboard_url": settings.board(alert.board),
        },
    }


def boards_of(alerts: Sequence[Alert], boards: Sequence[Board]) -> set[str]:
    """Return the ids of boards that alerts link to and that do not exist."""
    return {alert.board for alert in alerts} - {board.uid for board in boards}


def _of_the_run(limits: Thresholds) -> Sequence[Alert]:
    return (
        Alert(
            "ArchipelagoDown", 'up{job="archipelago"} == 0', "critical",
            "the target {{ $labels.instance }} of a run does not answer",
            "The fleet of the run is gone, hangs or cannot be reached. The islands train on, but "
            "nothing restarts them. Look at the node of the fleet.",
            "down", FLEET, "1m",
        ),
        Alert(
            "ArchipelagoNoQuorum", "archipelago_islands_alive < archipelago_quorum", "critical",
            "{{ $labels.run }}: {{ $value }} islands are alive, fewer than the quorum",
            "No round closes. The islands that are alive train on. `archipelago status` says why "
            "the others are not.",
            "no-quorum", ROUNDS, "1m",
        ),
        Alert(
            "ArchipelagoNoMerges",
            f"archipelago_merge_age_seconds > 60 + {limits.merge_age_rounds:g} * "
            "archipelago_round_seconds or "  # no round has closed before the first merge
            f"(archipelago_merge_age_seconds > {limits.first_merge_s:g} "
            "unless archipelago_round_seconds)",
            "critical",
            "{{ $labels.run }}: no merge for {{ $value | humanizeDuration }}",
            "Read the logs of the syncer and the shard in the Ray dashboard, and check whether "
            "contributions are refused.",
            "no-merges", ROUNDS, "1m",
        ),
        Alert(
            "ArchipelagoModelUnsound",
            "archipelago_model_sound == 0 or increase(archipelago_unsound_merges_total[10m]) > 0",
            "critical",
            "{{ $labels.run }}: the model is not finite, or a merged step was undone",
            "`archipelago status` says which fragment, and the direction of each island. Do not "
            "trust the model until its held-out loss is finite and back on its course. Stop the "
            "run if it is not.",
            "model-unsound", RUN,
        ),
        Alert(
            "ArchipelagoNotLearning",
            f"archipelago_heldout_loss_nats > {1 + limits.loss_rise:g} * "
            "min_over_time(archipelago_heldout_loss_nats[1h])",
            "warning",
            "{{ $labels.run }}: held-out loss is {{ $value | humanize }}, "
            f"{100 * limits.loss_rise:g} % above its best of the last hour",
            "Check whether the learning rate is too high for this interval (sync.every).",
            "not-learning", RUN, "10m",
        ),
        Alert(
            "ArchipelagoLossOutOfBand", "archipelago_loss_inside_band == 0", "warning",
            "{{ $labels.run }}: the held-out loss is outside the band that was expected",
            "`archipelago status` has the loss and the band. Compare learning rate, data and "
            "islands with the run that the band comes from.",
            "loss-out-of-band", RUN, "1m",
        ),
        Alert(
            "ArchipelagoEvaluatorFailing",
            "sum by (run) (increase(archipelago_evaluation_failures_total[15m])) > "
            f"{limits.evaluation_failures:g}",
            "warning",
            "{{ $labels.run }}: {{ $value | humanize }} evaluations in 15 minutes had no result",
            "The run trains on, but its held-out loss is old, and the alerts about the loss see "
            "nothing. The log of the evaluator has the reason.",
            "evaluator-failing", FAILURES,
        ),
        Alert(
            "ArchipelagoGoodputLow",
            f'archipelago_rolling_goodput_ratio{{window_s="300"}} < {limits.goodput:g}',
            "warning",
            "{{ $labels.run }}: goodput of five minutes is {{ $value | humanizePercentage }}",
            "The islands hold devices and do not compute. The board has the activity that takes "
            "the time.",
            "goodput-low", TIME, "15m",
        ),
        Alert(
            "ArchipelagoNotDurable", "archipelago_not_durable == 1", "critical",
            "{{ $labels.run }}: the run cannot write its log or fragments",
            "Training continues, but if the syncer dies now, merges are lost. `archipelago status` "
            "says which write fails. Make room in the run directory, or restore the bucket.",
            "not-durable", RUN, "1m",
        ),
        Alert(
            "ArchipelagoRestoreDamage", "archipelago_restore_damage == 1", "warning",
            "{{ $labels.run }}: a file of the run could not be used at a restart",
            "`archipelago status` says which file, and what was used instead. The run continues. "
            "The alert ends when the syncer restarts without damage. Check the disk, and keep a "
            "copy of the run directory.",
            "restore-damage", RUN,
        ),
        Alert(
            "ArchipelagoNeedsSomebody", "archipelago_alerts > 0", "critical",
            "{{ $labels.run }}: the fleet has a problem that needs a person",
            "`archipelago status` names the cause: a full disk, a finished model that waits for "
            "disk space (`archipelago save RUN PATH`), a syncer that does not answer, or a defect "
            "of the fleet. Training continues, or the model waits.",
            "needs-somebody", RUN, "1m",
        ),
    )  # fmt: skip


def _of_the_islands(limits: Thresholds) -> Sequence[Alert]:
    away = 'archipelago_island_state{state=~"waiting|lost|quarantined|set aside"}'
    return (
        Alert(
            "ArchipelagoIslandAway", f"sum by (run, group, island, state) ({away}) > 0", "warning",
            "{{ $labels.run }}: island {{ $labels.island }} is {{ $labels.state }} for more than "
            "5 minutes",
            "`archipelago status` says why. `archipelago scale` gives the group another island.",
            "island-away", RUN, "5m",
        ),
        Alert(
            "ArchipelagoIslandSlow", "archipelago_island_slow == 1", "warning",
            "{{ $labels.run }}: island {{ $labels.island }} is slower than the others of its group",
            "`archipelago status` has the reason. The others do not wait for it, and its "
            "contributions count for less.",
            "island-slow", TIME, "10m",
        ),
        Alert(
            "ArchipelagoContributionsAgeing",
            f"{CONTRIBUTIONS} == 0 and on (run, group, island) "
            'archipelago_island_state{state="live"} == 1 and on (run) '
            f"increase(archipelago_merges_total[10m]) > {limits.merges_without:g}",
            "warning",
            "{{ $labels.run }}: island {{ $labels.island }} is live and has contributed nothing "
            "for 10 minutes",
            "Rounds close without it. Its contributions come too late, are refused, or do not "
            "come. Its tokens are lost if it dies now.",
            "contributions-ageing", ROUNDS, "5m",
        ),
        Alert(
            "ArchipelagoContributionsHarmful",
            f"archipelago_island_harmful_contributions >= {limits.harmful_contributions:g}",
            "warning",
            "{{ $labels.run }}: the last {{ $value }} measured contributions of island "
            "{{ $labels.island }} raised the held-out loss",
            "They are worse than the spread of those of the other islands. Nothing is refused. "
            "Check the data and the machine of the island, and drain it if it is wrong.",
            "contributions-harmful", ROUNDS,
        ),
        Alert(
            "ArchipelagoRefusals",
            'sum by (run) (increase(archipelago_refusals_total{reason="gate"}[10m])) > '
            f"{limits.refusals:g}",
            "warning",
            "{{ $labels.run }}: the gate refused {{ $value | humanize }} contributions in 10 "
            "minutes",
            "An island sends values that are not finite or far too large, or a direction against "
            "all others. `archipelago status` says which island and why. Drain it.",
            "refusals", ROUNDS,
        ),
        Alert(
            "ArchipelagoImpossibleWords", "increase(archipelago_distrusted_lives_total[10m]) > 0",
            "warning",
            "{{ $labels.run }}: an island reported impossible steps or tokens",
            "`archipelago status` says which island, and what it reported. Its incarnation was "
            "ended, and nothing of the report counts. Test the memory of its host. Check "
            "`Task.tokens` and the clock of its host.",
            "impossible-words", FAILURES,
        ),
        Alert(
            "ArchipelagoOneIslandWeighsAll",
            f"archipelago_largest_share_ratio > {limits.largest_share:g}", "warning",
            "{{ $labels.run }}: one contribution has {{ $value | humanize }} times its share of "
            "the steps",
            "Weights are tokens² / steps, capped at four times the share of the steps. Check "
            "whether one island counts its tokens in another unit, or has a far larger batch.",
            "one-island-weighs-all", ROUNDS, "10m",
        ),
    )  # fmt: skip


def _of_the_links(limits: Thresholds) -> Sequence[Alert]:
    link = "{{ $labels.run }}: the link of {{ $labels.link }}, {{ $labels.direction }}, "
    return (
        Alert(
            "ArchipelagoLinkSlow", "archipelago_link_slow == 1", "warning",
            f"{link}carries less than half of its usual rate",
            "`archipelago status` has the rate now and the usual one. `archipelago doctor --links` "
            "measures the link itself.",
            "link-slow", WIRE, "1m",
        ),
        Alert(
            "ArchipelagoLinkDown", "archipelago_link_down == 1", "critical",
            f"{link}carries nothing",
            "The other islands train on. Check the route to the region and its nodes.",
            "link-down", WIRE,
        ),
        Alert(
            "ArchipelagoTransfersLate",
            "increase(archipelago_link_late_transfers_total[10m]) > "
            f"{limits.late_share:g} * increase(archipelago_link_transfers_total[10m])",
            "warning",
            "{{ $labels.run }}: most transfers over the link of {{ $labels.link }}, "
            "{{ $labels.direction }}, take longer than the overlap",
            "Contributions come late or stale. Send less, or allow more time: `sync.every`, "
            "`sync.wire_up`, `sync.overlap`.",
            "transfers-late", WIRE, "10m",
        ),
    )  # fmt: skip
