"""Compare batch statistics and held-out loss of islands with those of data-parallel training.

    python examples/studies/batch_statistics.py [--set a.b=c ...] [--jobs N]

The script trains the study batch-statistics.toml, whose cells are kept and reused, and takes the
best point of each arm. A figure agrees if the means of both arms differ by at most the standard
deviation of data-parallel training over its seeds. The exit code is 1 if a figure does not agree.

The statistics of two models cannot be compared with each other: the values that are normalized grow
with the weights, and the loss does not depend on this. So each model's statistics are compared with
those of its own values on held-out images: `mean_error`, the mean distance of the running means in
standard deviations, and `variance_ratio`, the running variance over the variance.

`--set study.seeds=2 --set run.steps=40` is a trial of a minute.
"""

import argparse
import os
import sys
from pathlib import Path
from statistics import fmean, stdev

from archipelago.lab.study import training_jobs
from archipelago.lab.study.cells import CellFiles
from archipelago.lab.study.plan import read
from archipelago.lab.study.result import summed

STUDY = Path(__file__).with_name("batch-statistics.toml")
FIGURES = ("heldout_loss", "accuracy", "mean_error", "variance_ratio")


def trained(overrides, jobs):
    """Train the missing cells; return the figures of the best point of each arm, by seed."""
    study = read(STUDY, overrides)
    files = CellFiles(study.folder / "cells")
    results = training_jobs.found(files, study.cells, retry=False)
    missing = {key: cell for key, cell in study.cells.items() if key not in results}
    training_jobs.make(files, missing, jobs, results.__setitem__)
    best = {line.row.arm: line.row for line in summed(study, results).lines if line.best}
    return {
        arm: {cell.seed: figures_of(results[cell.key].figures) for cell in row.cells}
        for arm, row in best.items()
    }


def figures_of(figures):
    """Return the compared figures of a cell."""
    return {name: {**figures, **figures["heldout_metrics"]}[name] for name in FIGURES}


def compared(islands, single):
    """Return a row for each figure: its name, both means, the spread, and whether they agree."""
    rows = []
    for name in FIGURES:
        mine = [islands[seed][name] for seed in sorted(islands)]
        theirs = [single[seed][name] for seed in sorted(islands)]
        spread = stdev(theirs)
        rows.append((name, fmean(mine), fmean(theirs), spread, gap(mine, theirs) <= spread))
    return rows


def gap(mine, theirs):
    """Return the absolute mean of the differences between pairs of one seed."""
    return abs(fmean(a - b for a, b in zip(mine, theirs, strict=True)))


def main(arguments=None):
    """Train, print the comparison, and return the exit code."""
    parser = argparse.ArgumentParser(description=STUDY.name)
    parser.add_argument("--set", action="append", default=[], metavar="a.b=c")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(arguments)
    figures = trained(given.set, given.jobs)
    rows = compared(figures["decoupled"], figures["data-parallel"])
    print(f"{'figure':18} {'islands':>10} {'data-par.':>10} {'spread':>10}")
    for name, mine, theirs, spread, agrees in rows:
        print(
            f"{name:18} {mine:10.4f} {theirs:10.4f} {spread:10.4f}  {'' if agrees else 'differs'}"
        )
    return int(not all(row[-1] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
