"""Write a corpus of a dictionary and of manuals, and questions about the part that is left out.

The dictionary is WordNet, of Debian's package `dict-wn`; the manuals are the English pages of
`manpages` and `manpages-dev`. `apt-get download` fetches them from your mirror.

    python examples/studies/prepare_questions.py build/questions
    python examples/studies/prepare_questions.py build/questions --packages FOLDER   # of .deb files

OUT/text is for training. One definition in ten, with all words that share it, and one manual page
in ten are in OUT/questions instead, and `archipelago data questions` makes two sets of them:
OUT/definitions.jsonl and OUT/cloze.jsonl.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from prepare_languages import LEAST_BYTES, call, fetch, plain_text

PACKAGES = ("dict-wn", "manpages", "manpages-dev")
DICTIONARY = Path("usr", "share", "dictd", "wn.dict.dz")
PAGES = "usr/share/man/man*/*.gz"
LEFT_OUT = 10
"""One text in this many is left out of the training text."""
ENTRIES_PER_FILE = 2_000
GLOSS = re.compile(r"^\s+(?:[a-z]+ )?1: (?P<gloss>.*)$")
END_OF_GLOSS = re.compile(r'; ?"|\s*\[(?:syn|ant|also)|; ')
HEAD = re.compile(r"^[A-Za-z][\w.+-]*$")


def definitions(text: str) -> Iterator[tuple[str, str]]:
    """Yield each single word of the dictionary with its first definition, without examples."""
    word, parts = "", list[str]()
    for line in [*text.splitlines(), "end"]:
        if not line[:1].isspace():  # the next word
            if parts and HEAD.match(word):
                yield word, END_OF_GLOSS.split(" ".join(parts), maxsplit=1)[0].strip()
            word, parts = line, []
        elif (first := GLOSS.match(line)) is not None and not parts:
            parts.append(first["gloss"])
        elif parts and not re.match(r"^\s+(?:[a-z]+ )?\d+: ", line):
            parts.append(line.strip())
        elif parts:
            parts.append("; ")  # another sense, which ends the first


def is_left_out(text: str) -> bool:
    """Return whether the hash of a text leaves it out of the training text."""
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % LEFT_OUT == 0


def write_dictionary(root: Path, out: Path) -> None:
    """Write the dictionary's words with their definitions, a line each."""
    text = gzip.decompress((root / DICTIONARY).read_bytes()).decode("utf-8", errors="replace")
    lines, left_out = list[str](), list[str]()
    for word, gloss in definitions(text):
        line = f"{word} - {gloss}\n"
        if is_left_out(gloss):
            left_out.append(f"NAME\n{line}")
        else:
            lines.append(line)
    lines.sort(key=lambda line: hashlib.sha256(line.encode()).hexdigest())  # not by the alphabet
    for number, first in enumerate(range(0, len(lines), ENTRIES_PER_FILE)):
        part = "".join(lines[first : first + ENTRIES_PER_FILE])
        (out / "text" / f"dictionary-{number:03}.txt").write_text(part, encoding="utf-8")
    (out / "questions" / "dictionary" / "left-out.txt").write_text("".join(left_out))


def write_manuals(root: Path, out: Path) -> None:
    """Write the manual pages as plain text; links to other pages are left out."""
    for path in sorted(root.glob(PAGES)):
        if path.is_symlink():
            continue
        text = plain_text(gzip.decompress(path.read_bytes()).decode("utf-8", errors="replace"))
        if len(text) < LEAST_BYTES:
            continue
        folder = Path("questions", "manuals") if is_left_out(path.stem) else Path("text")
        (out / folder / f"{path.stem}.txt").write_text(text, encoding="utf-8")


def make_questions(out: Path, count: int) -> None:
    """Make both sets with `archipelago data questions`."""
    for kind, source in (("definitions", "dictionary"), ("cloze", "manuals")):
        (target := out / f"{kind}.jsonl").unlink(missing_ok=True)
        given = [kind, str(out / "questions" / source), str(target), "--count", str(count)]
        call(["archipelago", "data", "questions", *given], Path.cwd())
        print(f"{target}: {repeated(target, out / 'text')} of them are in the training text, too")


def repeated(questions: Path, texts: Path) -> int:
    """Return how many questions are in the training text, each with its right answer."""
    text = " ".join(" ".join(each.read_text("utf-8").split()) for each in texts.iterdir())
    rows = map(json.loads, questions.read_text("utf-8").splitlines())
    return sum(f"{row['question']} {row['choices'][row['answer']]}" in text for row in rows)


def main() -> None:
    """Read the command line, and write corpus and questions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="a new folder, or one of this script")
    parser.add_argument("--packages", type=Path, help="folder with the .deb files")
    parser.add_argument("--count", type=int, default=1_000, help="questions of each set")
    given = parser.parse_args()
    for name in ("text", "questions/dictionary", "questions/manuals"):
        (given.out / name).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        fetch(PACKAGES, given.packages, Path(folder))
        write_dictionary(Path(folder), given.out)
        write_manuals(Path(folder), given.out)
    size = sum(path.stat().st_size for path in (given.out / "text").iterdir())
    print(f"{given.out / 'text'}: {size / 1e6:.2f} MB")
    make_questions(given.out, given.count)


if __name__ == "__main__":
    main()
