"""The Makefile accepts the Pythons that `pyproject.toml` names, and refuses all others at once."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PYTHON = """#!/bin/sh
# A Python that reports another version, and cannot make environments.
case "$1" in -V) echo "Python {version}"; exit ;; esac
exec '{real}' -c 'import sys; sys.version_info = ({numbers}); sys.modules["venv"] = None
exec(sys.argv[1])' "$2"
"""
REFUSED = "Python 3.11 to 3.13 is needed"


def install_with(version: str, folder: Path) -> str:
    """Return the errors of `make install` with a Python of this version."""
    python = folder / "python"
    numbers = version.replace(".", ", ")
    python.write_text(PYTHON.format(version=version, numbers=numbers, real=sys.executable))
    python.chmod(0o755)
    words = ["make", "install", f"PYTHON={python}", f"VENV={folder / 'environment'}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert not (folder / "environment").exists()
    return done.stderr


@pytest.mark.parametrize("version", ["3.10.9", "3.14.0", "4.0.0"])
def test_python_outside_the_range_is_refused(version: str, tmp_path: Path) -> None:
    assert f"{REFUSED} and {tmp_path}/python is Python {version}" in install_with(version, tmp_path)


@pytest.mark.parametrize("version", ["3.11.0", "3.13.9"])
def test_python_of_the_range_is_accepted(version: str, tmp_path: Path) -> None:
    """The next check fails instead: this Python cannot make environments."""
    said = install_with(version, tmp_path)
    assert REFUSED not in said
    assert "cannot make virtual environments" in said


def test_metadata_and_pages_name_the_same_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == ">=3.11,<3.14"
    minors = [each.rpartition(" ")[2] for each in project["classifiers"] if "Python :: 3." in each]
    assert minors == ["3.11", "3.12", "3.13"]
    for page in ("README.md", "docs/tutorial/first-run.md", "docs/tutorial/own-model.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert re.search(r"Python\s3\.11\sto\s3\.13", text), page
