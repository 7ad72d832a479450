"""The board of failures and goodput: what failed, and what does it cost?"""

from __future__ import annotations

from archipelago.boards.panels import ISLANDS, RUN, Board, Panel, Query

FAILURES_BOARD = Board(
    uid="archipelago-failures",
    title="what failed, and what does it cost?",
    description="Faults, restarts and failures of one run, and the time that they cost.",
    groups=True,
    panels=[
        Panel(
            "Goodput",
            "The share of the islands' time in which their devices compute.",
            [Query(f"archipelago_goodput_ratio{RUN}")],
            unit="percentunit",
            kind="stat",
        ),
        Panel(
            "Uptime",
            "The share of the time in which some learner advanced: 1 unless everything stood "
            "still.",
            [Query(f"archipelago_uptime_ratio{RUN}")],
            unit="percentunit",
            kind="stat",
        ),
        Panel(
            "Faults on purpose",
            "Faults of a plan or of `archipelago chaos`.",
            [Query(f"archipelago_faults_total{RUN}")],
            kind="stat",
        ),
        Panel(
            "Restarts of the syncer",
            "The generation of the syncer.",
            [Query(f"archipelago_syncer_generation{RUN}")],
            kind="stat",
        ),
        Panel(
            "Merges lost",
            "Merges that were not durable when their shard died.",
            [Query(f"archipelago_merges_lost_total{RUN}")],
            kind="stat",
        ),
        Panel(
            "Tokens lost, share",
            "Tokens that died with an island before it handed them in.",
            [Query(f"archipelago_tokens_lost_total{RUN} / archipelago_tokens_trained_total{RUN}")],
            unit="percentunit",
            kind="stat",
        ),
        Panel(
            "Badput, by type",
            "Seconds of all islands in a second that trained nothing, in the words of "
            "ml-goodput-measurement.",
            [Query(f"rate(archipelago_badput_seconds_total{RUN}[5m])", "{{type}}")],
            stacked=True,
        ),
        Panel(
            "Restarts of the islands",
            "Lives after the first.",
            [Query(f"archipelago_island_restarts_total{ISLANDS}", "{{island}}")],
        ),
        Panel(
            "Failures of islands, by reason",
            "Exceptions, useless messages and a full object store. `archipelago status` says which "
            "island, and why.",
            [Query(f"increase(archipelago_failures_total{RUN}[5m])", "{{reason}}")],
        ),
        Panel(
            "Evaluations without a result, by reason",
            "The run trains on without them, but the held-out curve gets no points.",
            [Query(f"increase(archipelago_evaluation_failures_total{RUN}[5m])", "{{reason}}")],
        ),
        Panel(
            "Merges undone and lives ended",
            "Merges that were not finite or far too long, and lives with counters that are "
            "impossible.",
            [
                Query(f"increase(archipelago_unsound_merges_total{RUN}[5m])", "merges undone"),
                Query(f"increase(archipelago_distrusted_lives_total{RUN}[5m])", "lives ended"),
            ],
        ),
        Panel(
            "Islands wanted and alive",
            "Islands that the run should have, and those whose learner is live.",
            [
                Query(f"archipelago_islands_wanted{RUN}", "wanted"),
                Query(f"archipelago_islands_alive{RUN}", "alive"),
            ],
        ),
    ],
)
"""The board of failures and goodput."""
