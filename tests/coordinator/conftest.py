"""Hypothesis' profile for the rules, and the option that rewrites the narrated scenarios."""

from __future__ import annotations

import pytest
from hypothesis import settings

# Two busy cores make a deadline a matter of luck; the blob repeats a failure without the database.
settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-scenarios",
        action="store_true",
        help="rewrite what the rules answer in tests/coordinator/scenarios; read the diff",
    )


@pytest.fixture
def update_scenarios(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-scenarios", default=False))
