"""The checks of regions: what the run needs to leave them, and which corpora overlap."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from itertools import combinations
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from cluster.config.field_check import reads
from cluster.config.problem_text import Problem
from cluster.config.region_tables import NEEDED, Leaving
from cluster.config.schema import Config
from cluster.config.values import nearest
from islands.data.buckets import in_bucket
from islands.sources import STDLIB

SHOWN = {Leaving.DELTA: "islands send deltas", Leaving.REPORT: "islands report each step"}
"""The use of the kinds that every run needs."""


@reads("regions", "islands.*.region")
def regions_have_islands(config: Config) -> Iterator[Problem]:
    """Check that each region has islands, so that a misspelled name does not free its data."""
    named = sorted({group.region for group in config.islands if group.region is not None})
    for name in config.regions:
        if name not in named:
            close = nearest(name, named) if named else "no group of islands has a region"
            yield Problem(
                f"regions.{name}",
                f'no group of islands is in it: {close}; set region = "{name}" in [[islands]], or '
                "leave the table out",
            )


@reads("regions", "run.mode", "sync.moments")
def needed_kinds_may_leave(config: Config) -> Iterator[Problem]:
    """Check that everything that the run needs may leave each region."""
    for name, region in config.regions.items():
        where = f"regions.{name}.may_leave"
        for kind in NEEDED:
            if kind not in region.may_leave:
                yield Problem(
                    where,
                    f'has no "{kind}", and {SHOWN[kind]} in run.mode = "{config.run.mode}"; add '
                    "it, or leave the islands of the region out",
                )
        if config.sync.moments == "mean" and Leaving.MOMENTS not in region.may_leave:
            yield Problem(
                where,
                'has no "moments", which sync.moments = "mean" sends beside deltas; add it, or use '
                'sync.moments = "own"',
            )


@reads("regions", "data.source", "data.mixture")
def evaluator_reads_no_region(config: Config) -> Iterator[Problem]:
    """Check that the evaluator, which is in no region, reads the corpus of none."""
    sources = [("data.source", config.data.source)] if not config.data.mixture else []
    sources += [
        (f"data.mixture.{number}.source", each.source)
        for number, each in enumerate(config.data.mixture)
    ]
    for name, region in config.regions.items():
        for where, source in sources if Leaving.CORPUS not in region.may_leave else ():
            if overlap(source, region.data):
                yield Problem(
                    where,
                    f"is read by the evaluator and by the machine that starts the run, and it is "
                    f"the corpus of region {name} (regions.{name}.data), or part of it, or "
                    'contains it; name a corpus that all may read, or add "corpus" to '
                    f"regions.{name}.may_leave",
                )


@reads("regions", "islands")
def regions_read_no_other(config: Config) -> Iterator[Problem]:
    """Check that no region reads the corpus of another one.

    A path on disks may be the same in two regions if labels keep their islands on nodes apart.
    """
    for (one, first), (two, second) in combinations(config.regions.items(), 2):
        if not overlap(first.data, second.data):
            continue
        groups = [group for group in config.islands if group.region in (one, two)]
        if in_bucket(first.data) or not all(group.label_selector for group in groups):
            yield Problem(
                f"regions.{two}.data",
                f"is also the corpus of region {one}, or part of it, or contains it; give each "
                "region its own, or bind the groups to nodes with label_selector if the paths are "
                "on different disks",
            )


def overlap(one: str, two: str) -> bool:
    """Return whether one source is the other one, or one contains the other."""
    if STDLIB in (one, two):
        return one == two
    parts = [_parts(each) for each in (one, two)]
    shorter = min(map(len, parts))
    return parts[0][:shorter] == parts[1][:shorter]


def _parts(source: str) -> tuple[str, ...]:
    """Return the store and the path of a source; the path of a glob ends before its first wildcard.

    Options of a URI do not count.
    """
    if in_bucket(source):
        url = urlsplit(source)
        store = ("gs" if url.scheme == "gcs" else url.scheme, url.netloc)
        path = PurePosixPath(url.path)
    else:
        store = ("file",)
        path = PurePosixPath(os.path.abspath(os.path.expanduser(source)))
    parts = [part for part in path.parts if part != "/"]
    magic = [number for number, part in enumerate(parts) if glob.has_magic(part)]
    return (*store, *parts[: magic[0] if magic else None])
