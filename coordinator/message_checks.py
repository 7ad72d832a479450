"""The checks of messages from islands: types and ranges, before a shard or the syncer uses them.

A number that no tape can hold, facts of another life or an array of objects would break the shard
or the syncer, and so the run of all other islands. A message that passes is judged by the gate.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from coordinator.codec import WithMoments
from coordinator.errors import Malformed
from coordinator.protocol import (
    METRIC_NAME_LENGTH,
    METRICS_SENT,
    Adopted,
    ContributionId,
    Fragment,
    HandIn,
    Lease,
    LeaseWanted,
    Left,
    Life,
    MomentsTaken,
    Progress,
    Report,
    Version,
    Vitals,
)

MOST = 2**53
"""The largest count: above it a float, such as a weight, is not exact any more."""


class MomentPiece(Protocol):
    """A piece of a leaf of a donor's moments, for one host."""

    @property
    def host(self) -> int:
        """The number of the host that the piece is for."""
        ...

    @property
    def leaf(self) -> int:
        """The number of the leaf."""
        ...

    @property
    def start(self) -> int:
        """The first element of the piece in its leaf."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the piece."""
        ...

    @property
    def reference(self) -> object:
        """The reference to the stored bytes."""
        ...


PieceT = TypeVar("PieceT", bound=MomentPiece)


def flaw(handed: object, life: Life, fragment: Fragment) -> str | None:
    """Return what is wrong with this life's answer for this fragment; None if it is valid."""
    if (pair := _pair(handed)) is None:
        return f"{_value_and_type(handed)} instead of facts and a payload"
    facts, sent = pair
    if type(facts) is not HandIn:
        return f"{_value_and_type(facts)} instead of facts"
    payloads = cast("tuple[Any, ...]", sent) if type(sent) is WithMoments else (sent,)
    for payload in payloads:
        if type(payload) is not np.ndarray:
            return f"{_value_and_type(payload)} instead of a payload"
        if payload.ndim != 1 or payload.dtype.hasobject:
            return f"a payload of dtype {payload.dtype} and shape {payload.shape}"
    return next(_of_facts(facts, life, fragment), None)


def check_report(event: object, vitals: object, adopted: object, fragments: int) -> None:
    """Check a report, and what came with it; `fragments`: number of fragments.

    Errors: `Malformed`.
    """
    if type(event) is not Report or type(vitals) is not Vitals:
        raise Malformed(f"{_value_and_type((event, vitals))} instead of a report")
    if not isinstance(adopted, Sequence):
        raise Malformed(f"{_value_and_type(adopted)} instead of what was adopted")
    _refuse(_of_life(event.life), _of_progress(event.progress), _seconds("step_s", event.step_s))
    _refuse(_of_taken(event.moments))
    _, *spent, _ = astuple(vitals)  # all but the loss and its metrics, which may be NaN
    _refuse(*(_seconds("a vital", each) for each in spent), _count("spikes", vitals.loss_spikes))
    _refuse(_of_metrics(vitals.metrics))
    if type(vitals.loss) is not float:
        raise Malformed(f"the loss is {_value_and_type(vitals.loss)}")
    for each in cast("Sequence[object]", adopted):
        if type(each) is not Adopted:
            raise Malformed(f"{_value_and_type(each)} instead of what was adopted")
        if each.life != event.life:
            raise Malformed(f"{event.life} reports what {_value_and_type(each.life)} has adopted")
        _refuse(
            _of_life(each.life),
            _of_version(each.version),
            _of_progress(each.progress),
            _count("fragment", each.fragment, fragments - 1),
            _count("from_step", each.from_step),
            _count("tokens", each.tokens),
        )


def check_word(event: object, kind: type[LeaseWanted] | type[Left]) -> None:
    """Check a message that names a life, and perhaps the life's progress.

    Errors: `Malformed`.
    """
    if type(event) is not kind:
        raise Malformed(f"{_value_and_type(event)} instead of a {kind.__name__}")
    _refuse(_of_life(event.life))
    if isinstance(event, Left):
        _refuse(_of_progress(event.progress))


def pieces_of(
    given: object, kind: type[PieceT], is_reference: Callable[[object], bool]
) -> list[PieceT] | None:
    """Return the pieces in which a donor's moments lie, as it reports; None if it has none.

    `kind`: the class of a piece. `is_reference`: returns whether a value refers to a stored object.

    Errors: `Malformed`.
    """
    if given is None:
        return None
    if type(given) is not list:
        raise Malformed(f"{_value_and_type(given)} instead of moments")
    pieces = cast("list[Any]", given)
    for piece in pieces:
        if type(piece) is not kind or not is_reference(piece.reference):
            raise Malformed(f"{_value_and_type(piece)} where moments should lie")
        _refuse(_count("leaf", piece.leaf, len(pieces) - 1))  # each leaf has at least one piece
        for name in ("host", "start", "nbytes"):
            _refuse(_count(name, getattr(piece, name)))
    return pieces


