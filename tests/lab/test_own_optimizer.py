"""An inner optimizer of the user's own trains in virtual time as the built-in ones do."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from archipelago.lab.training.loss_curve import Learned
from archipelago.lab.training.timing import Timing
from archipelago.lab.training.train import train
from cluster.config.load import parse
from coordinator.errors import UserMistake
from tests.given import sums
from tests.own_optimizers import HERE

pytestmark = pytest.mark.slow

JITTERY = Timing(jitter=0.3, latency_s=0.02, gbit_s=0.01)
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "optimizers.md"
KILL = {"at_step": 10, "kind": "kill", "island": "local-1"}
OWN_ADAMW = {"target": f"{HERE}:adamw", "learning_rate": 6e-3}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sums(tmp_path_factory.mktemp("text"))


def learned(text: Path, optimizer: dict[str, Any], *overrides: str, **tables: Any) -> Learned:
    """Train three islands with this table `[optimizer]`."""
    given: dict[str, Any] = {
        "run": {"steps": 18},
        "task": {
            "preset": "byte-tiny",
            "options": {"width": 16, "layers": 1, "heads": 1, "hidden": 32},
        },
        "data": {
            "source": str(text), "window": 16, "lease_windows": 32, "heldout_percent": 20.0,
        },
        "sync": {"fragments": 3},
        "islands": [{"group": "local", "count": 3, "batch_size": 2}],
        "optimizer": optimizer,
    }  # fmt: skip
    if "run.mode=data-parallel" not in overrides:
        given["sync"]["every"] = 6
    return train(parse({**given, **tables}, origin="test", overrides=overrides), JITTERY, 6)


@pytest.mark.long
@pytest.mark.parametrize(
    "overrides",
    [(), ("run.mode=data-parallel",), ("run.mode=streaming",), ("sync.moments=mean",)],
    ids=["decoupled", "data-parallel", "streaming", "mean"],
)
def test_target_equal_to_adamw_gives_the_bits_of_the_built_in_one(
    text: Path, overrides: tuple[str, ...]
) -> None:
    faults = {} if "run.mode=data-parallel" in overrides else {"faults": {"plan": [KILL]}}
    warm = {"warmup_steps": 4}
    built_in = learned(text, {"kind": "adamw", **warm}, *overrides, **faults)
    own = learned(text, {**OWN_ADAMW, **warm}, *overrides, **faults)
    assert own == built_in
    other = learned(text, {**OWN_ADAMW, **warm, "options": {"b2": 0.9}}, *overrides, **faults)
    assert other.figures["global_sha256"] != built_in.figures["global_sha256"]


@pytest.mark.long
def test_islands_share_the_moments_of_lion_and_one_rejoins(text: Path) -> None:
    lion = {
        "target": "optax:lion", "options": {"learning_rate": 1.0}, "learning_rate": 3e-3,
        "schedule": "wsd",
    }  # fmt: skip
    faults = {"plan": [KILL]}
    own, mean = (
        learned(text, lion, f"sync.moments={moments}", faults=faults) for moments in ("own", "mean")
    )
    for each in (own, mean):
        assert each.curve[0].heldout_loss > each.curve[-1].heldout_loss
    assert own.figures["global_sha256"] != mean.figures["global_sha256"]


@pytest.mark.long
def test_unsound_target_is_refused_before_the_first_step(text: Path) -> None:
    for overrides in ((), ("run.mode=data-parallel",)):
        with pytest.raises(UserMistake, match="goes up the loss"):
            learned(text, {"target": "optax:scale_by_lion", "learning_rate": 1e-3}, *overrides)
    plain = {"target": "optax:sgd", "options": {"learning_rate": 1.0}, "learning_rate": 1e-3}
    with pytest.raises(UserMistake, match="has no first moment"):
        learned(text, plain, "sync.moments=mean")


@pytest.mark.long
def test_example_of_the_documentation_learns(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    (code,) = [each for each in blocks if "def schedule(" in each]
    tables = re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S)
    (table,) = [each for each in tables if "my_optimizer" in each]
    (tmp_path / "my_optimizer.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        result = learned(text, tomllib.loads(table)["optimizer"])
    finally:
        sys.modules.pop("my_optimizer", None)
    assert result.curve[0].heldout_loss > result.curve[-1].heldout_loss
