"""Parts put together are the whole to the last bit, and nothing that is not one contribution is."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.codec import BLOCK, Payload, Wire, encode
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
    """So many ranges of whole blocks, some of them perhaps empty."""
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
def test_parts_sewn_together_are_what_one_host_hands_in(
    size: int, hosts: int, seed: int, wire: Wire
) -> None:
    values = np.random.default_rng(seed).standard_normal(size, np.float32)
    whole, bounds = encode(wire, values), cuts(size, hosts, seed)
    parts = parts_of(values, wire, bounds)
    assert misfit(parts, size) is None
    same(joined(parts, size), whole)
    for part in parts:
        same(cut_out(whole, size, part.start, part.stop), part.payload)


def same(one: Payload, other: Payload) -> None:
    assert one.dtype == other.dtype
    assert one.tobytes() == other.tobytes()


VALUES = np.arange(100, dtype=np.float32)
SOUND = parts_of(VALUES, Wire.INT8, [0, 32, 64, 100])
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
        ([*SOUND[:2], SOUND[2]._replace(payload=SOUND[2].payload[:-1])], "payload of dtype"),
    ],
)
def test_what_is_not_one_contribution_is_refused(parts: list[Part], why: str) -> None:
    """Of two lives or two boundaries; with a part missing, twice, out of order or cut short."""
    found = misfit(parts, 100)
    assert found is not None
    assert why in found
