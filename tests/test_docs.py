"""Statements of the documents about the code are true, and modules follow the style.

Where a table points to code, a cell has `path/file.py: Class.method, function` or `path/file.py`
`function`; each file is imported, and each name is looked up in it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from cluster.config.fault_kinds import FAULTS

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("coordinator", "islands", "cluster", "archipelago")
WRITTEN_LATER = {
    "config.toml",
    "CONFIG.toml",
    "CLUSTER.toml",
    "STUDY.toml",
    "PLAN.toml",
    "use.py",
    "runs/second-chances.txt",
}
"""Files that a page names and that a run, CI or the reader writes."""
FOLDERS = (*PACKAGES, "tests", "docs", "examples", "dashboards", "deploy")

ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "AGENTS.md")

Place = tuple[str, str]
"""A file and a name in it; an empty name means the file itself."""


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of each row of the table in which `heading` is a column."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    tables = [i for i, line in enumerate(lines) if heading in cells_of(line)]
    assert len(tables) == 1, f"{page} has {len(tables)} tables with a column {heading!r}"
    found: list[list[str]] = []
    for line in lines[tables[0] + 2 :]:
        if not line.startswith("|"):
            break
        found.append(cells_of(line))
    return found


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []


def places(cell: str) -> list[Place]:
    """Return the places that a cell points to."""
    found: list[Place] = []
    file = ""
    for span in re.findall(r"`([^`]+)`", cell):
        path, _, names = span.partition(": ")
        if path.endswith(".py"):
            file = path
        else:
            names = span
        assert file, f"{span!r} comes before any file, in {cell!r}"
        found += [(file, name.strip()) for name in names.split(",")]
    assert found, f"{cell!r} points to nothing"
    return found


def found_in(module: ModuleType, name: str) -> bool:
    """Return whether a module has this name, such as `Class.method`, or a field without default."""
    thing: object = module
    for part in name.split("."):
        if part in getattr(thing, "__annotations__", {}) and not hasattr(thing, part):
            return part == name.rpartition(".")[2]
        if not hasattr(thing, part):
            return False
        thing = getattr(thing, part)
    return True


def missing(column: list[str]) -> list[Place]:
    """Return the places in these cells that do not exist."""
    lost: list[Place] = []
    for file, name in (place for cell in column for place in places(cell)):
        if not (ROOT / file).is_file():
            lost.append((file, ""))
        elif name:
            module = import_module(file.removesuffix(".py").replace("/", "."))
            lost += [] if found_in(module, name) else [(file, name)]
    return lost


def test_walk_points_to_existing_code() -> None:
    table = rows("docs/explanation/architecture.md", "question")
    assert len(table) >= 30
    assert not missing([row[-1] for row in table])


NAMES = r"(`[A-Za-z_.]+`(?:(?:,| and| or)\s+`[A-Za-z_.]+`)*)"
FILE = r"`((?:\w+/)+\w+\.py)`"


def spans_of_the_walk(prose: str) -> list[str]:
    """Return cells for `places` from a text: `f` in `p.py`, `f` (`p.py`, or (`p.py`, `f`."""
    before = re.findall(rf"{NAMES}(?:\s+in|\s+\(|,)\s*{FILE}", prose)
    behind = [(names, file) for file, names in re.findall(rf"{FILE},\s+{NAMES}", prose)]
    pairs = [(re.findall(r"[\w.]+", re.sub(r" (or|and) ", " ", n)), f) for n, f in before + behind]
    return [
        f"`{file}: {name}`" for names, file in pairs for name in names if not name.endswith(".py")
    ]


def walk() -> str:
    """Return the text of the walk through the code, before its table."""
    page = ROOT / "docs/explanation/architecture.md"
    return page.read_text(encoding="utf-8").partition("## Where to look")[0]


def test_walk_names_code_beside_the_right_file() -> None:
    cells = spans_of_the_walk(walk())
    assert len(cells) >= 30
    assert not missing(cells)


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("(`f` in\n `a/b.py`)", ["`a/b.py: f`"]),
        ("The `F.f` (`a/b.py`, `g` or `h`)", ["`a/b.py: F.f`", "`a/b.py: g`", "`a/b.py: h`"]),
        ("(`F.f`, `a/b.py`)", ["`a/b.py: F.f`"]),
        ("(`a/b.py`, `c.py`) in `d`", []),
    ],
)
def test_names_beside_files_are_read(text: str, cells: list[str]) -> None:
    assert spans_of_the_walk(text) == cells


def test_glossary_is_sorted_and_points_to_existing_code() -> None:
    table = rows("docs/reference/glossary.md", "word")
    assert all(len(row) == 4 and all(row) for row in table)
    words = [row[0] for row in table]
    assert words == sorted(words, key=str.casefold), "a glossary is in the order of the alphabet"
    assert not missing([row[-1] for row in table])


@pytest.mark.parametrize(
    ("cell", "lost"),
    [
        ("`cluster/fleet/reconcile.py` `reconcile`, `Hold.ASIDE`", []),
        ("`cluster/fleet/reconcile.py: reconcile, Holding.island`", []),
        ("`cluster/config/schema.py: SyncConfig.every`", []),
        ("`cluster/fleet/steward.py: Fleet`", [("cluster/fleet/steward.py", "")]),
        ("`cluster/names.py: Seat, seats`", [("cluster/names.py", "seats")]),
        ("`cluster/names.py` `Seat.every`", [("cluster/names.py", "Seat.every")]),
    ],
)
def test_missing_places_are_detected(cell: str, lost: list[Place]) -> None:
    assert missing([cell]) == lost


def modules(package: str) -> list[Path]:
    """Return every module, except `__init__` and templates."""
    paths = sorted((ROOT / package).rglob("*.py"))
    return [
        p for p in paths if p.name != "__init__.py" and not {"templates", "examples"} & {*p.parts}
    ]


def told_in(package: Path) -> set[str]:
    """Return the modules with a line in a package's docstring: `    name   what it holds`."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text()), clean=False)
    return set(re.findall(r"^ {4}(\w+) {2,}\S", text or "", re.MULTILINE))


@pytest.mark.parametrize("package", PACKAGES)
def test_package_docstring_lists_every_module(package: str) -> None:
    for path in modules(package):
        if path.stem != "__main__":
            assert path.stem in told_in(path.parent), f"{path.relative_to(ROOT)} is not listed"
    for init in (ROOT / package).rglob("__init__.py"):
        gone = told_in(init.parent) - {path.stem for path in init.parent.glob("*.py")}
        assert not gone, f"{init.parent.name} has no {gone}"


def test_agents_page_lists_every_package() -> None:
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    block = text.partition("## Where things are")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)/`", block))
    assert set(PACKAGES) <= named
    assert not [name for name in named if not [*ROOT.glob(f"**/{name}")]]


def pages() -> list[Path]:
    return [ROOT / name for name in ROOT_PAGES] + [*sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_file_named_on_a_page_exists(page: Path) -> None:
    """Links are relative to the page; a name in the text is a path from the root, or its end."""
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    assert not [link for link in links if not (page.parent / link).exists()]
    named = re.findall(r"`([\w./-]+\.(?:py|md|toml|txt))`", text)
    for name in {*named} - WRITTEN_LATER:
        assert any(f"/{path}".endswith(f"/{name}") for path in files()), name


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs/tutorial").glob("*.md")), ids=lambda p: p.stem
)
def test_every_tutorial_sets_the_path(page: Path) -> None:
    """A reader may begin any tutorial in a new terminal."""
    assert re.search(r'export PATH="\$PWD/[./]*\.venv/bin:\$PATH"', page.read_text("utf-8"))


@cache
def files() -> frozenset[str]:
    inside = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*"))
    return frozenset(path.relative_to(ROOT).as_posix() for path in (*inside, *ROOT.glob("*.*")))


def test_walk_mentions_only_existing_names() -> None:
    """Names outside of tables must exist too, so that renamed functions are noticed."""
    known = {
        word
        for package in PACKAGES
        for path in modules(package)
        for word in {path.stem, *re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    }
    names = re.findall(r"`([A-Za-z_]+(?:\.[A-Za-z_]+)*)`", walk())
    assert not {
        name for name in names if not name.endswith(".py") and not {*name.split(".")} <= known
    }


def test_fault_table_lists_every_kind() -> None:
    """Each kind has its possible victims, as in `FAULTS`."""
    table = {row[0].strip("`"): set(re.findall(r"[a-z]+", row[2])) for row in faults()}
    known = {
        kind.value: {name.partition("-")[0] for name in row.services}
        | ({"island"} if row.islands else set[str]())
        for kind, row in FAULTS.items()
    }
    assert table == known


def faults() -> list[list[str]]:
    return rows("docs/howto/inject-faults.md", "targets")


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every docstring with its line, including the docstrings of attributes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Expr(ast.Constant(str() as text)):
                yield node.lineno, text
            case _:
                pass


@pytest.mark.parametrize("package", [*PACKAGES, "tests"])
def test_docstrings_do_not_begin_with_dots(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in docstrings(path)
        if text.lstrip().startswith(("...", "…"))
    ]
    assert not found
