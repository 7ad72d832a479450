"""A real run that is not as expected: its metrics, boards, rules, events and lines, with a kill."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.archipelago.test_boards import expressions, steady
from tests.live.cli import TINY, Place, finish, place, until
from tests.live.prometheus import prometheus_of

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(400)]

ANSWERED = ("archipelago", "archipelago-time", "archipelago-failures", "archipelago-fleet")
"""The boards that a short run on one machine fills; the story of a cluster fills all."""


def events(here: Place) -> list[dict[str, Any]]:
    file = here.run_dir / "events.jsonl"
    whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def test_run_outside_its_band_with_a_kill_is_seen_everywhere() -> None:
    with place() as here:
        curve = here.folder / "curve.csv"
        curve.write_text("tokens,loss,low,high\n1,0.5,0.4,0.6\n1000000000000,0.2,0.1,0.3\n")
        process = here.start(
            "run", str(TINY), "--json", "--run-dir", str(here.run_dir),
            "--set", "run.steps=1000000", "--set", "islands.0.speed=0.3",
            "--set", f"monitor.expected={curve}",
            "--set", f"monitor.targets={here.folder / '.archipelago' / 'targets'}",
            "--set", "faults.plan=[{at_step = 20, kind = 'kill', island = 'local-1'}]",
        )  # fmt: skip
        with prometheus_of(here.folder, run="run") as prometheus:
            until(lambda: {"band", "fault", "loss"} <= {each["kind"] for each in events(here)})
            until(lambda: here.last_status["islands"][1]["life"] > 1)
            for each in expressions():
                if not each.startswith("label_values"):
                    prometheus.ask(each)  # raises if Prometheus does not understand it

            def missing() -> list[str]:
                recent = "last_over_time(({})[10m:1s])"
                return [e for e in steady(*ANSWERED) if not prometheus.ask(recent.format(e))]

            until(lambda: not missing())
            assert prometheus.number('archipelago_loss_inside_band{run="run"}') == 0
            alerts = prometheus.ask('ALERTS{alertname="ArchipelagoLossOutOfBand"}')
            assert [each["metric"]["severity"] for each in alerts] == ["warning"]
        status = here.run("status", str(here.run_dir), "--json").json
        assert {"band", "fault"} <= {each["kind"] for each in status["events"]}
        assert not status["expected"]["inside"]
        assert here.run("stop", str(here.run_dir)).code == 0
        finished = finish(process)
        assert finished.code == 0, finished.err
        written = events(here)
    assert "the loss left its band: held-out loss" in finished.err
    assert "kill on purpose" in finished.err, "a fault is in no status"
    assert finished.json["loss_spikes"] >= 0
    (band,) = [each for each in written if each["kind"] == "band"]
    assert band["why"] in band["text"]
    assert "expected 0." in band["why"]
