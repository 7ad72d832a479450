"""A link to the live page of a run on this machine, from the run's HTTP port."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path

from cluster.launch.remote_status import WITHIN_S
from cluster.status import RunStatus
from cluster.storage.runs import TARGET, TOKEN
from coordinator.errors import UserMistake

FAILURES = (OSError, HTTPException, ValueError, LookupError, TypeError)
"""Errors of a port that is closed, or that belongs to another service."""


def page_link(run_dir: Path) -> str:
    """Return a new link to the page, which a browser can open once.

    Errors: `UserMistake` if the run has no port that answers.
    """
    try:
        (target,) = json.loads((run_dir / TARGET).read_text())[0]["targets"]
        token = (run_dir / TOKEN).read_text()
        request = urllib.request.Request(
            f"http://{target}/link", headers={"Authorization": f"Bearer {token}"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=WITHIN_S) as answer:
            link: object = json.loads(answer.read())["link"]
    except FAILURES as error:
        raise UserMistake(
            f"run {run_dir} has no page at present: its port does not answer ({error}); is the run "
            "live, and is monitor.metrics on?"
        ) from error
    return str(link)


def announced(
    show: Callable[[RunStatus], None], run_dir: Path, page: Callable[[str], None] | None
) -> Callable[[RunStatus], None]:
    """Return a function that shows a status, and passes a link to `page` once there is one."""
    waiting = page

    def both(status: RunStatus) -> None:
        nonlocal waiting
        if waiting is not None:
            try:
                link = page_link(run_dir)
            except UserMistake:  # the port is not open yet
                pass
            else:
                waiting(link)
                waiting = None
        show(status)

    return both
