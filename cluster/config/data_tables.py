"""The tables of the training data: `[data]` and `[[data.mixture]]`.

The comment above a key is its documentation.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cluster.config.table import Table
from cluster.config.values import Count, Positive


class MixtureConfig(Table):
    """One source of a mixture, in place of `data.source`, `column` and `tokens`."""

    source: Annotated[str, Field(min_length=1)]
    """Corpus, as `data.source`."""
    weight: Positive
    """Share of the windows, relative to the other weights; rounded to a thousandth of all."""
    column: Annotated[str, Field(min_length=1)] | None = None
    """Column or field to read, as `data.column`."""
    tokens: bool = False
    """The column holds lists of token ids, as `data.tokens`."""


class DataConfig(Table):
    """The training data: its source, the held-out share and the size of a window."""

    source: Annotated[str, Field(min_length=1)] = "python-stdlib"
    """Corpus: "python-stdlib", a token directory, a file, a folder or a glob.

    Files are text, JSON lines, Parquet, Arrow or a saved dataset. All but the first may be in a
    bucket: s3://BUCKET/PATH or gs://BUCKET/PATH.
    """
    column: Annotated[str, Field(min_length=1)] | None = None
    """Column of Parquet or Arrow files, or field of JSON lines, to read."""
    tokens: bool = False
    """The column holds lists of token ids, not text."""
    heldout_percent: Annotated[float, Field(gt=0, lt=100)] = 5.0
    """Percentage of the corpus that is never trained on, only evaluated."""
    window: Count = 128
    """Tokens that one window predicts."""
    lease_windows: Count = 256
    """Windows in one lease."""
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    """Hugging Face tokenizer for text: tokenizer.json, or a folder with it; default: bytes.

    Needs the extra `data`. A token directory has its own.
    """
    end_token: Annotated[int, Field(ge=0)] | Annotated[str, Field(min_length=1)] | None = None
    """Token that ends each document: its text or id; default: the tokenizer's own.

    If the column holds ids, the id that they end with.
    """
    separate_documents: bool = False
    """Attention does not cross the end of a document; batches then have segments."""
    skip_damaged: bool = False
    """Leave damaged row groups and documents out and count them, in place of an error."""
    prepare_gb: Positive = 2.0
    """Largest source, in GB, that is written as token files at the start of a run.

    Larger ones need `archipelago data tokenize`. Text without a tokenizer is read where it is.
    """
    mixture: Annotated[tuple[MixtureConfig, ...], Field(strict=False)] = ()
    """Several sources with weights, in place of `source`: tables [[data.mixture]]."""
