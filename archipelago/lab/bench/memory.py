"""How much memory each process of a run takes, as formulas: docs/memory.md, with the same terms.

`archipelago bench large` prints them beside what the kernel says, and a test compares each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.config.schema import Config
from coordinator.chain import worth_keeping
from coordinator.codec import Wire
from coordinator.fragments import Layout
from coordinator.protocol import Anchor

STORED_BYTES = 12
"""Of an element: master, momentum and public fragment."""
UNDO_BYTES = 8
F32_BYTES = Wire.F32.bytes_of(1)


@dataclass(frozen=True, slots=True)
class Term:
    """Bytes, what they are for, and the key that they go by; `peak`: for a moment only."""

    name: str
    nbytes: int
    key: str = ""
    peak: bool = False


def total(terms: Sequence[Term], *, peak: bool = True) -> int:
    """With all that is there for a moment, as if that came together; or without."""
    return sum(term.nbytes for term in terms if peak or not term.peak)


def shard_terms(
    config: Config,
    layout: Layout,
    *,
    merging: bool = True,
    stored: bool = True,
    sharing: bool = True,
) -> list[Term]:
    """Of one shard of `sync.shards`, by its share of the parameters.

    `merging`: versions follow one another. `stored`: each one is. `sharing`: somebody joins.
    """
    sync = config.sync
    n, largest = -(-layout.parameters // sync.shards), max(layout.sizes)
    terms = [Term("arrays", STORED_BYTES * n, "sync.shards")]
    if sharing:
        terms.append(Term("a copy for who joins", F32_BYTES * largest, peak=True))
    if not merging:
        return terms
    difference = sync.wire_down.bytes_of(largest)
    links = worth_keeping(sync.keep_differences, difference, F32_BYTES * largest)
    kept = links * sync.wire_down.bytes_of(n)
    terms.append(Term("differences kept", kept, "sync.keep_differences"))
    if Anchor(sync.anchor) is Anchor.CURRENT:
        former = sync.max_staleness * F32_BYTES * n
        terms.append(Term("former public fragments", former, "sync.max_staleness"))
    terms.append(Term("a difference being made", difference, "sync.wire_down", peak=True))
    terms.append(Term("a copy to store", STORED_BYTES * largest, "durability.every", peak=True))
    if not stored:
        terms.append(Term("to undo a merge", UNDO_BYTES * largest, "durability.every", peak=True))
    return terms


def in_flight(config: Config, layout: Layout) -> Term:
    """What is handed in for one fragment: in the object store of the shard's node."""
    learners, largest = len(config.island_names), max(layout.sizes)
    nbytes = learners * config.sync.wire_up.bytes_of(largest)
    return Term("contributions of a round", nbytes, "sync.wire_up", peak=True)


def island_terms(config: Config, layout: Layout, *, mapped: bool = False) -> list[Term]:
    """Of a learner on its host, beside its devices. `mapped`: it has just joined, and reads the
    public fragments in the object store of its node."""
    sync, n = config.sync, layout.parameters
    if mapped:
        return []
    terms = [Term("public fragments", F32_BYTES * n)]
    if sync.wire_up is not Wire.F32:
        terms.append(Term("rounding errors", F32_BYTES * n, "sync.wire_up"))
    return terms


def store_terms(config: Config, layout: Layout, *, shards: bool) -> list[Term]:
    """Of the object store of a node: of the `shards`, or of islands, however many."""
    n, largest = layout.parameters, max(layout.sizes)
    public = Term("public fragments for who joins", F32_BYTES * n, peak=True)
    published = config.sync.wire_down.bytes_of(largest)
    said = Term("a publication", published, "sync.wire_down", peak=True)
    return [public, said, in_flight(config, layout)] if shards else [public, said]


def recovery_terms(config: Config, layout: Layout) -> list[Term]:
    """Of a shard that comes back from what is stored, one file at a time."""
    n, largest = -(-layout.parameters // config.sync.shards), max(layout.sizes)
    return [
        Term("arrays", STORED_BYTES * n, "sync.shards"),
        Term("a file being read", STORED_BYTES * largest, peak=True),
    ]


def model_file_terms(layout: Layout) -> list[Term]:
    """Of the fleet at the end: the model's file is written fragment by fragment."""
    return [Term("the model's file", F32_BYTES * max(layout.sizes), peak=True)]
