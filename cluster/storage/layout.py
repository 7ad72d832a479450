"""The files `layout.json` and `layout-copy.json`: how the model of a run is cut into fragments.

Nothing else can stand in for the layout, so there are two copies of it. Either one is enough.
"""

from __future__ import annotations

import json
import logging

from cluster.storage.depot import Depot
from cluster.storage.files import json_bytes
from cluster.storage.format import Damaged
from coordinator.errors import UserMistake
from coordinator.fragments import Layout
from coordinator.tape import UnknownRecord, from_plain, to_plain

log = logging.getLogger("archipelago.depot")
LAYOUT, COPY = "layout.json", "layout-copy.json"
"""The names in the depot."""


def save_layout(depot: Depot, layout: Layout) -> None:
    """Write the layout twice, each with its fingerprint.

    Errors: `OSError`.
    """
    for name in (LAYOUT, COPY):
        _write(depot, name, layout)


def has_layout(depot: Depot) -> bool:
    """Return whether the run has begun.

    Errors: `OSError`.
    """
    return depot.has(LAYOUT) or depot.has(COPY)


def same_layout(depot: Depot, layout: Layout) -> bool:
    """Return whether this is the layout of the run; True if the run has none yet.

    Errors: `Damaged` if both files have changed since they were written.
    """
    return not has_layout(depot) or load_layout(depot) == layout


def load_layout(depot: Depot) -> Layout:
    """Return the layout of a run that has begun, from the copy if `layout.json` is lost.

    Errors: `UserMistake` if there is no run; `Damaged` if both files have changed since they were
    written, or if there is only one of them and it has; `OSError`.
    """
    try:
        return _read(depot, LAYOUT)
    except (Damaged, FileNotFoundError) as error:
        why = f"{LAYOUT} in {depot} is missing" if isinstance(error, OSError) else str(error)
        try:
            layout = _read(depot, COPY)
        except FileNotFoundError:
            if isinstance(error, Damaged):
                raise error from None
            no_run = f"is not the directory of a run that was begun: it has no {LAYOUT}"
            raise UserMistake(f"{depot} {no_run}") from None
        except Damaged as damaged:
            raise Damaged(f"{why}; {damaged}") from None
        log.warning("%s; %s is read instead", why, COPY)
        return layout


def check_layout(depot: Depot) -> list[str]:
    """Return what is wrong with either file; a run of an older version has no copy.

    Errors: `OSError`.
    """
    wrong = list[str]()
    for name in (LAYOUT, COPY):
        try:
            _read(depot, name)
        except Damaged as error:
            wrong.append(str(error))
        except FileNotFoundError:
            if name == LAYOUT:
                wrong.append(f"{name} in {depot} is missing")
    return wrong


def mended_layout(depot: Depot) -> Layout:
    """Return the layout of a run that has begun, and write again the file that is lost.

    Errors: the errors of `load_layout`.
    """
    layout = load_layout(depot)
    for name in (LAYOUT, COPY):
        try:
            _read(depot, name)
        except (Damaged, FileNotFoundError):
            _write(depot, name, layout)
            log.warning("%s in %s was damaged or missing, and is written again", name, depot)
    return layout


def _write(depot: Depot, name: str, layout: Layout) -> None:
    plain = {"fingerprint": layout.fingerprint, "layout": to_plain(layout)}
    depot.write(name, json_bytes(plain))


def _read(depot: Depot, name: str) -> Layout:
    """Return the layout of one file; `FileNotFoundError` if it is not there."""
    content = depot.read(name)
    try:
        fields = json.loads(content)
        layout, fingerprint = from_plain(Layout, fields["layout"]), fields["fingerprint"]
    except (ValueError, KeyError, TypeError, AttributeError, UnknownRecord) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise Damaged(f"{name} in {depot} cannot be read: {why}") from error
    if layout.fingerprint != fingerprint:
        raise Damaged(f"{name} in {depot} is not as it was written")
    return layout
