"""A fragmenting of a user's own cuts the model in every process, or is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from archipelago.examples.strided import strided
from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.workers.assembly import layout_for, task_of
from cluster.workers.evaluator import Evaluator
from coordinator.errors import UserMistake
from coordinator.fragments import Layout, Leaf, cut, sew, take
from coordinator.own_fragmenting import refragmented
from coordinator.protocol import Fragment
from tests import own_fragmentings
from tests.own_fragmentings import HERE

LEAVES = [
    Leaf("embed", (12, 4), embedding=True), Leaf("blocks", (6, 5, 4), stacked=True),
    Leaf("mean", (3,), state=True), Leaf("out", (4,)),
]  # fmt: skip
LAYOUT = cut(LEAVES, 4)


def config_of(target: str, *overrides: str) -> Config:
    tables: dict[str, Any] = {"task": {"preset": "byte-tiny"}, "islands": [{"count": 2}]}
    return parse(tables, origin="test", overrides=(f"sync.fragmenting={target}", *overrides))


def blocks(layout: Layout) -> list[tuple[int, int | None, int, int]]:
    found = [(p.leaf, p.layer, p.start, p.stop) for pieces in layout.fragments for p in pieces]
    return sorted(found, key=str)


def test_all_pieces_are_assigned_and_state_stays_apart() -> None:
    made = refragmented(LAYOUT, strided, "test")
    assert blocks(made) == blocks(LAYOUT)
    assert made.state_fragment == LAYOUT.state_fragment == 3
    assert made.fragments[3] == LAYOUT.fragments[3]
    for p in range(3):
        layers = {piece.layer for piece in made.fragments[p] if piece.leaf == 1}
        assert layers == {p, p + 3}
    assert made.fingerprint != LAYOUT.fingerprint
    leaves = [np.random.default_rng(0).random(leaf.shape, np.float32) for leaf in LEAVES]
    flats = [take(made, Fragment(p), leaves) for p in range(4)]
    for one, other in zip(sew(made, flats), leaves, strict=True):
        np.testing.assert_array_equal(one, other)


def test_balanced_assignment_of_every_process_is_the_users() -> None:
    config = config_of(f"{HERE}:in_turn", "sync.fragmenting_options.first=1")
    layout = layout_for(config, task_of(config))
    assert layout.fingerprint == Evaluator(config).layout.fingerprint
    plain = layout_for(config_of(f"{HERE}:in_turn"), task_of(config))
    assert layout.fragments[1:] + layout.fragments[:1] == plain.fragments
    in_numpy = config_of(f"{HERE}:in_numpy")
    assert layout_for(in_numpy, task_of(config)).fragments == plain.fragments


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("too_few", r"returns 1 numbers for \d+ pieces"),
        ("too_large", r"puts \S+ into fragment 8: fragments are numbered from 0 to 7"),
        ("fractions", r"puts \S+ into fragment None"),
        ("all_in_one", r"puts nothing into fragment 1, 2, 3, 4, 5 of 8"),
        ("random", "is not deterministic"),
        ("breaks", r"raises RuntimeError: not today \(in breaks\)"),
    ],
)
def test_unsound_fragmenting_is_refused_with_its_line_first(rule: str, why: str) -> None:
    config = config_of(f"{HERE}:{rule}")
    with pytest.raises(UserMistake) as refusal:
        layout_for(config, task_of(config))
    where = rf"{re.escape(own_fragmentings.__file__)}:\d+: sync\.fragmenting = "
    assert re.match(f'{where}"{HERE}:{rule}" {why}', str(refusal.value)), refusal.value


def test_options_and_interval_must_fit() -> None:
    with pytest.raises(UserMistake, match="are those of a fragmenting, and there is none"):
        parse(
            {"task": {"preset": "byte-tiny"}, "islands": [{"count": 2}]},
            origin="test",
            overrides=("sync.fragmenting_options.first=1",),
        )
    with pytest.raises(UserMistake, match=r'sync\.every = "auto" chooses it later'):
        config_of(f"{HERE}:in_turn", "sync.every=auto")
