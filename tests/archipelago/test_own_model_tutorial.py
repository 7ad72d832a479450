"""The tutorial "Your own model": its diff applies, is short, and gives a configuration to run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial" / "own-model.md"
MOST_CHANGED_LINES = 15


def blocks(language: str) -> list[str]:
    """Return the code blocks of the page in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)


def script() -> str:
    return blocks("python")[0]


def changed_lines(diff: str) -> list[str]:
    """Return the added and removed lines of a unified diff, blank ones included."""
    return [line for line in diff.splitlines() if re.match(r"[+-](?!\+\+ |-- )", line)]


def patched(files: dict[str, str], diff: str) -> dict[str, str]:
    """Return the files after a unified diff, as `patch` without fuzz would write them.

    Errors: `ValueError` if a line of the diff is not that of the file.
    """
    written = dict(files)
    for part in re.split(r"^--- .*\n\+\+\+ ", diff, flags=re.M)[1:]:
        name, _, hunks = part.partition("\n")
        before = files.get(name, "").splitlines()
        after, position = list[str](), 0
        for hunk in re.split(r"^@@ -(\d+),(\d+) \+\d+,\d+ @@\n", hunks, flags=re.M)[1:][2::3]:
            start = _place(before, position, hunk)
            after += before[position:start]
            position = start
            for line in hunk.splitlines():
                kind, text = line[:1] or " ", line[1:]
                if kind in " -":
                    if before[position] != text:
                        raise ValueError(f"{name}:{position + 1} is {before[position]!r}: {text!r}")
                    position += 1
                if kind in " +":
                    after.append(text)
        written[name] = "\n".join([*after, *before[position:]]) + "\n"
    return written


def _place(before: list[str], position: int, hunk: str) -> int:
    """Return the line at which the old lines of a hunk begin."""
    old = [line[1:] for line in hunk.splitlines() if line[:1] != "+"]
    for start in range(position, len(before) - len(old) + 1):
        if before[start : start + len(old)] == old:
            return start
    raise ValueError(f"no place for {old}")


def numbered(diff: str) -> list[tuple[int, int, str]]:
    """Return first line and number of old lines of each hunk, and its text."""
    found = re.split(r"^@@ -(\d+),(\d+) \+\d+,\d+ @@\n", diff, flags=re.M)
    return [
        (int(first), int(count), text)
        for first, count, text in zip(found[1::3], found[2::3], found[3::3], strict=True)
    ]


def test_at_most_fifteen_lines_change() -> None:
    (diff,) = blocks("diff")
    assert 0 < len(changed_lines(diff)) <= MOST_CHANGED_LINES
    assert not [line for line in changed_lines(diff) if line.startswith("-")]


def test_numbers_of_the_hunks_are_right() -> None:
    """`patch` needs them, and they lead a reader to the lines."""
    (diff,) = blocks("diff")
    lines = script().splitlines()
    for first, count, text in numbered(diff):
        hunk = text.partition("--- ")[0]
        old = [line[1:] for line in hunk.splitlines() if line[:1] != "+"]
        assert len(old) == count
        assert lines[max(0, first - 1) : max(0, first - 1) + count] == old


def test_a_diff_of_another_script_is_refused() -> None:
    (diff,) = blocks("diff")
    with pytest.raises(ValueError, match="no place for"):
        patched({"train.py": script().replace("import jax\n", "import jax as j\n")}, diff)


@pytest.mark.slow
def test_patched_script_is_a_run_that_is_accepted(tmp_path: Path) -> None:
    """The task is built, traced and cut as in a run, in a process of its own."""
    (diff,) = blocks("diff")
    for name, text in patched({"train.py": script()}, diff).items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "archipelago", "run", "run.toml", "--check"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    parameters = 64 * 128 + 128 + 128 * 10
    assert f"train:task, {parameters:,} parameters" in done.stdout
    page, lines = PAGE.read_text("utf-8"), done.stdout.splitlines()
    for title in ("train", "model", "data", "islands"):
        (line,) = [line for line in lines if line.startswith(f"{title} ")]
        assert f"\n{line}\n" in page
    assert done.stdout.splitlines()[-1] == "no problem was found, and nothing was started"
