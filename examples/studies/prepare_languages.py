"""Write the manual pages of Debian in six languages as plain text: one folder for each language.

The pages come from Debian's packages `manpages-de`, `manpages-es` and so on, which `apt-get
download` fetches from your mirror. All folders get about the same number of bytes, so that no
language weighs more than another.

    python examples/studies/prepare_languages.py build/languages
    python examples/studies/prepare_languages.py build/languages --packages FOLDER   # of .deb files
"""

from __future__ import annotations

import argparse
import gzip
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

LANGUAGES = ("de", "es", "fr", "ja", "pl", "ru")
LEAST_BYTES = 500
"""The shortest page that is kept; shorter ones only name another page."""
COMMENT = re.compile(r'^[.\']\\"')
MACRO = re.compile(r"^[.']\s*([A-Za-z]+)\s*(.*)$")
SILENT = frozenset((
    "TH", "de", "ds", "nr", "ie", "if", "el", "ig", "ft", "ad", "na", "nh", "hy", "ne",
    "sp", "br", "fi", "nf", "in", "ti", "ta", "so", "TS", "TE", "PP", "P", "LP", "RS",
    "RE", "TP", "IP",
))  # fmt: skip
"""Requests and macros whose arguments are no text."""
ESCAPES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\\f(\[[^]]*\]|\(..|.)"), ""),
    (re.compile(r"\\s[-+]?\d+"), ""),
    (re.compile(r"\\[*n](\[[^]]*\]|\(..|.)"), ""),
    (re.compile(r"\\\((co|rq|lq|aq|dq|em|en|bu)"), " "),
    (re.compile(r"\\\(.."), ""),
    (re.compile(r"\\\[[^]]*\]"), ""),
    (re.compile(r"\\-"), "-"),
    (re.compile(r"\\[&|^/,:%cd]"), ""),
    (re.compile(r"\\e"), r"\\"),
    (re.compile(r"\\(.)"), r"\1"),
)


def plain_text(page: str) -> str:
    """Return the text of a page in troff, without requests, macros and escapes."""
    lines: list[str] = []
    in_definition = False
    for line in page.splitlines():
        if in_definition:
            in_definition = line.strip() != ".."
            continue
        if COMMENT.match(line):
            continue
        text = line
        if (macro := MACRO.match(line)) is not None:
            in_definition = macro[1] == "de"
            text = "" if macro[1] in SILENT else macro[2].replace('"', "")
        elif line.startswith((".", "'")):
            text = ""
        for pattern, instead in ESCAPES:
            text = pattern.sub(instead, text)
        lines.append(text.strip())
    return re.sub(r"\n{2,}", "\n\n", "\n".join(lines)).strip() + "\n"


def pages_of(root: Path, language: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each page of a language below `root`, by name."""
    folder = root / "usr" / "share" / "man" / language
    for path in sorted(folder.glob("man*/*.gz")):
        if path.is_symlink():
            continue
        text = plain_text(gzip.decompress(path.read_bytes()).decode("utf-8", errors="replace"))
        if len(text.encode()) >= LEAST_BYTES:
            yield path.stem, text


def write_languages(root: Path, out: Path, most_bytes: int) -> dict[str, int]:
    """Write each language to a folder of its own; return its bytes.

    All languages get as many bytes as the smallest one has, and at most `most_bytes`, to a page.

    Errors: `SystemExit` if a language has no page.
    """
    found = {each: [*pages_of(root, each)] for each in LANGUAGES}
    if missing := [each for each, pages in found.items() if not pages]:
        sys.exit(f"no page was found for {', '.join(missing)}: are their packages in the folder?")
    sizes = {each: sum(len(text.encode()) for _, text in pages) for each, pages in found.items()}
    budget, written = min(most_bytes, *sizes.values()), dict[str, int]()
    for language, pages in found.items():
        (folder := out / language).mkdir(parents=True, exist_ok=True)
        total = 0
        for name, text in pages:
            if total >= budget:
                break
            content = text.encode()
            (folder / f"{name}.txt").write_bytes(content)
            total += len(content)
        written[language] = total
    return written


def fetch(names: Sequence[str], packages: Path | None, root: Path) -> None:
    """Unpack Debian packages below `root`; download them if no folder is given.

    Errors: `SystemExit` if a package is missing or cannot be unpacked.
    """
    folder = root if packages is None else packages.resolve()
    if packages is None:
        call(["apt-get", "download", *names], root)
    for name in names:
        files = sorted(folder.glob(f"{name}_*.deb"))
        if not files:
            sys.exit(f"{folder} has no {name}_*.deb: fetch it with `apt-get download {name}`")
        call(["dpkg-deb", "-x", str(files[-1]), str(root)], root)


def call(command: Sequence[str], folder: Path) -> None:
    """Run a command in a folder.

    Errors: `SystemExit` if it fails.
    """
    try:
        subprocess.run(command, cwd=folder, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"`{' '.join(command[:2])}` failed: {error}")


def main() -> None:
    """Read the command line, and write the languages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder that gets a folder for each language")
    parser.add_argument("--packages", type=Path, help="folder with the .deb files")
    parser.add_argument("--most-mb", type=float, default=4.0, help="largest size of a language")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fetch([f"manpages-{language}" for language in LANGUAGES], arguments.packages, Path(folder))
        written = write_languages(Path(folder), arguments.out, int(arguments.most_mb * 1e6))
    for language, size in written.items():
        print(f"{arguments.out / language}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
