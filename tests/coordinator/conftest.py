"""A pytest option that rewrites the narrated scenarios."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-scenarios",
        action="store_true",
        help="rewrite what the rules answer in tests/coordinator/scenarios; read the diff",
    )


@pytest.fixture
def update_scenarios(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-scenarios", default=False))
