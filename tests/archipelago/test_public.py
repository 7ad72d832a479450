"""The public package: all names exist, imports are light, shipped files equal the repository's."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import archipelago

ROOT = Path(__file__).parents[2]
INIT = ROOT / "archipelago" / "__init__.py"
HEAVY = {"jax", "ray", "pydantic", "numpy", "pyarrow", "optax", "typer"}


@pytest.mark.parametrize("name", archipelago.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(archipelago, name) is not None
    assert name in dir(archipelago)


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = archipelago.nothing  # type: ignore[attr-defined]


def test_type_checkers_and_the_interpreter_see_the_same_names() -> None:
    """The names under TYPE_CHECKING, the table of lazy imports and `__all__` are equal."""
    tree = ast.parse(INIT.read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == archipelago._DEFINED
    assert {*typed, "__version__"} == {*archipelago.__all__}


def test_importing_the_package_imports_nothing_heavy() -> None:
    script = "import sys, archipelago; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert not HEAVY & {name.partition(".")[0] for name in done.stdout.split()}


def test_importing_a_task_type_needs_no_ray() -> None:
    script = "import sys, archipelago; archipelago.Task, archipelago.Stream; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert "ray" not in {name.partition(".")[0] for name in done.stdout.split()}


def content(folder: Path, pattern: str = "*") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob(pattern) if path.is_file()}


def test_shipped_configurations_are_those_of_the_repository() -> None:
    """A configuration that names a module of the examples is only there, beside its module."""
    modules = {Path(name).stem for name in content(ROOT / "archipelago" / "examples", "*.py")}
    shipped = content(ROOT / "archipelago" / "examples", "*.toml")
    alone = {name: text for name, text in shipped.items() if Path(name).stem not in modules}
    assert alone == content(ROOT / "examples")
