"""The writing of a token directory, which a later call can continue after a kill.

The work is done in `OUT.partial`, which becomes `OUT` in one step at the end:

    shard-00000.bin, .ends    shards that are complete
    progress.json             the shards, and the place of the source behind them
    tokenizer.json            the tokenizer's file
    *.new                     files that are being written

The progress is written after each shard. A later call with the same source, tokenizer and sizes
continues behind the last complete shard, and makes the same directory as one call does.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from coordinator.errors import UserMistake
from islands.data.buckets import identity, size_of
from islands.data.chat import TEMPLATE, ChatEncoder
from islands.data.damage import Damage
from islands.data.documents import DocumentFile
from islands.data.durable_files import NEW, flushed_folder, replaced
from islands.data.encoding import EncodedBatch, conversed, dtype_of, encoded, numbered
from islands.data.open_shard import OpenShard
from islands.data.text_tokens import TOKENIZER, TextEncoder
from islands.data.token_index import INDEX, TokenIndex, TokenShard

PROGRESS, LOCK = "progress.json", "lock"
SHARD_TOKENS = 2**26
"""The number of tokens from which on a shard ends: 128 MiB of two-byte ids."""


@dataclass(frozen=True, slots=True)
class TokenizePlan:
    """The input of a token directory."""

    files: tuple[DocumentFile, ...]
    encoder: TextEncoder | None
    """The encoder of texts; None: the documents are token ids."""
    vocabulary: int
    end_token: int | None
    tokenizer: bytes | None
    """The content of the tokenizer's file; None: there is none."""
    shard_tokens: int = SHARD_TOKENS
    skip_damaged: bool = False
    trained: int | None = None
    """The vocabulary that the tokenizer was trained for; None: it was given."""
    chat: ChatEncoder | None = None
    """The encoder of conversations; None: the documents are texts or ids."""

    @property
    def digest(self) -> str:
        """A digest of everything that the content of the directory depends on.

        The treatment of damage is no part of it: a call that stopped at damage can be continued
        with `skip_damaged`.
        """
        facts = [
            self.vocabulary,
            self.end_token,
            hashlib.sha256(self.tokenizer or b"").hexdigest(),
            self.shard_tokens,
            self.trained,
            [(*identity(each.file), each.column, each.tokens) for each in self.files],
        ]
        facts += [] if self.chat is None else [asdict(self.chat.template)]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


@dataclass(slots=True)
class TokenizeProgress:
    """The state of the work behind the last complete shard."""

    digest: str
    """The digest of the plan."""
    file: int = 0
    """The number of the file that comes next."""
    place: int = 0
    """The place of that file that comes next."""
    tokens: int = 0
    """Tokens in the shards."""
    documents: int = 0
    """Documents in the shards."""
    answers: int = 0
    """Tokens in the shards that the loss counts, of conversations."""
    left_out: dict[str, int] = field(default_factory=dict[str, int])
    """Parts that were left out, by kind."""
    shards: list[TokenShard] = field(default_factory=list[TokenShard])
    """The complete shards."""


ReportProgress = Callable[[TokenizeProgress], None]
"""A function that is called after each shard."""


def free_output(out: Path) -> None:
    """Check that a token directory can be written to `out`.

    Errors: `UserMistake` if there is something already.
    """
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists() or out.is_symlink():
        what = "a folder that is not empty" if out.is_dir() else "a file"
        raise UserMistake(f"{out} is {what}: nothing is overwritten; name a new folder")


def unfinished(out: Path) -> Path:
    """Return the folder in which the work for `out` is done."""
    return out.with_name(f"{out.name}.partial")


def written(plan: TokenizePlan, out: Path, report: ReportProgress) -> TokenIndex:
    """Write a token directory, or continue an earlier call that was killed.

    Errors: `UserMistake` if `out` is not free, another process writes it, `OUT.partial` has another
    content, the source cannot be read, or has no token; `OSError` if there is no room.
    """
    free_output(out)
    work = unfinished(out)
    work.mkdir(parents=True, exist_ok=True)
    with _alone(work):
        progress = _begun(plan, work)
        damage = Damage(plan.skip_damaged, Counter(progress.left_out))
        try:
            _continue(plan, work, progress, damage, report)
        except UserMistake:
            if not progress.shards:
                _remove(work)
            raise
        if not progress.tokens:
            found = damage.text or "there are none"
            _remove(work)
            raise UserMistake(f"the source has no tokens: all documents are left out ({found})")
        index = _index(plan, progress)
        replaced(work / INDEX, index.text().encode())
        for name in (PROGRESS, LOCK):
            (work / name).unlink(missing_ok=True)
        if out.is_dir():
            out.rmdir()
        work.rename(out)
        flushed_folder(out.parent)
    return index


