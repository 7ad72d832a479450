"""The loss of a model in bits per byte of text, also for tokens that are no bytes.

The bytes are those of the text of the evaluated tokens, which their tokenizer decodes. Special
tokens, such as the one that ends a document, have no text, but their loss counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import UserMistake
from islands.data.segments import mask_of, tokens_of
from islands.task import Task
from islands.text_model import TextCodec, reads_bytes

LARGEST_LOSS = 700.0
"""The largest loss whose perplexity a float can hold, nearly."""


def perplexity(loss: float) -> float:
    """Return exp(loss); of a loss above `LARGEST_LOSS`, as of a regression, that of this bound."""
    return math.exp(min(loss, LARGEST_LOSS))


class BitsPerByte(NamedTuple):
    """A loss in bits per byte, or the reason why it is not known."""

    value: float | None
    """Bits per byte of text; None if it is not known."""
    missing: str | None
    """The reason and the remedy; None if the value is known."""


def bits_per_byte(task: Task, loss: float, windows: int, batch_size: int) -> BitsPerByte:
    """Return a held-out loss, in nats per token, in bits per byte.

    `windows`: held-out windows of the loss; `batch_size`: windows of its batches.
    """
    if task.text is None:
        why = f"the task {task.name} is not known as a model of text: make it with text="
        return BitsPerByte(None, why)
    codec = task.text.codec
    try:
        if reads_bytes(codec):
            return BitsPerByte(loss / math.log(2), None)
        tokens = size = 0
        batches = task.heldout(batch_size)
        for number in range(max(1, min(len(batches), windows // batch_size))):
            for counted in _counted(batches[number]):
                tokens += len(counted)
                size += text_bytes(codec, counted)
    except UserMistake as error:
        return BitsPerByte(None, str(error))
    if not size:
        return BitsPerByte(None, "the evaluated tokens have no text")
    return BitsPerByte(loss / math.log(2) * tokens / size, None)


def text_bytes(codec: TextCodec, tokens: NDArray[np.int32]) -> int:
    """Return the bytes of the text of tokens, in UTF-8."""
    if reads_bytes(codec):
        return len(tokens)
    return len(codec.decode(tokens.tolist()).encode())


def _counted(batch: Any) -> Iterator[NDArray[np.int32]]:
    """Yield the predicted tokens of each window that the loss counts."""
    tokens, mask = np.asarray(tokens_of(batch)), mask_of(batch)
    for row in range(len(tokens)):
        own = tokens[row, 1:]
        yield own if mask is None else own[np.asarray(mask)[row, 1:]]
