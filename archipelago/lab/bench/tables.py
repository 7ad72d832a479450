"""The table writer of `make bench`: it runs benchmarks and updates docs/lab/benchmarks.md.

A table stands between `<!-- bench merge --threads 2 -->` and `<!-- end -->`; the words after
`bench` are the arguments of the command that makes it. `python -m archipelago.lab.bench.tables FILE
[NAME ...]` writes the tables of the named benchmarks, or all tables.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from archipelago.lab.bench.goals import GOALS, Goal, verdict
from archipelago.lab.bench.stats import finished
from coordinator.errors import RunFailed

BenchFigures: TypeAlias = Mapping[str, object]
"""The figures of a benchmark by name; `rows`, if present, is a list of further such mappings."""

TABLE = re.compile(r"<!-- bench (?P<command>[^\n]*?) -->\n.*?<!-- end -->", re.DOTALL)
"""The pattern of one table in the document, with the `command` that makes it."""
NO_GOALS: Mapping[str, Goal] = MappingProxyType({})
"""The goals of a benchmark that has none."""
VERSIONS = ("ray", "jax", "numpy", "numba")
"""The libraries whose versions are written beside the figures."""


def rewrite(text: str, names: Iterable[str], run: Callable[[str], BenchFigures]) -> Iterator[str]:
    """Run the named benchmarks, or all, and yield the whole document after each one.

    The document is yielded each time so that a failing benchmark does not cost the earlier figures.
    """
    wanted = {*names}
    for command in [found["command"] for found in TABLE.finditer(text)]:
        if wanted and shlex.split(command)[0] not in wanted:
            continue
        caption = f"`archipelago bench {command} --json`, {where()}:"
        goals = GOALS.get(shlex.split(command)[0], {})
        lines = [
            f"<!-- bench {command} -->",
            caption,
            "",
            *table(run(command), goals),
            "<!-- end -->",
        ]
        block = "\n".join(lines)
        text = TABLE.sub(lambda old, c=command, b=block: b if old["command"] == c else old[0], text)
        yield text


def table(figures: BenchFigures, goals: Mapping[str, Goal] = NO_GOALS) -> Iterator[str]:
    """Yield the lines of a Markdown table of a benchmark's figures.

    Each figure has its interval and, if it has a goal, whether that is reached. A second table has
    the `rows`, if there are any.
    """
    plain = {name: value for name, value in figures.items() if name != "rows"}
    yield from ("| figure | value | interval | goal |", "|---|---|---|---|")
    for name, value in plain.items():
        if not name.endswith(("_low", "_high")):
            goal = goals.get(name)
            judgement = "" if goal is None else f"{goal}: **{verdict(goal, name, plain)}**"
            yield f"| `{name}` | {_figure_text(value)} | {_interval(name, plain)} | {judgement} |"
    rows = figures.get("rows")
    if isinstance(rows, list) and rows:
        heads = [name for name in rows[0] if not name.endswith(("_low", "_high"))]
        yield ""
        yield f"| {' | '.join(heads)} |"
        yield "|---" * len(heads) + "|"
        for row in rows:
            cells = [
                " ".join(filter(None, (_figure_text(row[h]), _interval(h, row)))) for h in heads
            ]
            yield f"| {' | '.join(cells)} |"


def _figure_text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _interval(name: str, figures: BenchFigures) -> str:
    if (low := figures.get(f"{name}_low")) is None:
        return ""
    return f"({_figure_text(low)} to {_figure_text(figures[f'{name}_high'])})"


def where() -> str:
    """Return the date, the machine and the versions that belong to a figure."""
    cpus = os.cpu_count()
    libraries = ", ".join(f"{name} {version(name)}" for name in VERSIONS)
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {cpus} cores ({_processor()}), "
        f"Python {platform.python_version()}, {libraries}"
    )


def _processor() -> str:
    try:
        described = Path("/proc/cpuinfo").read_text()
    except OSError:
        described = ""
    found = re.search(r"^model name\s*: (.*)$", described, re.MULTILINE)
    return found[1] if found else platform.machine()


def _run(command: str) -> BenchFigures:
    """Run `archipelago bench COMMAND --json`, and return its figures. Errors: `RunFailed`."""
    print(f"archipelago bench {command} ...", flush=True)
    argv = [sys.executable, "-m", "archipelago", "bench", *shlex.split(command), "--json"]
    done = finished(argv)
    if done.returncode != 0:
        raise RunFailed(f"archipelago bench {command} ended with {done.returncode}")
    return json.loads(done.stdout)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    for newer in rewrite(path.read_text(), sys.argv[2:], _run):
        path.write_text(newer)
