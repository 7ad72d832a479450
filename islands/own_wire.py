"""A codec of the user's own as the wire of fragments: `sync.wire_up` and `sync.wire_down`.

A payload is one byte of ours and then the codec's bytes. The byte is 1 if the values are not all
finite: a codec sees finite values only, and the gate still sees that a contribution is not finite.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from coordinator.codec import Difference, Payload, Wire, decode, encode, encode_difference
from coordinator.errors import CorruptPayload, UserMistake
from coordinator.fragments import Flat
from coordinator.kernels import frozen
from islands.user_code import attribute_of, result_of
from islands.user_lines import place_of, raised_by

KEY = "sync.wire_up/wire_down"
"""The keys of a codec, for messages."""
FINITE, NOT_FINITE = 0, 1
"""The first byte of a payload."""
WANTED = "an object with encode, decode and bytes_of, or a class or function that makes one"


class Codec(Protocol):
    """A codec: how the elements of a fragment are sent.

    `sync.wire_up = "module:attribute"` names the codec of the contributions of islands,
    `sync.wire_down` that of the steps of the global model. The attribute is a codec, or a class or
    function that makes one from the keyword arguments in `[sync.wire_options]`. Islands, shards and
    a replay call it.

    A codec is lossy or exact, and a pure function: equal values give equal bytes, and equal bytes
    give equal values on every machine. The sender decodes what it has encoded, and adds the
    difference to its next message (error feedback, arXiv:1901.09847). This works only if decoding
    loses less than everything: the error has a smaller norm than the values. Zeros must stay zeros.

    Values are always finite. A contribution that is not finite is marked beside the codec's bytes.
    """

    def encode(self, values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Return `bytes_of(values.size)` bytes, uint8 of one axis.

        Args:
            values: The elements of one fragment, [elements], finite, read-only.
        """
        ...

    def decode(self, payload: NDArray[np.uint8], size: int) -> NDArray[np.float32]:
        """Return the values of a payload, float32 of shape [size].

        Args:
            payload: What `encode` has returned, read-only.
            size: The number of elements.
        """
        ...

    def bytes_of(self, size: int) -> int:
        """Return the bytes of a payload of `size` elements, whatever their values are."""
        ...


@dataclass(frozen=True, slots=True)
class OwnWire:
    """The wire of a user's codec; the codec is loaded when it is first used."""

    target: str
    """The codec, as module:attribute."""
    options: tuple[tuple[str, bool | int | float | str], ...] = ()
    """Keyword arguments of the class or function that makes the codec."""

    def __str__(self) -> str:
        return self.target

    @property
    def setting(self) -> str:
        """The beginning of a message: the line of the codec, and the key that names it."""
        return f'{place_of(self.codec.encode)}{KEY} = "{self.target}"'

    @property
    def codec(self) -> Codec:
        """The codec.

        Errors: `UserMistake` if it cannot be loaded.
        """
        return _codec(self.target, self.options)

    def bytes_of(self, size: int) -> int:
        """Return the bytes of a payload with `size` elements, our byte included.

        Errors: `UserMistake` if the codec raises, or gives no such number.
        """
        count: Any = self._ask("bytes_of", size)
        if not isinstance(count, int | np.integer) or isinstance(count, bool) or count < 0:
            raise UserMistake(f"{self.setting}: bytes_of({size}) returns {count!r}, not a count")
        return 1 + int(count)

    def encode(self, values: Flat) -> Payload:
        """Return the payload of these values.

        Errors: `UserMistake` if the codec raises, or returns no such bytes.
        """
        payload = np.empty(self.bytes_of(values.size), np.uint8)
        payload[0] = FINITE if np.isfinite(values).all() else NOT_FINITE
        if payload[0] == NOT_FINITE:
            payload[1:] = 0
            return payload
        coded: Any = np.asarray(self._ask("encode", frozen(values)))
        if coded.dtype != np.uint8 or coded.shape != payload[1:].shape:
            raise UserMistake(
                f"{self.setting}: encode returns {coded.dtype}{list(coded.shape)} for "
                f"{values.size} elements, and bytes_of gives uint8[{payload.size - 1}]"
            )
        payload[1:] = coded
        return payload

    def decode(self, payload: Payload, size: int) -> Flat:
        """Return the values of a payload; NaN if the sender's values were not finite.

        Errors: `CorruptPayload` if it is none of this wire; `UserMistake` if the codec raises, or
        returns no such values.
        """
        if (flaw := self.flaw(payload, size)) is not None:
            raise CorruptPayload(flaw)
        if payload[0] == NOT_FINITE:
            return np.full(size, np.nan, np.float32)
        values: Any = np.asarray(self._ask("decode", frozen(payload[1:]), size))
        if values.dtype != np.float32 or values.shape != (size,):
            raise UserMistake(
                f"{self.setting}: decode returns {values.dtype}{list(values.shape)}, and it must "
                f"return float32[{size}]"
            )
        return values

    def flaw(self, payload: Payload, size: int) -> str | None:
        """Return why a payload is none of this wire; None if it may be one."""
        wanted = self.bytes_of(size)
        if payload.dtype != np.uint8 or payload.shape != (wanted,):
            return (
                f"payload of {payload.dtype}{list(payload.shape)}, the run's wire {self} has "
                f"{wanted} bytes for {size} elements"
            )
        return None if payload[0] in (FINITE, NOT_FINITE) else f"payload begins with {payload[0]}"

    def _ask(self, method: str, *values: Any) -> object:
        function = getattr(self.codec, method)
        try:
            return function(*values)
        except Exception as error:
            setting = f'{KEY} = "{self.target}": {method}'
            raise UserMistake(raised_by(setting, error, place_of(function))) from error


