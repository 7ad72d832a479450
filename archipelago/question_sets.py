"""Multiple-choice questions made from text that a machine has: definitions and cloze.

    definitions   the name of a thing, and four descriptions, of which one is its own; from manual
                  pages (`name - description`) or from the docstrings of Python files
    cloze         a sentence without its last word, and four words that end sentences of the text

Wrong choices are right ones of other questions with nearly the same length, so that the length does
not give the answer away. The same source, count and seed make the same file.
"""

from __future__ import annotations

import ast
import glob
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

import numpy as np

from cluster.storage.files import json_text
from coordinator.errors import SourceMistake, UserMistake
from islands.data.buckets import SourceFile
from islands.sources import DataSpec, root_and_files

CHOICES = 4
"""Choices of each question."""
POOL = 10
"""Candidates for each question after which no further file is read."""
NEIGHBOURS = 40
"""Candidates of nearly the same length that wrong choices are drawn from."""
LONGEST_TEXT, SHORTEST_TEXT = 160, 12
"""Bounds of a definition, in characters."""
WORDS = range(8, 31)
"""Words of a sentence for a cloze question."""
LEAST_WORD = 4
"""The shortest word that is left out, in letters."""
GZIP = ".gz"
MANUAL = re.compile(r"^(?P<name>[A-Za-z][\w.+:-]*)(?:, [^ ]+)* (?:\\-|-|\\\(em) (?P<text>\S.*)$")
"""The line of a manual page below its heading NAME."""
ROFF = re.compile(r"\\f[BIRP]|\\-|\\&")
SENTENCE = re.compile(r"(?<=[.!?])\s+")


class QuestionKind(StrEnum):
    """The kind of a set of questions."""

    DEFINITIONS = "definitions"
    CLOZE = "cloze"


def questions_from(
    kind: QuestionKind, data: DataSpec, count: int, seed: int
) -> list[dict[str, object]]:
    """Return questions as rows of a file.

    Errors: `UserMistake` if the source has too few of them.
    """
    make = _definitions if kind is QuestionKind.DEFINITIONS else _blanks
    pairs, files = dict[str, str](), _files(data)
    rng = np.random.default_rng(seed)
    for number in rng.permutation(len(files)).tolist():
        for name, text in make(_text_of(files[number])):
            pairs.setdefault(name, text)
        if len(pairs) >= POOL * count:
            break
    answers = sorted({*pairs.values()}, key=lambda text: (len(text), text))
    if len(answers) <= CHOICES or len(pairs) < count:
        raise UserMistake(
            f"the source has {len(pairs):,} {kind}, and {max(count, CHOICES + 1):,} are needed: "
            "name a larger source, or ask for fewer"
        )
    place = {text: number for number, text in enumerate(answers)}
    chosen = rng.choice(len(pairs), count, replace=False)
    names = [*pairs]
    return [_row(names[n], pairs[names[n]], answers, place, rng) for n in chosen.tolist()]


def text_of(rows: Sequence[dict[str, object]]) -> str:
    """Return rows as JSON lines."""
    return "".join(f"{json_text(row)}\n" for row in rows)


def _row(
    question: str,
    right: str,
    answers: Sequence[str],
    place: dict[str, int],
    rng: np.random.Generator,
) -> dict[str, object]:
    """Return a question with its choices in a random order."""
    here = place[right]
    start = max(0, min(here - NEIGHBOURS // 2, len(answers) - NEIGHBOURS - 1))
    near = [text for text in answers[start : start + NEIGHBOURS + 1] if text != right]
    wrong = [near[n] for n in rng.choice(len(near), CHOICES - 1, replace=False)]
    answer = int(rng.integers(CHOICES))
    choices = [*wrong[:answer], right, *wrong[answer:]]
    return {"question": question, "choices": choices, "answer": answer}


def _files(data: DataSpec) -> Sequence[SourceFile]:
    """Return the files of a source: texts, and files that are packed by gzip, as manual pages are.

    Errors: `UserMistake` if there are none.
    """
    given, packed = Path(data.source).expanduser(), list[Path]()
    if given.is_dir():
        packed = sorted(given.rglob(f"*{GZIP}"))
    elif given.is_file():
        packed = [given] if given.suffix == GZIP else []
    elif glob.has_magic(data.source):
        found = map(Path, glob.glob(str(given), recursive=True))
        packed = sorted(path for path in found if path.suffix == GZIP)
    try:
        return [*root_and_files(data)[1], *packed]
    except SourceMistake:
        if not packed:
            raise
        return packed


def _text_of(file: SourceFile) -> str:
    """Return the text of a file, unpacked if it is gzip; empty if it cannot be read as text."""
    try:
        with file.open("rb") as stream:
            content = stream.read()
        if file.suffix == GZIP:
            content = gzip.decompress(content)
        return content.decode()
    except (OSError, EOFError, UnicodeDecodeError, zlib.error):
        return ""


def _definitions(text: str) -> Iterator[tuple[str, str]]:
    """Yield names with their descriptions, from a manual page or a Python file."""
    lines = text.splitlines()
    for heading, line in pairwise(lines):
        if heading.strip().strip('"') in (".SH NAME", '.SH "NAME', ".Sh NAME", "NAME"):
            plain = ROFF.sub(lambda found: "-" if found.group() == "\\-" else "", line).strip()
            if (match := MANUAL.match(plain)) and _fits(found := match["text"].strip()):
                yield f"{match['name']} -", found
    if "def " not in text and "class " not in text:
        return
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (doc := ast.get_docstring(node)):
            first = doc.splitlines()[0].strip()
            if _fits(first) and not node.name.startswith("_"):
                yield f"{node.name}:", first


def _fits(text: str) -> bool:
    return SHORTEST_TEXT <= len(text) <= LONGEST_TEXT


def _blanks(text: str) -> Iterator[tuple[str, str]]:
    """Yield the beginnings of sentences with their last words."""
    for paragraph in re.split(r"\n\s*\n", text):
        plain = " ".join(paragraph.split())
        for sentence in SENTENCE.split(plain):
            words = sentence.rstrip(".!?").split(" ")
            last = words[-1]
            if (
                len(words) in WORDS
                and len(last) >= LEAST_WORD
                and last.isalpha()
                and last.islower()
                and sentence[-1] in ".!?"
            ):
                yield " ".join(words[:-1]), last
