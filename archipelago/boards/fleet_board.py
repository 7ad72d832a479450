"""The board of all runs: how are they?"""

from __future__ import annotations

from archipelago.boards.panels import RUNS, Board, Panel, Query
from archipelago.boards.recording_rules import ISLAND_SHARES, MERGES, TOKENS

FLEET_BOARD = Board(
    uid="archipelago-fleet",
    title="how are all runs?",
    description="All live runs of this Prometheus, side by side.",
    many_runs=True,
    panels=[
        Panel(
            "Live runs",
            "Runs whose metrics are scraped now.",
            [Query(f"count(archipelago_build_info{RUNS})", "runs")],
            kind="stat",
        ),
        Panel(
            "Islands alive",
            "Islands of all runs whose learner is live.",
            [Query(f"sum(archipelago_islands_alive{RUNS})", "alive")],
            kind="stat",
        ),
        Panel(
            "Islands missing",
            "Islands that runs want and do not have.",
            [
                Query(
                    f"sum(archipelago_islands_wanted{RUNS}) - sum(archipelago_islands_alive{RUNS})",
                    "missing",
                )
            ],
            kind="stat",
            bad_above=1.0,
        ),
        Panel(
            "Tokens per second",
            "Tokens that all runs train.",
            [Query(f"sum({TOKENS}{RUNS})", "tokens")],
            kind="stat",
        ),
        Panel(
            "Targets that do not answer",
            "Targets whose scrape fails: the fleet of a run is gone or cannot be reached.",
            [Query('count(up{job="archipelago"} == 0) or vector(0)', "down")],
            kind="stat",
            bad_above=1.0,
        ),
        Panel(
            "Alerts that fire",
            "Alerts of all runs.",
            [
                Query(
                    'count(ALERTS{alertstate="firing",alertname=~"Archipelago.*"}) or vector(0)',
                    "alerts",
                )
            ],
            kind="stat",
            bad_above=1.0,
        ),
        Panel(
            "Held-out loss",
            "The loss of the syncer's model of each run, in nats per token.",
            [Query(f"archipelago_heldout_loss_nats{RUNS}")],
        ),
        Panel(
            "Progress",
            "The share of the syncer steps that are done.",
            [Query(f"archipelago_syncer_step{RUNS} / archipelago_syncer_steps_wanted{RUNS}")],
            unit="percentunit",
        ),
        Panel(
            "Tokens per second of each run",
            "A mean of five minutes.",
            [Query(f"{TOKENS}{RUNS}")],
        ),
        Panel(
            "Goodput of each run",
            "The goodput of the last five minutes.",
            [Query('archipelago_rolling_goodput_ratio{run=~"$run",window_s="300"}')],
            unit="percentunit",
        ),
        Panel(
            "Islands alive of each run",
            "Islands whose learner is live.",
            [Query(f"archipelago_islands_alive{RUNS}")],
        ),
        Panel(
            "Merges per second of each run",
            "Outer steps of all fragments; a mean of five minutes.",
            [Query(f"{MERGES}{RUNS}")],
        ),
        Panel(
            "Computing share of each group",
            "The share of the time of a group in which its devices compute.",
            [Query(f'{ISLAND_SHARES}{{run=~"$run",activity="computing"}}', "{{run}} {{group}}")],
            unit="percentunit",
        ),
        Panel(
            "Versions",
            "The versions of Archipelago, Python, Ray and JAX of each run.",
            [Query(f"archipelago_build_info{RUNS}")],
            kind="table",
        ),
    ],
)
"""The board of all runs."""
