"""The board of wire and links: what goes over the wire, and which link is the trouble?"""

from __future__ import annotations

from archipelago.boards.panels import RUN, Board, Panel, Query

LATE = f"increase(archipelago_link_late_transfers_total{RUN}[5m])"
SECONDS = f"increase(archipelago_link_transfer_seconds_total{RUN}[5m])"
TRANSFERS = f"increase(archipelago_link_transfers_total{RUN}[5m])"

WIRE_BOARD = Board(
    uid="archipelago-wire",
    title="what goes over the wire, and which link is the trouble?",
    description="Bytes of contributions and publications, and the state of each link of one run.",
    panels=[
        Panel(
            "Traffic of the run",
            "Contributions go up, and publications go down.",
            [
                Query(f"rate(archipelago_up_bytes_total{RUN}[1m])", "up"),
                Query(f"rate(archipelago_down_bytes_total{RUN}[1m])", "down"),
            ],
            unit="Bps",
        ),
        Panel(
            "Bytes for each trained token",
            "What the communication of the run costs. It falls with a longer sync.every and a "
            "narrower wire.",
            [
                Query(
                    f"rate(archipelago_up_bytes_total{RUN}[5m]) / "
                    f"rate(archipelago_tokens_trained_total{RUN}[5m])",
                    "up",
                ),
                Query(
                    f"rate(archipelago_down_bytes_total{RUN}[5m]) / "
                    f"rate(archipelago_tokens_trained_total{RUN}[5m])",
                    "down",
                ),
            ],
            unit="none",
        ),
        Panel(
            "Traffic of each link",
            "The links of regions, or of groups without a region.",
            [Query(f"8 * rate(archipelago_link_bytes_total{RUN}[1m])", "{{link}} {{direction}}")],
            unit="bps",
        ),
        Panel(
            "Rate of each link",
            "The rate of recent transfers beside the usual one of the last hour; both are medians.",
            [
                Query(f"archipelago_link_rate_bits_per_second{RUN}", "{{link}} {{direction}}"),
                Query(
                    f"archipelago_link_usual_bits_per_second{RUN}", "{{link}} {{direction}} usual"
                ),
            ],
            unit="bps",
        ),
        Panel(
            "Use of each link",
            "Traffic over the usual rate of a transfer, at most 1. Spread: the median deviation "
            "from the usual rate, over it.",
            [
                Query(f"archipelago_link_utilisation_ratio{RUN}", "{{link}} {{direction}} use"),
                Query(f"archipelago_link_spread_ratio{RUN}", "{{link}} {{direction}} spread"),
            ],
        ),
        Panel(
            "Waiting on each link",
            "The age of the oldest request that is not answered, or publication that is not "
            "received, beside the mean time of a transfer.",
            [
                Query(f"archipelago_link_queue_seconds{RUN}", "{{link}} {{direction}} oldest"),
                Query(f"{SECONDS} / ({TRANSFERS} > 0)", "{{link}} {{direction}} transfer"),
            ],
            unit="s",
        ),
        Panel(
            "Late transfers, share",
            "Transfers that take longer than the overlap. Their contributions are late or stale.",
            [Query(f"{LATE} / ({TRANSFERS} > 0)", "{{link}} {{direction}}")],
            unit="percentunit",
        ),
        Panel(
            "Slow and broken links",
            "Slow: under half of the usual rate for a minute. Late: most transfers take longer "
            "than the overlap. Down: nothing comes.",
            [
                Query(f"archipelago_link_lagging{RUN}", "{{link}} {{direction}} late"),
                Query(f"archipelago_link_slow{RUN}", "{{link}} {{direction}} slow"),
                Query(f"archipelago_link_down{RUN}", "{{link}} {{direction}} down"),
            ],
        ),
    ],
)
"""The board of wire and links."""
