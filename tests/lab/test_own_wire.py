"""A codec of a user's own carries the fragments of a training in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from archipelago.lab.training.loss_curve import Learned
from archipelago.lab.training.timing import Timing
from archipelago.lab.training.train import train
from cluster.config.load import parse
from coordinator.errors import UserMistake
from tests.given import sums
from tests.own_codecs import HERE

pytestmark = pytest.mark.slow

JITTERY = Timing(jitter=0.3, latency_s=0.02)
KILL = 'faults.plan=[{at_step=8, kind="kill", island="local-1"}]'


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sums(tmp_path_factory.mktemp("text"))


def learned(text: Path, wire: str, *overrides: str) -> Learned:
    given: dict[str, Any] = {
        "run": {"steps": 18},
        "task": {
            "preset": "byte-tiny",
            "options": {"width": 16, "layers": 1, "heads": 1, "hidden": 32},
        },
        "data": {
            "source": str(text), "window": 16, "lease_windows": 32, "heldout_percent": 20.0,
        },
        "sync": {"every": 6, "fragments": 3, "wire_up": wire, "wire_down": wire},
        "islands": [{"group": "local", "count": 3, "batch_size": 2}],
    }  # fmt: skip
    return train(parse(given, origin="test", overrides=(KILL, *overrides)), JITTERY, 6)


@pytest.mark.long
def test_exact_codec_gives_the_model_of_f32(text: Path) -> None:
    own, built_in = learned(text, f"{HERE}:Exact"), learned(text, "f32")
    assert own.figures["global_sha256"] == built_in.figures["global_sha256"]
    assert own.curve == built_in.curve


@pytest.mark.long
def test_one_bit_per_element_learns_by_error_feedback(text: Path) -> None:
    signs, floats = learned(text, f"{HERE}:Signs"), learned(text, "f32")
    assert signs.curve[0].heldout_loss > signs.curve[-1].heldout_loss
    for key in ("up_bytes_per_token", "down_bytes_per_token"):
        assert 0 < float(str(signs.figures[key])) < float(str(floats.figures[key])) / 8
    assert signs == learned(text, f"{HERE}:Signs")


def test_unsound_codec_is_refused_before_the_first_step(text: Path) -> None:
    with pytest.raises(UserMistake, match=r"^/.*own_codecs\.py:\d+: .*error feedback needs"):
        learned(text, f"{HERE}:Forgets")
