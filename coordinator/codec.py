"""A fragment on the wire.

What travels is one contiguous NumPy array of a plain dtype, because Ray moves those without a copy
(a bf16 array of ml_dtypes would be pickled in band), and the rounding error stays with the sender
as a residual that the next message carries ("error feedback", arXiv:1901.09847).
"""

from __future__ import annotations

from enum import StrEnum

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from coordinator.errors import CorruptPayload
from coordinator.fragments import Flat

Payload = NDArray[np.float32] | NDArray[np.uint16]


class Wire(StrEnum):
    """How the elements of a fragment are written."""

    F32 = "f32"
    BF16 = "bf16"

    @property
    def bytes_per_element(self) -> int:
        return {Wire.F32: 4, Wire.BF16: 2}[self]


def encode(wire: Wire, values: Flat) -> Payload:
    """Write the values; round to nearest even. f32 is passed through without a copy."""
    match wire:
        case Wire.F32:
            return values
        case Wire.BF16:
            return values.astype(ml_dtypes.bfloat16).view(np.uint16)


def decode(payload: Payload, size: int) -> Flat:
    """Read `size` values back; the dtype says how they were written.

    Errors: `CorruptPayload` if shape or dtype cannot be such a fragment.
    """
    if payload.shape != (size,):
        raise CorruptPayload(f"payload of shape {payload.shape}, the fragment has {size} elements")
    if payload.dtype == np.float32:
        return payload.view(np.float32)
    if payload.dtype == np.uint16:
        return payload.view(ml_dtypes.bfloat16).astype(np.float32)
    raise CorruptPayload(f"payload of dtype {payload.dtype}, known are float32 and uint16 (bf16)")
