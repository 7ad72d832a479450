"""Shared first moments at the shard and at the gate: merged, published, stored, lost, refused."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cluster.config.load import parse
from cluster.config.rule import rule_of, wire_of_moments
from cluster.config.schema import Config
from cluster.launch.ray_cluster import Stores
from cluster.shard.arrays import ArrayShard, fresh
from cluster.syncer.measures import Measures
from coordinator import gate
from coordinator.advance import advance
from coordinator.codec import Payload, Sent, Wire, WithMoments, decode, encode, joined, split
from coordinator.errors import UserMistake
from coordinator.fragments import Leaf, cut
from coordinator.norms import NONE, Norms, Sample
from coordinator.protocol import (
    Arrived,
    Ask,
    Cause,
    ContributionId,
    Discard,
    Fate,
    Fragment,
    Granted,
    HandIn,
    Incarnation,
    Island,
    Item,
    Join,
    Lease,
    Life,
    Merge,
    Merged,
    Progress,
    Publish,
    Report,
    Store,
    Stored,
    Version,
)
from coordinator.state import initial
from tests.cluster.test_shard import Shelf
from tests.coordinator.given import LAYOUT as NAME
from tests.coordinator.given import contribution
from tests.given import array_shard

LAYOUT = cut([Leaf("w", (9, 7)), Leaf("b", (40,))], 1)
SIZE, F0 = LAYOUT.sizes[0], Fragment(0)
LIVES = [Life(Island(f"i{n}"), Incarnation(n + 1)) for n in range(5)]


def drawn(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=SIZE).astype(np.float32)


def a_shard(wire: Wire | None, shelf: Shelf | None = None, every: int = 1) -> ArrayShard:
    return array_shard(
        LAYOUT, fresh([drawn(0)]), wire_moments=wire, files=shelf or Shelf(), every=every
    )


def handed(shard: ArrayShard, life: Life, sent: Sent, number: int) -> Item:
    said = ContributionId(life, F0, number - 1, number)
    progress = Progress(number, number, Lease(0))
    facts = HandIn(said, Version(0, number - 1), number - 1, 1, LAYOUT.fingerprint, progress)
    return Item(shard.receive(facts, sent), 1.0)


def merged(
    shard: ArrayShard,
    sent: list[Sent],
    shares: list[float] | None = None,
    *,
    last: bool = False,
    store: bool = True,
) -> Sent:
    """Merge and publish these; return the payload for learners."""
    before = shard.version(F0)
    version = Version(before.generation, before.number + 1)
    items = [
        handed(shard, life, each, version.number) for life, each in zip(LIVES, sent, strict=False)
    ]
    shares = [1 / len(sent)] * len(sent) if shares is None else shares
    items = [Item(item.contribution, w) for item, w in zip(items, shares, strict=True)]
    done = shard.merge(Merge(F0, version, tuple(items), "", last=last))
    assert isinstance(done, Merged)
    if store:
        shard.store(F0, version)
    published = shard.publish(Publish(F0, version, before, (), ()))
    assert published is not None
    return published[1]


def shared_by(shard: ArrayShard) -> list[float]:
    """Return the moments that the shard shares."""
    (shared,) = shard.shared([F0])
    assert isinstance(shared, np.ndarray)
    return shared.tolist()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.floats(0.01, 1.0)), min_size=1, max_size=5),
    st.sampled_from([*Wire]),
    st.integers(0, 2**32 - 1),
)
def test_weighted_mean_of_moments_matches_a_naive_reference(
    given_: list[tuple[bool, float]], wire: Wire, seed: int
) -> None:
    shard, total = a_shard(wire), sum(weight for _, weight in given_)
    shares = [weight / total for _, weight in given_]
    written = [encode(wire, drawn(seed + i)) if has else None for i, (has, _) in enumerate(given_)]
    sent = [joined(drawn(seed + 9 + i), each) for i, each in enumerate(written)]
    assert shard.shared([F0]) == [None]
    _, mean = split(merged(shard, sent, shares))
    there = [(w, decode(m, SIZE)) for w, m in zip(shares, written, strict=True) if m is not None]
    if not there:
        assert mean is None
        assert shard.shared([F0]) == [None]
        return
    wanted = sum(w * each.astype(np.float64) for w, each in there) / sum(w for w, _ in there)
    assert mean is not None
    exact = np.asarray(wanted, np.float32)
    off = np.abs(decode(mean, SIZE) - decode(encode(wire, exact), SIZE))
    levels = {Wire.E3M0: 3, Wire.INT2: 1}.get(wire, 7)
    step = np.abs(exact).max() / levels  # where roundings may differ
    assert (off <= (1e-5 if wire is Wire.F32 else step)).all()
    assert np.mean(off > 1e-5) < (0.01 if wire is Wire.F32 else 0.2)
    assert shard.shared([F0])[0] is mean


def test_moments_are_shared_from_publication_until_newer_ones() -> None:
    shard = a_shard(Wire.F32)
    first = merged(shard, [WithMoments(drawn(1), drawn(2)), WithMoments(drawn(3), drawn(4))])
    before = shard.shared([F0])[0]
    assert before is split(first)[1]
    version, after = shard.version(F0), Version(0, 2)
    item = handed(shard, LIVES[0], WithMoments(drawn(5), drawn(6)), 2)
    shard.merge(Merge(F0, after, (item,), ""))
    assert shard.shared([F0])[0] is before  # staged only, so not visible yet
    staged = shard.staged(F0).moments
    shard.publish(Publish(F0, after, version, (), ()))
    assert staged is not None
    assert shared_by(shard) == staged.tolist()
    assert isinstance(merged(shard, [drawn(7), drawn(8)]), np.ndarray)  # without moments
    assert shared_by(shard) == staged.tolist()


def test_last_round_publishes_no_moments() -> None:
    shard = a_shard(Wire.F32)
    assert isinstance(merged(shard, [WithMoments(drawn(1), drawn(2))], last=True), np.ndarray)
    assert shard.shared([F0]) == [None]


def test_moments_do_not_change_the_merge_of_deltas() -> None:
    plain, sharing = a_shard(None), a_shard(Wire.INT4)
    for n in range(3):
        deltas = [drawn(10 * n + i) for i in range(4)]
        merged(plain, [*deltas])
        wire = [encode(Wire.INT4, drawn(100 + i)) for i in range(4)]
        merged(
            sharing,
            [
                joined(d, m if i % 2 else None)
                for i, (d, m) in enumerate(zip(deltas, wire, strict=True))
            ],
        )
        assert np.array_equal(plain.whole([F0])[0][1], sharing.whole([F0])[0][1])


def test_moments_corrupted_while_held_are_not_published() -> None:
    shard, moments = a_shard(Wire.F32), drawn(2)
    item = handed(shard, LIVES[0], WithMoments(drawn(1), moments), 1)
    moments[3] = math.nan
    shard.merge(Merge(F0, Version(0, 1), (Item(item.contribution, 1.0),), ""))
    assert shard.staged(F0).moments is None


@pytest.mark.parametrize("every", [1, 2])
def test_restarted_shard_has_the_moments_stored_with_the_fragment(every: int) -> None:
    shelf = Shelf()
    shard = a_shard(Wire.INT8, shelf, every)
    for n in range(1, 4):
        merged(shard, [WithMoments(drawn(n), encode(Wire.INT8, drawn(10 + n)))])
    wanted, there = shared_by(shard), shelf.newest(F0, Version(0, 3)).moments
    back = a_shard(Wire.INT8, shelf, every)
    back.recover({F0: Version(0, 3)}, 1)
    assert there is not None
    assert shared_by(back) == there.tolist()
    assert (shared_by(back) == wanted) == (every == 1)


def test_shard_restarted_at_the_beginning_gets_moments_with_a_merge() -> None:
    shelf = Shelf()
    shard = a_shard(Wire.F32, shelf, every=100)
    merged(shard, [WithMoments(drawn(1), drawn(2))], store=False)
    back = a_shard(Wire.F32, shelf)
    back.recover({F0: Version(0, 1)}, 1)
    assert back.shared([F0]) == [None]
    assert isinstance(merged(back, [WithMoments(drawn(1), drawn(2))]), WithMoments)


def test_moments_of_another_wire_are_a_flaw() -> None:
    delta, moments = drawn(1), encode(Wire.INT4, drawn(2))

    def said(shard: ArrayShard, sent: Sent) -> str:
        return handed(shard, LIVES[0], sent, 1).contribution.flaw

    assert said(a_shard(Wire.INT4), WithMoments(delta, moments)) == ""
    assert (
        said(a_shard(None), WithMoments(delta, moments)) == "int4 bytes, the run's wire is for none"
    )
    assert (
        said(a_shard(Wire.BF16), WithMoments(delta, moments))
        == "int4 bytes, the run's wire is bf16"
    )
    assert "the fragment has" in said(a_shard(Wire.INT4), WithMoments(delta, moments[:-1]))
    assert "int4 bytes" in said(a_shard(Wire.INT4), WithMoments(moments, moments))


# --- the gate -------------------------------------------------------------------------------------


def inspect(moments_norm: float | None, known: Norms = NONE) -> Cause | None:
    c = replace(contribution(), moments_norm=moments_norm)
    refusal = gate.inspect(
        c, fingerprint=NAME, current=Version(0, 0), max_staleness=2, norms=NONE, moments=known
    )
    return None if refusal is None else refusal.cause


def test_gate_compares_moments_with_recent_ones() -> None:
    known = Norms(tuple(Sample(each, 1) for each in (1.0, 1.2, 0.9, 1.1, 1.0, 0.8, 1.0, 1.1)))
    assert inspect(None, known) is None
    assert inspect(2.0, known) is None
    assert inspect(1e4) is None  # too few norms are known
    assert inspect(1e4, known) is Cause.MOMENTS
    for bad in (math.nan, math.inf):
        assert inspect(bad) is Cause.NOT_FINITE
        assert inspect(bad, known) is Cause.NOT_FINITE


class Rules:
    """The rules with two islands, driven by hand; the norms of moments are given."""

    def __init__(self) -> None:
        self.config = parse(
            {
                "task": {"preset": "byte-tiny"},
                "sync": {"every": 2, "fragments": 1, "overlap": 1, "moments": "mean", "grace": 0.0},
                "islands": [{"count": 2}],
            },
            origin="test",
            overrides=(),
        )
        self.rule, self.now_s, self.down = rule_of(self.config, LAYOUT), 0.0, list[int]()
        self.state = initial(self.rule)
        self.measures = Measures(
            "r", {}, LAYOUT.sizes, Wire.F32, now_s=0.0, wire_moments=wire_of_moments(self.config)
        )
        self.lives = [self.feed(Join(Island(name), "local", LAYOUT.fingerprint)) for name in "ab"]
        self.steps = 0

    def feed(self, event: object) -> tuple[object, ...]:
        self.now_s += 0.1
        before, now_s = self.state, self.now_s
        self.state, effects = advance(self.rule, before, event, now_s)  # type: ignore[arg-type]
        self.measures.saw(before, event, self.state, effects, now_s)  # type: ignore[arg-type]
        for effect in effects:
            match effect:
                case Merge(p, version):
                    self.feed(Merged(p, version))
                case Store(p, version):
                    self.feed(Stored(p, version, durable=True))
                case Publish():
                    self.down.append(self.measures.counts.down_bytes)
                case _:
                    pass
        return effects

    def round(self, *moments: float | None) -> list[Discard]:
        """Let both islands step and hand in; return the discards."""
        self.steps += 2
        found, asked = list[Discard](), list[Life]()
        lives = [e.life for granted in self.lives for e in granted if isinstance(e, Granted)]
        self.now_s += 2.0
        windows = self.steps * self.config.islands[0].batch_size
        far = {
            life: Progress(self.steps, self.steps, Lease(2 * n, windows))
            for n, life in enumerate(lives)
        }
        for life, progress in far.items():
            asked += [e.life for e in self.feed(Report(life, progress, 1.0)) if isinstance(e, Ask)]
        assert asked == lives
        for life, norm in zip(lives, moments, strict=True):
            said = contribution(
                life, 0, (self.steps - 2, self.steps), tokens=2,
                base=self.state.fragments[0].version,
            )  # fmt: skip
            said = replace(
                said, fingerprint=LAYOUT.fingerprint, progress=far[life], moments_norm=norm
            )
            found += [e for e in self.feed(Arrived(said)) if isinstance(e, Discard)]
        return found


def test_refuses_moments_that_are_not_finite_and_records_the_others() -> None:
    rules = Rules()
    for n in range(5):
        assert not rules.round(1.0 + n / 10, None)
    assert [s.norm for s in rules.state.fragments[0].moments.recent] == [1.0, 1.1, 1.2, 1.3, 1.4]
    (bad,) = rules.round(math.nan, 1.0)
    assert (bad.fate, bad.cause) == (Fate.GATE, Cause.NOT_FINITE)
    assert len(rules.state.fragments[0].moments.recent) == 6


def test_forgets_old_moment_norms_when_all_have_changed() -> None:
    rules = Rules()
    for _ in range(6):
        assert not rules.round(1.0, 1.0)
    first, second = rules.round(50.0, 50.0)
    assert {first.cause, second.cause} == {Cause.MOMENTS}
    assert not rules.round(50.0, 50.0)


def test_bytes_of_moments_are_counted_with_their_merge() -> None:
    rules = Rules()
    delta, moments = Wire.F32.bytes_of(SIZE), Wire.INT8.bytes_of(SIZE)
    rules.round(None, None)
    rules.round(1.0, None)
    rules.round(None, None)
    counted = np.diff([0, *rules.down]).tolist()
    assert counted == [2 * delta, 2 * (delta + moments), 2 * delta]


# --- the configuration --------------------------------------------------------------------------


def config(**sync: object) -> Config:
    tables = {"task": {"preset": "byte-tiny"}, "sync": sync, "islands": [{"count": 2}]}
    return parse(tables, origin="test", overrides=())


@pytest.mark.parametrize(("key", "value"), [("moments_every", 2), ("wire_moments", "bf16")])
def test_refuses_options_of_shared_moments_without_shared_moments(key: str, value: object) -> None:
    with pytest.raises(UserMistake, match=f'sync.{key}: is read only by moments = "mean"'):
        config(**{key: value})
    config(moments="mean", **{key: value})


def test_refuses_adamw_share_without_muon() -> None:
    tables = {"task": {"preset": "byte-tiny"}, "islands": [{"count": 2}]}
    with pytest.raises(UserMistake, match=r"optimizer.adamw_share: is for the leaves beside"):
        parse(
            {**tables, "optimizer": {"kind": "adamw", "adamw_share": 0.5}},
            origin="test",
            overrides=(),
        )
    parse({**tables, "optimizer": {"adamw_share": 0.5}}, origin="test", overrides=())


def test_kappa_needs_rda() -> None:
    with pytest.raises(UserMistake, match=r'sync.kappa: is read only by merge = "rda"'):
        config(kappa=0.5)
    config(merge="rda", kappa=0.5)
    for bad in (0.0, 1.5):
        with pytest.raises(UserMistake, match=r"sync.kappa"):
            config(merge="rda", kappa=bad)


def test_refuses_shared_moments_in_data_parallel() -> None:
    tables = {"run": {"mode": "data-parallel"}, "task": {"preset": "byte-tiny"}}
    with pytest.raises(UserMistake, match=r"sync.moments: .* is not for run.mode"):
        parse(
            {**tables, "sync": {"moments": "mean"}, "islands": [{"count": 2}]},
            origin="test",
            overrides=(),
        )


def test_object_stores_have_room_for_moments() -> None:
    shared, own = (Stores.of(config(moments=each), LAYOUT) for each in ("mean", "own"))
    assert shared.shards > own.shards
    assert shared.island > own.island


def test_wire_bytes_include_both_payloads() -> None:
    delta: Payload = drawn(1)
    both = WithMoments(delta, encode(Wire.INT4, delta))
    assert both.nbytes == Wire.F32.bytes_of(SIZE) + Wire.INT4.bytes_of(SIZE)
    item = handed(a_shard(Wire.INT4), LIVES[0], both, 1)
    assert item.contribution.bytes == both.nbytes
    assert item.contribution.moments_norm is not None
    assert joined(*split(both)) == both
    assert split(delta) == (delta, None)
