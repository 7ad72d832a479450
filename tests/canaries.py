"""Canary strings: a corpus that holds them, and a search for them in everything that a run leaves.

A search of plain bytes would miss compressed files and encoded text, so Arrow streams are decoded,
and the usual encodings of text are searched for as well.
"""

from __future__ import annotations

import base64
import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

CANARIES = tuple(f"canary-{number:02d}-{word}" for number, word in enumerate(
    ("quartz", "heron", "saffron", "tundra", "velvet", "walrus", "zephyr", "indigo")
))  # fmt: skip
"""Strings that occur in the corpus of one region, and nowhere else."""
LEAST = 10
"""The shortest part of a canary that counts as found, in characters."""
WORDS_PER_FILE = 400


def corpus_with_canaries(folder: Path, files: int = 6) -> Path:
    """Write text files that consist of canaries, so that every window of the corpus shows one."""
    folder.mkdir(parents=True)
    for number in range(files):
        words = (CANARIES[(number + i) % len(CANARIES)] for i in range(WORDS_PER_FILE))
        (folder / f"text-{number}.txt").write_text(" ".join(words))
    return folder


def public_corpus(folder: Path, files: int = 6) -> Path:
    """Write text files that all regions may read."""
    folder.mkdir(parents=True)
    for number in range(files):
        (folder / f"text-{number}.txt").write_text(
            f"the public text number {number} says a lot " * 150
        )
    return folder


def leaks(places: Iterable[Path | str]) -> list[str]:
    """Return each place in which a canary, or a part of one, is found, with that part.

    A place is a file, a folder with all below it, or a text.
    """
    return [
        f"{name}: {needle!r}"
        for name, content in _contents(places)
        for needle in (_first_needle(content),)
        if needle is not None
    ]


def _contents(places: Iterable[Path | str]) -> Iterator[tuple[str, bytes]]:
    for place in places:
        if isinstance(place, str):
            yield f"a text of {len(place)} characters", place.encode()
            continue
        files = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file())
        for file in files:
            yield f"the name of {file}", str(file.relative_to(place.parent)).encode()
            content = file.read_bytes()
            yield str(file), content
            for form, decoded in _decoded(content):
                yield f"{file} ({form})", decoded


def _decoded(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the contents of Arrow streams and compressed files."""
    try:
        for batch in pa.ipc.open_stream(pa.BufferReader(content)):
            yield "Arrow", repr(batch.to_pylist()).encode()
    except (pa.ArrowInvalid, OSError):
        pass  # another format, or the end of a stream that was cut off
    for form, decode in (("gzip", gzip.decompress), ("zlib", zlib.decompress)):
        try:
            yield form, decode(content)
        except (OSError, zlib.error, EOFError):
            continue


def _first_needle(content: bytes) -> str | None:
    return next((text for needle, text in NEEDLES if needle in content), None)


def _needles() -> Iterator[tuple[str, bytes]]:
    """Yield each part of a canary in each encoding."""
    for canary in CANARIES:
        for start in range(len(canary) - LEAST + 1):
            part = canary[start : start + LEAST]
            plain = part.encode()
            listed = ", ".join(map(str, plain))
            for encoded in (plain, part.encode("utf-16-le"), plain.hex().encode(), listed.encode()):
                yield part, encoded
            for offset in range(3):  # of base64, whose groups have three bytes
                whole = base64.b64encode(b"\0" * offset + plain)
                yield part, whole[-(-4 * offset // 3) + (offset > 0) : -4]


NEEDLES = tuple({needle: text for text, needle in _needles()}.items())
"""Each encoded part of a canary, with the part."""
