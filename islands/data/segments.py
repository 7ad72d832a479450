"""The arrays of a batch beside its tokens: the documents, and the tokens that the loss counts.

With `data.separate_documents`, or with a source of conversations, a batch is a mapping:

    tokens      int32 [batch, window + 1]
    segments    int32 [batch, window + 1]: the number of the token's document within the window
    loss_mask   bool [batch, window + 1]: whether the loss counts the prediction of the token

It has `segments` with `data.separate_documents`, and `loss_mask` if a source has conversations. A
model's attention then sees only tokens of the same segment. The token that ends a document
belongs to it, so its target is the first token of the next document. Without both a batch is the
array of tokens. The functions here work on arrays of NumPy and of JAX.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

TOKENS, SEGMENTS, LOSS_MASK = "tokens", "segments", "loss_mask"
"""The names of the arrays of a batch."""


def with_segments(windows: NDArray[np.int32], end_token: int) -> dict[str, NDArray[np.int32]]:
    """Return a batch with the documents of its tokens; each document ends with `end_token`."""
    ended = np.cumsum(windows == end_token, axis=1, dtype=np.int32)
    segments = np.zeros_like(windows)
    segments[:, 1:] = ended[:, :-1]
    return {TOKENS: windows, SEGMENTS: segments}


def tokens_of(batch: Any) -> Any:
    """Return the tokens of a batch, [batch, window + 1], with or without segments."""
    return batch[TOKENS] if isinstance(batch, Mapping) else batch


def segments_of(batch: Any) -> Any:
    """Return the segments of a batch, [batch, window + 1]; None if it has none."""
    return batch.get(SEGMENTS) if isinstance(batch, Mapping) else None


def mask_of(batch: Any) -> Any:
    """Return the tokens that the loss counts, [batch, window + 1]; None if it counts all."""
    return batch.get(LOSS_MASK) if isinstance(batch, Mapping) else None


def counted_in(batch: Any) -> Any:
    """Return the number of tokens whose prediction the loss counts; None without a mask.

    The result is an integer scalar of NumPy or of JAX, as the mask is. A mask without tokens of its
    shape is an array of the user's own, and counts as none.
    """
    mask = mask_of(batch)
    if mask is None or np.shape(batch.get(TOKENS)) != np.shape(mask) or np.ndim(mask) != 2:
        return None
    return mask[:, 1:].sum()


def examples_in(batch: Mapping[str, Any]) -> int:
    """Return the number of examples of a batch: the rows of each of its arrays."""
    return len(next(iter(batch.values())))


def predicted(batch: Any) -> int:
    """Return the number of tokens that a batch predicts, masked ones included."""
    rows, length = tokens_of(batch).shape
    return int(rows) * (int(length) - 1)
