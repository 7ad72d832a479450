"""Tests of what `run.mode` makes of a configuration, and what it refuses."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from cluster.config.load import load, parse
from cluster.config.modes import fixed_islands, misfit
from cluster.config.schema import Config, Harm
from cluster.config.values import Mode
from cluster.fleet.requests import Requests
from coordinator.errors import UserMistake

EXAMPLES = Path(__file__).parents[2] / "examples"
STORED = Path(__file__).parents[1] / "stored"
SOUND = '[task]\npreset = "byte-tiny"\n[[islands]]\ngroup = "eu"\ncount = 3\n'
NOT_ELASTIC = (Mode.DATA_PARALLEL, Mode.DILOCO, Mode.STREAMING)


def entered(*overrides: str) -> Config:
    return parse(tomllib.loads(SOUND), overrides=overrides)


def refused(*overrides: str, tables: dict[str, Any] | None = None) -> list[str]:
    with pytest.raises(UserMistake) as refusal:
        parse(tables or tomllib.loads(SOUND), overrides=overrides)
    return [line.strip() for line in str(refusal.value).splitlines()[1:]]


@pytest.mark.parametrize("example", ["demo", "tiny"])
@pytest.mark.parametrize("mode", [*Mode])
def test_example_loads_in_every_mode_and_reads_back_unchanged(
    mode: Mode, example: str, tmp_path: Path
) -> None:
    config = load(EXAMPLES / f"{example}.toml", [f"run.mode={mode}"])
    (tmp_path / "again.toml").write_text(config.toml())
    assert load(tmp_path / "again.toml") == config


@pytest.mark.parametrize("stored", ["decoupled", "data-parallel"])
@pytest.mark.parametrize("mode", [Mode.DECOUPLED, Mode.DATA_PARALLEL])
def test_saved_configuration_of_an_earlier_version_loads(stored: str, mode: Mode) -> None:
    """Saved configurations name every key at the default of their time; the mode may differ."""
    assert load(STORED / stored / "config.toml", [f"run.mode={mode}"]).run.mode is mode


def test_default_mode_is_decoupled_and_keeps_the_keys() -> None:
    assert entered() == entered("run.mode=decoupled")
    assert entered("sync.quorum=2", "sync.merge=rda").sync.merge == "rda"


def test_diloco_merges_the_whole_model_of_all_in_lock_step() -> None:
    sync = entered("run.mode=diloco", "sync.every=20").sync
    assert (sync.every, sync.fragments, sync.overlap, sync.quorum) == (20, 1, 0, 3)
    assert (sync.merge, sync.anchor, sync.adopt) == ("mean", "base", "overwrite")
    outer = sync.outer
    assert (outer.learning_rate, outer.momentum, outer.nesterov) == (0.7, 0.9, True)


def test_streaming_merges_fragments_of_all_in_lock_step() -> None:
    assert entered("run.mode=streaming").sync.overlap == 2
    sync = entered("run.mode=streaming", "sync.overlap=3", "sync.fragments=4").sync
    assert (sync.fragments, sync.overlap, sync.quorum) == (4, 3, 3)
    assert (sync.merge, sync.adopt, sync.blend) == ("mean", "blend", 0.5)


def test_explicit_keys_override_the_proposals_of_a_mode() -> None:
    plain = ["sync.outer.learning_rate=1.0", "sync.outer.momentum=0.0", "sync.adopt=carry"]
    sync = entered("run.mode=streaming", *plain).sync
    assert (sync.outer.learning_rate, sync.outer.momentum) == (1.0, 0.0)
    assert (sync.adopt, sync.blend) == ("carry", None)


def test_conflicting_key_in_the_file_of_the_mode_is_refused() -> None:
    said = tomllib.loads(SOUND + '[run]\nmode = "diloco"\n[sync]\noverlap = 2\n')
    (line,) = refused(tables=said)
    assert line.startswith('sync.overlap: 2 is not for run.mode = "diloco", which merges')
    assert line.endswith("leave it out, or at 0")


REFUSED = {
    ("diloco", "sync.overlap=2"): "sync.overlap: 2 is not for",
    ("diloco", "sync.fragments=4"): "sync.fragments: 4 is not for",
    ("diloco", "sync.merge=rda"): 'sync.merge: "rda" is not for',
    ("streaming", "sync.quorum=2"): "sync.quorum: 2 is not for",
    ("streaming", "sync.overlap=auto"): 'sync.overlap: run.mode = "streaming" adopts',
    ("diloco", "sync.overlap=auto"): 'sync.overlap: "auto" is not for',
    ("streaming", "sync.overlap=0"): 'sync.overlap: run.mode = "streaming" trains while',
    ("streaming", "sync.fragments=1"): 'sync.fragments: run.mode = "streaming" sends',
    ("data-parallel", "sync.quorum=2"): "sync.quorum: 2 is not for",
    ("data-parallel", "sync.every=20"): "sync.every: 20 is not for",
    ("data-parallel", "sync.outer.momentum=0.5"): "sync.outer.momentum: 0.5 is not for",
    ("data-parallel", "sync.wire_up=int4"): "sync.wire_up: gradients of run.mode",
    ("data-parallel", "islands.eu.spares=1"): "islands.0.spares: not in run.mode",
    ("data-parallel", "islands.eu.opportunistic=true"): "islands.0.opportunistic: not in",
    ("elastic-data-parallel", "sync.quorum=2"): "sync.quorum: 2 is not for",
    ("data-parallel", "islands.eu.mesh={data = 2, fsdp = 1}"): "islands.0.mesh: not in run.mode",
    ("elastic-data-parallel", "islands.eu.encode=device"): "islands.0.encode: not in run.mode",
}


@pytest.mark.parametrize(("mode", "override"), REFUSED)
def test_key_that_a_mode_cannot_have_is_refused_with_a_remedy(mode: str, override: str) -> None:
    lines = refused(f"run.mode={mode}", override)
    assert len(lines) == 1
    assert lines[0].startswith(REFUSED[mode, override])


def test_different_batch_sizes_are_refused_where_gradients_are_summed() -> None:
    tables = tomllib.loads(SOUND + '[[islands]]\ngroup = "us"\nbatch_size = 4\n')
    (line,) = refused("run.mode=data-parallel", tables=tables)
    assert line.startswith("islands: eu has 8, us has 4, and the mean of their gradients")
    parse(tables, overrides=["run.mode=diloco"])


@pytest.mark.parametrize("mode", [*Mode])
def test_scaling_is_allowed_only_in_elastic_modes(mode: Mode) -> None:
    config = entered(f"run.mode={mode}")
    requests = Requests("r", config, list)
    if mode in NOT_ELASTIC:
        assert fixed_islands(config) is not None
        for request in (
            lambda: requests.scale({"eu": 2}),
            lambda: requests.drain(config.island_names[0]),
        ):
            with pytest.raises(UserMistake, match="waits for all 3 islands"):
                request()
        requests.scale({"eu": 3})  # no change
    else:
        requests.scale({"eu": 2})
        assert len(requests.desired) == 2


@pytest.mark.parametrize("mode", [*Mode])
def test_faults_without_a_meaning_in_a_mode_are_refused(mode: Mode) -> None:
    config = entered(f"run.mode={mode}")

    def hits(kind: str, island: str) -> bool:
        return misfit(config, Harm.model_validate({"kind": kind, "island": island})) is None

    assert hits("kill", "eu-1")
    assert hits("kill", "syncer")
    assert hits("drain", "eu-1") == (mode not in NOT_ELASTIC)
    assert hits("cut", "eu-1") == (not mode.sums_gradients)
    assert hits("kill", "shard-0") == (not mode.sums_gradients)
    if mode.sums_gradients:
        (line,) = refused(f"run.mode={mode}", 'faults.plan=[{at_step=5,kind="cut",island="eu-1"}]')
        assert line.startswith("faults.plan: the cut of eu-1")
