"""The board of rounds and staleness: do the islands take part?"""

from __future__ import annotations

from archipelago.boards.panels import ISLANDS, RUN, Board, Panel, Query

ROUNDS_BOARD = Board(
    uid="archipelago-rounds",
    title="do the islands take part, and how stale is what they send?",
    description="Rounds, participants, staleness and directions of the contributions of one run.",
    groups=True,
    panels=[
        Panel(
            "Islands alive, participants and quorum",
            "Below the quorum no round closes. Participants below the islands alive: some "
            "contributions come after the grace window.",
            [
                Query(f"archipelago_islands_alive{RUN}", "alive"),
                Query(f"archipelago_participants{RUN}", "participants"),
                Query(f"archipelago_quorum{RUN}", "quorum"),
            ],
        ),
        Panel(
            "Merges per second",
            "Outer steps of all fragments.",
            [Query(f"rate(archipelago_merges_total{RUN}[1m])", "merges")],
        ),
        Panel(
            "Contributions per minute, by island",
            "Admitted contributions. An island at zero trains for nothing.",
            [
                Query(
                    f"60 * rate(archipelago_island_contributions_total{ISLANDS}[5m])", "{{island}}"
                )
            ],
        ),
        Panel(
            "Rounds and grace",
            "The time from the opening of a round to its close, and the grace window in it.",
            [
                Query(f"archipelago_round_seconds{RUN}", "round"),
                Query(f"archipelago_grace_seconds{RUN}", "grace"),
                Query(f"archipelago_merge_age_seconds{RUN}", "since the last merge"),
            ],
            unit="s",
        ),
        Panel(
            "Staleness",
            "Versions between a contribution and the fragment that it is merged into, and steps "
            "from a hand-in to its adoption.",
            [
                Query(f"archipelago_staleness_versions{RUN}", "staleness, versions"),
                Query(f"archipelago_overlap_steps{RUN}", "overlap, steps"),
            ],
        ),
        Panel(
            "Contributions that were not merged, by reason",
            "gate: not finite, too large or of another layout. stale: too old. void: of a dead "
            "life.",
            [Query(f"increase(archipelago_refusals_total{RUN}[5m])", "{{reason}}")],
        ),
        Panel(
            "Directions",
            "Cosine of each island's last contribution to the mean of the others: far below zero "
            "it works against them. Cosine of merged deltas to the outer momentum: near one, each "
            "continues in the direction of the last ones.",
            [
                Query(f"archipelago_island_cosine_ratio{ISLANDS}", "{{island}}"),
                Query(f"archipelago_outer_cosine_ratio{RUN}", "merged to momentum"),
            ],
        ),
        Panel(
            "Effect of single contributions on the held-out loss",
            "Loss minus the loss without the island's last measured contribution, per token. Below "
            "zero the contribution has helped; an island that stays above zero does harm.",
            [Query(f"archipelago_island_contribution_effect_nats{ISLANDS}", "{{island}}")],
        ),
        Panel(
            "Outer step",
            "The outer learning rate, and the largest share of a merge over the share of its "
            "steps: above 3.9 one island weighs as much as it may.",
            [
                Query(f"archipelago_outer_rate_ratio{RUN}", "outer rate"),
                Query(f"archipelago_largest_share_ratio{RUN}", "largest share"),
            ],
        ),
    ],
)
"""The board of rounds and staleness."""
