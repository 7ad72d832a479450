"""A merge rule of a user's own merges as a built-in one does, or is refused before the start."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from archipelago.examples import heloco, ties
from archipelago.lab.checks.replay import replay
from cluster.config.load import load, parse
from cluster.config.schema import Config
from cluster.shard.arrays import fresh
from cluster.shard.method import Method
from cluster.shard.own_merge import TRIED, merge_problems, rule_of_merge
from cluster.shard.own_sources import with_sources
from cluster.source import target_sha256, user_sha256
from cluster.storage.fragments import Arrays
from coordinator.codec import Wire
from coordinator.errors import UserMistake
from coordinator.fragments import Leaf, cut
from coordinator.merge import MergeRule
from coordinator.outer import OuterRule
from coordinator.own_merge import MergePiece, OwnMerge, merge_pieces
from coordinator.protocol import (
    ContributionId,
    Fragment,
    HandIn,
    Incarnation,
    Island,
    Item,
    Lease,
    Life,
    Merge,
    Merged,
    Progress,
    Publish,
    Version,
)
from tests import own_merges
from tests.cluster.played import CONFIG, Played
from tests.given import array_shard, outer_rule
from tests.own_merges import HERE

LAYOUT = cut([Leaf("e", (9, 4), embedding=True), Leaf("w", (3, 5, 4), stacked=True)], 2)
TABLES = {"task": {"preset": "byte-tiny"}, "islands": [{"group": "a", "count": 2}]}
P = Fragment(0)
AXES = tuple(enumerate(("along", "across", "against", "idle")))


def config_of(rule: str, *overrides: str) -> Config:
    return parse(TABLES, origin="test", overrides=(f"sync.merge={HERE}:{rule}", *overrides))


def own(rule: str, *overrides: str) -> OwnMerge:
    loaded = rule_of_merge(config_of(rule, *overrides))
    assert isinstance(loaded, OwnMerge)
    return loaded


def merged(
    rule: MergeRule | OwnMerge, outer: OuterRule, *, last: bool = False
) -> list[tuple[Merged, Arrays]]:
    """Merge three random contributions of each of two rounds; return what the shard has then."""
    size, rng = LAYOUT.sizes[P], np.random.default_rng(0)
    lives = [Life(Island(name), Incarnation(1)) for name in "abc"]
    arrays = fresh([rng.standard_normal(size).astype("f4") for size in LAYOUT.sizes])
    shard, found = array_shard(LAYOUT, arrays, merge_rule=rule, outer=outer), []
    for number in (1, 2):
        onto, items = Version(0, number - 1), []
        for life, weight in zip(lives, (0.5, 0.25, 0.25), strict=True):
            id_ = ContributionId(life, P, number - 1, number)
            progress = Progress(number, number, Lease(0))
            said = HandIn(id_, onto, number - 1, 1, LAYOUT.fingerprint, progress)
            delta = rng.standard_normal(size).astype(np.float32)
            items.append(Item(shard.receive(said, delta), weight))
        order = Merge(P, Version(0, number), tuple(items), "all", last and number == 2)
        event = shard.merge(replace(order, measure=True))
        assert isinstance(event, Merged)
        ids = tuple(item.contribution.id for item in items)
        shard.publish(Publish(P, Version(0, number), onto, tuple(lives), ids))
        now = shard.arrays(P)
        copies = now.master.copy(), now.momentum.copy(), now.public.copy()
        found.append((event, Arrays(now.version, *copies)))
    return found


OUTER = [outer_rule(), outer_rule(0.7, 0.9), outer_rule(1.0, 0.9, as_long=True)]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("outer", OUTER, ids=str)
def test_own_mean_gives_the_bits_and_the_measures_of_the_built_in_one(
    outer: OuterRule, last: bool
) -> None:
    pairs = zip(
        merged(MergeRule.MEAN, outer, last=last),
        merged(own("mean"), outer, last=last),
        strict=True,
    )
    for (wanted_event, wanted), (event, arrays) in pairs:
        assert event == wanted_event
        assert event.cosines
        np.testing.assert_array_equal(arrays.master, wanted.master)
        np.testing.assert_array_equal(arrays.momentum, wanted.momentum)
        np.testing.assert_array_equal(arrays.public, wanted.public)


def test_options_reach_the_rule() -> None:
    none = merged(own("scaled", "sync.merge_options.factor=0.0"), outer_rule())
    single = merged(own("scaled", "sync.merge_options.factor=1.0"), outer_rule())
    double = merged(own("scaled", "sync.merge_options.factor=2.0"), outer_rule())
    start, once, twice = (each[0][1].master for each in (none, single, double))
    np.testing.assert_allclose(twice - start, 2 * (once - start), rtol=1e-4, atol=1e-5)
    assert np.abs(once - start).max() > 0.1


@pytest.mark.parametrize("outer", OUTER, ids=str)
def test_rule_with_a_parameter_momentum_gets_that_of_the_outer_optimizer(outer: OuterRule) -> None:
    (_, first), (_, then) = merged(own("along"), outer)
    (_, plain_first), (_, plain) = merged(own("mean"), outer)
    np.testing.assert_array_equal(first.momentum, plain_first.momentum)  # zero before the first
    mu, before = np.float32(outer.momentum), first.momentum
    # the momentum has the sign of a gradient: b <- mu b + g, and g is minus the merged delta
    np.testing.assert_allclose(then.momentum - plain.momentum, before / 2, rtol=1e-4, atol=1e-5)
    assert np.abs(before).max() > 0.1, mu


def test_momentum_is_no_option_and_needs_our_outer_optimizer() -> None:
    (said,) = merge_problems(config_of("along", "sync.merge_options.momentum=0.5"), LAYOUT)
    assert "momentum is passed by the run, and is no option" in said
    optax = "archipelago.examples.outer_optimizer:outer"
    (said,) = merge_problems(config_of("along", f"sync.outer.target={optax}"), LAYOUT)
    assert f'uses the outer momentum, which sync.outer.target = "{optax}" has none of' in said


def test_state_takes_the_mean_of_its_values_whatever_the_rule() -> None:
    assert (
        Method(own("median"), outer_rule(), Wire.F32, Wire.F32, 0, None, 1.0).of_state().merge_rule
        is MergeRule.MEAN
    )


def test_rule_sees_the_pieces_of_a_fragment() -> None:
    for p, fragment in enumerate(LAYOUT.fragments):
        pieces = merge_pieces(LAYOUT.leaves, fragment)
        assert [each.path for each in pieces] == [LAYOUT.leaves[f.leaf].path for f in fragment]
        assert {each.embedding for each in pieces if each.path == "e"} <= {True}
        stops = [each.elements.stop for each in pieces]
        assert [each.elements.start for each in pieces] == [0, *stops[:-1]]
        assert stops[-1] == LAYOUT.sizes[p]
        for each in pieces:
            assert each.elements.stop - each.elements.start == np.prod(each.shape)
            assert (each.layer is None) == (each.path == "e")


def line_of(rule: str, text: str | None = None) -> str:
    """Return "file:line" of a rule, or of a line within it."""
    lines, first = inspect.getsourcelines(getattr(own_merges, rule))
    inside = 0 if text is None else next(i for i, line in enumerate(lines) if text in line)
    return f"{own_merges.__file__}:{first + inside}"


UNSOUND: dict[str, tuple[str | None, str]] = {
    "one_argument": ("", "too many positional arguments"),
    "other_type": (
        "",
        r"returns float64\[\d+\] for float32\[1,\d+\] contributions: it must return",
    ),
    "other_shape": ("", r"returns float32\[1,\d+\] for"),
    "infinite": ("", "returns what is not finite for 3 contributions of normal random numbers"),
    "direction": ("", "returns what is not finite for contributions of zeros"),
    "noisy": ("", r"is not deterministic: (\d+) of \1 elements differ between two calls"),
    "writes": ("deltas[0] *= 2", r"raises ValueError: .*read-only \(in writes\)"),
    "forces": ("", "changes the contributions or weights"),
    "breaks": ("raise", r"raises RuntimeError: not today \(in breaks\)"),
    "scaled": ("", "missing a required argument: 'factor'"),
}


@pytest.mark.parametrize("rule", UNSOUND)
def test_unsound_rule_is_refused_with_its_line_first(rule: str) -> None:
    text, why = UNSOUND[rule]
    with np.errstate(divide="ignore", invalid="ignore"):
        (said,) = merge_problems(config_of(rule), LAYOUT)
    where = re.escape(f'{line_of(rule, text or None)}: sync.merge = "{HERE}:{rule}"')
    assert re.fullmatch(f"{where}:? {why}.*", said), said


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (f"{HERE}:NUMBER", "is int, not a function"),
        (f"{HERE}:Median", "is the class Median, not a function"),
        (f"{HERE}:remembers", "is not deterministic"),
        (f"{HERE}:nobody", "has no nobody"),
        ("nowhere:rule", "no module 'nowhere'"),
    ],
)
def test_target_that_is_no_rule_is_refused(target: str, why: str) -> None:
    config = parse(TABLES, origin="test", overrides=[f"sync.merge={target}"])
    (said,) = merge_problems(config, LAYOUT)
    assert f'sync.merge = "{target}"' in said
    assert why in said


def test_unknown_option_is_refused_with_the_known_ones() -> None:
    (said,) = merge_problems(config_of("scaled", "sync.merge_options.facto=1.0"), LAYOUT)
    assert "facto is no option of it, did you mean factor?; it has factor" in said


@pytest.mark.parametrize("rule", ["mean", "median", "in_jax", "along"])
def test_sound_rules_are_accepted(rule: str) -> None:
    assert merge_problems(config_of(rule), LAYOUT) == []
    large = cut([Leaf("w", (300, 9000)), Leaf("v", (4 * TRIED,)), Leaf("b", ())], 1)
    assert merge_problems(config_of(rule), large) == []


def test_options_and_digest_need_a_rule_of_the_users() -> None:
    for key in ("merge_options.density=0.5", f"merge_sha256={'0' * 16}"):
        with pytest.raises(
            UserMistake, match=r"is of a merge rule of your own .* merge is \"mean\""
        ):
            parse(TABLES, origin="test", overrides=[f"sync.{key}"])
    with pytest.raises(UserMistake, match=r'sync\.kappa: is read only by merge = "rda"'):
        config_of("mean", "sync.kappa=0.5")


# --- the source of the rule -----------------------------------------------------------------------


RULE = """
import numpy as np

