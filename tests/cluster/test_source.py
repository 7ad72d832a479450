"""Tests of the digest of a user's code: it covers the code and its own imports, at any path."""

from __future__ import annotations

import shutil
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from cluster import source
from cluster.source import user_sha256

MINE = """
import json
import numpy as np
from helper import something
def task(data):
    import later
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folder of the user's modules, first on the path."""
    own = tmp_path / "own"
    (own / "package" / "deep").mkdir(parents=True)
    for name, content in {
        "mine.py": MINE,
        "helper.py": "something = 1",
        "later.py": "import mine",
        "unused.py": "",
        "package/__init__.py": "",
        "package/deep/er.py": "from ..other import x",
        "package/other.py": "import helper",
    }.items():
        (own / name).write_text(content)
    monkeypatch.syspath_prepend(str(own))
    return own


def sha256(target: str | None = "mine:task") -> str:
    """Return the digest as a new process computes it."""
    user_sha256.cache_clear()
    return user_sha256(target)


def change(file: Path) -> None:
    file.write_text(file.read_text() + "# changed\n")


@pytest.mark.parametrize("name", ["mine.py", "helper.py", "later.py"])
def test_digest_covers_imports_by_name(folder: Path, name: str) -> None:
    before = sha256()
    assert before == sha256()
    change(folder / name)
    assert sha256() != before


def test_digest_ignores_what_is_not_imported(folder: Path) -> None:
    before = sha256()
    change(folder / "unused.py")
    change(folder / "package/other.py")
    assert sha256() == before


@pytest.mark.parametrize("name", ["package/other.py", "package/deep/er.py", "helper.py"])
def test_digest_covers_the_whole_package(folder: Path, name: str) -> None:
    before = sha256("package.deep.er:task")
    change(folder / name)
    assert sha256("package.deep.er:task") != before


def test_copy_elsewhere_has_the_same_digest(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray unpacks a working directory where it likes, and never twice in one place."""
    before = sha256("package:task"), sha256()
    shutil.copytree(folder, tmp_path / "unpacked")
    shutil.rmtree(folder)
    monkeypatch.syspath_prepend(str(tmp_path / "unpacked"))
    assert (sha256("package:task"), sha256()) == before


def test_renamed_file_changes_the_digest(folder: Path) -> None:
    before = sha256("package:task")
    (folder / "package/other.py").rename(folder / "package/others.py")
    assert sha256("package:task") != before


INSTALLED = ("optax:adam", "jax.nn:relu", "typing_extensions:Any", "json:loads", None)


def test_installed_packages_are_not_read() -> None:
    """Reading JAX and all that it imports would take seconds."""
    began_s = time.process_time()
    assert {sha256(target) for target in INSTALLED} == {""}
    assert time.process_time() - began_s < 1
    installed = Path(sysconfig.get_path("purelib"))
    assert not source._is_own(installed / "optax" / "__init__.py")
    assert not source._is_own(Path("/somewhere/lib/python3/dist-packages/mine.py"))


def test_digest_imports_nothing_and_accepts_missing_modules(folder: Path) -> None:
    (folder / "broken.py").write_text("raise ZeroDivisionError")
    (folder / "wrong.py").write_text("this is no Python")
    (folder / "loose").mkdir()
    (folder / "loose" / "part.py").write_text("import wrong, not_there")
    said = {sha256(f"{name}:task") for name in ("broken", "wrong", "loose.part", "not_there")}
    assert len(said) == 4
    assert sha256("not_there:task") == ""
    assert not {"broken", "wrong", "loose", "mine", "package"} & set(sys.modules)
