"""The token counts of a run that has ended, compared with those that its tape gives.

The counts of a summary add up by their construction: tokens outstanding are the rest. So a sum of
them proves nothing. These checks count again, from the tape.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archipelago.lab.checks.audit import audit
from archipelago.lab.checks.replay import replay, tokens_differ
from cluster.config.load import load
from cluster.storage.layout import load_layout
from cluster.storage.open_depot import depot_of
from cluster.storage.runs import SUMMARY

TOKEN_FATES = tuple(f"tokens_{fate}" for fate in ("merged", "discarded", "lost", "outstanding"))
"""The names in a summary of what may become of a token."""


def count_problems(run_dir: Path, most_outstanding: int) -> list[str]:
    """Return everything that is wrong with the token counts of a run; an empty list if nothing is.

    - No count is negative, and they add up.
    - At most `most_outstanding` tokens are outstanding: what one round of the islands can hold.
    - A replay of the tape is exact, breaks no invariant and gives the same counts.
    - The contributions of all published merges have the merged tokens.

    Errors: `UserMistake` if there is no run, or the beginning of its tape is gone; `OSError` if it
    has no summary; `Damaged` if its files are corrupt.
    """
    counts: Mapping[str, Any] = json.loads((run_dir / SUMMARY).read_text())
    fates = {name: int(counts[name]) for name in TOKEN_FATES}
    problems = [f"{name} is {count}, below 0" for name, count in fates.items() if count < 0]
    if sum(fates.values()) != counts["tokens_trained"]:
        problems.append(
            f"the fates add up to {sum(fates.values())} tokens, and tokens_trained is "
            f"{counts['tokens_trained']}"
        )
    if (left := fates["tokens_outstanding"]) > most_outstanding:
        problems.append(
            f"tokens_outstanding is {left}, and one round of the islands can hold "
            f"{most_outstanding}"
        )
    return problems + _replay_problems(run_dir, counts) + _merge_problems(run_dir, counts)


def _replay_problems(run_dir: Path, counts: Mapping[str, Any]) -> list[str]:
    """Return what a replay finds."""
    found = dict[str, Any](replay(run_dir))
    problems = [str(found[key]) for key in ("damage", "differs", "violated") if found[key]]
    problems += tokens_differ(counts, found["tokens"])
    if not problems and not found["exact"]:
        problems.append(f"the replay is not exact: {found['compared']}")
    return problems


def _merge_problems(run_dir: Path, counts: Mapping[str, Any]) -> list[str]:
    """Return whether the published merges have the merged tokens, without a look at the ledger."""
    layout = load_layout(depot_of(load(run_dir / "config.toml"), run_dir))
    weighed = sum(
        layout.sizes[merge.fragment] * sum(each.tokens for each in merge.contributors)
        for merge in audit(run_dir).lineage
    )
    merged = weighed / sum(layout.sizes)
    if abs(merged - counts["tokens_merged"]) < 1:  # counts are rounded up or down
        return []
    return [
        f"tokens_merged is {counts['tokens_merged']}, and the merges on the tape have {merged:.1f}"
    ]
