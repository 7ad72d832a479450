"""A codec of one bit for each element, `sync.wire_up = "archipelago.examples.signs:Signs"`."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class Signs:
    """The sign of each element, and the mean magnitude of all (signSGD, arXiv:1802.04434)."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def encode(self, values: Floats) -> Bytes:
        """Return four bytes of the mean magnitude, and the signs, eight to a byte."""
        mean = np.float32(self.scale * np.abs(values).mean(dtype=np.float64))
        return np.concatenate([np.array([mean]).view(np.uint8), np.packbits(values >= 0)])

    def decode(self, payload: Bytes, size: int) -> Floats:
        """Return the mean magnitude with each sign."""
        (mean,) = payload[:4].copy().view(np.float32)
        return np.where(np.unpackbits(payload[4:], count=size) > 0, mean, -mean)

    def bytes_of(self, size: int) -> int:
        """Return four bytes, and one for eight elements or fewer."""
        return 4 + (size + 7) // 8
