"""Fingerprints of the source that a process runs, so that a stale or changed copy is refused.

There is one for our own packages, and one for the user's code.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from islands.pickled_task import digest_of

PACKAGES = ("coordinator", "islands", "cluster")
"""The packages of which a run consists; `source_sha256` covers these."""
ALL_PACKAGES = (*PACKAGES, "archipelago")
"""The packages that this project installs, and that a submitted job sends along."""


@cache
def source_sha256() -> str:
    """Return a digest of all Python files of `PACKAGES`, as they are imported (16 hex digits)."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        root = package_roots()[package]
        for file in sorted(root.rglob("*.py")):
            digest.update(f"{package}/{file.relative_to(root)}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def package_roots() -> dict[str, Path]:
    """Return the folders of all our packages, from where they are imported."""
    roots: dict[str, Path] = {}
    for package in ALL_PACKAGES:
        spec = find_spec(package)
        assert spec is not None, f"{package} is not installed"
        (roots[package],) = map(Path, spec.submodule_search_locations or ())
    return roots


# --- the user's code ------------------------------------------------------------------------------


def learner_sha256(code: Mapping[str, str], pickled: Mapping[str, str]) -> str:
    """Return a digest of the user's code that an island runs.

    `code`: targets by their keys in the configuration. `pickled`: functions by the keys of their
    targets; such a function counts with its pickle, and its target is only a name.
    """
    rest = user_sha256(*(target for key, target in code.items() if key not in pickled))
    if not pickled:
        return rest
    digest = " ".join(digest_of(pickled[key]) for key in sorted(pickled))
    if len(pickled) > 1:
        digest = hashlib.sha256(digest.encode()).hexdigest()[:16]
    return hashlib.sha256(f"{digest} {rest}".encode()).hexdigest()[:16] if rest else digest


@cache
def target_sha256(target: str) -> str:
    """Return a digest of the code behind one target, ours included (16 hex digits).

    For the user's own code this is `user_sha256`. For a module of an installed package, such as a
    shipped example, it is the digest of that module alone. The digest is empty if there is no such
    source; the import reports that.
    """
    if own := user_sha256(target):
        return own
    try:
        spec = find_spec(target.partition(":")[0])  # imports the package that holds the module
    except (ImportError, ValueError):
        return ""
    file = None if spec is None or spec.origin is None else Path(spec.origin)
    if file is None or not file.is_file():
        return ""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


@cache
def user_sha256(*targets: str | None) -> str:
    """Return a digest of the user's own code behind targets, "module:attribute" (16 hex digits).

    The digest covers the whole package that each target names, and every module of the user's that
    the code imports by name. Call this before a target is imported. Targets of None do not count.
    The digest is empty if nothing behind them is the user's own.

    Installed packages and Python's own modules are left out: their versions are known. File names
    and bytes count, not the folder that they are in. Nothing is imported. A module that cannot be
    found is left to the import to report.
    """
    digest, done = hashlib.sha256(), set[str]()
    pending = {_top(target.partition(":")[0]) for target in targets if target is not None}
    found: dict[str, bytes] = {}
    while pending:
        done.add(name := pending.pop())
        for path, content in _files_of(name):
            found[path] = content
            pending |= _imported_by(content) - done
    for path, content in sorted(found.items()):
        digest.update(f"{path}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16] if found else ""


def _top(module: str) -> str:
    """Return the first part of a dotted module name."""
    return module.partition(".")[0]


def _files_of(name: str) -> Iterator[tuple[str, bytes]]:
    """Yield the relative path and content of each Python file of one of the user's packages."""
    if name in ALL_PACKAGES or name in sys.stdlib_module_names:
        return
    try:
        if (spec := find_spec(name)) is None:
            return
    except ValueError:  # the module of that name was made at run time
        return
    if spec.submodule_search_locations is None:
        if spec.origin is not None and _is_own(file := Path(spec.origin)) and file.is_file():
            yield file.name, file.read_bytes()
        return
    for location in map(Path, spec.submodule_search_locations):
        if not _is_own(location):
            continue
        for folder, subfolders, files in os.walk(location):
            subfolders[:] = [
                each for each in subfolders if not each.startswith((".", "__pycache__"))
            ]
            for file in (Path(folder, each) for each in files if each.endswith(".py")):
                yield f"{name}/{file.relative_to(location).as_posix()}", file.read_bytes()


def _is_own(path: Path) -> bool:
    """Return whether a path is neither installed nor part of Python."""
    installed = [sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")]
    package_folders = {"site-packages", "dist-packages"} & set(path.parts)
    return not package_folders and not any(path.is_relative_to(each) for each in installed)


def _imported_by(content: bytes) -> set[str]:
    """Return the first parts of the names of all modules that this source imports, at any depth."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # the import itself will report it
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {_top(each.name) for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(_top(node.module))
    return names
