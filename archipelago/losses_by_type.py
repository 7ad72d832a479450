"""The loss of a model on the held-out text of a run, by the type of its files.

Each file counts by itself: its windows contain no text of other files, and its last window may be
short. So the mean over all types differs a little from the held-out loss of a run, whose windows
run across files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from archipelago.bits_per_byte import perplexity, text_bytes
from islands.data import token_index
from islands.data.buckets import names_below
from islands.data.damage import Damage
from islands.data.text_tokens import encoder_of, tokenizer_bytes
from islands.source_tokens import tokens_of
from islands.sources import DataSpec, held_out, root_and_files
from islands.task import Task
from islands.text_model import TextModel

BATCH = 16
"""Windows that are computed at once."""


@dataclass(frozen=True, slots=True)
class TypeLoss:
    """The loss on the files of one type."""

    type: str
    """The suffix of the files' names, such as ".py"; empty: none."""
    files: int
    """Files that were read, at least in part."""
    tokens: int
    """Predicted tokens."""
    bytes: int
    """Bytes of the text of these tokens."""
    heldout_loss: float
    """Loss in nats per token."""
    perplexity: float
    """exp(loss)."""
    bits_per_byte: float
    """Loss in bits per byte of text."""


@dataclass(slots=True)
class _Sums:
    files: int = 0
    windows: int = 0
    tokens: int = 0
    bytes: int = 0
    nats: float = 0.0


def losses_by_type(task: Task, params: Any, data: DataSpec, most_windows: int) -> list[TypeLoss]:
    """Return the loss by type, the type with most tokens first; empty if files have no types.

    `most_windows`: windows of each type after which the rest of its files is left out.
    """
    text = task.text
    if text is None or data.mixture or data.tokens or token_index.opened(data.source) is not None:
        return []
    loss, sums = _Loss(text, params, data.window), dict[str, _Sums]()
    for kind, tokens in _documents(task, data, sums, most_windows):
        total = sums.setdefault(kind, _Sums())
        total.files += 1
        most = (most_windows - total.windows) * data.window + 1
        cut = tokens[:most].astype(np.int32)
        total.windows += max(1, -(-(len(cut) - 1) // data.window))
        total.tokens += len(cut) - 1
        total.bytes += text_bytes(text.codec, cut[1:])
        total.nats += loss.of(cut)
    found = [_result(kind, total) for kind, total in sums.items() if total.tokens]
    return sorted(found, key=lambda each: -each.tokens)


def _documents(
    task: Task, data: DataSpec, sums: dict[str, _Sums], most_windows: int
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the type and the tokens of each held-out file of types that are not full yet."""
    encoder = None
    if data.tokenizer is not None:
        encoder = encoder_of(tokenizer_bytes(data.tokenizer), data.tokenizer, data.end_token)
    root, files = root_and_files(data)
    names = names_below(root, files)
    start, outside = 0.0, [True]
    if len(files) == 1:
        start = 1 - data.heldout_percent / 100
    else:
        outside = held_out(names, data)
    for name, file, is_out in zip(names, files, outside, strict=True):
        kind = PurePosixPath(name).suffix
        if not is_out or sums.get(kind, _Sums()).windows >= most_windows:
            continue
        damage, wanted = Damage(skip=True), most_windows * data.window + 1
        pieces, size = list[NDArray[Any]](), 0
        for piece in tokens_of(file, data, task.vocabulary, start, 1.0, damage, encoder):
            pieces.append(piece)
            size += len(piece)
            if size >= wanted:
                break
        if size > 1:
            yield kind, np.concatenate(pieces)


class _Loss:
    """The sum of the loss over one text, window by window."""

    def __init__(self, text: TextModel, params: Any, window: int) -> None:
        self._params, self._window = jax.device_put(params), window

        def nats(params: Any, rows: jax.Array, counted: jax.Array) -> jax.Array:
            scores = text.logits(params, rows[:, :-1])
            right = jnp.take_along_axis(scores, rows[:, 1:, None], axis=-1)[..., 0]
            each = jax.nn.logsumexp(scores, axis=-1) - right
            return jnp.sum(jnp.where(counted, each, 0.0))

        self._nats = jax.jit(nats)

    def of(self, tokens: NDArray[np.int32]) -> float:
        """Return the nats of all tokens but the first."""
        window, total = self._window, 0.0
        count = -(-(len(tokens) - 1) // window)
        for first in range(0, count, BATCH):
            rows = np.zeros((BATCH, window + 1), np.int32)
            counted = np.zeros((BATCH, window), bool)
            for row, number in enumerate(range(first, min(first + BATCH, count))):
                part = tokens[number * window : (number + 1) * window + 1]
                rows[row, : len(part)] = part
                counted[row, : len(part) - 1] = True
            total += float(self._nats(self._params, rows, counted))
        return total


def _result(kind: str, total: _Sums) -> TypeLoss:
    loss = total.nats / total.tokens
    bits = total.nats / math.log(2) / max(1, total.bytes)
    return TypeLoss(kind, total.files, total.tokens, total.bytes, loss, perplexity(loss), bits)