AnyWire: TypeAlias = Wire | OwnWire
"""A built-in encoding, or a codec of the user's own."""


def encoded(wire: AnyWire, values: Flat) -> Payload:
    """Return the payload of these values."""
    return wire.encode(values) if isinstance(wire, OwnWire) else encode(wire, values)


def decoded_of(wire: AnyWire | None, payload: Payload, size: int) -> Flat:
    """Return the values of a payload of a run with this wire.

    State is always in f32, whatever the wire is. None: the payload itself names its wire.

    Errors: `CorruptPayload`; the errors of `OwnWire.decode`.
    """
    if isinstance(wire, OwnWire) and payload.dtype != np.float32:
        return wire.decode(payload, size)
    return decode(payload, size)


def built_in(wire: AnyWire) -> Wire:
    """Return the wire of a place that the configuration allows built-in ones only."""
    assert isinstance(wire, Wire), f"{wire} is refused by the checks of the configuration"
    return wire


def plain(wire: AnyWire, payload: Payload, size: int) -> Payload:
    """Return a payload that the compiled loops can read: decoded, if the codec is the user's."""
    return frozen(decoded_of(wire, payload, size)) if isinstance(wire, OwnWire) else payload


def difference_on(wire: AnyWire, newer: Flat, older: Flat) -> Difference:
    """Return the encoded difference, and its norm before encoding."""
    if not isinstance(wire, OwnWire):
        return encode_difference(wire, newer, older)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = newer - older
    _, norm = encode_difference(Wire.F32, newer, older)
    return Difference(wire.encode(difference), norm)


@cache
def _codec(target: str, options: tuple[tuple[str, bool | int | float | str], ...]) -> Codec:
    """Load a codec; one process has one for each target and options."""
    given = dict(options)
    found: Any = attribute_of(KEY, target)
    is_codec = not inspect.isclass(found) and _lacks(found) is None
    if is_codec and given:
        raise UserMistake(
            f'{KEY} = "{target}" is a codec itself and takes no sync.wire_options: leave them '
            "out, or name the class or function that makes it"
        )
    if not is_codec and not callable(found):
        raise UserMistake(f'{KEY} = "{target}" is {type(found).__name__}, not {WANTED}')
    made: Any = found if is_codec else result_of(KEY, target, found, given)
    if (lacks := _lacks(made)) is not None:
        raise UserMistake(
            f'{place_of(found)}{KEY} = "{target}" is {type(made).__name__}, which has no {lacks}: '
            f"it must be {WANTED}"
        )
    return cast("Codec", made)


def _lacks(codec: object) -> str | None:
    names = ("encode", "decode", "bytes_of")
    return next((name for name in names if not callable(getattr(codec, name, None))), None)


def length(values: Flat) -> float:
    """Return the Euclidean norm of values in double precision."""
    return math.sqrt(float(np.sum(np.square(values, dtype=np.float64))))


def options_of(options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return the options of a table as a part of an `OwnWire`."""
    return tuple(sorted(options.items()))
