"""Tests of `run.forbid`: a run refuses the commands that it names, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.config.schema import Harm
from coordinator.errors import UserMistake
from tests.cluster.test_controller import FINISHED, FakeCluster, at_once, config_of, fleet_of, seen

assert at_once, "a fixture that is used by its name alone"
KILL = Harm.model_validate({"kind": "kill", "island": "eu-0"})


def test_forbidden_commands_are_refused_and_change_nothing(tmp_path: Path) -> None:
    config = config_of(run={"name": "safe", "forbid": ["chaos", "stop"]})
    cluster = FakeCluster(config)
    fleet = fleet_of(config, cluster, tmp_path / "safe")

    def attacked() -> object:
        with pytest.raises(UserMistake, match=r"run safe forbids chaos \(run.forbid\); resume it"):
            fleet.harm(KILL)
        with pytest.raises(UserMistake, match=r"run safe forbids stop .* `ray job stop safe`"):
            fleet.stop("archipelago stop", by_command=True)
        return seen(eu_0="live", eu_1="live")()

    both = seen(eu_0="live", eu_1="live")
    cluster.script = [seen(), seen(), both, attacked, both, FINISHED]  # pyright: ignore[reportAttributeAccessIssue]
    fleet.keep()
    assert (cluster.heard("kill"), cluster.heard("stop")) == ([], [])


def test_process_that_follows_a_run_ends_it_all_the_same(tmp_path: Path) -> None:
    config = config_of(run={"forbid": ["stop"]})
    cluster = FakeCluster(config)
    fleet = fleet_of(config, cluster, tmp_path / "run")
    both = seen(eu_0="live", eu_1="live")
    cluster.script = [seen(), both, both, FINISHED]
    fleet.stop("SIGTERM")
    fleet.keep()
    assert len(cluster.heard("stop")) == 1


def test_run_forbids_only_what_it_names(tmp_path: Path) -> None:
    config = config_of(run={"forbid": ["chaos"]})
    cluster = FakeCluster(config)
    fleet = fleet_of(config, cluster, tmp_path / "run")
    both = seen(eu_0="live", eu_1="live")
    cluster.script = [seen(), both, both, FINISHED]
    fleet.stop("archipelago stop", by_command=True)
    fleet.keep()
    assert len(cluster.heard("stop")) == 1


def test_unknown_command_cannot_be_forbidden() -> None:
    with pytest.raises(UserMistake, match=r'run.forbid.0: must be "chaos" or "stop"'):
        config_of(run={"forbid": ["kill"]})
