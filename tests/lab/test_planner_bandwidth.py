"""Link bandwidth, learner speeds, and published figures that no parameter was fitted to."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipelago.cli.main import main
from archipelago.lab.planner import anchors, bandwidth
from archipelago.lab.planner.bandwidth import (
    BITS,
    Exchange,
    ExchangeMethod,
    needed_gbit_s,
    utilisation,
)
from archipelago.lab.planner.mixed_speeds import Paces, share_computing

exchanges = st.builds(
    Exchange,
    st.sampled_from(ExchangeMethod),
    st.integers(2, 64),
    st.sampled_from((24, 48, 96)),
    st.sampled_from((1, 8, 24)),
    st.integers(0, 4),
    st.sampled_from(sorted(BITS)),
)


@given(exchanges, st.floats(1e8, 1e12), st.floats(0.1, 30), st.floats(0.3, 0.99))
def test_needed_bandwidth_gives_the_wanted_utilization(
    exchange: Exchange, parameters: float, step_s: float, wanted: float
) -> None:
    needed = needed_gbit_s(exchange, parameters, step_s, wanted)
    assert utilisation(exchange, parameters, step_s, needed) == pytest.approx(wanted)
    assert utilisation(exchange, parameters, step_s, 2 * needed) > wanted
    assert utilisation(exchange, 2 * parameters, step_s, needed) < wanted
    assert needed_gbit_s(exchange, parameters, 2 * step_s, wanted) == pytest.approx(needed / 2)


def test_each_method_needs_less_than_the_one_before() -> None:
    for parameters in bandwidth.PARAMETERS:
        ring, diloco, streaming, ours, int4 = (
            needed_gbit_s(each, parameters, 1.0, 0.8)
            for each in bandwidth.compared_exchanges(8, 24, 24, 2)
        )
        assert ring > diloco > streaming > ours > int4


def test_step_longer_than_its_all_reduce_hides_it() -> None:
    """A case by hand: 1 GB each way takes 8 s at 1 Gbit/s."""
    two = Exchange(ExchangeMethod.DATA_PARALLEL, 2, 24, 24, 2, "bf16")
    assert two.bits(5e8) == 8e9
    assert utilisation(two, 5e8, 12.0, 1.0) == 1.0
    assert utilisation(two, 5e8, 6.0, 1.0) == pytest.approx(6 / 10)


def test_latency_is_added_for_each_hop_of_a_ring() -> None:
    """A case by hand: four islands pass six pieces on, each for half a round trip of 0.1 s."""
    ring, streaming, ours = (
        Exchange(method, 4, 24, 24, 5, "bf16")
        for method in (
            ExchangeMethod.DILOCO, ExchangeMethod.STREAMING, ExchangeMethod.DECOUPLED,
        )
    )  # fmt: skip
    computes_s, sends_s = 24 * 0.2, 1.5 * 1e8 * 16 / 1e9
    wanted = computes_s / (computes_s + sends_s + 0.3)
    assert utilisation(ring, 1e8, 0.2, 1.0, rtt_s=0.1) == pytest.approx(wanted)
    sends_s /= 24
    wanted = 0.2 / (sends_s + 0.3)  # exchanges do not overlap one another: one takes 0.4 s
    assert utilisation(streaming, 1e8, 0.2, 1.0, rtt_s=0.1) == pytest.approx(wanted)
    assert utilisation(streaming, 1e8, 1.0, 1.0, rtt_s=0.1) == 1.0
    assert utilisation(ours, 1e8, 0.2, 1.0, rtt_s=10.0) == 1.0


def test_free_running_always_computes_and_lock_step_runs_at_slowest_pace() -> None:
    rng = np.random.default_rng(0)
    paces = Paces((1.0, 1.0, 2.0), 0.0)
    assert share_computing(rng, paces, 50, overlap=None) == 1.0
    assert share_computing(rng, paces, 50, overlap=0) == pytest.approx((1 + 1 + 2) / 6)
    assert share_computing(rng, Paces((1.0,) * 4, 0.0), 50, overlap=0) == 1.0
    varied = [share_computing(rng, Paces((1.0,) * 8, 0.3), 500, overlap=n) for n in (0, 1, 4)]
    assert varied[0] < varied[1] < varied[2] < 1


def test_published_figures_are_matched_without_fitting() -> None:
    found = {(a.figure, a.paper): a for a in anchors.anchors(3)}
    assert len(found) == 10
    assert all(a.fits for a in found.values()), found
    short_s, long_s = anchors.steps_of_speedup(5.0, 20.0)
    assert anchors.speedup(5.0, long_s) == pytest.approx(20.0)
    assert anchors.speedup(5.0, short_s) > 20 > anchors.speedup(5.0, 1.1 * long_s)


def test_command_prints_rows(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "--bandwidth", "--json"])
    assert ended.value.code == 0
    said = json.loads(capsys.readouterr().out)
    row = said["rows"][0]
    assert {"method", "parameters", "step_s", "utilisation", "gbit_s"} <= row.keys()
    assert {row["utilisation"] for row in said["rows"]} == {50, 80, 90, 95, 99}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--bandwidth", "--table1"], "either --table1 or --bandwidth"),
        (["--full"], "give --table1 or a cluster file too"),
        (["--table1", "--fuzz", "3"], "take --seed, --full and --json only"),
    ],
)
def test_incompatible_options_are_reported(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
