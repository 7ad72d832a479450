"""The ledger of tokens: each token trained is merged, discarded, outstanding, or lost.

It is kept per fragment, by step intervals of each life, in exact integers, because the same step
can be merged for one fragment and overwritten for another. In each row `trained == merged +
discarded + lost + outstanding` after every event.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.errors import BrokenInvariant
from coordinator.frozen import replace
from coordinator.protocol import Contribution, Fate, Fragment, Life

Spans = tuple[tuple[int, int], ...]
"""Disjoint step intervals [from, to), sorted, with adjacent ones joined."""


@dataclass(frozen=True, slots=True)
class Row:
    """The tokens of one fragment whose fate is known, and those held for a merge."""

    merged: int = 0
    """Tokens in contributions that were merged."""
    held: int = 0
    """Tokens in contributions that a shard holds for a merge."""
    lost: int = 0
    """Tokens that ended with a life, or with a shard that held them."""
    discarded: Mapping[Fate, int] = field(default_factory=dict[Fate, int])
    """Tokens that did not reach the global model, by reason."""

    @property
    def all_discarded(self) -> int:
        """Tokens discarded for any reason."""
        return sum(self.discarded.values())


@dataclass(frozen=True, slots=True)
class Account:
    """The account of one life."""

    tokens: int
    """Tokens trained so far."""
    spans: tuple[Spans, ...]
    """The steps that are accounted for, for each fragment."""
    covered: tuple[int, ...]
    """The tokens of the steps in `spans`, for each fragment."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The rows of all fragments, and the accounts of the active lives."""

    trained: int
    """Tokens trained by all lives."""
    rows: tuple[Row, ...]
    accounts: Mapping[Life, Account]

    def outstanding(self, fragment: Fragment) -> int:
        """Return the trained tokens whose fate on this fragment is open."""
        row = self.rows[fragment]
        return self.trained - row.merged - row.all_discarded - row.lost


@dataclass(frozen=True, slots=True)
class Totals:
    """The parameter-weighted means of the rows, in tokens, rounded so that they add up."""

    trained: int
    merged: int
    discarded: int
    lost: int
    outstanding: int


def empty(fragments: int) -> Ledger:
    """Return a ledger without tokens."""
    return Ledger(0, (Row(),) * fragments, {})


def open_account(ledger: Ledger, life: Life) -> Ledger:
    """Return the ledger with an empty account for a new life."""
    blank = Account(0, ((),) * len(ledger.rows), (0,) * len(ledger.rows))
    return replace(ledger, accounts={**ledger.accounts, life: blank})


def trained(ledger: Ledger, life: Life, tokens: int) -> Ledger:
    """Record that the life has trained this many tokens in all; a smaller figure is a no-op."""
    account = ledger.accounts[life]
    if tokens <= account.tokens:
        return ledger
    accounts = {**ledger.accounts, life: Account(tokens, account.spans, account.covered)}
    return Ledger(ledger.trained + tokens - account.tokens, ledger.rows, accounts)


def uncovered(ledger: Ledger, life: Life, fragment: Fragment) -> int:
    """Return the tokens of this life that were neither handed in nor overwritten."""
    account = ledger.accounts[life]
    return account.tokens - account.covered[fragment]


def overlaps(ledger: Ledger, life: Life, fragment: Fragment, span: tuple[int, int]) -> bool:
    """Return whether any of these steps is accounted for already."""
    spans = ledger.accounts[life].spans[fragment]
    return any(start < span[1] and span[0] < stop for start, stop in spans)


def hold(ledger: Ledger, contribution: Contribution) -> Ledger:
    """Record a contribution that passed the gate: its tokens wait in the shard for a merge."""
    ledger = _cover(ledger, contribution)
    row = ledger.rows[contribution.id.fragment]
    row = replace(row, held=row.held + contribution.tokens)
    return _with_row(ledger, contribution.id.fragment, row)


def refuse(ledger: Ledger, contribution: Contribution, fate: Fate) -> Ledger:
    """Record a contribution that was refused on arrival."""
    ledger = _cover(ledger, contribution)
    return _discard(ledger, contribution.id.fragment, fate, contribution.tokens)


def merge(ledger: Ledger, contribution: Contribution) -> Ledger:
    """Record that a held contribution was merged."""
    row = ledger.rows[contribution.id.fragment]
    row = replace(row, held=row.held - contribution.tokens, merged=row.merged + contribution.tokens)
    return _with_row(ledger, contribution.id.fragment, row)


def unmerge(ledger: Ledger, contribution: Contribution) -> Ledger:
    """Undo a merge that was not public yet: its contributions are held again."""
    row = ledger.rows[contribution.id.fragment]
    tokens = contribution.tokens
    row = replace(row, held=row.held + tokens, merged=row.merged - tokens)
    return _with_row(ledger, contribution.id.fragment, row)


