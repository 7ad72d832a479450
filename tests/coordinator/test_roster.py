"""The roster matches a naive twin: its sorted values equal those of a full scan."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.frozen import replace
from coordinator.membership import (
    SPEAKING,
    Member,
    Status,
    density,
    live,
    silence_limit_s,
    silent_since_s,
)
from coordinator.protocol import Incarnation, Island, Lease, Life, Progress
from coordinator.roster import Roster, kth_clock

MEMBERS = st.builds(
    lambda island, incarnation, status, steps, offset, heard_s, away_s, step_s: Member(
        life=Life(Island(island), Incarnation(incarnation)),
        group="group",
        status=status,
        why="drawn",
        offset=offset,
        progress=Progress(steps, steps, Lease(0)),
        heard_s=heard_s,
        advanced_s=heard_s - away_s,
        step_s=step_s,
    ),
    st.sampled_from("abcde"),
    st.integers(1, 3),
    st.sampled_from(Status),
    st.integers(0, 5),
    st.integers(0, 3),
    st.floats(0, 100),
    st.floats(0, 100),
    st.sampled_from((0.0, 0.1, 1.0, 7.0)),
)


@given(st.lists(MEMBERS))
def test_roster_stays_sorted_after_any_put(members: list[Member]) -> None:
    roster = Roster()
    known: dict[Island, Member] = {}
    for member in members:
        before, former = roster, dict(known)
        roster, known = roster.put(member), {**known, member.life.island: member}
        assert dict(before) == former, "a value never changes"
        assert roster == known == Roster(known)
        living = live(known).values()
        assert roster.clocks == tuple(sorted(m.clock for m in living))
        assert roster.steps_s == tuple(sorted(m.step_s for m in living if m.step_s > 0))
        assert roster.living == {m.life for m in living}
        assert roster.silences_s == tuple(
            sorted(
                silent_since_s(m, must_advance=True) + silence_limit_s(m)
                for m in known.values()
                if m.status in SPEAKING
            )
        )


@given(st.lists(MEMBERS), st.integers(0, 3), st.integers(0, 3))
def test_densities_stay_sorted_after_any_put(members: list[Member], one: int, two: int) -> None:
    batches = {"group": one}
    roster, known = Roster(), dict[Island, Member]()

    def wanted(batch: int) -> tuple[float, ...]:
        return tuple(sorted(filter(None, (density(member, batch) for member in known.values()))))

    for number, drawn in enumerate(members):
        tokens = 7 * drawn.progress.steps**2 + number
        member = replace(drawn, progress=replace(drawn.progress, tokens=tokens))
        roster, known = roster.put(member), {**known, member.life.island: member}
        assert roster.densities(batches.__getitem__) == wanted(one)
    assert roster.densities({"group": two}.__getitem__) == wanted(two), "it is of other batches"


@given(st.lists(MEMBERS), st.integers(1, 4))
def test_kth_clock_is_the_kth_largest_of_the_live_members(members: list[Member], k: int) -> None:
    known = {member.life.island: member for member in members}
    clocks = sorted((m.clock for m in live(known).values()), reverse=True)
    assert kth_clock(Roster(known), k) == (clocks[k - 1] if len(clocks) >= k else None)


def test_set_of_lives_is_reused_while_membership_is_unchanged() -> None:
    """A rule can compare the set by identity."""
    life = Life(Island("a"), Incarnation(1))
    member = Member(life, "g", Status.LIVE, "steps", 0, Progress(1, 1, Lease(0)), 0.0, 0.0)
    later = Member(life, "g", Status.LIVE, "steps", 0, Progress(2, 2, Lease(0)), 1.0, 1.0)
    roster = Roster().put(member)
    assert roster.put(later).living is roster.living
