"""Recording rules: rates and shares that boards and alerts share.

The names are `level:metric:operation`, as Prometheus recommends. Each keeps the label `run`.
"""

from __future__ import annotations

from typing import Any

TOKENS = "run:archipelago_tokens_trained:rate5m"
MERGES = "run:archipelago_merges:rate5m"
ISLAND_SHARES = "run_group:archipelago_island_seconds:share5m"
CONTRIBUTIONS = "run_group_island:archipelago_island_contributions:increase10m"
ISLAND_SECONDS = "rate(archipelago_island_seconds_total[5m])"

RECORDED: dict[str, str] = {
    TOKENS: "sum by (run) (rate(archipelago_tokens_trained_total[5m]))",
    MERGES: "sum by (run) (rate(archipelago_merges_total[5m]))",
    ISLAND_SHARES: (
        f"sum by (run, group, activity) ({ISLAND_SECONDS}) / on (run, group) group_left () "
        f"(sum by (run, group) ({ISLAND_SECONDS}) > 0)"
    ),
    CONTRIBUTIONS: (
        "sum by (run, group, island) (increase(archipelago_island_contributions_total[10m]))"
    ),
}
"""The expression of each recorded name."""


def recording_groups() -> list[dict[str, Any]]:
    """Return the recording rules as one group of Prometheus."""
    rules = [{"record": name, "expr": expr} for name, expr in RECORDED.items()]
    return [{"name": "archipelago.rules", "rules": rules}]