def drop(ledger: Ledger, contribution: Contribution, fate: Fate) -> Ledger:
    """Discard a held contribution that will not be merged after all."""
    row = ledger.rows[contribution.id.fragment]
    row = replace(row, held=row.held - contribution.tokens)
    ledger = _with_row(ledger, contribution.id.fragment, row)
    return _discard(ledger, contribution.id.fragment, fate, contribution.tokens)


def forget(ledger: Ledger, contribution: Contribution) -> Ledger:
    """Record that a held contribution is lost with the shard's memory."""
    row = ledger.rows[contribution.id.fragment]
    tokens = contribution.tokens
    row = replace(row, held=row.held - tokens, lost=row.lost + tokens)
    return _with_row(ledger, contribution.id.fragment, row)


def overwrite(
    ledger: Ledger, life: Life, fragment: Fragment, span: tuple[int, int], tokens: int
) -> Ledger:
    """Discard steps that were never handed in and that a newer version replaced."""
    ledger = _cover_span(ledger, life, fragment, span, tokens)
    return _discard(ledger, fragment, Fate.OVERWRITTEN, tokens)


def close_account(ledger: Ledger, life: Life) -> Ledger:
    """End a life: for each fragment, the tokens that it had not handed in are lost."""
    account = ledger.accounts[life]
    rows = tuple(
        replace(row, lost=row.lost + account.tokens - covered)
        for row, covered in zip(ledger.rows, account.covered, strict=True)
    )
    accounts = {other: entry for other, entry in ledger.accounts.items() if other != life}
    return replace(ledger, rows=rows, accounts=accounts)


def totals(ledger: Ledger, sizes: Sequence[int]) -> Totals:
    """Return the parameter-weighted means of the rows; largest remainders round to an exact sum."""
    total_size = sum(sizes)
    fates = [
        [row.merged, row.all_discarded, row.lost, ledger.outstanding(Fragment(p))]
        for p, row in enumerate(ledger.rows)
    ]
    scaled = [
        sum(size * row[fate] for size, row in zip(sizes, fates, strict=True)) for fate in range(4)
    ]
    rounded = [value // total_size for value in scaled]
    by_remainder = sorted(range(4), key=lambda fate: -(scaled[fate] % total_size))
    for fate in by_remainder[: ledger.trained - sum(rounded)]:
        rounded[fate] += 1
    return Totals(ledger.trained, *rounded)


def validate(ledger: Ledger) -> None:
    """Raise `BrokenInvariant` if the tokens of a row do not add up or are negative."""
    tokens = sum([account.tokens for account in ledger.accounts.values()])
    nothing = (0,) * len(ledger.rows)
    columns = zip(nothing, *(a.covered for a in ledger.accounts.values()), strict=True)
    for p, (row, covered) in enumerate(zip(ledger.rows, columns, strict=True)):
        uncovered, discarded = tokens - sum(covered), row.all_discarded
        if min(row.merged, row.held, row.lost, discarded, uncovered) < 0:
            raise BrokenInvariant(f"fragment {p}: negative tokens in {row}, uncovered {uncovered}")
        outstanding = ledger.trained - row.merged - discarded - row.lost
        if outstanding != row.held + uncovered:
            raise BrokenInvariant(
                f"fragment {p}: outstanding {outstanding} tokens, but "
                f"{row.held} are held and {uncovered} not handed in"
            )


def _with_row(ledger: Ledger, fragment: Fragment, row: Row) -> Ledger:
    rows = (*ledger.rows[:fragment], row, *ledger.rows[fragment + 1 :])
    return replace(ledger, rows=rows)


def _discard(ledger: Ledger, fragment: Fragment, fate: Fate, tokens: int) -> Ledger:
    if tokens == 0:
        return ledger
    row = ledger.rows[fragment]
    discarded = {**row.discarded, fate: row.discarded.get(fate, 0) + tokens}
    return _with_row(ledger, fragment, replace(row, discarded=discarded))


def _cover(ledger: Ledger, contribution: Contribution) -> Ledger:
    life, fragment, start, stop = contribution.id
    return _cover_span(ledger, life, fragment, (start, stop), contribution.tokens)


def _cover_span(
    ledger: Ledger, life: Life, fragment: Fragment, span: tuple[int, int], tokens: int
) -> Ledger:
    if span[0] == span[1]:
        return ledger
    if overlaps(ledger, life, fragment, span):
        raise BrokenInvariant(f"{life} accounts for steps {span} of fragment {fragment} twice")
    account = ledger.accounts[life]
    spans = _join((*account.spans[fragment], span))
    account = replace(
        account,
        spans=(*account.spans[:fragment], spans, *account.spans[fragment + 1 :]),
        covered=tuple(c + tokens * (p == fragment) for p, c in enumerate(account.covered)),
    )
    return replace(ledger, accounts={**ledger.accounts, life: account})


def _join(spans: Spans) -> Spans:
    joined: list[tuple[int, int]] = []
    reached = -math.inf
    for start, stop in sorted(spans):
        if start == reached:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
        reached = stop
    return tuple(joined)