def rule(deltas, weights, pieces, factor):
    return np.float32(factor) * (weights[:, None] * deltas).sum(axis=0)
"""


def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> Path:
    """Play a run whose rule is in a module of its own; return the file of the rule."""
    folder = tmp_path / "code"
    folder.mkdir()
    (file := folder / f"{module}.py").write_text(RULE)
    monkeypatch.syspath_prepend(str(folder))
    text = CONFIG.replace(
        "[sync]", f'[sync]\nmerge = "{module}:rule"\nmerge_options = {{factor = 0.5}}'
    )
    (plain := tmp_path / "plain.toml").write_text(text)
    config = with_sources(load(plain))
    assert config.sync.merge_sha256 == user_sha256(f"{module}:rule")
    Played(tmp_path / "run", config.toml()).to_the_end(24)
    return file


def test_run_is_replayed_to_the_last_bit_and_by_this_rule_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = played(tmp_path, monkeypatch, "rule_of_replay")
    result, run_dir = replay(tmp_path / "run"), tmp_path / "run"
    assert result["exact"] is True
    assert result["compared"] == {"effects": True, "state": True, "fragments": True, "tokens": True}
    config = run_dir / "config.toml"
    (run_dir / "config.toml").write_text(config.read_text().replace("factor = 0.5", "factor = 0.4"))
    other = replay(run_dir)
    assert (other["exact"], other["compared"]) == (
        False,
        {"effects": True, "state": True, "fragments": False, "tokens": True},
    )
    file.write_text(RULE.replace("return", "return 0 + "))
    user_sha256.cache_clear()
    target_sha256.cache_clear()
    with pytest.raises(UserMistake, match=r"its source is \w+, and sync.merge_sha256 is \w+: put"):
        replay(run_dir)


def test_shipped_example_has_a_digest_and_follows_the_paper() -> None:
    config = with_sources(load(Path(ties.__file__).with_suffix(".toml")))
    assert re.fullmatch("[0-9a-f]{16}", config.sync.merge_sha256 or "")
    assert merge_problems(config, LAYOUT) == []
    deltas = np.array([[3, -1, 0.5, 2, 0], [-2, -4, 0.1, 1, 0]], np.float32)
    trimmed = np.array([[3, 0, 0, 2, 0], [-2, -4, 0, 0, 0]], np.float32)
    weights = np.array([0.5, 0.5], np.float32)
    result = ties.ties(deltas, weights, (), density=0.4)
    np.testing.assert_array_equal(result, [3, -4, 0, 2, 0], str(trimmed))
    heavy = ties.ties(deltas, np.array([0.25, 0.75], np.float32), (), density=1.0)
    np.testing.assert_allclose(heavy, [-2, -3.25, 0.2, 1.25, 0], rtol=1e-6)


def test_direction_aware_example_corrects_each_tensor_as_the_paper_does() -> None:
    target = "sync.merge=archipelago.examples.heloco:heloco"
    assert merge_problems(parse(TABLES, origin="test", overrides=[target]), LAYOUT) == []
    pieces = [MergePiece(path, slice(2 * i, 2 * i + 2), (2,), None, False) for i, path in AXES]
    momentum = np.array([2, 0, 2, 0, 2, 0, 0, 0], np.float32)
    delta = np.array([[3, 4, 0, 3, -3, 4, 1, 1]], np.float32)
    one = np.ones(1, np.float32)
    result = heloco.heloco(delta, one, pieces, momentum, turn=1.0, relative=0.0)
    np.testing.assert_array_equal(result[:2], [3, 4])  # a cosine of 0.6 is kept
    np.testing.assert_allclose(result[2:4], [3, 0], atol=1e-6)  # across: turned, and as long
    np.testing.assert_allclose(result[4:6], [-3 + 0.6 * 3, 4], rtol=1e-6)  # against: shortened
    np.testing.assert_array_equal(result[6:], [1, 1])  # no momentum: kept
    weaker = heloco.heloco(delta, one, pieces, momentum, turn=1.0, relative=1.0)
    assert 0 < weaker[2] < 3
    assert np.hypot(*weaker[2:4]) == pytest.approx(3)
    assert -3 < weaker[4] < result[4]
