"""The board of the islands' time: where does it go?"""

from __future__ import annotations

from archipelago.boards.panels import ISLANDS, RUN, Board, Panel, Query

SECONDS = f"rate(archipelago_island_seconds_total{ISLANDS}[5m])"

TIME_BOARD = Board(
    uid="archipelago-time",
    title="where does the time of the islands go?",
    description="The activities of the islands, which island is slow, and the reason.",
    groups=True,
    panels=[
        Panel(
            "Goodput of the last minutes",
            "The share of the islands' time in which their devices compute, by window in seconds.",
            [
                Query(f"archipelago_rolling_goodput_ratio{RUN}", "last {{window_s}} s"),
                Query(f"archipelago_goodput_ratio{RUN}", "whole run"),
            ],
            unit="percentunit",
        ),
        Panel(
            "Activities of all islands",
            "The share of each activity in the time of the islands that have devices. All but "
            "computing trains nothing.",
            [Query(f"sum by (activity) ({SECONDS}) / scalar(sum({SECONDS}))", "{{activity}}")],
            unit="percentunit",
            stacked=True,
        ),
        Panel(
            "Computing share of each island",
            "An island below the others of its group waits for something. The next panel has the "
            "activity.",
            [
                Query(
                    f'sum by (island) (rate(archipelago_island_seconds_total{{run="$run",'
                    'group=~"$group",activity="computing"}[5m])) / '
                    f"sum by (island) ({SECONDS})",
                    "{{island}}",
                )
            ],
            unit="percentunit",
        ),
        Panel(
            "Time without computing, by island and activity",
            "Seconds in a second that each island spends on another activity.",
            [
                Query(
                    'rate(archipelago_island_seconds_total{run="$run",group=~"$group",'
                    'activity!="computing"}[5m]) > 0.01',
                    "{{island}} {{activity}}",
                )
            ],
            unit="percentunit",
        ),
        Panel(
            "Slow islands",
            "1 while an island is slower than the others of its group by a factor of 1.25. "
            "`archipelago status` has the reason.",
            [Query(f"archipelago_island_slow{ISLANDS}", "{{island}}")],
        ),
        Panel(
            "Tokens per second of each island",
            "A slow island is a slow machine, or it waits for data.",
            [Query(f"archipelago_island_tokens_per_second{ISLANDS}", "{{island}}")],
        ),
        Panel(
            "Steps per second of each island",
            "Zero: the island hangs or waits.",
            [Query(f"rate(archipelago_island_steps_total{ISLANDS}[1m])", "{{island}}")],
        ),
        Panel(
            "Step time",
            "The ideal step of each island, and the mean deviation from it.",
            [
                Query(f"archipelago_island_ideal_step_seconds{ISLANDS}", "{{island}} ideal"),
                Query(
                    f"archipelago_island_step_deviation_seconds{ISLANDS}", "{{island}} deviation"
                ),
            ],
            unit="s",
        ),
    ],
)
"""The board of the islands' time."""
