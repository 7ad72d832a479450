"""A task whose runs differ only in the order of their training text: byte-tiny from one start.

    PYTHONPATH=examples/studies archipelago study examples/studies/order-6000.toml

The seed of the study gives the order of the training windows. The initial model and the held-out
windows are those of the seed `start`.
"""

from dataclasses import replace
from functools import cache

from islands.corpus import Stream
from islands.corpus_reader import open_corpus
from islands.task import PRESETS, language_model


def task(data, start=44):
    """Return byte-tiny with the initial model and the held-out text of the seed `start`."""
    spec, fixed = PRESETS["byte-tiny"], replace(data, seed=start)
    model = language_model("byte-tiny", spec, fixed)

    @cache
    def corpus():
        return open_corpus(fixed, spec.vocabulary)

    return replace(
        model,
        init=lambda seed: model.init(start),
        stream=lambda batch_size: Stream(corpus(), batch_size, data.seed),
    )
