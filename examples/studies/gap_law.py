"""Fit the law of the gap to the pairs of length-667.toml, length-2000.toml and eight islands.

    python examples/studies/gap_law.py

The law is the gap of the held-out loss of islands to that of data-parallel training, by H, T and M
(`archipelago.lab.planner.gap_law`). Runs of 6,000 steps are not fitted: the law is judged on
them. The script reads the finished cells in examples/studies/results and prints the constants.

The power of M rests on four pairs alone, `EIGHT`: both sides have the rate 68e-3, not each its
best, and their cells are not in examples/studies/results.
"""

import json
from pathlib import Path

from archipelago.lab.planner.gap_law import GapPoint, fitted, point_of

RESULTS = Path(__file__).parent / "results"
EIGHT = [
    (1.3558, 1.4605), (1.3795, 1.4966), (1.2355, 1.3954), (1.3185, 1.4495),
]  # fmt: skip
"""Losses of data-parallel training and eight islands at H = 24, 667 steps and 68e-3, seeds 0 to 3.

They were typed in from `archipelago study examples/studies/eight-islands.toml`.
"""


PREDICTED = [
    (8, 6000, 4), (24, 6000, 4), (24, 2000, 8), (2, 667, 4), (8, 300, 4), (8, 1200, 4),
    (24, 62_500, 8),
]  # fmt: skip
"""H, T and M of the table in docs/lab/convergence.md, and of a run of the paper's size."""


def losses(study: str, arm: str) -> list[float]:
    """Return the held-out losses of an arm's best point, by seed."""
    folder = RESULTS / study
    rows = json.loads((folder / "study.json").read_text())["rows"]
    (row,) = (each for each in rows if each["arm"] == arm and each["best"])
    cells = [folder / "cells" / f"{key}.json" for _, key in sorted(row["cells"].items())]
    return [json.loads(cell.read_text())["figures"]["heldout_loss"] for cell in cells]


def points() -> list[GapPoint]:
    """Return the measured gaps to which the law is fitted."""
    found = list[GapPoint]()
    for steps in (667, 2000):
        parallel = losses(f"length-{steps}", "data-parallel")
        for every in (8, 24):
            found.append(
                point_of(every, steps, 4, parallel, losses(f"length-{steps}", f"h{every}"))
            )
    parallel, islands = (list(side) for side in zip(*EIGHT, strict=True))
    return [*found, point_of(24, 667, 8, parallel, islands)]


def main() -> None:
    """Print the points, the law, and its values for what was not fitted."""
    measured = points()
    law = fitted(measured)
    for each in measured:
        print(f"M = {each.learners}, H = {each.every}, T = {each.steps}: "
              f"{each.percent:.2f} % (standard error {each.error:.2f}), the law "
              f"{law.percent(each.every, each.steps, each.learners):.2f} %")  # fmt: skip
    print(law)
    for every, steps, learners in PREDICTED:
        low, high = law.interval(every, steps, learners)
        print(f"M = {learners}, H = {every}, T = {steps}: "
              f"{law.percent(every, steps, learners):.2f} % ({low:.2f} to {high:.2f})")  # fmt: skip


if __name__ == "__main__":
    main()
