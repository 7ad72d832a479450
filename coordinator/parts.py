"""A fragment in parts: ranges of whole quantisation blocks, one to each host of an island.

A contribution of an island with several hosts comes in as many parts; it is one again, to the last
bit that which one host would have sent, when all of them are there. Of what goes down a host takes
its own range.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from coordinator.codec import Payload, Sent, Wire, WithMoments, blocks_of, split, wire_of
from coordinator.errors import CorruptPayload
from coordinator.kernels import BLOCK
from coordinator.protocol import HandIn


class Split(NamedTuple):
    """Over how many devices, and hosts of as many devices each, flat arrays are split."""

    devices: int = 1
    hosts: int = 1

    def padded(self, size: int) -> int:
        """Elements of a flat array of this size on all devices: whole blocks on each of several."""
        unit = 1 if self.devices == 1 else BLOCK * self.devices
        return -(-size // unit) * unit

    def own(self, size: int, first: int, count: int) -> slice:
        """Which elements of such an array are on `count` devices from the `first` on."""
        each = self.padded(size) // self.devices
        return slice(min(size, first * each), min(size, (first + count) * each))

    def ranges(self, size: int) -> list[slice]:
        """Which elements each host has."""
        count = self.devices // self.hosts
        return [self.own(size, host * count, count) for host in range(self.hosts)]


class Part(NamedTuple):
    """What one host hands in: elements `start` to `stop` of what `facts` say, encoded by
    themselves, perhaps with their first moments beside them."""

    facts: HandIn
    start: int
    stop: int
    payload: Sent


class Located(Protocol):
    """A part, whatever its payload is."""

    @property
    def facts(self) -> HandIn: ...
    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...


def mismatch(parts: Sequence[Located], size: int) -> str | None:
    """Why these are not, in this order, one contribution to a fragment of `size` elements; None if
    they are. Parts of two lives or two step boundaries never are."""
    if not parts:
        return "no parts"
    first, end = parts[0], 0
    for part in parts:
        if part.facts != first.facts:
            return f"parts of {part.facts.id} and {first.facts.id}, which are not one"
        if part.start != end or part.stop < part.start:
            return f"a part from {part.start} to {part.stop} where {end} was next"
        if part.stop != size and part.stop % BLOCK:
            return f"a part that ends at {part.stop}, within a block"
        end = part.stop
    return None if end == size else f"parts of {end} elements, the fragment has {size}"


def misfit(parts: Sequence[Part], size: int) -> str | None:
    """The same, or why their payloads cannot be put together."""
    if (why := mismatch(parts, size)) is not None:
        return why
    some = [part for part in parts if part.stop > part.start]
    if len({type(part.payload) is WithMoments for part in some}) > 1:
        return "parts of which some have moments beside them and some have none"
    for payloads in _beside(some):
        wires = set[Wire]()
        for part, payload in zip(some, payloads, strict=True):
            try:
                wires.add(wire_of(payload, part.stop - part.start))
            except CorruptPayload as error:
                return str(error)
        if len(wires) != 1:
            return f"parts of {' and '.join(sorted(wires))} bytes"
    return None


def joined(parts: Sequence[Part], size: int) -> Sent:
    """The payload of the whole, of parts that fit (`misfit`)."""
    some = [part for part in parts if part.stop > part.start]
    counts = [part.stop - part.start for part in some]
    differences, *moments = (_joined(payloads, counts) for payloads in _beside(some))
    return WithMoments(differences, *moments) if moments else differences


def _beside(parts: Sequence[Part]) -> list[list[Payload]]:
    """The differences of all parts, and their moments, if they have some."""
    payloads = [split(part.payload) for part in parts]
    moments = [each for _, each in payloads if each is not None]
    return [[each for each, _ in payloads], *([moments] if moments else [])]


def _joined(held: Sequence[Payload], sizes: Sequence[int]) -> Payload:
    if len(held) == 1:
        return held[0]
    wire, counts = wire_of(held[0], sizes[0]), [blocks_of(size) for size in sizes]
    if wire in (Wire.F32, Wire.BF16):
        return _one(held)
    exponents = [payload[:count] for payload, count in zip(held, counts, strict=True)]
    codes = [payload[count:] for payload, count in zip(held, counts, strict=True)]
    return _one([*exponents, *codes])


def cut_out(sent: Sent, size: int, start: int, stop: int) -> Sent:
    """A copy of elements `start` to `stop`, whole blocks, of an encoded fragment of `size`, and of
    the first moments beside it, if there are some."""
    difference, moments = split(sent)
    own = _cut_out(difference, size, start, stop)
    return own if moments is None else WithMoments(own, _cut_out(moments, size, start, stop))


def _cut_out(payload: Payload, size: int, start: int, stop: int) -> Payload:
    wire = wire_of(payload, size)
    if wire in (Wire.F32, Wire.BF16):
        return payload[start:stop].copy()
    if start == stop:  # a fragment of fewer blocks than there are devices
        return payload[:0].copy()
    blocks, first, last = blocks_of(size), start // BLOCK, blocks_of(stop)
    each = payload.size // max(1, blocks) - 1
    codes = payload[blocks + first * each : blocks + last * each]
    return _one([payload[first:last], codes])


def _one(arrays: Sequence[Any]) -> Payload:
    """These, of one dtype, behind each other."""
    return cast("Payload", np.concatenate(arrays))
