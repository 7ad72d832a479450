"""The ring of `bench wan`, between loopback addresses, and the plans of its methods."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archipelago.cli.bench_wan import wan
from archipelago.lab.bench.goals import GOALS, Goal, verdict
from archipelago.lab.bench.wan import over_points, plan_of, speedup_of
from archipelago.lab.bench.wan_decoupled import DecoupledPlan, config_of
from archipelago.lab.bench.wan_decoupled import plan_from as decoupled_from
from archipelago.lab.bench.wan_points import MAIN, QUICK, WanPoint, predicted
from archipelago.lab.bench.wan_ring import RingPlan, TcpRing, plan_from, train
from archipelago.lab.bench.wan_run import output_of, output_of_members
from archipelago.lab.wan.network import MARK, Network
from archipelago.lab.wan.rig import LinksTooFast
from cluster.storage.files import json_text
from coordinator.errors import ArchipelagoError, RunFailed, UserMistake


def addresses() -> tuple[str, ...]:
    """Return three loopback addresses that no other test uses: the ports of a ring are fixed."""
    dice = random.SystemRandom()
    network = f"127.{dice.randrange(1, 255)}.{dice.randrange(255)}"
    return tuple(f"{network}.{host}" for host in (1, 2, 3))


@pytest.mark.parametrize(("streams", "buckets"), [(1, 1), (3, 2)])
def test_ring_sums_the_buffers_of_all_members(streams: int, buckets: int) -> None:
    plan = RingPlan(addresses(), 0, 1, 0, 0.0, streams, buckets, 0, 1)
    rng = np.random.default_rng()
    buffers = [rng.integers(0, 1000, 10_007, dtype=np.uint16) for _ in plan.addresses]
    total = buffers[0] + buffers[1] + buffers[2]

    def member(rank: int) -> None:
        ring = TcpRing(plan, rank)
        ring.reduce(buffers[rank])
        ring.close()

    with ThreadPoolExecutor(3) as pool:
        [done.result() for done in [pool.submit(member, rank) for rank in range(3)]]
    for buffer in buffers:
        np.testing.assert_array_equal(buffer, total)


@pytest.mark.parametrize("overlap", [-1, 0, 2])
def test_training_steps_and_reduces_as_planned(overlap: int) -> None:
    plan = RingPlan(addresses(), 3000, 2, overlap, 0.001, 2, 1, warm=1, measured=5)
    with ThreadPoolExecutor(3) as pool:
        members = [pool.submit(train, plan, rank) for rank in range(3)]
        figures = members[0].result()
    assert figures["steps"] == 10
    assert len(figures["reduce_s"]) >= 4, "one may be in flight when measuring begins"
    assert figures["seconds"] >= 10 * 0.001


def test_plans_survive_their_text() -> None:
    plan = replace(plan_of("streaming", MAIN, 4, 1), addresses=addresses())
    assert plan_from(json_text(asdict(plan) | {"rank": 2})) == (plan, 2)
    decoupled = DecoupledPlan("here", ("a", "b"), 4096, 8, "int4", 2, 0.2, 1.0, 2.0, 1)
    assert decoupled_from(json_text(asdict(decoupled))) == decoupled
    assert config_of(decoupled).sync.wire_up == "int4"


def test_points_stand_for_twelve_billion_parameters_at_2_gbit_and_5_s() -> None:
    real = 12e9 * 24 / (2e9 * 5.0)
    assert [MAIN.scaled, QUICK.scaled] == pytest.approx([real, real])


def test_prediction_is_compared_with_what_was_measured() -> None:
    """The figures of a quiet run of 2026-11-27; plain TCP had 0.188 of 0.2 Gbit/s."""
    for method, measured in (
        ("data-parallel", 0.031), ("diloco", 0.421), ("streaming", 0.623), ("decoupled", 1.0),
    ):  # fmt: skip
        found = predicted(MAIN, method, 0.188, measured)
        assert abs(found["utilisation_off"]) < 3.0, method
    assert predicted(MAIN, "diloco", 0.188, 0.5)["utilisation_off"] > 3.0


def test_speedup_has_the_interval_of_decoupled_training() -> None:
    decoupled = {
        "tokens_per_s": 640.0, "tokens_per_s_low": 600.0, "tokens_per_s_high": 660.0,
        "coverage": 0.98, "samples": 10,
    }  # fmt: skip
    figures = speedup_of(decoupled, {"tokens_per_s": 20.0})
    assert figures == {
        "speedup": 32.0, "speedup_low": 30.0, "speedup_high": 33.0,
        "speedup_coverage": 0.98, "speedup_samples": 10,
    }  # fmt: skip
    assert verdict(GOALS["wan"]["speedup"], "speedup", figures) == "reached"
    assert verdict(Goal(at_least=31.0), "speedup", figures) == "inconclusive"


def test_each_method_sends_the_bytes_that_it_should() -> None:
    parallel, diloco, streaming = (
        plan_of(method, MAIN, 1, 1) for method in ("data-parallel", "diloco", "streaming")
    )
    assert parallel.nbytes / parallel.every == 2 * MAIN.parameters, "bf16, each step"
    assert diloco.nbytes / diloco.every == 2 * MAIN.parameters / 24
    assert streaming.nbytes / streaming.every == MAIN.parameters / 2 / 24, "four bits"


@pytest.mark.parametrize("words", [{"bulk": 600.0, "quick": True}, {"bulk": 600.0, "cut": 9.0}])
def test_bulk_is_a_run_of_its_own(words: dict[str, Any]) -> None:
    with pytest.raises(UserMistake, match="is a run of its own: leave out the other options"):
        wan(**words)


# --- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RunFailed("a driver hangs"), LinksTooFast("50 Gbit/s")])
def test_points_that_fail_are_left_out_unless_they_are_the_last(error: ArchipelagoError) -> None:
    first, last, seen, said = replace(MAIN, rtt_ms=30.0), MAIN, list[WanPoint](), list[str]()

    def fails_at(bad: WanPoint) -> Callable[[WanPoint], None]:
        def measure(point: WanPoint) -> None:
            seen.append(point)
            if point == bad:
                raise error

        return measure

    (left_out,) = over_points([first, last], fails_at(first), said.append)
    assert left_out == {
        "gbit_s": 0.2, "rtt_ms": 30.0, "why": str(error), "failed": isinstance(error, RunFailed),
    }  # fmt: skip
    assert (seen, said) == ([first, last], [f"left out: 0.2 Gbit/s, 30 ms: {error}"])
    with pytest.raises(type(error)):
        over_points([first, last], fails_at(last), said.append)


def test_command_that_hangs_is_killed_and_reported_with_the_end_of_its_errors() -> None:
    command = ["sh", "-c", "echo some >&2; echo no route to eu >&2; exec sleep 600"]
    with pytest.raises(RunFailed, match=r"(?s)^`sh -c .*within 1 s.*killed.*no route to eu$"):
        output_of(command, os.environ, 1.0)
    assert output_of(["sh", "-c", "echo a; echo b >&2"], os.environ, 60.0) == ("a\n", "b\n")


@pytest.fixture
def members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], list[str]]:
    """Return a function that runs a shell script in place of a module in each of two regions."""
    network = Network.planned("net", "10.77", ["eu", "us"], 0.2, 80.0)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def run(script: str, within_s: float) -> list[str]:
        fake = tmp_path / "ip"  # ip netns exec NAMESPACE PYTHON -m MODULE ARGUMENT
        fake.write_text(f"#!/bin/sh\n{script}\n")
        fake.chmod(0o755)
        return output_of_members(network, "ring", ["first", "second"], within_s=within_s)

    return run


def test_members_are_processes_of_the_network(members: Callable[[str, float], list[str]]) -> None:
    """`archipelago wan down` finds the processes of a crashed command by this variable."""
    assert members(f'echo "$3 $7 ${MARK}"', 60.0) == [
        "net-r0 first net\n",
        "net-r1 second net\n",
    ]


def test_member_that_fails_is_named_with_its_output(
    members: Callable[[str, float], list[str]],
) -> None:
    """The other one waits for it, and is killed."""
    script = 'test $7 = second || exec sleep 600; echo "no route to eu" >&2; exit 3'
    with pytest.raises(RunFailed) as failed:
        members(script, 60.0)
    assert str(failed.value) == (
        "ring in us ended with exit code 3; its output ends with:\nno route to eu"
    )


def test_members_that_hang_are_named(members: Callable[[str, float], list[str]]) -> None:
    with pytest.raises(RunFailed, match=r"(?s)ring in eu did not end within 1 s.*ring in us did"):
        members("exec sleep 600", 1.0)
