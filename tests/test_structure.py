"""The structure of the source: sizes, import cycles, and class names with one meaning."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("archipelago", "cluster", "islands", "coordinator")
LONGEST_MODULE, LONGEST_CLASS = 300, 200
LONG_MODULES = {"coordinator/protocol.py"}
"""The vocabulary of the protocol stays in one module, whatever its length."""


@cache
def trees() -> dict[str, tuple[str, ast.Module]]:
    """Return each module's path, with its text and its syntax tree."""
    found: dict[str, tuple[str, ast.Module]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if not {"templates", "examples"} & {*path.parts}:
                text = path.read_text(encoding="utf-8")
                found[path.relative_to(ROOT).as_posix()] = text, ast.parse(text)
    return found


def test_no_module_is_too_long() -> None:
    lines = {name: len(text.splitlines()) for name, (text, _) in trees().items()}
    long = {name: n for name, n in lines.items() if n > LONGEST_MODULE}
    assert long.keys() == LONG_MODULES, long


def test_no_class_is_too_long() -> None:
    long = {
        f"{name}: {node.name}": length
        for name, (_, tree) in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > LONGEST_CLASS
    }
    assert not long


LONGEST_ACTOR = 150
LONG_ACTORS = {"hosts": 153, "island": 172, "shard": 186, "syncer": 196}
"""The lines of actors that are longer; each may only shrink, and none may be added."""


def test_actors_are_thin() -> None:
    lines = {
        Path(name).parent.name: len(text.splitlines())
        for name, (text, _) in trees().items()
        if name.startswith("cluster/actors/") and name.endswith("/actor.py")
    }
    assert lines.keys() > LONG_ACTORS.keys()
    long = {name: n for name, n in lines.items() if n > LONGEST_ACTOR}
    assert long == LONG_ACTORS, "a lower number is written down, a higher one is a mistake"


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports() -> dict[str, set[str]]:
    """Return our modules that each module imports, anywhere in its code."""
    modules = {module_of(path) for path in trees()}
    found: dict[str, set[str]] = {}
    for path, (_, tree) in trees().items():
        names: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                below = {f"{node.module}.{alias.name}" for alias in node.names}
                names |= (below & modules) or {node.module}
        found[module_of(path)] = names & modules - {module_of(path)}
    return found


def circles(edges: dict[str, set[str]]) -> Iterator[set[str]]:
    """Yield each import cycle (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> Iterator[set[str]]:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in edges[name]:
            if other not in index:
                yield from visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = set(stack[stack.index(name) :])
            del stack[stack.index(name) :]
            if len(group) > 1:
                yield group

    for name in edges:
        if name not in index:
            yield from visit(name)


def test_no_import_cycles() -> None:
    assert not [*circles(imports())]


def test_import_cycle_is_found() -> None:
    assert [*circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()})] == [{"b", "c"}]


TWO_MEANINGS: dict[str, int] = {}
"""Public class names with several meanings, and their number; this table may only shrink."""


def aliases(tree: ast.Module) -> Iterator[str]:
    """Yield the names of a module that are written like classes: type aliases and new types."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if name[0].isupper() and not name.isupper():
                    yield name
            case _:
                pass


def test_public_class_names_are_unique() -> None:
    """No other class and no type alias has the name of a class."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    classes: set[str] = set()
    for path, (_, tree) in trees().items():
        own = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        classes |= {name for name in own if not name.startswith("_")}
        for name in (*own, *aliases(tree)):
            places[name].append(path)
    several = {name: len(places[name]) for name in classes if len(places[name]) > 1}
    assert several == TWO_MEANINGS, {name: places[name] for name in several}


def test_aliases_are_found() -> None:
    text = "A: TypeAlias = int\nBatch: TypeAlias = Any\nIsland = NewType('Island', str)\nMOST = 3\n"
    assert [*aliases(ast.parse(text))] == ["Batch", "Island"]


# --- bounds on private access in tests ------------------------------------------------------

PRIVATE_BOUND, REPLACED_BOUND, SLEEPS_BOUND = 124, 182, 61
"""The uses of private names, replaced parts of ours and sleep in tests; each may only fall."""


def calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    """Yield the calls of a function or method of this name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            if getattr(called, "attr", getattr(called, "id", None)) == name:
                yield node


def test_tests_stay_within_bounds_on_private_access_and_sleeps() -> None:
    private = replaced = sleeps = 0
    for path in sorted((ROOT / "tests").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                private += not own and not node.attr.startswith("__")
        replaced += len([*calls(tree, "setattr")]) + len([*calls(tree, "patch")])
        sleeps += len([*calls(tree, "sleep")])
    assert (private, replaced, sleeps) == (PRIVATE_BOUND, REPLACED_BOUND, SLEEPS_BOUND), (
        "a lower number is written down, a higher one is a mistake"
    )
