"""The checks between the fields of the training data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

from cluster.config.data_tables import DataConfig
from cluster.config.field_check import reads
from cluster.config.problem_text import Problem
from cluster.config.schema import Config
from islands.data.buckets import SCHEMES, in_bucket

SECRET = re.compile("key|secret|token|password", re.IGNORECASE)
"""The names of URL parameters that may hold credentials."""
USUAL = DataConfig()


@reads("data.tokens", "data.column", "data.mixture")
def tokens_have_column(config: Config) -> Iterator[Problem]:
    """Check that token ids have a column to come from."""
    if config.data.tokens and config.data.column is None:
        yield Problem("data.column", "is needed by tokens = true: the Parquet column to read")
    for number, each in enumerate(config.data.mixture):
        if each.tokens and each.column is None:
            yield Problem(
                f"data.mixture.{number}.column", "is needed by tokens = true: the column to read"
            )


@reads("data.source", "data.tokens", "data.column", "data.mixture")
def mixture_stands_alone(config: Config) -> Iterator[Problem]:
    """Check that no key of a single source is given beside a mixture."""
    data = config.data
    if not data.mixture:
        return
    given = {
        "source": data.source != USUAL.source,
        "column": data.column is not None,
        "tokens": data.tokens,
    }
    for key in (key for key, is_given in given.items() if is_given):
        yield Problem(
            f"data.{key}",
            "has no effect beside data.mixture; write it into its tables, or keep one",
        )


@reads("data.tokenizer", "data.tokens", "data.end_token", "data.mixture")
def tokenizer_has_text(config: Config) -> Iterator[Problem]:
    """Check that a tokenizer has text to encode, and that a token with a text has a tokenizer."""
    data = config.data
    if data.tokenizer is not None and in_bucket(data.tokenizer):
        yield Problem("data.tokenizer", "must be a file that every node sees; copy it there")
    if data.tokenizer is not None and data.tokens:
        yield Problem("data.tokenizer", "encodes text, and tokens = true reads ids; keep one")
    if data.tokenizer is None and isinstance(data.end_token, str):
        yield Problem(
            "data.end_token", "is a text, which needs data.tokenizer; give the id of the token"
        )


@reads("data.source", "data.mixture", "regions")
def buckets_can_be_read(config: Config) -> Iterator[Problem]:
    """Check the URIs of sources; no message shows one, because it may hold a secret."""
    sources = [("data.source", config.data.source)]
    sources += [
        (f"data.mixture.{number}.source", each.source)
        for number, each in enumerate(config.data.mixture)
    ]
    sources += [(f"regions.{name}.data", each.data) for name, each in config.regions.items()]
    for where, source in sources:
        if not in_bucket(source):
            continue
        parts = urlsplit(source)
        if parts.scheme not in SCHEMES:
            known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
            yield Problem(where, f"{parts.scheme}:// is not known; a corpus can be in {known}")
        elif not parts.netloc:
            yield Problem(where, f"names no bucket: {parts.scheme}://BUCKET/PATH")
        if parts.password or any(SECRET.search(key) for key in parse_qs(parts.query)):
            yield Problem(
                where,
                "holds credentials, which would be written into the run's files; leave them to the "
                "environment of Ray's nodes (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS "
                "...)",
            )
