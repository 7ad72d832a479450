"""The command group `archipelago data`: prepare a corpus, and look into one."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from archipelago.cli.formatting import amount
from archipelago.cli.options import Json, on_this_machine
from archipelago.cli.questions import questions
from cluster.storage.files import json_text

if TYPE_CHECKING:
    from islands.data.inspection import SourceFacts
    from islands.data.token_writer import TokenizeProgress
    from islands.sources import DataSpec

data = typer.Typer(help="Prepare a corpus for training, and look into one.", no_args_is_help=True)
data.command()(questions)
Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE", help="A file, a folder or a glob; s3://BUCKET/PATH, gs://BUCKET/PATH."
    ),
]
Column = Annotated[
    str | None,
    typer.Option(help="The column of Parquet or Arrow files, or the field of JSON lines."),
]
Tokens = Annotated[bool, typer.Option("--tokens", help="The column holds token ids, not text.")]
Tokenizer = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="A tokenizer.json, or a folder with one; bytes by default."),
]
Chat = Annotated[
    bool,
    typer.Option("--chat", help="Conversations in JSON lines; the loss counts the answers only."),
]
EndToken = Annotated[
    str | None,
    typer.Option(metavar="TOKEN", help="The token that ends each document: its text or its id."),
]


def _spec(
    source: str,
    column: str | None,
    *,
    tokens: bool,
    tokenizer: str | None,
    end_token: str | None,
    skip_damaged: bool,
) -> DataSpec:
    from islands.sources import DataSpec

    end = int(end_token) if end_token is not None and end_token.isdecimal() else end_token
    return DataSpec(
        source=source,
        column=column,
        tokens=tokens,
        heldout_percent=1.0,
        window=1,
        seed=0,
        lease_windows=1,
        tokenizer=tokenizer,
        end_token=end,
        skip_damaged=skip_damaged,
    )


@data.command()
def tokenize(
    source: Source,
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="A new folder for the tokens.", callback=on_this_machine
        ),
    ],
    tokenizer: Tokenizer = None,
    train_vocab: Annotated[
        int | None,
        typer.Option(metavar="N", help="Train a byte-level BPE tokenizer with N entries."),
    ] = None,
    column: Column = None,
    tokens: Tokens = False,
    vocabulary: Annotated[
        int | None, typer.Option(metavar="N", help="With --tokens: the number of distinct ids.")
    ] = None,
    end_token: EndToken = None,
    skip_damaged: Annotated[
        bool,
        typer.Option("--skip-damaged", help="Leave damaged parts out and count them."),
    ] = False,
    chat: Chat = False,
    shard_tokens: Annotated[
        int, typer.Option(metavar="N", help="The number of tokens from which on a shard ends.")
    ] = 2**26,
    as_json: Json = False,
) -> None:
    """Write the tokens of a corpus as a token directory, which `data.source` can name.

    Only a part of the corpus is in memory at any time. The work is done in OUT.partial. If it is
    killed, the same command continues behind the last complete shard. OUT appears at the end, as a
    whole. All cores encode; RAYON_NUM_THREADS bounds them.

    Example: archipelago data tokenize books/ tokens/ --train-vocab 8000
    """
    from islands.data.token_writer import written
    from islands.data.tokenize_plan import TokenizeOptions, plan_of

    options = TokenizeOptions(train_vocab, vocabulary, shard_tokens, chat=chat)
    spec = _spec(
        source,
        _field(column, chat=chat),
        tokens=tokens,
        tokenizer=tokenizer,
        end_token=end_token,
        skip_damaged=skip_damaged,
    )
    plan = plan_of(spec, options, out)
    files = len(plan.files)

    def report(progress: TokenizeProgress) -> None:
        print(
            f"{len(progress.shards)} shards, {amount(progress.tokens)} tokens, "
            f"file {min(progress.file + 1, files)} of {files}",
            file=sys.stderr,
        )

    index = written(plan, out, report)
    if as_json:
        result = {
            "out": str(out),
            "documents": index.documents,
            "tokens": index.tokens,
            "vocabulary": index.vocabulary,
            "end_token": index.end_token,
            "dtype": index.dtype,
            "shards": len(index.shards),
            "source_bytes": index.source_bytes,
            "left_out": index.left_out,
            "sha256": index.sha256,
            "answers": index.answers if index.masked else None,
            "masked_share": 1 - index.answers / index.tokens if index.masked else None,
        }
        print(json_text(result))
        return
    lines = [
        f"{out}: {index.documents:,} documents, {index.tokens:,} tokens in {len(index.shards)} "
        f"shards ({index.dtype}), from {amount(index.source_bytes)}B",
        f"the task needs a vocabulary of at least {index.vocabulary:,}",
    ]
    if index.masked:
        lines.append(_masked(index.answers, index.tokens))
    lines += [f"left out: {count:,} {kind}" for kind, count in sorted(index.left_out.items())]
    Console(highlight=False, markup=False, soft_wrap=True).print("\n".join(lines))


@data.command()
def inspect(
    source: Source,
    tokenizer: Tokenizer = None,
    column: Column = None,
    tokens: Tokens = False,
    chat: Chat = False,
    end_token: EndToken = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Read everything; of token directories, check the digests."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Print what a corpus contains: format, documents, tokens, problems, and samples.

    It reads the first 64 MiB, or all of it with --all. The exit code is 1 if there are problems.

    Example: archipelago data inspect books.jsonl --column text
    """
    from islands.data.inspection import inspected

    spec = _spec(
        source,
        _field(column, chat=chat),
        tokens=tokens,
        tokenizer=tokenizer,
        end_token=end_token,
        skip_damaged=True,
    )
    facts = inspected(spec, everything=everything, chat=chat)
    if as_json:
        print(json_text(asdict(facts) | {"masked_share": facts.masked_share}))
    else:
        Console(highlight=False, markup=False, soft_wrap=True).print("\n".join(_lines(facts)))
    if facts.problems:
        raise typer.Exit(1)


def _field(column: str | None, *, chat: bool) -> str | None:
    """Return the field to read: that of conversations has a usual name."""
    from islands.data.chat import MESSAGES

    return MESSAGES if chat and column is None else column


def _masked(answers: int, tokens: int) -> str:
    """Return the line about the tokens that the loss counts."""
    share = 1 - answers / max(1, tokens)
    return f"the loss counts {answers:,} tokens of answers; {share:.1%} are masked"


def _lines(facts: SourceFacts) -> list[str]:
    part = "" if facts.complete or facts.kind == "token directory" else "at least "
    lines = [
        f"{facts.source}: {facts.kind}, {facts.files:,} files, {amount(facts.bytes)}B",
        f"{part}{facts.documents:,} documents, {part}{facts.tokens:,} tokens, "
        f"largest id {facts.largest_id:,}",
    ]
    if facts.longest_document:
        lines.append(f"longest document: {facts.longest_document:,} tokens")
    if facts.answers is not None:
        lines.append(_masked(facts.answers, facts.tokens))
    lines += [f"left out: {count:,} {kind}" for kind, count in sorted(facts.left_out.items())]
    lines += [f"problem: {problem}" for problem in facts.problems]
    lines += [f"sample: {sample}" for sample in facts.samples]
    if not facts.complete:
        lines.append("only a part was read; --all reads everything")
    elif facts.kind == "token directory" and not facts.problems:
        lines.append(f"all digests agree (files: {facts.files:,})")
    return lines
