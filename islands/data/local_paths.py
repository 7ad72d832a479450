"""Places to write to, which are on this machine: an address of a bucket would become a folder."""

from __future__ import annotations

import re
from pathlib import Path

from coordinator.errors import UserMistake

ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)
"""An address, also after `Path` has joined its two slashes."""
COPIES = {
    "s3": "aws s3 cp --recursive",
    "gs": "gcloud storage cp --recursive",
    "gcs": "gcloud storage cp --recursive",
}
"""The command that copies a folder to the addresses of a scheme."""


def address_problem(given: Path | str) -> str:
    """Return why nothing can be written to this place; empty if it is on this machine.

    The text does not have the options of an address, which may hold a secret.
    """
    if (found := ADDRESS.fullmatch(str(given))) is None:
        return ""
    scheme, rest = found[1].lower(), found[2].partition("?")[0]
    if scheme == "file":
        return f"file:// is no path: write /{rest}"
    wanted = f"{scheme}://{rest}"
    command = COPIES.get(scheme, "the tools of that storage")
    how = f"`{command} FOLDER {wanted}`" if scheme in COPIES else command
    return (
        f"{wanted} is not on this machine, and would become a folder named {found[1]}: here: write "
        f"to a local folder, then copy it there with {how}"
    )


def local_path(name: str, given: Path | str) -> Path:
    """Return a path of this machine.

    `name`: the option or argument, for a message.

    Errors: `UserMistake` if it is an address.
    """
    if problem := address_problem(given):
        raise UserMistake(f"{name}: {problem}")
    return Path(given)
