"""A host that is not the first: the copies and parts that it gives, and when it gives none."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from coordinator.parts import Part
from coordinator.protocol import (
    ContributionId,
    Fragment,
    Incarnation,
    Island,
    Known,
    Lease,
    Life,
    Progress,
    Version,
)
from islands.adopt import AdoptRule
from islands.exchange import Public
from islands.hosts.follower import Follower
from islands.hosts.orders import Begin, CopyOut, CutOut, Order, Start
from islands.learner_messages import HandOver, Track
from tests.shells.given import INNER, LAYOUT, PORTS, Numbers, World, flat_of, habits_of
from tests.shells.scheduler import Scheduler

WAIT_S = 20.0
BEFORE, LIFE, NEXT = (Life(Island("a"), Incarnation(number)) for number in (1, 2, 3))
F0, V0 = Fragment(0), Version(0, 0)
LEAVES = len(INNER.shares)


class Shards(World):
    """Shards that answer at once."""

    def whole(self, fragments: Sequence[Fragment]) -> list[Public] | None:
        return [(V0, flat_of(p, 0)) for p in fragments]


@pytest.fixture
def follower() -> Follower:
    """Return a host in life `LIFE`."""
    made = Follower(
        LAYOUT,
        INNER,
        PORTS[AdoptRule.OVERWRITE],
        Numbers,
        Shards(Scheduler(0)),
        habits_of(2),
        lambda word: None,
        lambda: None,
        None,
    )
    made.run(begins(LIFE))
    return made


def begins(life: Life) -> list[Order]:
    return [Begin(life, False, False), Start(0, ())]


def copies(donation: int, leaves: range) -> list[CopyOut]:
    return [CopyOut(donation, leaf) for leaf in leaves]


def test_request_to_the_former_life_takes_no_copies_of_this_one(follower: Follower) -> None:
    follower.run(copies(1, range(1)))
    assert follower.moments(BEFORE, 1) is None
    follower.run(copies(1, range(1, LEAVES)))
    found = follower.moments(LIFE, 1)
    assert found is not None
    assert len(found) == LEAVES


def test_abandoned_request_takes_no_copies_of_the_next_one(follower: Follower) -> None:
    with ThreadPoolExecutor(1) as pool:
        given_up = pool.submit(follower.moments, LIFE, 1)
        follower.run(copies(1, range(1)))
        follower.run(copies(2, range(LEAVES)))
        found = follower.moments(LIFE, 2)
        assert given_up.result(WAIT_S) is None
    assert found is not None
    assert len(found) == LEAVES


def test_gives_no_part_of_a_life_that_is_over(follower: Follower) -> None:
    said, known = ContributionId(LIFE, F0, 0, 4), Known((0, 1))
    follower.run(begins(NEXT))
    assert follower.part(said, known) is None
    here = ContributionId(NEXT, F0, 0, 4)
    follower.run([CutOut(HandOver(F0, here, Track(V0), Progress(4, 4, Lease(0))), keep=False)])
    assert follower.part(said, known) is None
    assert isinstance(follower.part(here, known), Part)
