"""A gate of a user's own refuses contributions when they arrive, and a replay needs no gate."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archipelago.examples.relative_gate import gate as relative_gate
from archipelago.lab.checks.replay import replay
from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.shard.build import first_of, shard_of
from cluster.shard.own_code import own_problems
from cluster.storage.folder import Folder
from cluster.storage.playback import read_tape
from coordinator.codec import Wire, encode
from coordinator.errors import UserMistake
from coordinator.fragments import Flat
from coordinator.own_merge import merge_pieces
from coordinator.protocol import (
    Arrived,
    Contribution,
    ContributionId,
    Fragment,
    HandIn,
    Incarnation,
    Island,
    Lease,
    Life,
    Progress,
    Version,
)
from tests import own_gates
from tests.cluster.played import CONFIG, LAYOUT, Played
from tests.own_gates import HERE

P = Fragment(0)
SIZE = LAYOUT.sizes[P]


def config_of(target: str, *overrides: str) -> Config:
    tables: dict[str, Any] = {"task": {"preset": "byte-tiny"}, "islands": [{"count": 2}]}
    return parse(tables, origin="test", overrides=(f"sync.gate={target}", *overrides))


def received(config: Config, delta: Flat) -> Contribution:
    """Hand a delta in to a shard with this configuration, on a public fragment of ones."""
    ones = np.ones(SIZE, np.float32)
    shard = shard_of(config, LAYOUT, {P: first_of(config, LAYOUT, P, ones)})
    id_ = ContributionId(Life(Island("a"), Incarnation(1)), P, 0, 1)
    facts = HandIn(id_, Version(0, 0), 0, 1, LAYOUT.fingerprint, Progress(1, 1, Lease(0)))
    return shard.receive(facts, encode(Wire.BF16, delta))


def test_contribution_that_the_gate_refuses_has_its_reason() -> None:
    config = config_of(f"{HERE}:longest", "sync.gate_options.most=10.0")
    assert own_problems(config, LAYOUT) == []
    short = received(config, np.ones(SIZE, np.float32))
    assert (short.flaw, np.isfinite(short.norm)) == ("", True)
    long = received(config, np.full(SIZE, 100, np.float32))
    assert re.fullmatch(r"it is \d+ long", long.flaw)
    assert np.isnan(long.norm)


def test_gate_that_raises_refuses_and_does_not_see_what_is_not_finite() -> None:
    config = config_of(f"{HERE}:breaks_on_large")
    refused = received(config, np.full(SIZE, 1000, np.float32))
    assert "raises RuntimeError: too large to look at" in refused.flaw
    assert refused.flaw.startswith(own_gates.__file__)
    infinite = received(config, np.full(SIZE, np.inf, np.float32))
    assert infinite.flaw == ""
    assert not np.isfinite(infinite.norm)


def test_example_names_the_tensor_that_moves_too_far() -> None:
    pieces = merge_pieces(LAYOUT.leaves, LAYOUT.fragments[P])
    public, delta = np.ones(SIZE, np.float32), np.zeros(SIZE, np.float32)
    assert relative_gate(delta, public, pieces) is None
    delta[pieces[-1].elements] = 0.6
    refusal = relative_gate(delta, public, pieces)
    assert refusal == f"{pieces[-1].path} moves by 0.6 times its norm, at most 0.5"


def test_run_with_refusals_is_replayed_without_the_gate(tmp_path: Path) -> None:
    norm = float(np.sqrt(SIZE))
    gate = f'gate = "{HERE}:longest"\ngate_options = {{most = {norm}}}'
    Played(tmp_path, CONFIG.replace("[sync]", f"[sync]\n{gate}")).to_the_end(24)
    tape = [event for _, _, event, _ in read_tape(Folder(tmp_path), LAYOUT.fingerprint).events]
    came = [event.contribution for event in tape if isinstance(event, Arrived)]
    refused = [each for each in came if each.flaw]
    assert 0 < len(refused) < len(came)
    config = tmp_path / "config.toml"
    config.write_text(config.read_text().replace(f"{HERE}:longest", "gone:longest"))
    result = replay(tmp_path)
    assert result["exact"] is True
    assert result["violations"] == 0


@pytest.mark.parametrize(
    ("gate", "why"),
    [
        ("number", "returns a float: it must return the reason of a refusal as text, or None"),
        ("random", "is not deterministic"),
        ("breaks", r"raises RuntimeError: not today \(in breaks\)"),
        ("writes", r"raises ValueError: .*read-only \(in writes\)"),
        ("longest", ": missing a required argument: 'most'"),
    ],
)
def test_unsound_gate_is_refused_with_its_line_first(gate: str, why: str) -> None:
    (found,) = own_problems(config_of(f"{HERE}:{gate}"), LAYOUT)
    where = rf'{re.escape(own_gates.__file__)}:\d+: sync\.gate = "{HERE}:{gate}"'
    assert re.match(f"{where} ?{why}", found), found


def test_options_need_a_gate() -> None:
    with pytest.raises(UserMistake, match="are those of a gate, and there is none"):
        parse(
            {"task": {"preset": "byte-tiny"}, "islands": [{"count": 2}]},
            origin="test",
            overrides=("sync.gate_options.most=1.0",),
        )
