"""A fragment in parts: ranges of whole quantization blocks, one for each host of an island.

A contribution of an island with several hosts arrives in as many parts. When all are there they are
joined, to the same bits that one host would have sent. Each host takes only its own range of a
publication.
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
    """The split of flat arrays over devices, and over hosts of as many devices each."""

    devices: int = 1
    hosts: int = 1

    def padded(self, size: int) -> int:
        """Return the padded elements of a flat array: whole blocks on each of several devices."""
        unit = 1 if self.devices == 1 else BLOCK * self.devices
        return -(-size // unit) * unit

    def own(self, size: int, first: int, count: int) -> slice:
        """Return the range of elements of a flat array on `count` devices from the `first` on."""
        each = self.padded(size) // self.devices
        return slice(min(size, first * each), min(size, (first + count) * each))

    def ranges(self, size: int) -> list[slice]:
        """Return the range of elements of each host."""
        count = self.devices // self.hosts
        return [self.own(size, host * count, count) for host in range(self.hosts)]


class Part(NamedTuple):
    """The hand-in of one host: a range of elements, encoded by themselves."""

    facts: HandIn
    """The description of the whole contribution."""
    start: int
    """First element of the range."""
    stop: int
    """End of the range."""
    payload: Sent
    """The encoded range, with its first moments if the contribution has them."""


class Located(Protocol):
    """A part with any kind of payload."""

    @property
    def facts(self) -> HandIn:
        """The description of the whole contribution."""
        ...

    @property
    def start(self) -> int:
        """The first element of the part."""
        ...

    @property
    def stop(self) -> int:
        """The end of the part's range of elements."""
        ...


def mismatch(parts: Sequence[Located], size: int) -> str | None:
    """Return why these parts, in this order, are not one contribution; None if they are.

    `size`: elements of the fragment. Parts of two lives or two step boundaries never match.
    """
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
    """Return why the parts do not match or their payloads cannot be joined; None if they can."""
    if (why := mismatch(parts, size)) is not None:
        return why
    filled = [part for part in parts if part.stop > part.start]
    if len({type(part.payload) is WithMoments for part in filled}) > 1:
        return "parts of which some have moments beside them and some have none"
    for payloads in _beside(filled):
        wires = set[Wire]()
        for part, payload in zip(filled, payloads, strict=True):
            try:
                wires.add(wire_of(payload, part.stop - part.start))
            except CorruptPayload as error:
                return str(error)
        if len(wires) != 1:
            return f"parts of {' and '.join(sorted(wires))} bytes"
    return None


def joined(parts: Sequence[Part], size: int) -> Sent:
    """Join the payloads of parts that fit (`misfit`)."""
    filled = [part for part in parts if part.stop > part.start]
    counts = [part.stop - part.start for part in filled]
    differences, *moments = (_joined(payloads, counts) for payloads in _beside(filled))
    return WithMoments(differences, *moments) if moments else differences


def _beside(parts: Sequence[Part]) -> list[list[Payload]]:
    """Return the deltas of all parts and, if they have some, their moments."""
    payloads = [split(part.payload) for part in parts]
    moments = [payload for _, payload in payloads if payload is not None]
    return [[payload for payload, _ in payloads], *([moments] if moments else [])]


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
    """Return a copy of elements `start` to `stop` of an encoded fragment of `size` elements.

    The range is of whole blocks. First moments beside the delta are cut in the same way.
    """
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
    block_bytes = payload.size // max(1, blocks) - 1
    codes = payload[blocks + first * block_bytes : blocks + last * block_bytes]
    return _one([payload[first:last], codes])


def _one(arrays: Sequence[Any]) -> Payload:
    """Concatenate arrays of one dtype."""
    return cast("Payload", np.concatenate(arrays))
