"""Cut, encode and adopt on the device against the host path, beside the device's own bandwidth.

Speeds are in GB/s of the bytes that must move. The count is equal for both paths, so that the ratio
of the speeds is that of the times:

    cut      read the parameters, write the flat fragment: 8 bytes an element
    encode   read fragment, anchor and residual, write payload and residual: 16 bytes and the wire's
    adopt    read the new version, the fragment as handed in and the parameters; write those: 16
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from archipelago.lab.bench.accelerator_device import GB, Measured, figure, timed
from coordinator.codec import Payload, Wire, decode
from coordinator.fragments import Flat
from coordinator.protocol import Fragment
from islands.encoder import OnDevice, OnHost, written

WIRES = (Wire.INT4, Wire.INT2, Wire.BF16)
"""The encodings that are measured."""
CUT_BYTES, ENCODE_BYTES, ADOPT_BYTES = 8, 16, 16
"""Bytes that must move for each element; to encode, the payload's come on top."""
TRIAD_BYTES, SCALE_BYTES = 12, 8
"""Bytes that the two bandwidth tests move for each element."""
DRIFT = 1e-3
"""The standard deviation of the difference between parameters and their anchor."""
STREAMS = 10
"""Kernels of a bandwidth test that are dispatched before the last one is waited for."""


@dataclass(slots=True)
class Bed:
    """Fragments on the device, each with an anchor and a residual, and the parameters."""

    measured: Measured
    params: Any
    fragments: list[Fragment]
    """The fragments that are measured on the device."""
    on_host: list[Fragment]
    """The fragments among them that the host encodes and decodes, too."""
    flats: list[jax.Array]
    """The flat parameters of each fragment."""
    origins: list[jax.Array]
    """The anchor of each fragment."""
    taken: list[jax.Array]
    """The residual of each fragment."""

    @property
    def elements(self) -> int:
        """Elements of all fragments that are measured."""
        return sum(flat.size for flat in self.flats)

    @property
    def host_elements(self) -> int:
        """Elements of the fragments that the host encodes."""
        return sum(flat.size for flat in self.flats[: len(self.on_host)])


def bed(measured: Measured) -> Bed:
    """Make fragments that differ from their anchors as after some steps."""
    model, params = measured.model, measured.drawn(seed=1)
    fragments = _first(measured, model.elements)
    on_host = [p for p in _first(measured, model.host_elements) if p in fragments]
    flats = [measured.port.take(params, p) for p in fragments]
    keys = iter(jax.random.split(jax.random.key(2), 2 * len(flats)))
    origins = [_near(flat, next(keys)) for flat in flats]
    taken = [_noise(flat, next(keys)) for flat in flats]
    jax.block_until_ready((flats, origins, taken))
    return Bed(measured, params, fragments, on_host, flats, origins, taken)


def _first(measured: Measured, elements: int) -> list[Fragment]:
    """Return the first fragments with at most this many elements together, at least one."""
    ends = np.cumsum(measured.layout.sizes)
    return [Fragment(p) for p in range(max(1, int(np.sum(ends <= elements))))]


@jax.jit
def _near(flat: jax.Array, key: jax.Array) -> jax.Array:
    return flat + DRIFT * jax.random.normal(key, flat.shape, jnp.float32)


@jax.jit
def _noise(flat: jax.Array, key: jax.Array) -> jax.Array:
    return 0.1 * DRIFT * jax.random.normal(key, flat.shape, jnp.float32)


@jax.jit
def _triad(b: jax.Array, c: jax.Array) -> jax.Array:
    return b + 0.5 * c


@jax.jit
def _scale(b: jax.Array) -> jax.Array:
    return 0.5 * b


# --- figures --------------------------------------------------------------------------------------


def measure(
    measured: Measured,
    tell: Callable[[dict[str, object]], None],
    left_s: Callable[[], float],
) -> None:
    """Measure all kernels in turn, as often as there is time for.

    `tell` receives the figures after each turn.
    """
    it = bed(measured)
    tell({"identical": identical(it), "wire_elements": it.elements})
    kernels = {
        "memory": lambda: _memory_gb_s(it.elements),
        "copy": lambda: _copy_gb_s(it.elements),
        "cut": lambda: _cut_gb_s(it),
        "adopt": lambda: _adopt_gb_s(it),
        "adopt_host": lambda: _adopt_host_gb_s(it),
    }
    for wire in WIRES:
        kernels[f"encode_{wire}"] = lambda wire=wire: _encode_gb_s(it, wire)
        kernels[f"encode_{wire}_to_host"] = lambda wire=wire: _to_host_gb_s(it, OnDevice(wire))
        kernels[f"encode_{wire}_host"] = lambda wire=wire: _to_host_gb_s(it, OnHost(wire))
    for each in kernels.values():
        each()  # compile
    samples: dict[str, list[float]] = {name: [] for name in kernels}
    for _ in range(measured.model.repeats):
        for name, each in kernels.items():
            samples[name].append(each())
        tell(_row(samples))
        if left_s() < 0:
            break


def _row(samples: dict[str, list[float]]) -> dict[str, object]:
    """Return the keys of the row, and all figures under `gb_s`."""
    row: dict[str, object] = {}
    for name, source in (("memory", "memory"), ("encode", f"encode_{WIRES[0]}"), ("adopt",) * 2):
        row |= figure(f"{name}_gb_s", samples[source])
    details = dict[str, float]()
    for name, values in samples.items():
        details |= figure(name, values)
    return {**row, "gb_s": details, "gb_s_samples": len(samples["memory"])}


