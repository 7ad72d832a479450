"""The extras of this project: optional packages, and the command that installs them.

This project is not on PyPI, so an extra is installed in a clone of the repository.
"""

from __future__ import annotations


def install_command(extra: str) -> str:
    """Return a phrase with the command that installs an extra of `pyproject.toml`, such as "hf"."""
    return f"in a clone of Archipelago, run pip install -c constraints.txt '.[{extra}]'"
