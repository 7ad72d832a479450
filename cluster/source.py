"""Which source a process runs, so that a node with a stale copy is refused."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("coordinator", "islands", "cluster")


@cache
def source_sha256() -> str:
    """Of all Python files of the three packages, as found where they are imported from."""
    digest = hashlib.sha256()
    for package, root in package_roots().items():
        for file in sorted(root.rglob("*.py")):
            digest.update(f"{package}/{file.relative_to(root)}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def package_roots() -> dict[str, Path]:
    """The three packages' folders, as found where they are imported from."""
    roots: dict[str, Path] = {}
    for package in PACKAGES:
        spec = find_spec(package)
        assert spec is not None, f"{package} is not installed"
        (roots[package],) = map(Path, spec.submodule_search_locations or ())
    return roots
