"""A guard against other packages with our names, which would replace ours or mix with them.

A process imports `cluster` from the first folder of `sys.path` that has it, and the workers of Ray
search the current folder first. A user's own package `cluster` would therefore end a run with a
traceback that explains nothing. `intruders` finds such packages before anything is started.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path

from cluster.source import ALL_PACKAGES

DISTRIBUTION = "archipelago-diloco"
"""The name under which pip installs this project."""
OURS = Path(__file__).resolve().parents[1]
"""The folder that contains our packages."""


def intruders(folders: Iterable[Path] = (), *, ours: Path = OURS) -> list[str]:
    """Return one sentence for each package that shadows or overwrites ours; empty if there is none.

    `folders`: folders that the processes of a run search before the installed packages, in addition
    to those that this process searches. `ours`: the folder that contains our packages.
    """
    found: dict[str, None] = {}
    for folder in dict.fromkeys([Path.cwd(), *folders, *_in_front(ours)]):
        for name in ALL_PACKAGES:
            if (path := _package_in(folder, name)) is not None and not _same(path, ours / name):
                found[
                    f"{path} is in front of this project's package {name}: rename it, or start in "
                    "another folder"
                ] = None
    for name in ALL_PACKAGES:
        location = _imported_from(name)
        if location is not None and not _same(location, ours / name):
            found.setdefault(
                f"{location} is imported in place of this project's package {name}: take it out of "
                "PYTHONPATH, or uninstall it"
            )
    found |= dict.fromkeys(_overwritten(ours))
    return [*found]


def _in_front(ours: Path) -> Iterator[Path]:
    """Yield the folders that this process searches before ours."""
    for entry in map(Path, sys.path):
        if _same(entry, ours):
            return
        if entry.is_dir():
            yield entry


def _package_in(folder: Path, name: str) -> Path | None:
    """Return the module or package of this name in a folder; None if there is neither.

    A folder without `__init__.py` does not count: Python prefers our package, wherever it is.
    """
    if (folder / name / "__init__.py").is_file():
        return folder / name
    return module if (module := folder / f"{name}.py").is_file() else None


def _imported_from(name: str) -> Path | None:
    """Return the file or folder from which a package would be imported; None if there is none."""
    spec = find_spec(name)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return None if spec.origin is None else Path(spec.origin)


def _same(one: Path, other: Path) -> bool:
    """Return whether both paths exist and are the same file or folder."""
    return one.exists() and other.exists() and one.samefile(other)


def _overwritten(ours: Path) -> Iterator[str]:
    """Yield a sentence for each of our packages of which another package has overwritten a file.

    An installed distribution records the digest of each of its files. A source tree has no such
    record, and nothing can be installed over it.
    """
    record = _record_of(ours)
    for name in ALL_PACKAGES:
        files = (file for file in record if file.endswith(".py") and file.startswith(f"{name}/"))
        changed = next((file for file in files if _differs(ours / file, record[file])), None)
        if changed is None:
            continue
        owners = sorted(_owners_of(changed, ours))
        culprit = f" by {' and '.join(owners)}" if owners else ""
        yield (
            f"{ours / changed} was overwritten{culprit}: uninstall what installed it, then install "
            "this project again, best in an environment of its own"
        )


def _differs(path: Path, digest: str) -> bool:
    """Return whether a file is there and has another digest, in the form of pip's records."""
    if not path.is_file():
        return False
    found = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest())
    return found.rstrip(b"=").decode() != digest


def _record_of(ours: Path) -> dict[str, str]:
    """Return the digests of our installed files by path, as pip recorded them; empty if none."""
    for each in distributions(name=DISTRIBUTION, path=[str(ours)]):
        return {str(file): file.hash.value for file in each.files or () if file.hash}
    return {}


def _owners_of(file: str, ours: Path) -> set[str]:
    """Return the other distributions that have installed this file."""

    def has_it(each: Distribution) -> bool:
        return file in {str(found) for found in each.files or ()}

    others = (each for each in distributions(path=[str(ours)]) if each.name != DISTRIBUTION)
    return {each.name for each in others if has_it(each)}