def moments_of(pulled: Sequence[object]) -> list[NDArray[Any]]:
    """Return the arrays that a donor sent; the learner checks that they fit its model.

    Errors: `Malformed`.
    """
    leaves = cast("list[Any]", [*pulled])
    if wrong := [
        x for x in leaves if type(x) is not np.ndarray or x.dtype.hasobject or x.ndim != 1
    ]:
        raise Malformed(f"{_value_and_type(wrong[0])} among its moments")
    return leaves


def _pair(value: object) -> tuple[Any, Any] | None:
    """Return the value if it is a plain tuple of two, else None."""
    if type(value) is not tuple:
        return None
    parts = cast("tuple[Any, ...]", value)
    return (parts[0], parts[1]) if len(parts) == 2 else None


def _refuse(*checks: Iterator[str]) -> None:
    for check in checks:
        if (why := next(check, None)) is not None:
            raise Malformed(why)


def _of_metrics(metrics: object) -> Iterator[str]:
    several = cast("tuple[object, ...]", metrics)
    if type(metrics) is not tuple or len(several) > METRICS_SENT:
        yield f"the metrics are {_value_and_type(several)}"
        return
    for each in several:
        match each:
            case (str(name), float()) if len(name) <= METRIC_NAME_LENGTH:  # NaN is allowed
                continue
            case _:
                yield f"a metric is {_value_and_type(each)}, not a short name and a number"


def _of_facts(facts: HandIn, life: Life, fragment: Fragment) -> Iterator[str]:
    handed_in = facts.id
    if type(handed_in) is not ContributionId:
        yield f"its id is {_value_and_type(handed_in)}"
    elif (handed_in.life, handed_in.fragment) != (life, fragment):
        yield f"it is of {_value_and_type(handed_in)}, {life} was asked for fragment {fragment}"
    else:
        yield from _of_life(handed_in.life)
        yield from _count("fragment", handed_in.fragment)
        yield from _count("from_step", handed_in.from_step)
        yield from _count("to_step", handed_in.to_step)
    yield from _of_version(facts.base)
    yield from _count("since_step", facts.since_step)
    yield from _count("tokens", facts.tokens)
    if type(facts.fingerprint) is not str:
        yield f"its fingerprint is {_value_and_type(facts.fingerprint)}"
    yield from _of_progress(facts.progress)


def _of_life(life: object) -> Iterator[str]:
    if type(life) is not Life or type(life.island) is not str:
        yield f"it is of {_value_and_type(life)}, which is no life"
    else:
        yield from _count("incarnation", life.incarnation)


def _of_taken(moments: object) -> Iterator[str]:
    if moments is None:
        return
    if type(moments) is not MomentsTaken:
        yield f"its moments are {_value_and_type(moments)}"
    else:
        yield from _of_life(moments.donor)
        yield from _count("moments.nbytes", moments.nbytes)


def _of_version(version: object) -> Iterator[str]:
    if type(version) is not Version:
        yield f"its version is {_value_and_type(version)}"
    else:
        yield from _count("generation", version.generation)
        yield from _count("version", version.number)


def _of_progress(progress: object) -> Iterator[str]:
    if type(progress) is not Progress or type(progress.lease) is not Lease:
        yield f"its progress is {_value_and_type(progress)}"
    else:
        yield from _count("progress.steps", progress.steps)
        yield from _count("progress.tokens", progress.tokens)
        yield from _count("lease.number", progress.lease.number)
        yield from _count("lease.start", progress.lease.start)


def _count(name: str, value: object, most: int = MOST) -> Iterator[str]:
    """Check for exactly `int`: the tape would not restore a type that is like it."""
    if type(value) is not int or not 0 <= value <= most:
        yield f"{name} is {_value_and_type(value)}, not a count up to {most}"


def _seconds(name: str, value: object) -> Iterator[str]:
    """Check for a finite number of seconds; `math.isfinite` itself fails on a huge integer."""
    number = value if isinstance(value, float | int) and not isinstance(value, bool) else None
    if number is None or not -MOST <= number <= MOST:  # a NaN compares false
        yield f"{name} is {_value_and_type(value)}, not a time"


def _value_and_type(value: object) -> str:
    return f"{reprlib.repr(value)} ({type(value).__name__})"
