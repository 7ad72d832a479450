"""A shard of a token directory while it is written."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from islands.data.durable_files import NEW, flushed_folder, sealed
from islands.data.encoding import EncodedBatch
from islands.data.token_index import TokenShard


class OpenShard:
    """A shard that is being written."""

    def __init__(self, work: Path, number: int, dtype: np.dtype[Any]) -> None:
        self.name = f"shard-{number:05}.bin"
        self.tokens, self.documents, self.answers = 0, 0, 0
        self._work, self._dtype = work, dtype.newbyteorder("<")
        self._ids, self._digest = self._open(self.name), hashlib.sha256()
        self._ends: list[NDArray[np.int64]] = []

    def _open(self, name: str) -> BinaryIO:
        return (self._work / f"{name}{NEW}").open("wb")

    def add(self, batch: EncodedBatch) -> None:
        """Append a batch."""
        ids = batch.ids.astype(self._dtype)
        if batch.answers is not None:
            ids = 2 * ids + batch.answers.astype(self._dtype)
            self.answers += int(np.count_nonzero(batch.answers))
        content = ids.astype(self._dtype).tobytes()
        self._ids.write(content)
        self._digest.update(content)
        self._ends.append(batch.ends + self.tokens)
        self.tokens += len(batch.ids)
        self.documents += len(batch.ends)

    def close(self) -> TokenShard:
        """Make both files durable under their names."""
        shard = TokenShard(self.name, self.tokens, self.documents, "")
        ends = np.concatenate([np.zeros(0, np.int64), *self._ends]).astype("<i8").tobytes()
        self._digest.update(ends)
        sealed(self._ids)
        with self._open(shard.ends) as stream:
            stream.write(ends)
            sealed(stream)
        for name in (shard.file, shard.ends):
            (self._work / f"{name}{NEW}").replace(self._work / name)
        flushed_folder(self._work)
        return TokenShard(self.name, self.tokens, self.documents, self._digest.hexdigest())
