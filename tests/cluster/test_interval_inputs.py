"""`sync.every = "auto"` in a configuration: what it accepts, what it turns into, what is stored."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from cluster.config.interval_inputs import bounds_of, model_bytes, with_interval
from cluster.config.load import parse
from cluster.config.rule import schedule_of
from cluster.config.schema import Config
from cluster.fleet.placement import NODE_ID, Node, expected_islands
from cluster.storage.runs import CONFIG
from cluster.storage.stored_interval import with_stored_interval
from coordinator.errors import UserMistake
from coordinator.fragments import Leaf
from coordinator.interval import Bounds, HubLink, Interval, choose

SOUND = '[task]\npreset = "byte-tiny"\n[sync]\nevery = "auto"\n[[islands]]\ncount = 3\n'
LEAVES = (Leaf("a", (64, 8)), Leaf("b", (64, 8)))


def config(*overrides: str) -> Config:
    return parse(tomllib.loads(SOUND), overrides=overrides)


def chosen(given: Config, gbit_s: float = 0.2, step_s: float = 0.2) -> Interval:
    link = HubLink("the link", 1e9 * gbit_s, 1e9 * gbit_s, 0.08, 3)
    return choose(model_bytes(given, 48e6), [link], step_s, bounds_of(given, LEAVES))


def test_resolved_configuration_has_numbers_and_reads_back() -> None:
    given = config("sync.wire_up=int4", "sync.wire_down=int4")
    assert parse(tomllib.loads(given.toml())) == given, "a submitted run carries it as text"
    resolved = with_interval(given, chosen(given))
    assert (resolved.sync.every, resolved.sync.fragments) == (24, 24)
    assert parse(tomllib.loads(resolved.toml())) == resolved
    assert schedule_of(resolved).every == 24
    assert resolved.sha256 != given.sha256


def test_wires_and_shared_moments_count() -> None:
    plain = model_bytes(config("sync.wire_up=int4"), 1e6)
    assert (plain.up, plain.down) == (17 / 32, 2.0)
    shared = model_bytes(config("sync.moments=mean", "sync.moments_every=2"), 1e6)
    assert shared.up == shared.down == 2.0 + 33 / 32 / 2


def test_bounds_follow_mode_shards_overlap_and_leaves() -> None:
    assert bounds_of(config(), LEAVES) == Bounds(None, 1, 32)
    assert bounds_of(config(), (Leaf("a", (3,)),)).most_fragments == 3
    assert bounds_of(config("sync.shards=9", "sync.overlap=4"), LEAVES) == Bounds(4, 9, 32)
    assert bounds_of(config("run.mode=diloco"), LEAVES) == Bounds(0, 1, 1)
    assert bounds_of(config("run.mode=streaming"), LEAVES) == Bounds(2, 2, 32)


@pytest.mark.parametrize("mode", ["decoupled", "diloco", "streaming"])
def test_choice_is_a_valid_configuration_in_every_mode_that_merges(mode: str) -> None:
    given = config(f"run.mode={mode}")
    resolved = with_interval(given, chosen(given, gbit_s=100, step_s=2.0))
    assert parse(tomllib.loads(resolved.toml())).sync.every == resolved.sync.every


REFUSED: dict[tuple[str, ...], str] = {
    ("sync.fragments=4",): 'sync.fragments: sync.every = "auto" chooses it; leave 4 out',
    ("run.mode=data-parallel",): 'sync.every: "auto" is not for run.mode = "data-parallel"',
    ("sync.step_s=0",): "sync.step_s: must be more than 0",
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_contradictions_are_refused(overrides: tuple[str, ...]) -> None:
    with pytest.raises(UserMistake) as refusal:
        config(*overrides)
    assert REFUSED[overrides] in str(refusal.value)


def test_link_that_carries_no_plan_is_refused_with_the_numbers() -> None:
    given = config()
    with pytest.raises(UserMistake) as refusal:
        with_interval(given, chosen(given, gbit_s=0.001))
    (line,) = str(refusal.value).splitlines()
    for words in ("the link (0.001 Gbit/s, 80 ms)", "H = 512", "needs", 'sync.wire_down = "int4"'):
        assert words in line


def test_resumed_run_takes_the_numbers_that_it_has_stored(tmp_path: Path) -> None:
    given = config()
    began = with_interval(given, chosen(given))
    (tmp_path / CONFIG).write_text(began.toml())
    kept = with_stored_interval(given, tmp_path)
    assert (kept.sync.every, kept.sync.fragments) == (began.sync.every, began.sync.fragments)
    number = config("sync.every=12")
    assert with_stored_interval(number, tmp_path) is number
    with pytest.raises(UserMistake, match="say which run"):
        with_stored_interval(given, None)


def node(name: str, cpus: float, **labels: str) -> Node:
    return Node(name, {"CPU": cpus}, {NODE_ID: f"id-{name}", **labels})


def test_islands_are_expected_where_their_labels_and_the_room_are() -> None:
    groups = (
        'islands=[{group = "a", count = 3}, '
        '{group = "b", count = 2, label_selector = {region = "us"}}]'
    )
    nodes = [node("head", 0), node("eu", 4, region="eu"), node("us", 2, region="us")]
    expected = expected_islands(config(groups), nodes)
    assert expected == pytest.approx({"id-eu": 2.0, "id-us": 1.0 + 2.0})
