"""The memory of each process of a run, as formulas with the terms of docs/explanation/memory.md.

`archipelago bench large` prints them beside the measurements of the kernel, and a test compares
each formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.config.rule import measures_effects
from cluster.config.schema import Config
from coordinator.chain import worth_keeping
from coordinator.codec import Wire
from coordinator.fragments import Layout
from coordinator.protocol import Anchor

STORED_BYTES = 12
"""Bytes of an element in master, momentum and public fragment together."""
UNDO_BYTES = 8
"""Bytes of an element that are needed to undo a merge."""
F32_BYTES = Wire.F32.bytes_of(1)
SAMPLES = 2
"""Contributions that a shard keeps for each evaluator: a staged one and a public one."""


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a formula."""

    name: str
    """The purpose of the memory."""
    nbytes: int
    """The size in bytes."""
    key: str = ""
    """The configuration key that it depends on, if any."""
    peak: bool = False
    """Whether it is needed for a moment only."""


def total(terms: Sequence[Term], *, peak: bool = True) -> int:
    """Return the bytes of all terms; momentary ones count as if they came together.

    Without `peak`, momentary terms do not count.
    """
    return sum(term.nbytes for term in terms if peak or not term.peak)


def shard_terms(
    config: Config,
    layout: Layout,
    *,
    merging: bool = True,
    stored: bool = True,
    sharing: bool = True,
) -> list[Term]:
    """Return the terms of one of the `sync.shards`, by its share of the parameters.

    `merging`: versions follow one another. `stored`: each version is stored. `sharing`: a learner
    joins.
    """
    sync = config.sync
    n, largest = -(-layout.parameters // sync.shards), max(layout.sizes)
    terms = [Term("arrays", STORED_BYTES * n, "sync.shards")]
    if sharing:
        terms.append(Term("a copy at a join", F32_BYTES * largest, peak=True))
    if not merging:
        return terms
    difference = sync.wire_down.bytes_of(largest)
    links = worth_keeping(sync.keep_differences, difference, F32_BYTES * largest)
    kept = links * sync.wire_down.bytes_of(n)
    terms.append(Term("differences kept", kept, "sync.keep_differences"))
    if Anchor(sync.anchor) is Anchor.CURRENT:
        former = sync.max_staleness * F32_BYTES * n
        terms.append(Term("former public fragments", former, "sync.max_staleness"))
    if measures_effects(config):
        judges = 1 + len(config.evaluated_regions)
        taken = SAMPLES * judges * sync.wire_up.bytes_of(largest)
        key = "monitor.contribution_effects"
        terms.append(Term("contributions for evaluators", taken, key, peak=True))
    terms.append(Term("a difference being made", difference, "sync.wire_down", peak=True))
    terms.append(Term("a copy to store", STORED_BYTES * largest, "durability.every", peak=True))
    if not stored:
        terms.append(Term("to undo a merge", UNDO_BYTES * largest, "durability.every", peak=True))
    return terms


def in_flight(config: Config, layout: Layout) -> Term:
    """Return the term of all hand-ins for one fragment, in the object store of the shard's node."""
    learners, largest = len(config.island_names), max(layout.sizes)
    nbytes = learners * config.sync.wire_up.bytes_of(largest)
    return Term("contributions of a round", nbytes, "sync.wire_up", peak=True)


def island_terms(config: Config, layout: Layout, *, mapped: bool = False) -> list[Term]:
    """Return the terms of a learner on its host, without its devices.

    `mapped`: the learner has just joined, and reads the public fragments in the object store of its
    node.
    """
    sync, n = config.sync, layout.parameters
    if mapped:
        return []
    terms = [Term("public fragments", F32_BYTES * n)]
    if sync.wire_up is not Wire.F32:
        terms.append(Term("rounding errors", F32_BYTES * n, "sync.wire_up"))
    return terms


def store_terms(config: Config, layout: Layout, *, shards: bool) -> list[Term]:
    """Return the terms of a node's object store: with the `shards`, or with islands only.

    They do not depend on the number of islands on the node.
    """
    n, largest = layout.parameters, max(layout.sizes)
    public = Term("public fragments at a join", F32_BYTES * n, peak=True)
    published = config.sync.wire_down.bytes_of(largest)
    publication = Term("a publication", published, "sync.wire_down", peak=True)
    return [public, publication, in_flight(config, layout)] if shards else [public, publication]


def recovery_terms(config: Config, layout: Layout) -> list[Term]:
    """Return the terms of a shard that recovers from the stored fragments, one file at a time."""
    n, largest = -(-layout.parameters // config.sync.shards), max(layout.sizes)
    return [
        Term("arrays", STORED_BYTES * n, "sync.shards"),
        Term("a file being read", STORED_BYTES * largest, peak=True),
    ]


def model_file_terms(layout: Layout) -> list[Term]:
    """Return the terms of the fleet at the end, which writes the model fragment by fragment."""
    return [Term("the model's file", F32_BYTES * max(layout.sizes), peak=True)]
