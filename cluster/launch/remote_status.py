"""The status of a run on this machine, through its fleet's HTTP port, without a client of Ray."""

from __future__ import annotations

import json
import urllib.request
from http.client import HTTPException
from pathlib import Path

from cluster.fleet.metrics_row import status_of_row
from cluster.status import RunStatus
from cluster.storage.runs import TARGET, TOKEN

WITHIN_S = 2.0
"""Timeout of the HTTP port, in seconds; after that the caller asks through Ray."""


def status_at(run_dir: Path) -> RunStatus | None:
    """Return the run's status; None if its port is unreachable or belongs to another run by now."""
    try:
        (target,) = json.loads((run_dir / TARGET).read_text())[0]["targets"]
        token = (run_dir / TOKEN).read_text()
        request = urllib.request.Request(
            f"http://{target}/status", headers={"Authorization": f"Bearer {token}"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=WITHIN_S) as answer:
            status = from_json(answer.read())
        return status if status["run"] == run_dir.name else None
    except (OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError):
        return None  # another service may answer there, and answer anything


def from_json(text: str | bytes) -> RunStatus:
    """Parse a status or a row of metrics.jsonl; see `status_of_row`."""
    return status_of_row(text)
