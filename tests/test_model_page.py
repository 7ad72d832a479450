"""The page of the models lists every preset and option with its present values."""

from __future__ import annotations

import ast
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

from archipelago.cli.formatting import amount
from islands.gemma import spec as spec_module
from islands.gemma.costs import counted
from islands.gemma.hf_config import IMPLEMENTED
from islands.gemma.presets import PRESETS
from islands.gemma.spec import GLOBAL, GemmaSpec

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "reference" / "models.md").read_text("utf-8")


def preset_row(name: str, spec: GemmaSpec) -> str:
    counts, whole = counted(spec), spec.heads_of(GLOBAL)
    cells = [
        f"`{name}`", spec.generation, amount(counts.total), amount(counts.active), spec.layers,
        spec.width, spec.hidden, spec.heads, f"{spec.kv_heads} / {whole.keys}",
        f"{spec.head_size} / {whole.size}", spec.window, f"{spec.vocabulary:,}",
    ]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def option_rows() -> list[str]:
    """Return a row for each field, with the first line of its documentation."""
    tree = ast.parse(Path(str(spec_module.__file__)).read_text("utf-8"))
    (body,) = (n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "GemmaSpec")
    rows = list[str]()
    for field, text in pairwise(body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name), annotation=kind),
                ast.Expr(value=ast.Constant(value=str(doc))),
            ):
                rows.append(f"| `{name}` | {ast.unparse(kind)} | {doc.splitlines()[0]} |")
            case _:
                pass
    return rows


def test_page_lists_every_preset_and_no_other() -> None:
    wanted = [preset_row(name, spec) for name, spec in PRESETS.items()]
    found = [line for line in PAGE.splitlines() if line.startswith("| `gemma-")]
    assert found == wanted


def test_page_lists_every_option() -> None:
    rows = option_rows()
    assert len(rows) == len(fields(GemmaSpec))
    lines = PAGE.splitlines()
    assert [line for line in lines if line in {*rows}] == rows


def test_page_lists_the_fields_with_one_implemented_value() -> None:
    names = {*IMPLEMENTED} - {"is_encoder_decoder"}
    assert all(f"| `{name}` |" in PAGE for name in names)
