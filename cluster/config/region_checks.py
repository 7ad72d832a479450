"""The checks of regions: what the run needs to leave them, and which corpora overlap."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from itertools import combinations, takewhile
from pathlib import Path, PurePath, PurePosixPath
from urllib.parse import urlsplit

from cluster.config.field_check import reads
from cluster.config.problem_text import Problem
from cluster.config.region_tables import NEEDED, Leaving
from cluster.config.schema import Config, IslandGroup
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


@reads("regions", "durability.keep_contributions")
def stores_of_regions_are_used(config: Config) -> Iterator[Problem]:
    """Check that a store of a region has something to store."""
    for name, region in config.regions.items():
        if region.durability.dir is not None and not config.durability.keep_contributions:
            yield Problem(
                f"regions.{name}.durability.dir",
                "has no effect without durability.keep_contributions = true: it stores the kept "
                "contributions of the region, and snapshots hold the global model only; set that, "
                "or leave it out",
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
def buckets_are_read_in_their_region(config: Config) -> Iterator[Problem]:
    """Check that labels bind islands to nodes if every node can read the corpus of their region.

    A path on a disk is not checked: studies on one machine have no labels.
    """
    for number, group in enumerate(config.islands):
        region = config.region_of(group)
        if region is None or Leaving.CORPUS in region.may_leave or _is_bound(config, group):
            continue
        if in_bucket(region.data):
            name, labels = group.region, group.label_selector
            yield Problem(
                f"islands.{number}.label_selector",
                ("binds no island to its region" if labels else "is missing")
                + f", and the corpus of region {name} is in a bucket (regions.{name}.data),"
                " which nodes of other regions can read, too; write label_selector = {region = "
                f'"{name}"}} and start the nodes of the region with `ray start '
                f'--labels=region={name}`, or add "corpus" to regions.{name}.may_leave',
            )


@reads("regions", "islands")
def regions_read_no_other(config: Config) -> Iterator[Problem]:
    """Check that no region reads the corpus of another one.

    A path on disks may be the same in two regions if labels keep their islands on nodes apart.
    """
    for (one, first), (two, second) in combinations(config.regions.items(), 2):
        if not overlap(first.data, second.data):
            continue
        if in_bucket(first.data) or not _on_nodes_apart(config, one, two):
            yield Problem(
                f"regions.{two}.data",
                f"is also the corpus of region {one}, or part of it, or contains it; give each "
                "region its own, or, if the paths are on different disks, one key of "
                "label_selector in all groups of both regions, with another plain value in each "
                f'region, such as {{region = "{one}"}} and {{region = "{two}"}}',
            )


def _is_bound(config: Config, group: IslandGroup) -> bool:
    """Return whether a label of this group has a plain value that no other region's group has."""
    others = [each.label_selector or {} for each in config.islands if each.region != group.region]
    return any(
        _is_plain(value) and all(labels.get(key) != value for labels in others)
        for key, value in (group.label_selector or {}).items()
    )


def _on_nodes_apart(config: Config, one: str, two: str) -> bool:
    """Return whether no node can have the labels of groups of both regions."""
    first, second = (
        [group.label_selector or {} for group in config.islands if group.region == name]
        for name in (one, two)
    )
    if not first or not second:
        return True  # a region without islands has a problem of its own
    common = set[str].intersection(*({*labels} for labels in (*first, *second)))
    return any(
        all(_is_plain(labels[key]) for labels in (*first, *second))
        and {labels[key] for labels in first}.isdisjoint(labels[key] for labels in second)
        for key in common
    )


def _is_plain(value: str) -> bool:
    """Return whether a condition on a label names one value, unlike `in(a,b)` and `!a`."""
    return not value.startswith(("!", "in("))


def overlap(one: str, two: str) -> bool:
    """Return whether one source is the other one, or one contains the other.

    Paths overlap as they are written or without their symbolic links.
    """
    if STDLIB in (one, two):
        return one == two
    return any(
        all(part == other for part, other in zip(first, second, strict=False))
        for first in _places(one)
        for second in _places(two)
    )


def _places(source: str) -> set[tuple[str, ...]]:
    """Return the store and the path of a source: as written, and without symbolic links.

    The path of a glob ends before its first wildcard. Options of a URI do not count.
    """
    if in_bucket(source):
        url = urlsplit(source)
        store = "gs" if url.scheme == "gcs" else url.scheme
        return {(store, url.netloc, *_fixed(PurePosixPath(url.path)))}
    given = Path(os.path.expanduser(source))
    exists = os.path.lexists(given)  # a name may have wildcards
    path = given if exists else Path(given.anchor, *_fixed(given))
    return {
        ("file", *_fixed(PurePosixPath(os.path.abspath(given)))),
        ("file", *Path(os.path.realpath(path)).parts[1:]),
    }


def _fixed(path: PurePath) -> tuple[str, ...]:
    """Return the parts of a path, without its root, before the first one with a wildcard."""
    parts = path.parts[bool(path.anchor) :]
    return tuple(takewhile(lambda part: not glob.has_magic(part), parts))
