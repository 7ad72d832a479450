"""The command `archipelago data questions`, which makes sets of multiple-choice questions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archipelago.cli.options import Json, on_this_machine
from cluster.storage.files import json_text
from coordinator.errors import UserMistake


def questions(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="definitions or cloze.")],
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="A file, a folder or a glob of texts, such as /usr/share/man."
        ),
    ],
    out: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="A new file of JSON lines.", callback=on_this_machine),
    ],
    count: Annotated[
        int, typer.Option("--count", metavar="N", min=1, help="Questions to make.")
    ] = 500,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the choices.")] = 0,
    as_json: Json = False,
) -> None:
    """Make multiple-choice questions from a text, for `archipelago eval --tasks`.

    definitions: which of four descriptions is that of a name, from manual pages or from the
    docstrings of Python files. cloze: which of four words ends a sentence. Each line of OUT has
    question, choices and answer, as tasks of lm-evaluation-harness do.

    Example: archipelago data questions definitions python-stdlib definitions.jsonl
    """
    from archipelago.question_sets import QuestionKind, questions_from, text_of
    from islands.sources import DataSpec

    if kind not in (known := [*QuestionKind]):
        raise UserMistake(f"KIND = {kind!r}: not known; there are {', '.join(known)}")
    if out.exists():
        raise UserMistake(f"{out} exists already: name another file, or remove it")
    data = DataSpec(source, None, False, 1.0, 1, 0, 1)
    rows = questions_from(QuestionKind(kind), data, count, seed)
    try:
        out.write_text(text_of(rows), encoding="utf-8")
    except OSError as error:
        raise UserMistake(f"{out} cannot be written: {error.strerror}") from error
    if as_json:
        print(json_text({"out": str(out), "kind": kind, "questions": len(rows)}))
    else:
        console = Console(highlight=False, markup=False, soft_wrap=True)
        console.print(f"{out}: {len(rows):,} questions ({kind})")