def identical(it: Bed) -> dict[str, bool]:
    """Return whether both paths write the same bytes and leave the same residual, by wire."""
    return {
        wire: all(_same(it, number, wire) for number in range(len(it.on_host))) for wire in WIRES
    }


def _same(it: Bed, number: int, wire: Wire) -> bool:
    """Return whether both paths agree on this fragment, bit for bit."""
    flat, origin, taken = it.flats[number], it.origins[number], it.taken[number]
    device_payload, device_rest = OnDevice(wire)(flat, origin, taken, 1.0, flat.size)
    host_payload, host_rest = OnHost(wire)(
        flat, np.asarray(origin), np.asarray(taken), 1.0, flat.size
    )
    return _bits(device_payload) == _bits(host_payload) and _bits(device_rest) == _bits(host_rest)


def _bits(numbers: Any) -> bytes:
    return np.asarray(numbers).tobytes()


def _memory_gb_s(elements: int) -> float:
    """Return the memory bandwidth of the device, by a triad."""
    b, c = jnp.ones(elements, jnp.float32), jnp.ones(elements, jnp.float32)
    jax.block_until_ready((b, c))
    took_s = timed(lambda: _last(lambda: _triad(b, c)))
    return STREAMS * TRIAD_BYTES * elements / took_s / GB


def _last(call: Callable[[], jax.Array]) -> jax.Array:
    """Dispatch a kernel many times, and keep only the last result."""
    result = call()
    for _ in range(STREAMS - 1):
        result = call()
    return result


def _copy_gb_s(elements: int) -> float:
    """Return the memory bandwidth of the device, by a scaled copy."""
    b = jax.block_until_ready(jnp.ones(elements, jnp.float32))
    took_s = timed(lambda: _last(lambda: _scale(b)))
    return STREAMS * SCALE_BYTES * elements / took_s / GB


def _cut_gb_s(it: Bed) -> float:
    """Return the speed of cutting fragments on the device."""
    took_s = timed(lambda: [it.measured.port.take(it.params, p) for p in it.fragments])
    return CUT_BYTES * it.elements / took_s / GB


def _encode_gb_s(it: Bed, wire: Wire) -> float:
    """Return the speed of encoding on the device, where the payload stays."""
    factor = np.float32(1.0)

    def call() -> list[Any]:
        return [
            written(*each, factor, wire=wire, where=each[0].sharding)
            for each in zip(it.flats, it.origins, it.taken, strict=True)
        ]

    return encoded_bytes([flat.size for flat in it.flats], wire) / timed(call) / GB


def encoded_bytes(sizes: Sequence[int], wire: Wire) -> int:
    """Return the bytes that must move to encode fragments of these sizes."""
    return sum(ENCODE_BYTES * size + wire.bytes_of(size) for size in sizes)


def _to_host_gb_s(it: Bed, encoder: OnDevice | OnHost) -> float:
    """Return the speed of encoding until the payload is on the host, by either path.

    Anchor and residual are where the path keeps them. The fragment is a fresh copy, since JAX
    caches what it has copied to the host.
    """
    count = len(it.on_host)
    sources: list[tuple[Any, Any]] = [*zip(it.origins, it.taken, strict=True)][:count]
    if isinstance(encoder, OnHost):
        sources = [(np.asarray(origin), np.asarray(taken)) for origin, taken in sources]
    fresh = [it.measured.port.take(it.params, p) for p in it.on_host]
    jax.block_until_ready(fresh)
    payloads = list[Payload]()

    def call() -> list[Any]:
        lefts = list[Any]()
        for flat, (origin, taken) in zip(fresh, sources, strict=True):
            payload, left = encoder(flat, origin, taken, 1.0, flat.size)
            payloads.append(payload)
            lefts.append(left)
        return [each for each in lefts if isinstance(each, jax.Array)]

    took_s = timed(call)
    moved = ENCODE_BYTES * it.host_elements + sum(payload.nbytes for payload in payloads)
    return moved / took_s / GB


def _adopt_gb_s(it: Bed) -> float:
    """Return the speed of adopting a new version that is already on the device."""

    def call() -> Any:
        for p, flat, origin in zip(it.fragments, it.flats, it.origins, strict=True):
            it.params = it.measured.port.put(it.params, p, flat, origin)
        return it.params

    return ADOPT_BYTES * it.elements / timed(call) / GB


def _adopt_host_gb_s(it: Bed) -> float:
    """Return the speed of adopting an int4 payload that is on the host.

    This decodes and adds it, copies the version to the device, and puts it in place.
    """
    count = len(it.on_host)
    public: list[Flat] = [np.asarray(each) for each in it.origins[:count]]
    payloads: list[NDArray[Any]] = [
        OnDevice(WIRES[0])(*each, 1.0, each[0].size)[0]
        for each in [*zip(it.flats, it.origins, it.taken, strict=True)][:count]
    ]
    sizes = it.measured.layout.sizes

    def call() -> Any:
        for p, flat, payload, origin in zip(
            it.on_host, public, payloads, it.origins[:count], strict=True
        ):
            newer = flat + decode(payload, flat.size)
            placed = it.measured.inner.place_flat(newer, sizes[p])
            it.params = it.measured.port.put(it.params, p, placed, origin)
        return it.params

    return ADOPT_BYTES * it.host_elements / timed(call) / GB
