"""The report of damage: which stored files could not be used, and which versions are stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from cluster.storage.format import Damaged
from cluster.storage.fragments import StoredFragment
from coordinator.protocol import Fragment, Version

HINT = (
    "nothing was deleted; put the missing files back, or resume from the newest stored version of "
    "each fragment, at t of the newest snapshot, with --resume --from-stored"
)
"""Advice to the user after damage."""


def refused(error: Damaged, stored: Mapping[Fragment, list[StoredFragment]]) -> Damaged:
    """Return the error, extended by the stored versions of each fragment and by a hint."""
    if not stored:
        return error
    return Damaged(f"{error}; {_inventory(stored)}; {HINT}")


def _inventory(stored: Mapping[Fragment, list[StoredFragment]]) -> str:
    """Describe the stored versions of each fragment; group fragments that have the same ones."""
    fragments_of: dict[str, list[Fragment]] = defaultdict(list)
    for p, files in stored.items():
        fragments_of[" ".join(_version(each) for each in files)].append(p)
    groups = (
        f"of fragment {', '.join(map(str, fragments))}: {versions}"
        for versions, fragments in fragments_of.items()
    )
    return f"stored are {'; '.join(groups)}"


def _version(file: StoredFragment) -> str:
    aside = " (set aside)" if file.orphan else ""
    return f"g{file.version.generation}-v{file.version.number}{aside}"


def passed_over(
    stored: Mapping[Fragment, list[StoredFragment]],
    wanted: Mapping[Fragment, Version],
    found: Mapping[Fragment, Version],
) -> str | None:
    """Name the stored versions that were wanted and could not be used, so that earlier ones are.

    `stored`: the files as they were before the shards came back. Returns None if there is no such
    version.
    """
    words = [
        f"{each.name} is damaged, v{found[p].number} is used"
        for p, version in wanted.items()
        for each in stored.get(p, [])
        if found[p] < each.version <= version and not each.orphan
    ]
    return joined(*words)


def joined(*words: str | None) -> str | None:
    """Return these words in one line; None if there are none."""
    return "; ".join(filter(None, words)) or None
