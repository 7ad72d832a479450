"""The tables `[regions.NAME]`: the data of a region, and the messages that may leave it.

The comment above a key is its documentation.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from cluster.config.table import Table


class Leaving(StrEnum):
    """The kinds of messages that an island can send out of its region."""

    DELTA = "delta"
    """Changes of parameters, for the merges."""
    MOMENTS = "moments"
    """Moments of the optimizer, for merges or for an island that joins."""
    REPORT = "report"
    """Numbers about steps: progress, loss and times."""
    ERRORS = "errors"
    """Texts of errors and tracebacks, and the output of the processes."""
    CORPUS = "corpus"
    """The corpus itself, for the evaluator and the machine that starts the run."""


NEEDED = (Leaving.DELTA, Leaving.REPORT)
"""The kinds without which no island can train with others."""


class RegionDurability(Table):
    """The table `[regions.NAME.durability]`: durable state of the region's islands."""

    dir: Annotated[str, Field(min_length=1)] | None = None
    """Store of the region for the contributions that `durability.keep_contributions` keeps.

    A bucket in the region, or an absolute path on storage of the region that every node mounts:
    shards write there. Default: `durability.dir`, as for all other islands.
    """


class RegionConfig(Table):
    """A region with data of its own, which stays there: the table `[regions.NAME]`."""

    data: Annotated[str, Field(min_length=1)]
    """Corpus of the region's islands, in place of `data.source`; only their nodes read it."""
    may_leave: Annotated[
        tuple[Annotated[Leaving, Field(strict=False)], ...], Field(strict=False)
    ] = (Leaving.DELTA, Leaving.MOMENTS, Leaving.REPORT)
    """Messages that may leave the region: "delta", "moments", "report", "errors", "corpus".

    Without "errors", an error leaves as its class and a code only. Without "moments", joining
    islands get no moments from islands of the region. With "corpus", `data.source` may be the
    corpus of the region.
    """
    logs: Annotated[str, Field(min_length=1)] = "~/.archipelago/regions"
    """Folder on each of the region's hosts for error texts and output that may not leave it."""
    durability: RegionDurability = RegionDurability()
    """Durable state of the region's islands: [regions.NAME.durability]."""
    evaluate: bool = True
    """Evaluate the global model on held-out text of `data`, on a node of the region.

    It takes a CPU thread and memory there. Only the loss leaves the region.
    """

    @property
    def keeps_errors(self) -> bool:
        """Whether texts of errors stay in the region."""
        return Leaving.ERRORS not in self.may_leave
