"""The files `fragments/`: the newest versions of each fragment, with the state of its shard.

A file has master, momentum, public fragment and shared moments.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from cluster.storage.depot import Depot
from cluster.storage.format import Damaged
from cluster.storage.identity import have_identity, identity_of
from cluster.storage.rungs import PinnedVersions
from cluster.storage.sealed import SUFFIX, seal, unseal
from coordinator.codec import Payload
from coordinator.fragments import Flat, Layout
from coordinator.protocol import Fragment, Version

log = logging.getLogger("archipelago.store")
FRAGMENTS = "fragments"
"""The folder in the depot."""
ORPHAN = ".orphan"
"""The suffix of a file that a restore has set aside: its version is later than the log."""
_NAME = re.compile(r"f([0-9]{4,})-g([0-9]+)-v([0-9]{8,})\.safetensors(\.orphan)?")


@dataclass(frozen=True, slots=True)
class Arrays:
    """One fragment of a shard; master, momentum and public fragment are f32 of shape [size]."""

    version: Version
    """The version of the fragment."""
    master: Flat
    """The parameters in full precision."""
    momentum: Flat
    """The outer momentum, or the flat state of another outer optimizer."""
    public: Flat
    """The public fragment, which all learners have."""
    moments: Payload | None = None
    """The mean of the islands' first moments as published last, encoded; None if there is none."""


class StoredFragment(NamedTuple):
    """One file of `fragments/`; files sort by fragment and version."""

    fragment: Fragment
    version: Version
    orphan: bool
    """Whether a restore has set the file aside."""

    @property
    def name(self) -> str:
        """The name in the depot."""
        return fragment_name(self.fragment, self.version) + (ORPHAN if self.orphan else "")


def stored_versions(depot: Depot) -> dict[Fragment, list[StoredFragment]]:
    """Return the files of each fragment, orphans included, oldest first.

    Files with any other name are ignored: people keep copies beside the originals.
    """
    found: dict[Fragment, list[StoredFragment]] = defaultdict(list)
    for each in map(_parsed, depot.names(FRAGMENTS)):
        if each is not None:
            found[each.fragment].append(each)
    return {p: sorted(files) for p, files in sorted(found.items())}


def forget_orphans(depot: Depot) -> None:
    """Delete the files that restores have set aside.

    Call it once a snapshot of a later generation is durable.

    Errors: `OSError`.
    """
    for files in stored_versions(depot).values():
        for each in files:
            if each.orphan:
                depot.remove(each.name)


