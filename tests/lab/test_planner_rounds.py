"""The two layers of the planner agree on the same windows, and disagree if they should."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from archipelago.lab.planner import fit, rounds
from archipelago.lab.planner import layer_agreement as agreement
from archipelago.lab.planner import published as paper
from archipelago.lab.planner.cluster_model import Grow
from archipelago.lab.planner.configurations import Configuration
from archipelago.lab.planner.layer_agreement import ComparedWindow, windows

RECOVERY = replace(fit.start(), shrink_s=17.1, grow_s=11.7, restart_s=76.7)
ROUNDS = 80
"""The rounds of a window; one step is 0.42 % of it, which is within the tolerance."""


def agree(found: list[ComparedWindow]) -> bool:
    off = np.array([window.difference for window in found])
    return bool(abs(off.mean()) <= 0.2 and abs(off).max() <= 0.5)


def some(seed: int, *, fetching: float = 1.0) -> list[ComparedWindow]:
    """Return windows of up to four learners on the two largest clusters, which fail most."""
    return list(windows(seed, ROUNDS, RECOVERY, fetching=fetching))


@pytest.fixture(autouse=True)
def _few_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "CHIPS", paper.CHIPS[-2:])
    cells = {row: told for row, told in paper.TABLE_1.items() if row[1] <= 4}
    monkeypatch.setattr(paper, "TABLE_1", cells)


@pytest.mark.long
@pytest.mark.parametrize("grow", Grow)
def test_goodput_of_the_rules_agrees_with_the_chips_layer(grow: Grow) -> None:
    seed = random.randrange(10_000)
    print(f"seed {seed}")
    found = list(windows(seed, ROUNDS, replace(RECOVERY, grow=grow)))
    assert {window.configuration for window in found} == {
        Configuration.ELASTIC,
        Configuration.DECOUPLED,
    }
    assert sum(window.rebuilds for window in found) >= 20
    assert agree(found), found
    for window in found:
        assert window.merges >= 0.8 * ROUNDS * window.chips_goodput / 100
        assert window.merged > 0
    of_four = [window.merges for window in found if window.learners == 4]
    assert min(of_four) >= 0.8 * ROUNDS, "one window in two hundred is under nine tenths"
    assert np.mean(of_four) >= 0.9 * ROUNDS


@pytest.mark.long
@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_layers_disagree_if_joining_takes_another_time(factor: float) -> None:
    """A window does not define when a learner computes: this follows from the simulation."""
    assert not agree(some(3, fetching=factor))


def test_same_seed_gives_the_same_windows() -> None:
    one, two = (list(islice(windows(11, ROUNDS, RECOVERY), 3)) for _ in range(2))
    assert one == two


def test_fast_form_stays_within_its_event_budget() -> None:
    """The fast form has 160 rounds a cell; its events must be fewer than 200,000 in all."""
    window = next(w for w in windows(1, 20, RECOVERY) if w.learners == 4)
    a_round_and_learner = window.events / (20 + rounds.WARM_UP_S / 3) / 4
    learners_of_all_cells = 5 * (1 + 2 + 4 + 8 + 16)
    assert agreement.FAST_ROUNDS * a_round_and_learner * learners_of_all_cells < 200_000
