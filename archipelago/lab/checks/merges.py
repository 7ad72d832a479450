"""Invariants of merges: a quorum, nothing merged, freed or poisoned, and each window once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence, Set

from archipelago.lab.checks.facts import Poison, Violation
from archipelago.lab.checks.history import (
    AGAIN,
    AGAINST,
    ALMOST,
    CLEAR,
    MOST_SHARE,
    PASSING,
    REFUSALS,
    SIGMAS,
    JudgeMemory,
)
from archipelago.lab.checks.rounds import closes
from coordinator.membership import SPEAKING, Status
from coordinator.protocol import (
    Contribution,
    Discard,
    Effect,
    Event,
    Fate,
    Fragment,
    Island,
    Merge,
    Merged,
    Publish,
    Stored,
    Unsound,
    Version,
)
from coordinator.state import Round, Stage, State


def merged(
    memory: JudgeMemory, before: State, after: State, merge: Merge, event: Event, now_s: float
) -> None:
    """Check one merge: its quorum, order, weights and contributions, and each window once.

    Errors: `Violation`.
    """
    p, version = merge.fragment, merge.version
    contributions = tuple(item.contribution for item in merge.items)
    if (p, version) in memory.merges:
        raise Violation("one merge per version", f"f{p} {version}")
    memory.merges[p, version] = contributions
    memory.step[p, version] = Merge
    islands = {c.id.life.island for c in contributions}
    if len(islands) < memory.rule.min_quorum:
        raise Violation("the quorum is kept", f"{merge}")
    if (round_ := after.fragments[p].round) and round_.last != merge.last:
        raise Violation("the last round", f"{merge} in {round_}")
    keys = [(c.id.life.island, c.id.life.incarnation, c.id.from_step) for c in contributions]
    if keys != sorted(keys):
        raise Violation("merges are in order", f"{keys}")
    for share, item in zip(_shares(memory, contributions), merge.items, strict=True):
        if not math.isclose(share, item.weight, abs_tol=ALMOST):
            raise Violation("weights are tokens^2/steps", f"{merge}")
    if not isinstance(event, Unsound):
        closes(memory, p, after, now_s)
    for c in contributions:
        if memory.trial.get(c.id.life.island):  # checked at the order; a trial may begin later
            raise Violation("contributions on trial are not merged", f"{c.id}: {memory.trial}")
        _item(memory, p, before.fragments[p].version, c)
    truths = [made for c in contributions if (made := memory.truth.made(c.id)) is not None]
    windows = [window for made in truths for window in made.windows]
    if len(windows) != len(set(windows)) or len(contributions) != len(
        {c.id for c in contributions}
    ):
        raise Violation("a window is merged once", f"f{p} {version}: {windows}")


def _shares(memory: JudgeMemory, contributions: Sequence[Contribution]) -> list[float]:
    """Return the weight of each contribution, tokens^2/steps, normalised to a sum of one.

    No weight exceeds MOST_SHARE times the contribution's share of the steps. The weights over that
    limit are capped one at a time, the most excessive first. Edition 0 of the rules has no limit.
    """
    steps = [c.id.to_step - c.id.from_step for c in contributions]
    raw = [c.tokens**2 / count for c, count in zip(contributions, steps, strict=True)]
    limits = [MOST_SHARE * count / sum(steps) for count in steps]
    shares = [each / sum(raw) for each in raw]
    if memory.rule.edition == 0:
        return shares
    free, left = sorted(range(len(raw)), key=lambda i: limits[i] / raw[i]), 1.0
    while free and raw[i := free[0]] / sum(raw[j] for j in free) * left > limits[i]:
        shares[i], left, free = limits[i], left - limits[i], free[1:]
    for i in free:
        shares[i] = raw[i] / sum(raw[j] for j in free) * left
    return shares


def _item(memory: JudgeMemory, p: Fragment, onto: Version, c: Contribution) -> None:
    """Check one contribution of a merge: it is new, held, fresh, finite and healthy."""
    if c.id in memory.merged:
        raise Violation("nothing is merged twice", f"{c.id}")
    if c.reference in memory.freed or c.id.fragment != p:
        raise Violation("merged contributions are in the shard", f"{c.id}")
    if c.base > onto or onto.number - c.base.number > memory.rule.max_staleness:
        raise Violation("only fresh contributions are merged", f"{c.id} of {c.base} onto {onto}")
    if not math.isfinite(c.norm):
        raise Violation("the gate", f"{c} is merged")
    if (made := memory.truth.made(c.id)) is None:
        return
    if made.poison not in (None, *PASSING):
        raise Violation("the gate", f"{c} is merged, poisoned by {made.poison}")
    if not memory.windows[p].isdisjoint(made.windows):
        repeated = memory.windows[p].intersection(made.windows)
        raise Violation("a window is merged once", f"f{p}: {repeated} of {c.id}")


def published(memory: JudgeMemory, after: State, publish: Publish, event: Event) -> None:
    """Record a publication, and check its contributions and recipients.

    Errors: `Violation`.
    """
    p = publish.fragment
    for id_ in publish.merged:
        if (made := memory.truth.made(id_)) is not None:
            memory.windows[p].update(made.windows)
            if made.poison is Poison.ROTTEN:
                raise Violation("nothing unsound is published", f"{publish}")
    memory.merged.update(publish.merged)
    if publish.merged != tuple(c.id for c in memory.merges[p, publish.version]):
        raise Violation("merged contributions are acknowledged", f"{publish}")
    alive = {m.life for m in after.members.values() if m.status in SPEAKING}
    if not alive <= set(publish.to) or len(publish.to) != len(set(publish.to)):
        raise Violation("every live learner gets the version", f"{publish} to {alive}")
    if isinstance(event, Stored) and event.durable:
        memory.durable[p] = publish.version
    memory.rounds_of[p] += 1


def discarded(memory: JudgeMemory, after: State, discard: Discard) -> None:
    """Record a discard, and check that its bytes are not needed and its fate is right.

    Errors: `Violation`.
    """
    c, fragment = discard.contribution, after.fragments[discard.contribution.id.fragment]
    merging = fragment.round is not None and fragment.round.stage is Stage.MERGING
    items = fragment.round.items if fragment.round and merging else ()
    if c.reference in [other.reference for other in (*fragment.inbox, *items)]:
        raise Violation("needed contributions are kept", f"{discard}")
    if discard.fate is Fate.STALE and (
        fragment.version.number - c.base.number <= memory.rule.max_staleness
    ):
        raise Violation(
            "only stale contributions are refused as stale", f"{discard} at {fragment.version}"
        )
    if discard.fate is Fate.STALE and memory.rule.overlap == 0:  # lock-step may ask it again
        opened_s, lives = memory.asked[c.id.fragment]
        memory.asked[c.id.fragment] = opened_s, lives - {c.id.life}
    memory.freed.add(c.reference)


def undone(
    memory: JudgeMemory, before: State, event: Unsound, after: State, effects: Sequence[Effect]
) -> None:
    """Check what follows an unsound merge: spoiled contributions are dropped, or else the loudest.

    Each dropped contribution counts as a refusal. The others are merged, or wait.

    Errors: `Violation`.
    """
    old, new = before.fragments[event.fragment].round, after.fragments[event.fragment]
    assert old is not None
    dropped = [e.contribution for e in effects if isinstance(e, Discard)]
    gone = {c.id for c in dropped}
    loudest = max(c.norm / (c.id.to_step - c.since_step) for c in old.items)
    if event.spoiled and gone != set(event.spoiled):
        raise Violation("spoiled contributions are dropped", f"{dropped} of {event}")
    if not event.spoiled and [c.norm_per_step for c in dropped] != [loudest]:
        raise Violation("the largest norm is dropped", f"{dropped} of {old.items}")
    kept = {c.id for c in old.items} - gone
    items = new.round.items if new.round else ()
    if not kept <= {c.id for c in (*items, *new.inbox)}:
        raise Violation("sound contributions are kept", f"{new} of {old.items}")
    for life, times in Counter(c.id.life for c in dropped).items():
        member, needed = before.members[life.island], REFUSALS if memory.rule.overlap > 0 else 1
        if member.life == life and member.status in SPEAKING:
            memory.refusals[life] = count = memory.refusals.get(life, 0) + times
            if (count >= needed) != (after.members[life.island].status is Status.QUARANTINED):
                raise Violation("quarantine", f"{life} after {count} refusals")


def directions(memory: JudgeMemory, before: State, event: Merged, after: State) -> None:
    """Check that exactly the islands that point away for too many merges in a row are quarantined.

    An island on trial is trusted again after enough contributions that do not point away.

    Errors: `Violation`.
    """
    round_ = before.fragments[event.fragment].round
    assert round_ is not None
    lives = [c.id.life for c in (*round_.items, *round_.trial)]
    pairs = zip(lives, event.cosines, strict=False)
    # the newest of each island
    cosines = {life.island: (life, cosine) for life, cosine in pairs if cosine is not None}
    merged = {c.id.life.island for c in round_.items}
    live_members = [m for m in before.members.values() if m.status is Status.LIVE]
    living = [m for m in live_members if not m.trial and m.life.island not in memory.trial]
    few_fragments = memory.rule.edition > 1 and len(before.fragments) < AGAINST
    has_few_islands = memory.rule.edition > 0 and len(living) < 4
    for island, (life, cosine) in cosines.items():
        others = sorted(x for other, (_, x) in cosines.items() if other in merged - {island})
        old, new = before.members[island], after.members[island]
        if not event.measured or old.life != life or old.status not in SPEAKING:
            continue
        noise, needed = SIGMAS / event.measured**0.5, AGAINST
        is_confirmed = memory.rule.edition > 0 and _is_confirmed(round_, event, island, noise)
        if len(others) >= 2:
            middle = (others[(len(others) - 1) // 2] + others[len(others) // 2]) / 2
            deviations = sorted(abs(x - middle) for x in others)
            spread = (deviations[(len(deviations) - 1) // 2] + deviations[len(deviations) // 2]) / 2
            points_away = cosine < -noise and cosine < middle - SIGMAS * spread
        elif has_few_islands and old.trial and len(merged) == 1:
            points_away = cosine < -noise
        elif (
            has_few_islands
            and _are_two(round_, event, merged, cosines.keys() & merged)
            and not old.trial
        ):
            least = max(noise, CLEAR) if few_fragments else noise
            points_away = cosine < -noise and _is_confirmed(round_, event, island, least)
            needed = min(AGAINST, len(before.fragments)) if few_fragments else AGAINST
        else:
            continue
        if old.trial:
            left = AGAIN if points_away else memory.trial.pop(life.island) - 1
            if left:
                memory.trial[life.island] = left
            if new.trial != left:
                raise Violation("trials", f"{new}: {left} left")
            continue
        memory.against[life] = count = memory.against.get(life, 0) + 1 if points_away else 0
        others_left = sum(m.life != life for m in living)  # the suspect itself may be draining
        enough = (len(living) >= 4 or is_confirmed) and others_left >= memory.rule.min_quorum
        expected = count >= needed and enough and len({m.region for m in living}) == 1
        if expected != (new.status is Status.QUARANTINED) and merged <= cosines.keys():
            raise Violation("direction", f"{life} is {new.status}, {count} times against")
        if new.status is Status.QUARANTINED:
            memory.trial[life.island] = AGAIN
            living = [m for m in living if m.life != life]  # the next suspect is one of fewer


def _are_two(round_: Round, event: Merged, merged: Set[Island], measured: Set[Island]) -> bool:
    """Return whether this is a merge of two islands, with all measurements of both."""
    return len(merged) == 2 and merged == measured == _aligned(round_, event).keys()


def _aligned(round_: Round, event: Merged) -> dict[Island, float]:
    """Return the cosine of each island's last contribution in a merge to the outer momentum."""
    pairs = zip(round_.items, event.aligned, strict=False)
    return {c.id.life.island: x for c, x in pairs if x is not None}


def _is_confirmed(round_: Round, event: Merged, island: Island, chance: float) -> bool:
    """Return whether most of the others point along the momentum, and this island against it."""
    cosines = _aligned(round_, event)
    others = sorted(x for other, x in cosines.items() if other != island)
    if island not in cosines or not others:
        return False
    return cosines[island] < -chance and others[(len(others) - 1) // 2] > chance
