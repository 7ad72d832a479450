"""The first module of the `archipelago` command, which checks the origin of the packages.

No other project has a module of this name. If a foreign package `archipelago` comes first on the
path, it cannot report that itself: the command would end with an unhelpful traceback. So this
module loads `archipelago/__main__.py` from its own folder, which checks all packages.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def main() -> None:
    """Run the command, or refuse with the path of a foreign package and exit code 2."""
    entry = Path(__file__).resolve().parent / "archipelago" / "__main__.py"
    if not entry.is_file():
        sys.exit(f"archipelago: {entry} is gone: install this project again")
    spec = spec_from_file_location("archipelago_start", entry)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.start()
