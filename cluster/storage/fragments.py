"""`fragments/`: the newest versions of each fragment: master, momentum, public, shared moments."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from numpy.typing import NDArray

from cluster.storage.contributions import contributions_of
from cluster.storage.depot import Depot
from cluster.storage.format import Damaged
from cluster.storage.sealed import SUFFIX, seal, unseal
from coordinator.codec import Payload
from coordinator.fragments import Flat, Layout
from coordinator.protocol import Fragment, Version

log = logging.getLogger("archipelago.store")
FRAGMENTS = "fragments"


@dataclass(frozen=True, slots=True)
class Arrays:
    """One fragment of a shard, each [size] f32.

    `moments`: the mean of the islands' first moments, encoded as it was published last; None if
    there is none yet, or the run shares none.
    """

    version: Version
    master: Flat
    momentum: Flat
    public: Flat
    moments: Payload | None = None


class FragmentStore:
    """The newest versions of each fragment, one file each."""

    def __init__(self, depot: Depot, layout: Layout, *, keep: int) -> None:
        self._depot, self._layout, self._keep = depot, layout, keep

    def save(self, p: Fragment, arrays: Arrays, first: bool = False) -> None:
        """Write a version, then let go of the oldest; the `first` one of a run is kept for replay.

        Errors: `OSError` if the depot will not have it.
        """
        parts: dict[str, NDArray[Any]] = {
            "master": arrays.master,
            "momentum": arrays.momentum,
            "public": arrays.public,
        }
        if arrays.moments is not None:
            parts["moments"] = arrays.moments
        content = seal(parts, self._layout.fingerprint)
        self._depot.write(_fragment_name(p, arrays.version), *content)
        if not first:
            for old in self._files(p)[1 : -self._keep]:
                with suppress(FileNotFoundError):  # a write that was given up ends beside others
                    self._depot.remove(old)

    def forget(self, p: Fragment, version: Version) -> None:
        """Delete a version that nobody may find. Errors: `OSError`."""
        with suppress(FileNotFoundError):
            self._depot.remove(_fragment_name(p, version))

    def forget_after(self, p: Fragment, version: Version) -> None:
        """Let go of what was stored later and never published, which would take the places of what
        may be wanted back, and of what was begun.

        Errors: `OSError` if the depot will not.
        """
        for name in self._files(p):
            if _version_of(name) > version:
                self._depot.remove(name)
        self._depot.tidy(f"{FRAGMENTS}/f{p:04}-")
        self._depot.tidy(f"{contributions_of(p)}/")

    def newest(self, p: Fragment, upto: Version | None = None) -> Arrays:
        """The newest version there that is as it was written.

        Errors: `Damaged` if there is none.
        """
        for name in reversed(self._files(p)):
            if upto is not None and _version_of(name) > upto:
                continue
            try:
                return self._load(name)
            except Damaged as error:
                log.error("%s; the version before is used", error)
        raise Damaged(f"{self._depot} has no good version of fragment {p}")

    def has(self, p: Fragment, version: Version) -> bool:
        """Whether this version was stored."""
        return _fragment_name(p, version) in self._files(p)

    def load(self, p: Fragment, version: Version) -> Arrays:
        """Return this version.

        Errors: `Damaged` if it is not there, or not as it was written.
        """
        return self._load(_fragment_name(p, version))

    def oldest(self, p: Fragment) -> Arrays:
        """The first version kept.

        Errors: `Damaged`.
        """
        files = self._files(p)
        if not files:
            raise Damaged(f"{self._depot} has no version of fragment {p}")
        return self._load(files[0])

    def _load(self, name: str) -> Arrays:
        parts = unseal(self._depot, name, self._layout.fingerprint)
        public, moments = parts["public"], parts.get("moments")
        return Arrays(_version_of(name), parts["master"], parts["momentum"], public, moments)

    def _files(self, p: Fragment) -> list[str]:
        """Names of its versions, in order."""
        there = self._depot.names(FRAGMENTS)
        mine = (n for n in there if n.startswith(f"f{p:04}-") and n.endswith(SUFFIX))
        return sorted((f"{FRAGMENTS}/{name}" for name in mine), key=_version_of)


def _fragment_name(p: Fragment, version: Version) -> str:
    return f"{FRAGMENTS}/f{p:04}-g{version.generation}-v{version.number:08}{SUFFIX}"


def _version_of(name: str) -> Version:
    _, generation, number = PurePosixPath(name).stem.split("-")
    return Version(int(generation[1:]), int(number[1:]))
