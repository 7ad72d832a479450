"""Explore the shells from the command line: `python -m tests.shells --for 60`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.shells.explore import explore, fresh_seed, shells


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore each shell for its share of the time; return 1 if there is a finding, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.shells", description=main.__doc__)
    parser.add_argument("--for", dest="for_s", type=float, default=60.0, help="seconds in all")
    parser.add_argument("--only", action="append", help="a shell's name (can be repeated)")
    parser.add_argument("--first", type=int, help="the first seed; without it, a fresh one")
    parser.add_argument("--count", type=int, help="so many schedules each, however long they take")
    options = parser.parse_args(arguments)
    if options.count is not None and options.count < 1:
        parser.error("--count must be 1 or more")
    known = shells()
    if unknown := set(options.only or ()) - known.keys():
        parser.error(f"no shell {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    names = options.only or [*known]
    first = fresh_seed() if options.first is None else options.first
    found = False
    for name in names:
        explored = explore(
            name, known[name], first=first, for_s=options.for_s / len(names), count=options.count
        )
        print(explored, flush=True)
        if explored.finding is not None:
            found = True
            print(explored.finding, file=sys.stderr, flush=True)
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
