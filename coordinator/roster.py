"""All members, with sorted views of what every event asks about all of them.

With hundreds of learners, a loop over all of them would cost more than the rest of a report.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from typing import TypeVar

from coordinator.membership import (
    SPEAKING,
    Member,
    Status,
    density,
    silence_limit_s,
    silent_since_s,
)
from coordinator.protocol import Island, Life

Number = TypeVar("Number", int, float)
BatchOf = Callable[[str], int]
"""Returns the windows in one step of a learner of a group."""


class Roster(Mapping[Island, Member]):
    """Members by island, as an immutable value: `put` returns another roster.

    The tuples are in ascending order:

    - `clocks`: clocks of the live learners
    - `doubted`: those clocks that do not count yet
    - `steps_s`: seconds per step of the live learners that have stepped
    - `silences_s`: when each active learner will be given up if it stays silent and must advance

    `living` is the set of the live learners' lives.
    """

    __slots__ = ("_by_island", "_dense", "clocks", "doubted", "living", "silences_s", "steps_s")

    def __init__(self, members: Mapping[Island, Member] | None = None) -> None:
        self._by_island: dict[Island, Member] = dict(members or {})
        all_members = [*self._by_island.values()]
        self.clocks: tuple[int, ...] = _sorted([_clock(member) for member in all_members])
        self.doubted: tuple[int, ...] = _sorted([_doubted(member) for member in all_members])
        self.steps_s: tuple[float, ...] = _sorted([_step_s(member) for member in all_members])
        self.silences_s: tuple[float, ...] = _sorted(
            [silent_at_s(member) for member in all_members]
        )
        self.living: frozenset[Life] = frozenset(
            member.life for member in all_members if member.status is Status.LIVE
        )
        self._dense: tuple[BatchOf, tuple[float, ...]] | None = None  # `densities`, once wanted

    def put(self, member: Member) -> Roster:
        """Return a roster with this member in place of the one of its island."""
        island = member.life.island
        former = self._by_island.get(island)
        new = object.__new__(Roster)
        new._by_island = {**self._by_island, island: member}
        new.clocks = _moved(self.clocks, _clock(former), _clock(member))
        new.doubted = _moved(self.doubted, _doubted(former), _doubted(member))
        new.steps_s = _moved(self.steps_s, _step_s(former), _step_s(member))
        new.silences_s = _moved(self.silences_s, silent_at_s(former), silent_at_s(member))
        new.living = _replaced(self.living, _life(former), _life(member))
        new._dense = None
        if self._dense is not None:
            batch_of, ordered = self._dense
            moved = _moved(ordered, _density(former, batch_of), _density(member, batch_of))
            new._dense = batch_of, moved
        return new

    def densities(self, batch_of: BatchOf) -> tuple[float, ...]:
        """Return the tokens per window of all members that have any, in ascending order.

        They are sorted once; `put` moves one of them.
        """
        if self._dense is None or self._dense[0] != batch_of:
            numbers = [_density(member, batch_of) for member in self._by_island.values()]
            self._dense = batch_of, _sorted(numbers)
        return self._dense[1]

    def __getitem__(self, island: Island) -> Member:
        return self._by_island[island]

    def __iter__(self) -> Iterator[Island]:
        return iter(self._by_island)

    def __len__(self) -> int:
        return len(self._by_island)

    def values(self) -> ValuesView[Member]:
        """Return a view of the members."""
        return self._by_island.values()

    def items(self) -> ItemsView[Island, Member]:
        """Return a view of the islands with their members."""
        return self._by_island.items()

    def __repr__(self) -> str:
        return f"Roster({self._by_island!r})"


def kth_clock(members: Roster, k: int) -> int | None:
    """Return the K-th largest clock of the live learners; None while there are fewer than K."""
    return members.clocks[-k] if len(members.clocks) >= k else None


def believed_clock(members: Roster, k: int) -> int | None:
    """Return the K-th largest clock of the live learners whose clock is not doubted."""
    if not members.doubted:
        return kth_clock(members, k)
    clocks = [*members.clocks]
    for doubted in members.doubted:
        clocks.remove(doubted)
    return clocks[-k] if len(clocks) >= k else None


def silent_at_s(member: Member | None) -> float | None:
    """Return when the learner will be given up if it sends nothing more and must advance.

    It is None if the learner is not active.
    """
    if member is None or member.status not in SPEAKING:
        return None
    return silent_since_s(member, must_advance=True) + silence_limit_s(member)


def _life(member: Member | None) -> Life | None:
    return member.life if member is not None and member.status is Status.LIVE else None


def _clock(member: Member | None) -> int | None:
    return member.clock if member is not None and member.status is Status.LIVE else None


def _doubted(member: Member | None) -> int | None:
    return _clock(member) if member is not None and member.doubted else None


def _step_s(member: Member | None) -> float | None:
    if member is None or member.status is not Status.LIVE or not member.step_s > 0:
        return None
    return member.step_s


def _density(member: Member | None, batch_of: BatchOf) -> float | None:
    return None if member is None else density(member, batch_of(member.group)) or None


def _replaced(lives: frozenset[Life], removed: Life | None, added: Life | None) -> frozenset[Life]:
    """Return the set with one life replaced; the identical object if nothing changes."""
    if removed == added:
        return lives
    return lives.difference([removed]).union([] if added is None else [added])


def _sorted(numbers: list[Number | None]) -> tuple[Number, ...]:
    return tuple(sorted([number for number in numbers if number is not None]))


def _moved(
    ordered: tuple[Number, ...], removed: Number | None, added: Number | None
) -> tuple[Number, ...]:
    """Return the tuple with one number less and one more, still in order."""
    if removed == added:
        return ordered
    moved = [*ordered]
    if removed is not None:
        del moved[bisect_left(moved, removed)]
    if added is not None:
        insort(moved, added)
    return tuple(moved)
