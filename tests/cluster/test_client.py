"""Tests of requests to a run from another terminal, where the run cannot answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.launch.client import asking
from coordinator.errors import UserMistake


def test_client_of_another_version_gets_a_clear_error() -> None:
    """Ray's stand-in for a class that it cannot import has methods without arguments."""

    def remote(**named: object) -> None: ...

    fleet: Any = SimpleNamespace(harm=SimpleNamespace(remote=remote))
    with pytest.raises(UserMistake, match=r"it is of another version than the run's, or cannot"):
        asking(fleet)(lambda there: there.harm.remote({"kind": "kill"}))
