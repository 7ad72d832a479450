"""Short ways to a task: a model of text, or one of inputs with targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import jax
import numpy as np
from numpy.typing import NDArray

from coordinator.errors import UserMistake
from islands.corpus import HELDOUT, Corpus, Stream, in_epochs
from islands.corpus_reader import open_corpus
from islands.data.mixture import MixedCorpus
from islands.data.segments import examples_in, predicted
from islands.permutation import permuted
from islands.sources import DataSpec
from islands.state_tree import PARAMS, STATE
from islands.task import Params, Task
from islands.text_model import TextModel
from islands.user_lines import wrapping

NamedArrays: TypeAlias = Mapping[str, NDArray[Any]]
"""Arrays by name, such as "x" and "y", with one example at each place of their first axis."""
Paths: TypeAlias = Sequence[str]


def text_task(
    init: Callable[[jax.Array], Params],
    loss: Callable[..., Any],
    data: DataSpec,
    *,
    vocabulary: int = 256,
    name: str = "text",
    init_state: Callable[[jax.Array], Any] | None = None,
    eval_loss: Callable[..., Any] | None = None,
    embedding: Paths = ("embedding",),
    stacked: Paths = (),
    frozen: Callable[[], Any] | None = None,
    text: Callable[..., Any] | TextModel | None = None,
) -> Task:
    """Return the task of a model of text, on the corpus of the table `[data]`.

    Args:
        init: A JAX key -> the parameters, a tree of float32 arrays.
        loss: As in `Task.loss`. A batch is int32 [batch, window + 1]. It is a mapping of arrays of
            this shape with `tokens` if the windows have more: int32 `segments`, the number of the
            document within the window, with `data.separate_documents`; bool `loss_mask`, the tokens
            that the loss counts (`archipelago.mean_nats`), if a source holds conversations.
        data: What the task's function was given.
        vocabulary: Number of tokens; 256 for bytes.
        name: The name in messages.
        init_state: A JAX key -> the state, if there is one (`Task.init_state`).
        eval_loss: As in `Task.eval_loss`.
        embedding: The beginnings of the paths of embeddings.
        stacked: The beginnings of the paths of leaves whose first axis stacks layers.
        frozen: As in `Task.frozen`.
        text: (params, tokens int [B, T]) -> the scores of the token after each position, [B, T, V],
            which `archipelago sample` and `eval` use; (params, state, tokens) with `init_state`. Or
            a `TextModel`, with a decoder of its own. None: the task cannot be sampled.
    """

    @cache
    def corpus() -> Corpus | MixedCorpus:
        return open_corpus(data, vocabulary)

    return Task(
        name=name,
        vocabulary=vocabulary,
        init=seeded(init),
        loss=loss,
        tokens=predicted,
        stream=lambda batch_size: Stream(corpus(), batch_size, data.seed),
        heldout=lambda batch_size: corpus().heldout_batches(batch_size),
        stacked=begins_with(stacked),
        embedding=begins_with(embedding),
        eval_loss=eval_loss,
        init_state=None if init_state is None else seeded(init_state),
        frozen=frozen,
        text=_text_model(text, data, vocabulary, has_state=init_state is not None),
    )


def begins_with(beginnings: Paths) -> Callable[[str], bool]:
    """Return a test of whether a path begins with one of these; a text is one of them."""
    known = (beginnings,) if isinstance(beginnings, str) else tuple(beginnings)
    return lambda path: path.startswith(known)


def _text_model(
    text: Callable[..., Any] | TextModel | None,
    data: DataSpec,
    vocabulary: int,
    *,
    has_state: bool,
) -> TextModel | None:
    """Return the field `Task.text` of a task, whose parameters and state are in one tree."""
    if text is None or isinstance(text, TextModel):
        return text
    if has_state:
        return TextModel.of_logits(
            lambda tree, tokens: text(tree[PARAMS], tree[STATE], tokens), data, vocabulary
        )
    return TextModel.of_logits(text, data, vocabulary)


def supervised_task(
    init: Callable[[jax.Array], Params],
    loss: Callable[..., Any],
    examples: Callable[[], NamedArrays],
    data: DataSpec,
    *,
    classes: int,
    name: str = "supervised",
    init_state: Callable[[jax.Array], Any] | None = None,
    eval_loss: Callable[..., Any] | None = None,
    frozen: Callable[[], Any] | None = None,
) -> Task:
    """Return the task of a model that maps inputs to targets, such as images to classes.

    An example counts as one token. Examples are shuffled anew in each epoch, and those that are
    held out are drawn by `run.seed`.

    Args:
        init: A JAX key -> the parameters, a tree of float32 arrays.
        loss: As in `Task.loss`; a batch is a dictionary of arrays [batch, ...].
        examples: Called once in each process that needs data: arrays by name, of equal length.
        data: What the task's function was given; `source` has no effect.
        classes: Number of classes; ln(classes) is the loss of a uniform guess.
        name: The name in messages.
        init_state: A JAX key -> the state, if there is one (`Task.init_state`).
        eval_loss: As in `Task.eval_loss`.
        frozen: As in `Task.frozen`.
    """

    @cache
    def read() -> _Examples:
        return _Examples.of(dict(examples()), data)

    return Task(
        name=name,
        vocabulary=classes,
        init=seeded(init),
        loss=loss,
        tokens=examples_in,
        stream=lambda batch_size: Stream(read(), batch_size, data.seed),
        heldout=lambda batch_size: read().heldout_batches(batch_size),
        stacked=lambda path: False,
        embedding=lambda path: False,
        eval_loss=eval_loss,
        init_state=None if init_state is None else seeded(init_state),
        frozen=frozen,
    )


def seeded(init: Callable[[jax.Array], Any]) -> Callable[[int], Any]:
    """Return a function of a seed from one of a JAX key."""
    return wrapping(lambda seed: init(jax.random.key(seed)), init)


@dataclass(frozen=True, slots=True, eq=False)
class _Examples:
    """Arrays of examples, and which of them are for training and held out."""

    arrays: dict[str, NDArray[Any]]
    train: NDArray[np.int64]
    heldout: NDArray[np.int64]
    spec: DataSpec

    @classmethod
    def of(cls, arrays: dict[str, NDArray[Any]], spec: DataSpec) -> _Examples:
        """Divide the examples.

        Errors: `UserMistake` if the lengths differ, or too few are there.
        """
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) != 1:
            raise UserMistake(f"examples: arrays of one length are needed, given {lengths}")
        count = next(iter(lengths.values()))
        held = max(1, round(count * spec.heldout_percent / 100))
        if count - held < spec.lease_windows:
            raise UserMistake(
                f"examples: {count} examples, {held} of them held out, do not fill a lease of "
                f"data.lease_windows = {spec.lease_windows}"
            )
        order = permuted(np.arange(count), count, (spec.seed, HELDOUT, 0))
        return cls(arrays, np.sort(order[held:]), order[:held], spec)

    def numbers(self, positions: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
        """Return the examples at these positions of the endless sequence of shuffled epochs."""
        return self.train[in_epochs(positions, len(self.train), seed)]

    def cut(self, numbers: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return these examples."""
        return {name: array[numbers] for name, array in self.arrays.items()}

    def heldout_batches(self, batch_size: int) -> list[dict[str, NDArray[Any]]]:
        """Return the held-out examples in batches; a smaller last one is left out."""
        ends = range(batch_size, len(self.heldout) + 1, batch_size)
        batches = [self.cut(self.heldout[end - batch_size : end]) for end in ends]
        return batches or [self.cut(self.heldout)]
