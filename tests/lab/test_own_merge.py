"""TIES, a merge rule from outside the project, trains in a study as the built-in rules do."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from archipelago.examples import ties
from archipelago.lab.study.plan import planned
from archipelago.lab.training.timing import Timing
from archipelago.lab.training.train import train
from cluster.config.load import parse
from coordinator.errors import UserMistake
from tests.given import sums
from tests.own_merges import HERE

pytestmark = pytest.mark.slow

JITTERY = Timing(jitter=0.3, latency_s=0.02, gbit_s=0.01)
TIES = f"{ties.__name__}:ties"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sums(tmp_path_factory.mktemp("text"))


def tables(text: Path) -> dict[str, Any]:
    """Return the example's tables with the least model and a short text."""
    given = tomllib.loads(Path(ties.__file__).with_suffix(".toml").read_text())
    given["run"]["steps"] = 18
    given["task"]["options"] = {"width": 16, "layers": 1, "heads": 1, "hidden": 32}
    given["data"] = {
        "source": str(text), "window": 16, "lease_windows": 32, "heldout_percent": 20.0,
    }  # fmt: skip
    given["sync"] |= {"every": 6, "fragments": 3}
    return given


@pytest.mark.long
def test_ties_trains_in_a_study_and_repeats_to_the_last_bit(text: Path) -> None:
    base = tables(text)
    del base["sync"]["merge"], base["sync"]["merge_options"]
    options = {"sync.merge": TIES, "sync.merge_options.density": 0.5}
    arms = [{"name": "mean", "set": {"sync.merge": "mean"}}, {"name": "ties", "set": options}]
    study = planned(
        {**base, "study": {"seeds": 1, "against": "mean"}, "arms": arms}, origin="t", name="t"
    )
    mean, own = (row.cells[0] for row in study.rows)
    assert own.config.sync.merge_sha256 is not None
    assert mean.config.sync.merge_sha256 is None
    first, again = (train(own.config, JITTERY, 6) for _ in range(2))
    assert first == again
    assert first.curve[0].heldout_loss > first.curve[-1].heldout_loss
    other = train(mean.config, JITTERY, 6)
    assert other.figures["global_sha256"] != first.figures["global_sha256"]


@pytest.mark.long
def test_own_mean_trains_to_the_bits_of_the_built_in_one(text: Path) -> None:
    faults = 'faults.plan=[{at_step=8, kind="kill", island="local-1"}]'
    nesterov = ("sync.outer.learning_rate=0.7", "sync.outer.momentum=0.9", faults)
    base = tables(text)
    del base["sync"]["merge_options"]
    built_in, own = (
        train(parse(base, origin="test", overrides=(f"sync.merge={rule}", *nesterov)), JITTERY, 6)
        for rule in ("mean", f"{HERE}:mean")
    )
    assert own == built_in


def test_unsound_rule_is_refused_before_the_first_step(text: Path) -> None:
    config = parse(tables(text), origin="test", overrides=(f"sync.merge={HERE}:noisy",))
    with pytest.raises(UserMistake, match="density is no option of it"):
        train(config, JITTERY, 6)
    base = tables(text)
    del base["sync"]["merge_options"]
    config = parse(base, origin="test", overrides=(f"sync.merge={HERE}:noisy",))
    with pytest.raises(UserMistake, match="is not deterministic"):
        train(config, JITTERY, 6)


@pytest.mark.long
def test_error_in_the_middle_of_a_run_has_the_users_line_first(text: Path) -> None:
    base = tables(text)
    del base["sync"]["merge_options"]
    overrides = (f"sync.merge={HERE}:breaks_later", "sync.quorum=2", "sync.grace=0.0")
    config = parse(base, origin="test", overrides=overrides)
    with pytest.raises(UserMistake, match=r"^/.*own_merges\.py:\d+: .*two are too few"):
        train(config, JITTERY, 6)
