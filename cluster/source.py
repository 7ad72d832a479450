"""Which source a process runs, ours and the user's, so that a stale or changed copy is refused."""

from __future__ import annotations

import ast
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("coordinator", "islands", "cluster")
"""The packages of which a run consists: its fingerprint covers these."""
ALL_PACKAGES = (*PACKAGES, "archipelago")
"""The packages that this project installs, and that a job of a cluster brings along."""


@cache
def source_sha256() -> str:
    """Of all Python files of the three packages, as found where they are imported from."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        root = package_roots()[package]
        for file in sorted(root.rglob("*.py")):
            digest.update(f"{package}/{file.relative_to(root)}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def package_roots() -> dict[str, Path]:
    """Return the folders of all our packages, as found where they are imported from."""
    roots: dict[str, Path] = {}
    for package in ALL_PACKAGES:
        spec = find_spec(package)
        assert spec is not None, f"{package} is not installed"
        (roots[package],) = map(Path, spec.submodule_search_locations or ())
    return roots


# --- the user's -----------------------------------------------------------------------------------


@cache
def user_sha256(target: str | None) -> str:
    """Of what "module:attribute" names, whole packages, and of all that it imports by name, as far
    as that is the user's own; empty if nothing of it is. To be asked before it is imported.

    Not of what is installed, nor of Python's own: of that a version is known. By names and bytes,
    wherever it lies. Nothing is imported, and what is not to be found is left to the import.
    """
    if target is None:
        return ""
    digest, todo, done = hashlib.sha256(), {_top(target.partition(":")[0])}, set[str]()
    found: dict[str, bytes] = {}
    while todo:
        done.add(name := todo.pop())
        for path, content in _files_of(name):
            found[path] = content
            todo |= _imported_by(content) - done
    for path, content in sorted(found.items()):
        digest.update(f"{path}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16] if found else ""


def _top(module: str) -> str:
    return module.partition(".")[0]


def _files_of(name: str) -> Iterator[tuple[str, bytes]]:
    """Python files of a module or package of the user's, called from where it is found."""
    if name in ALL_PACKAGES or name in sys.stdlib_module_names:
        return
    try:
        if (spec := find_spec(name)) is None:
            return
    except ValueError:  # something of that name was made at run time
        return
    if spec.submodule_search_locations is None:
        if spec.origin is not None and _is_own(file := Path(spec.origin)) and file.is_file():
            yield file.name, file.read_bytes()
        return
    for location in map(Path, spec.submodule_search_locations):
        if not _is_own(location):
            continue
        for folder, below, files in os.walk(location):
            below[:] = [each for each in below if not each.startswith((".", "__pycache__"))]
            for file in (Path(folder, each) for each in files if each.endswith(".py")):
                yield f"{name}/{file.relative_to(location).as_posix()}", file.read_bytes()


def _is_own(path: Path) -> bool:
    """Is it neither installed nor part of Python?"""
    installed = [sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")]
    apart = {"site-packages", "dist-packages"} & set(path.parts)
    return not apart and not any(path.is_relative_to(each) for each in installed)


def _imported_by(content: bytes) -> set[str]:
    """First parts of the names of modules that it imports, wherever in it."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # whoever imports it will say so
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {_top(each.name) for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(_top(node.module))
    return names
