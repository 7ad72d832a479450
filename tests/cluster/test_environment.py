"""Tests of the environment variables of the processes that compute."""

from __future__ import annotations

import pytest

from cluster.config.schema import IslandGroup
from cluster.workers.environment import environment_of


@pytest.mark.parametrize(
    ("resources", "platforms"), [({"CPU": 1.0}, "cpu"), ({"GPU": 1.0}, ""), ({"TPU": 4.0}, "")]
)
def test_island_uses_its_accelerator_whatever_its_starter_uses(
    resources: dict[str, float], platforms: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terminal's process sets JAX_PLATFORMS=cpu, and Ray's processes inherit it."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert environment_of(IslandGroup(resources=resources))["JAX_PLATFORMS"] == platforms