@contextmanager
def _alone(work: Path) -> Generator[None]:
    with (work / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserMistake(f"another process writes {work}: wait until it has ended") from error
        yield


def _begun(plan: TokenizePlan, work: Path) -> TokenizeProgress:
    """Return the progress of an earlier call, or begin.

    Errors: `UserMistake` if the earlier call had another input.
    """
    digest = plan.digest
    try:
        plain: dict[str, Any] = json.loads((work / PROGRESS).read_bytes())
        shards = [TokenShard(**each) for each in plain.pop("shards")]
        progress = TokenizeProgress(**plain, shards=shards)
    except FileNotFoundError:
        if plan.tokenizer is not None:
            replaced(work / TOKENIZER, plan.tokenizer)
        if plan.chat is not None and plan.chat.template.own:
            replaced(work / TEMPLATE, plan.chat.template.text.encode())
        progress = TokenizeProgress(digest)
        replaced(work / PROGRESS, _plain(progress))
    except (ValueError, TypeError, KeyError) as error:
        raise UserMistake(f"{work / PROGRESS} cannot be read: {error}; delete {work}") from error
    if progress.digest != digest:
        raise UserMistake(
            f"{work} has the beginning of another source, tokenizer or shard size, or the source "
            "has changed: delete it to begin again, or name another OUT"
        )
    for path in work.glob(f"*{NEW}"):
        path.unlink()
    return progress


def _plain(progress: TokenizeProgress) -> bytes:
    return json.dumps(asdict(progress)).encode()


def _continue(
    plan: TokenizePlan,
    work: Path,
    progress: TokenizeProgress,
    damage: Damage,
    report: ReportProgress,
) -> None:
    """Read the source behind the progress, and write shards."""
    dtype = dtype_of(_stored_vocabulary(plan))
    shard: OpenShard | None = None
    for number in range(progress.file, len(plan.files)):
        start = progress.place if number == progress.file else 0
        for batch in _batches(plan, number, start, damage):
            if shard is None:
                shard = OpenShard(work, len(progress.shards), dtype)
            shard.add(batch)
            if shard.tokens >= plan.shard_tokens:
                _close(work, shard, progress, number, batch.place, damage)
                report(progress)
                shard = None
    if shard is not None:
        _close(work, shard, progress, len(plan.files), 0, damage)
        report(progress)
    progress.left_out = dict(damage.counts)


def _batches(plan: TokenizePlan, number: int, start: int, damage: Damage) -> Iterator[EncodedBatch]:
    file = plan.files[number]
    stop = file.extent()
    if plan.chat is not None:
        return conversed(file, plan.chat, start, stop, damage)
    if plan.encoder is None:
        return numbered(file, plan.vocabulary, start, stop, damage)
    if start and start >= stop:
        return iter(())
    return encoded(file, plan.encoder, start, stop, damage, resumed=start > 0)


def _close(
    work: Path, shard: OpenShard, progress: TokenizeProgress, file: int, place: int, damage: Damage
) -> None:
    progress.shards.append(shard.close())
    progress.tokens += shard.tokens
    progress.documents += shard.documents
    progress.answers += shard.answers
    progress.file, progress.place = file, place
    progress.left_out = dict(damage.counts)
    replaced(work / PROGRESS, _plain(progress))


def _index(plan: TokenizePlan, progress: TokenizeProgress) -> TokenIndex:
    tokenizer = plan.tokenizer
    return TokenIndex(
        dtype=dtype_of(_stored_vocabulary(plan)).name,
        vocabulary=plan.vocabulary,
        end_token=plan.end_token,
        tokenizer=None if tokenizer is None else TOKENIZER,
        tokenizer_sha256=None if tokenizer is None else hashlib.sha256(tokenizer).hexdigest(),
        documents=progress.documents,
        tokens=progress.tokens,
        source_bytes=sum(size_of(each.file) for each in plan.files),
        left_out=progress.left_out,
        shards=tuple(progress.shards),
        masked=plan.chat is not None,
        answers=progress.answers,
    )


def _stored_vocabulary(plan: TokenizePlan) -> int:
    """Return the number of distinct values in the shards."""
    return plan.vocabulary * (1 if plan.chat is None else 2)


def _remove(work: Path) -> None:
    for path in work.iterdir():
        path.unlink()
    work.rmdir()
