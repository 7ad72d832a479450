"""Parts join to the whole bit for bit, and parts of different contributions are refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.codec import BLOCK, Payload, Sent, Wire, WithMoments, encode, split
from coordinator.parts import Part, cut_out, joined, misfit
from coordinator.protocol import (
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

LIFE = Life(Island("eu-0"), Incarnation(3))
FACTS = HandIn(
    ContributionId(LIFE, Fragment(1), 4, 8),
    Version(0, 2),
    4,
    100,
    "layout",
    Progress(8, 1, Lease(0)),
)


def cuts(size: int, hosts: int, seed: int) -> list[int]:
    """Return the bounds of `hosts` ranges of whole blocks; some ranges may be empty."""
    inner = np.random.default_rng(seed).integers(0, size // BLOCK + 1, hosts - 1) * BLOCK
    return [0, *sorted(int(cut) for cut in inner), size]


def parts_of(values: np.ndarray, wire: Wire, bounds: list[int]) -> list[Part]:
    return [Part(FACTS, a, b, encode(wire, values[a:b])) for a, b in pairwise(bounds)]


@given(
    size=st.integers(1, 700),
    hosts=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
    wire=st.sampled_from(Wire),
)
def test_joined_parts_equal_the_payload_of_one_host(
    size: int, hosts: int, seed: int, wire: Wire
) -> None:
    values = np.random.default_rng(seed).standard_normal(size, np.float32)
    whole, bounds = encode(wire, values), cuts(size, hosts, seed)
    parts = parts_of(values, wire, bounds)
    assert misfit(parts, size) is None
    same(joined(parts, size), whole)
    for part in parts:
        same(cut_out(whole, size, part.start, part.stop), part.payload)


@given(
    size=st.integers(1, 700),
    hosts=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
    wires=st.tuples(st.sampled_from(Wire), st.sampled_from(Wire)),
)
def test_moments_are_joined_beside_the_deltas(
    size: int, hosts: int, seed: int, wires: tuple[Wire, Wire]
) -> None:
    values = np.random.default_rng(seed).standard_normal((2, size), np.float32)
    bounds = cuts(size, hosts, seed)
    differences, moments = (
        parts_of(each, wire, bounds) for each, wire in zip(values, wires, strict=True)
    )
    parts = [
        one._replace(payload=WithMoments(split(one.payload)[0], split(other.payload)[0]))
        for one, other in zip(differences, moments, strict=True)
    ]
    whole = WithMoments(*(encode(wire, each) for each, wire in zip(values, wires, strict=True)))
    assert misfit(parts, size) is None
    same(joined(parts, size), whole)
    for part in parts:
        same(cut_out(whole, size, part.start, part.stop), part.payload)


def same(one: Sent, other: Sent) -> None:
    for mine, yours in zip(split(one), split(other), strict=True):
        assert (mine is None) == (yours is None)
        if mine is not None and yours is not None:
            assert mine.dtype == yours.dtype
            assert mine.tobytes() == yours.tobytes()


VALUES = np.arange(100, dtype=np.float32)
SOUND = parts_of(VALUES, Wire.INT8, [0, 32, 64, 100])


def plain(part: Part) -> Payload:
    return split(part.payload)[0]


def with_moments(part: Part, wire: Wire = Wire.INT8) -> Part:
    moments = encode(wire, VALUES[part.start : part.stop])
    return part._replace(payload=WithMoments(plain(part), moments))


ELSE = replace(FACTS, id=FACTS.id._replace(life=Life(Island("eu-0"), Incarnation(4))))
LATER = replace(FACTS, id=FACTS.id._replace(to_step=9))


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([], "no parts"),
        (SOUND[:2], "64 elements, the fragment has 100"),
        ([SOUND[0], SOUND[2]], "from 64 to 100 where 32 was next"),
        ([SOUND[1], SOUND[0], SOUND[2]], "from 32 to 64 where 0 was next"),
        ([*SOUND[:2], SOUND[2]._replace(facts=ELSE)], "which are not one"),
        ([*SOUND[:2], SOUND[2]._replace(facts=LATER)], "which are not one"),
        (parts_of(VALUES, Wire.F32, [0, 40, 100]), "within a block"),
        ([*SOUND[:2], *parts_of(VALUES, Wire.BF16, [0, 32, 64, 100])[2:]], "bf16 and int8"),
        ([*SOUND[:2], SOUND[2]._replace(payload=plain(SOUND[2])[:-1])], "payload of dtype"),
        ([*SOUND[:2], with_moments(SOUND[2])], "some have moments beside them and some have none"),
        ([*map(with_moments, SOUND[:2]), with_moments(SOUND[2], Wire.INT4)], "int4 and int8"),
    ],
)
def test_refuses_parts_that_are_not_one_contribution(parts: list[Part], why: str) -> None:
    """The parts are of two lives or boundaries, or one is missing, misplaced or truncated."""
    found = misfit(parts, 100)
    assert found is not None
    assert why in found
