"""Tests that foreign packages with our names are found before their import, with their path."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from archipelago.child_process import START
from cluster.package_guard import DISTRIBUTION, intruders
from cluster.source import ALL_PACKAGES, PACKAGES

ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_empty_folder_has_no_intruders(here: Path) -> None:
    assert intruders() == []


@pytest.mark.parametrize("name", ALL_PACKAGES)
@pytest.mark.parametrize("form", ["{}/__init__.py", "{}.py"])
def test_package_in_the_current_folder_is_found(here: Path, name: str, form: str) -> None:
    path = here / form.format(name)
    path.parent.mkdir(exist_ok=True)
    path.touch()
    (found,) = intruders()
    there = path.parent if path.name == "__init__.py" else path
    assert found.startswith(f"{there} is in front of this project's package {name}: ")


def test_folder_without_init_is_no_package(here: Path) -> None:
    (here / "cluster").mkdir()
    (here / "cluster" / "nodes.txt").touch()
    assert intruders() == []


def test_our_own_packages_are_no_intruders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert intruders() == []


def installed(site: Path, name: str, files: Mapping[str, str]) -> None:
    """Install a distribution as pip does: its files, and their digests in RECORD."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    rows: list[str] = []
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        rows.append(f"{path},sha256={digest.decode()},{len(text)}\n")
    (info / "RECORD").write_text("".join(rows))


def test_package_installed_over_ours_is_found(here: Path) -> None:
    site = here / "site"
    installed(site, DISTRIBUTION, {f"{name}/__init__.py": "ours" for name in ALL_PACKAGES})
    assert [found for found in intruders(ours=site) if "was overwritten" in found] == []
    installed(site, "hierarchical", {"cluster/__init__.py": "theirs", "cluster/util.py": ""})
    (found,) = [found for found in intruders(ours=site) if "was overwritten" in found]
    assert f"{site}/cluster/__init__.py was overwritten by hierarchical: uninstall" in found


def test_module_installed_over_ours_is_found(here: Path) -> None:
    """The `__init__.py` of both packages may be equal, for example empty."""
    site = here / "site"
    files = {f"{name}/__init__.py": "" for name in ALL_PACKAGES} | {"cluster/names.py": "ours"}
    installed(site, DISTRIBUTION, files)
    installed(site, "hierarchical", {"cluster/__init__.py": "", "cluster/names.py": "theirs"})
    (found,) = [found for found in intruders(ours=site) if "was overwritten" in found]
    assert f"{site}/cluster/names.py was overwritten by hierarchical: uninstall" in found


def ended(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    plain = {"PATH": os.environ["PATH"], "HOME": str(folder), "JAX_PLATFORMS": "cpu", **env}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=plain, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


COMMAND = ("-c", "import archipelago_launcher; archipelago_launcher.main()", "--help")
MODULE = ("-m", "archipelago", "--help")
CHILD = ("-c", START)
LIBRARY = ("-c", "import archipelago; archipelago.Run")


def foreign_package(folder: Path, name: str) -> Path:
    package = folder / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('the foreign package was imported')\n")
    return package


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        *((COMMAND, name) for name in ALL_PACKAGES),
        *((entry, name) for entry in (MODULE, CHILD, LIBRARY) for name in PACKAGES),
    ],
)
def test_entry_refuses_a_package_in_front_of_ours(
    tmp_path: Path, arguments: tuple[str, ...], name: str
) -> None:
    """Without the check, the foreign package would be imported and end in a traceback.

    A foreign `archipelago` is the one that `python -m archipelago` starts; only the installed
    command can refuse it.
    """
    found = foreign_package(tmp_path / "foreign", name)
    done = ended(tmp_path, *arguments, PYTHONPATH=f"{found.parent}{os.pathsep}{ROOT}")
    assert done.returncode == (1 if arguments is LIBRARY else 2), done
    start = "ImportError: " if arguments is LIBRARY else "archipelago: "
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"{start}{found} is imported in place of this project's package {name}")


DEMO = str(ROOT / "examples/demo.toml")


@pytest.mark.parametrize(
    "arguments",
    [["demo"], ["run", DEMO], ["submit", DEMO, "--address", "http://127.0.0.1:1"]],
    ids=lambda arguments: arguments[0],
)
def test_run_is_refused_in_a_folder_with_such_a_package(
    tmp_path: Path, arguments: list[str]
) -> None:
    """The workers of Ray search the current folder first, even if this process does not."""
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "__init__.py").touch()
    script = "import archipelago_launcher, sys; sys.path.remove(''); archipelago_launcher.main()"
    done = ended(tmp_path, "-c", script, *arguments, PYTHONPATH=str(ROOT))
    assert done.returncode == 2, done
    assert f"archipelago: {tmp_path}/cluster is in front of this project's package" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["cluster"], "nothing was started"
