"""The file `layout.json`: how the model of a run is cut into fragments."""

from __future__ import annotations

import json

from cluster.storage.depot import Depot
from cluster.storage.files import json_bytes
from cluster.storage.format import Damaged
from coordinator.errors import UserMistake
from coordinator.fragments import Layout
from coordinator.tape import UnknownRecord, from_plain, to_plain

LAYOUT = "layout.json"
"""The name in the depot."""


def save_layout(depot: Depot, layout: Layout) -> None:
    """Write the layout, with its fingerprint.

    Errors: `OSError`.
    """
    plain = {"fingerprint": layout.fingerprint, "layout": to_plain(layout)}
    depot.write(LAYOUT, json_bytes(plain))


def same_layout(depot: Depot, layout: Layout) -> bool:
    """Return whether this is the layout of the run; True if the run has none yet.

    Errors: `Damaged` if the file has changed since it was written.
    """
    return not depot.has(LAYOUT) or load_layout(depot) == layout


def load_layout(depot: Depot) -> Layout:
    """Return the layout of a run that has begun.

    Errors: `UserMistake` if there is no run; `Damaged` if the file has changed since it was
    written.
    """
    try:
        fields = json.loads(depot.read(LAYOUT))
        layout, fingerprint = from_plain(Layout, fields["layout"]), fields["fingerprint"]
    except FileNotFoundError as error:
        why = f"is not the directory of a run that was begun: it has no {LAYOUT}"
        raise UserMistake(f"{depot} {why}") from error
    except (ValueError, KeyError, TypeError, AttributeError, UnknownRecord) as error:
        raise Damaged(f"{LAYOUT} in {depot} cannot be read: {error}") from error
    if layout.fingerprint != fingerprint:
        raise Damaged(f"{LAYOUT} in {depot} is not as it was written")
    return layout
