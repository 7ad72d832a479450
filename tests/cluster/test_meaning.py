"""Tests of which islands may join a run; their names become names of files and actors."""

from __future__ import annotations

import pytest

from archipelago.lab.bench.stub_learner import GROUP
from cluster.config.admission import reason_to_refuse
from cluster.config.schema import Config
from coordinator.protocol import Island, Join, Region

CONFIG = Config.model_validate(
    {
        "task": {"preset": "byte-tiny"},
        "islands": [
            {"group": "eu-west", "region": "eu", "count": 2},
            {"group": "us", "count": 1},
            {"group": GROUP, "count": 1},
        ],
    }
)


def join(island: str, group: str, region: str | None = None) -> Join:
    return Join(Island(island), group, "layout", None if region is None else Region(region))


@pytest.mark.parametrize("number", [0, 1, 7, 12345])
def test_islands_of_the_run_may_join_even_if_added_later(number: int) -> None:
    assert reason_to_refuse(CONFIG, join(f"eu-west-{number}", "eu-west", "eu")) is None
    assert reason_to_refuse(CONFIG, join(f"us-{number}", "us")) is None
    assert reason_to_refuse(CONFIG, join(f"{GROUP}-{number}.3", GROUP)) is None


@pytest.mark.parametrize(
    ("who", "why"),
    [
        (join("us", "us"), "no island's name"),
        (join("us-", "us"), "no island's name"),
        (join("us-01", "us"), "no island's name"),
        (join("us-1234567", "us"), "no island's name"),
        (join("us-\u0663", "us"), "no island's name"),
        (join("us-0\n", "us"), "no island's name"),
        (join("../us-0", "us"), "no island's name"),
        (join("u" * 100_000 + "-0", "us"), "no island's name"),
        (join("-0", ""), "no island's name"),
        (join("asia-0", "asia"), "of no group of this run, which has eu-west, us"),
        (join("eu-0", "eu", "eu"), "of no group"),
        (join("us-0", "eu-west"), "says group 'eu-west'"),
        (join("us-0", "us", "eu"), "its group's region is 'None'"),
        (join("eu-west-0", "eu-west"), "its group's region is 'eu'"),
        (join("eu-west-0", "eu-west", "us" * 100_000), "its group's region is 'eu'"),
    ],
)
def test_other_islands_are_refused_with_a_reason(who: Join, why: str) -> None:
    said = reason_to_refuse(CONFIG, who)
    assert said is not None
    assert why in said
    assert len(said) < 250