class FragmentStore:
    """The newest versions of each fragment, one file each."""

    def __init__(self, depot: Depot, layout: Layout, *, keep: int) -> None:
        self._depot, self._layout, self._keep = depot, layout, keep
        self._run: str | None = None  # the run's identity, None before it is read
        self._pinned = PinnedVersions(depot)

    def save(self, p: Fragment, arrays: Arrays, first: bool = False) -> None:
        """Write a version, then delete the oldest; the `first` one of a run is kept for replay.

        Versions of kept states stay (`cluster.storage.ladder`).

        Errors: `OSError` if the depot does not accept it.
        """
        parts: dict[str, NDArray[Any]] = {
            "master": arrays.master,
            "momentum": arrays.momentum,
            "public": arrays.public,
        }
        if arrays.moments is not None:
            parts["moments"] = arrays.moments
        if first:
            self._run = have_identity(self._depot)
        identity = self._identity(p, arrays.version)
        content = seal(parts, self._layout.fingerprint, identity)
        self._depot.write(fragment_name(p, arrays.version), *content)
        if not first:
            old_files = self._files(p)[1 : -self._keep]
            pinned = self._pinned.of(p) if old_files else set[Version]()
            for old in (each for each in old_files if each.version not in pinned):
                with suppress(FileNotFoundError):  # a write that was given up may have deleted it
                    self._depot.remove(old.name)

    def forget(self, p: Fragment, version: Version) -> None:
        """Delete a version that must not be found.

        Errors: `OSError`.
        """
        with suppress(FileNotFoundError):
            self._depot.remove(fragment_name(p, version))

    def _identity(self, p: Fragment, version: Version) -> dict[str, str]:
        """Return what a file states about itself, beside its arrays."""
        if self._run is None:
            self._run = identity_of(self._depot)
        identity = {"fragment": str(p), "version": f"{version.generation}.{version.number}"}
        return identity | ({"run": self._run} if self._run else {})

    def forget_after(self, p: Fragment, version: Version) -> None:
        """Set aside, as orphans, all versions later than the one that a restore has taken.

        Later versions would take the places of versions that may be needed again. The version that
        was taken gets its name back if it was an orphan. Temporary files are deleted.

        Errors: `OSError` if the depot does not allow it.
        """
        for each in self._files(p, orphans=True):
            if each.version > version and not each.orphan:
                self._depot.move(each.name, each.name + ORPHAN)
            elif each == StoredFragment(p, version, orphan=True) and not self.has(p, version):
                self._depot.move(each.name, fragment_name(p, version))
        self._depot.tidy(f"{FRAGMENTS}/f{p:04}-")

    def newest(self, p: Fragment, upto: Version | None = None) -> Arrays:
        """Return the newest intact version that is not later than `upto`.

        Only the newest `keep` stored versions are considered, and `upto` itself. A run with trained
        versions never continues from the first version, which is kept only for replay.

        Errors: `Damaged` if there is none.
        """
        files = self._files(p)
        retained = files[-self._keep :]
        wanted = [each for each in retained if upto is None or each.version <= upto]
        exact = None if upto is None else StoredFragment(p, upto, orphan=False)
        if exact in files[1:] and exact is not None and exact not in wanted:
            wanted.append(exact)  # of a kept state
        if upto is not None and exact not in wanted:
            aside = StoredFragment(p, upto, orphan=True)  # from a restore with less of the log
            wanted += [aside] if aside in self._files(p, orphans=True) else []
        why: list[str] = []
        for each in reversed(wanted):
            try:
                return self._load(each)
            except Damaged as error:
                log.error("%s; the version before is used, if it is retained", error)
                why.append(str(error))
        if not files:
            raise Damaged(f"{self._depot} has no version of fragment {p}")
        limit = "" if upto is None else f" up to {_spoken(upto)}"
        stored = ", ".join(_spoken(each.version) for each in files)
        raise Damaged(
            f"{self._depot} has no good version of fragment {p}{limit} among the newest "
            f"{self._keep}; stored are {stored}" + "".join(f"; {each}" for each in why)
        )

    def has(self, p: Fragment, version: Version) -> bool:
        """Return whether this version is stored."""
        return StoredFragment(p, version, orphan=False) in self._files(p)

    def load(self, p: Fragment, version: Version) -> Arrays:
        """Return this version.

        Errors: `Damaged` if it is not there, or has changed since it was written.
        """
        return self._load(StoredFragment(p, version, orphan=False))

    def oldest(self, p: Fragment) -> Arrays:
        """Return the oldest version that is kept.

        Errors: `Damaged`.
        """
        files = self._files(p)
        if not files:
            raise Damaged(f"{self._depot} has no version of fragment {p}")
        return self._load(files[0])

    def _load(self, file: StoredFragment) -> Arrays:
        expected = self._identity(file.fragment, file.version)
        parts = unseal(self._depot, file.name, self._layout.fingerprint, expected)
        try:
            public, moments = parts["public"], parts.get("moments")
            return Arrays(file.version, parts["master"], parts["momentum"], public, moments)
        except KeyError as error:
            raise Damaged(f"{file.name} has no array {error}") from error

    def _files(self, p: Fragment, *, orphans: bool = False) -> list[StoredFragment]:
        """Return the files of a fragment's versions, oldest first."""
        own_files = (each for each in self._parsed_names() if each.fragment == p)
        return sorted(each for each in own_files if orphans or not each.orphan)

    def _parsed_names(self) -> Iterator[StoredFragment]:
        for name in self._depot.names(FRAGMENTS):
            if (each := _parsed(name)) is not None:
                yield each


def fragment_name(p: Fragment, version: Version) -> str:
    """Return the name of a version in the depot."""
    return f"{FRAGMENTS}/f{p:04}-g{version.generation}-v{version.number:08}{SUFFIX}"


def _parsed(name: str) -> StoredFragment | None:
    if (found := _NAME.fullmatch(name)) is None:
        return None
    p, generation, number, orphan = found.groups()
    version = Version(int(generation), int(number))
    return StoredFragment(Fragment(int(p)), version, orphan is not None)


def _spoken(version: Version) -> str:
    return f"v{version.number} of generation {version.generation}"
