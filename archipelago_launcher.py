"""The first module of the `archipelago` command, which checks the origin of the packages.

No other project has a module of this name. If a foreign package `archipelago` or `cluster` comes
first on the path, it cannot report that itself: the command would end with an unhelpful traceback.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("archipelago", "cluster", "islands", "coordinator")
MISTAKEN = 2
"""The exit code of a user's mistake."""


def main() -> None:
    """Run the command, or refuse with the path of a foreign package and exit code 2."""
    if wrong := [line for name in PACKAGES if (line := _foreign(name)) is not None]:
        sys.stderr.writelines(f"archipelago: {line}\n" for line in wrong)
        sys.exit(MISTAKEN)
    from archipelago.__main__ import start

    start()


def _foreign(name: str) -> str | None:
    """Return why the package of this name that would be imported is not ours; None if it is."""
    expected = Path(__file__).resolve().parent / name
    spec = find_spec(name)
    if spec is None:
        return f"this project's package {name} is gone from {expected}: install it again"
    found = Path(next(iter(spec.submodule_search_locations or [spec.origin or ""])))
    if found.exists() and expected.exists() and found.samefile(expected):
        return None
    return (
        f"{found} is imported in place of this project's package {name} ({expected}): take it out "
        "of PYTHONPATH, rename it, or uninstall it"
    )
