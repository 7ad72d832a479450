"""Islands with wrong numbers, on real Ray: refused, counted, shown, and without effect."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.live.cli import TINY, Finished, Place, place

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(300)]

NAN, SCALED = "local-1", "local-2"
PLAN = f"""faults.plan=[
    {{at_step = 50, kind = "nan", island = "{NAN}"}},
    {{at_step = 80, kind = "scale", island = "{SCALED}", factor = 1000.0}},
]"""
WORSE = 1.05
"""The bound on the loss, as a ratio to the loss without poisoned islands.

Over nine pairs of runs the mean ratio was 1.000; pairs spread by 1.1 % (docs/lab/ablations.md), so
that a bound of 2 % would sometimes fail with nothing wrong. Merged poison would cost far more.
"""


def trained(here: Place, islands: int, *more: str) -> Finished:
    """Train a run to its end; `here` must be fresh."""
    finished = here.run(
        "run", str(TINY), "--json", "--run-dir", str(here.run_dir),
        "--set", "run.steps=240", "--set", f"islands.0.count={islands}",
        "--set", "sync.quorum=2",  # both sound islands in each merge, at a rate at
        "--set", "optimizer.learning_rate=2e-3",  # which equal runs end alike on any machine
        "--set", "islands.0.speed=0.3", "--set", "monitor.refresh_s=0.1", *more,
    )  # fmt: skip
    assert finished.code == 0, finished.err
    return finished


def whys(here: Place, island: str) -> Sequence[str]:
    """Return the reasons for its quarantine that were in the written statuses."""
    looks = map(json.loads, (here.run_dir / "metrics.jsonl").read_text().splitlines())
    islands = [each for look in looks for each in look["islands"]]
    return [
        each["why"]
        for each in islands
        if each["island"] == island and each["state"] == "quarantined"
    ]


def test_two_poisoned_islands_of_four_do_no_harm() -> None:
    """The reference is a run of the other two islands alone.

    Of the poisoned islands' work only that from before the poison is merged, and it helps.
    """
    with place() as here:
        without = trained(here, 2).json
    with place() as here:
        finished = trained(here, 4, "--set", PLAN)
        poisoned = finished.json
        model = load_file(here.run_dir / "model.safetensors")
        not_finite, too_large = whys(here, NAN), whys(here, SCALED)
    losses = {"without": without["heldout_loss"], "poisoned": poisoned["heldout_loss"]}
    print({key: round(loss, 4) for key, loss in losses.items()})
    assert all(np.isfinite(tensor).all() for tensor in model.values())
    assert losses["poisoned"] < WORSE * losses["without"]
    assert poisoned["faults"] == 2
    assert poisoned["rejected_contributions"] >= 6, "three and three, until they are barred"
    assert without["rejected_contributions"] == 0
    assert any("numbers that are not finite" in why for why in not_finite), not_finite
    assert any("for norm" in why and "the limit is" in why for why in too_large), too_large
    for island in (NAN, SCALED):
        assert f"island {island} is quarantined: 3 contributions refused in a row" in finished.err
