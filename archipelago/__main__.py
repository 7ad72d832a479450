"""The entry point of `python -m archipelago`; a cluster's Python runs it and may lack packages.

It checks where our packages come from before it imports any of them: a foreign package `cluster`
that comes first on the path would end the command with an unhelpful traceback.
"""

import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

if sys.version_info < (3, 11):  # noqa: UP036 - a job runs on whatever the cluster has
    sys.exit("archipelago: Python 3.11 or newer is needed")

PACKAGES = ("archipelago", "cluster", "islands", "coordinator")
MISTAKEN = 2
"""The exit code of a user's mistake."""


def start() -> None:
    """Run the command; exit with code 2 if a package is foreign or a dependency is missing."""
    refuse_foreign()
    try:
        from archipelago.cli.main import main
    except ModuleNotFoundError as error:
        _refuse(
            f"this Python ({sys.executable}) lacks {error.name}: "
            "install archipelago's dependencies where the cluster's Ray is"
        )
    main()


def refuse_foreign() -> None:
    """Exit with code 2 if another project's package would be imported in place of one of ours."""
    if wrong := [*foreign()]:
        _refuse(*wrong)


def _refuse(message: str, *further: str) -> NoReturn:
    """Print the lines, with `--json` also as `archipelago.cli.main.error_json`, and exit with 2."""
    sys.stderr.writelines(f"archipelago: {line}\n" for line in (message, *further))
    if "--json" in sys.argv:
        print(json.dumps({"error": {"kind": "mistake", "message": message, "hints": further}}))
    sys.exit(MISTAKEN)


def foreign() -> Iterator[str]:
    """Yield a sentence for each of our packages that would not be imported from this folder."""
    ours = Path(__file__).resolve().parents[1]
    for name in PACKAGES:
        expected, spec = ours / name, find_spec(name)
        if spec is None:
            yield f"this project's package {name} is gone from {expected}: install it again"
            continue
        found = Path(next(iter(spec.submodule_search_locations or [spec.origin or ""])))
        if not (found.exists() and expected.exists() and found.samefile(expected)):
            yield (
                f"{found} is imported in place of this project's package {name} ({expected}): take "
                "it out of PYTHONPATH, rename it, or uninstall it"
            )


if __name__ == "__main__":
    start()
