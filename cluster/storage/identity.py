"""The file `identity.json`: a unique name of the run, which its fragment files carry.

The file has a checksum. If it is lost or damaged, only the comparison is skipped, so that it can
never keep a run from its own fragments.
"""

from __future__ import annotations

import hashlib
import json
import logging
from uuid import uuid4

from cluster.storage.depot import Depot
from cluster.storage.files import json_text

log = logging.getLogger("archipelago.store")
IDENTITY = "identity.json"
"""The name in the depot."""


def identity_of(depot: Depot) -> str:
    """Return the run's identity; empty if there is none, or none that can be read."""
    try:
        fields = json.loads(depot.read(IDENTITY))
        run, digest = str(fields["run"]), fields["sha256"]
    except FileNotFoundError:
        return ""
    except (ValueError, KeyError, TypeError) as error:
        log.warning("%s is ignored: %r", IDENTITY, error)
        return ""
    if digest != _digest(run):
        log.warning("%s is ignored: it is not as it was written", IDENTITY)
        return ""
    return run


def have_identity(depot: Depot) -> str:
    """Return the identity of a run that begins; create one if there is none yet.

    Errors: `OSError` if the depot does not accept it.
    """
    run = uuid4().hex
    depot.claim(IDENTITY, json_text({"run": run, "sha256": _digest(run)}).encode())
    return identity_of(depot)


def _digest(run: str) -> str:
    return hashlib.sha256(run.encode()).hexdigest()
