"""The table of extension points, from which `.ci/reference` writes their page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExtensionPoint:
    """One kind of code that a user can plug in."""

    title: str
    """The heading on the page."""
    keys: tuple[str, ...]
    """The keys of the configuration that name it, and those of its options."""
    called_by: str
    """The processes that call it."""
    called_in: tuple[str, ...]
    """The commands that call it."""
    protocol: str | None
    """The name of its Protocol or class in `archipelago`; None if it is optax's."""
    text: str
    """The first paragraph, before the documentation of the Protocol."""
    toml: str
    """An example of the keys."""
    example: str
    """The example: FILE:NAME in the shipped examples."""


ALL = ("run", "study", "replay")
"""Code that a replay calls, too: it computes the merges again."""
TRAINING = ("run", "study")
"""Code of which a replay takes the results from the log or from the stored layout."""

POINTS = (
    ExtensionPoint(
        "Merge rule",
        ("sync.merge", "sync.merge_options"),
        "shards",
        ALL,
        "MergeFunction",
        "The example is TIES merging (arXiv:2306.01708). `python -m archipelago.examples.ties` "
        "trains with it, and `archipelago replay` then rebuilds the model to the last bit. The run "
        "writes a digest of the rule's source into its configuration (`sync.merge_sha256`), and a "
        "replay or a resume with another source is refused. State of a task (`Task.init_state`) "
        "always takes the mean. `archipelago/examples/heloco.py` is a rule that uses the outer "
        "momentum: the direction-aware correction of HeLoCo (arXiv:2606.00271).",
        '[sync]\nmerge = "ties:ties"\nmerge_options = {density = 0.5}',
        "ties.py:ties",
    ),
    ExtensionPoint(
        "Codec",
        ("sync.wire_up", "sync.wire_down", "sync.wire_options"),
        "islands, shards",
        ALL,
        "Codec",
        "The example sends one bit for each element, and the mean magnitude. `sync.wire_sha256` is "
        "the digest of the source, as for a merge rule. A codec encodes whole fragments on the "
        'host: islands of several hosts and `encode = "device"` need a built-in wire. Shared '
        "moments (`sync.wire_moments`) have built-in wires only.",
        '[sync]\nwire_up = "signs:Signs"\nwire_options = {scale = 1.0}',
        "signs.py:Signs",
    ),
    ExtensionPoint(
        "Fragmenting",
        ("sync.fragmenting", "sync.fragmenting_options"),
        "islands, evaluator",
        TRAINING,
        "Fragmenting",
        "The example gives each fragment every n-th layer, as the strided fragments of Streaming "
        "DiLoCo (arXiv:2501.18512). A run notes a digest of its layout, so an island or a resumed "
        "run with other fragments is refused.",
        '[sync]\nfragments = 4\nfragmenting = "strided:strided"',
        "strided.py:strided",
    ),
    ExtensionPoint(
        "Payload gate",
        ("sync.gate", "sync.gate_options"),
        "shards",
        TRAINING,
        "PayloadGate",
        "The example refuses a contribution that moves a tensor by more than a share of its norm. "
        "The log has each refusal with its reason, so a replay calls no gate. State of a task is "
        "not shown to it.",
        '[sync]\ngate = "relative_gate:gate"\ngate_options = {most = 0.5}',
        "relative_gate.py:gate",
    ),
    ExtensionPoint(
        "Outer optimizer",
        ("sync.outer.target", "sync.outer.options"),
        "shards",
        ALL,
        None,
        "Any function that returns an optax transformation. Its gradient is minus the merged delta "
        "of one fragment, a flat array. Its state takes the place of the outer momentum.",
        '[sync.outer]\ntarget = "outer_optimizer:outer"\noptions = {learning_rate = 0.5}',
        "outer_optimizer.py:outer",
    ),
    ExtensionPoint(
        "Inner optimizer",
        ("optimizer.target", "optimizer.options"),
        "islands",
        TRAINING,
        None,
        "Any optax transformation, or a function that returns one. Its updates are added to the "
        "parameters ([how to choose optimizers](../howto/optimizers.md)).",
        '[optimizer]\ntarget = "inner_optimizer:inner"\noptions = {b1 = 0.95}\n'
        "learning_rate = 3e-4",
        "inner_optimizer.py:inner",
    ),
    ExtensionPoint(
        "Schedule",
        ("optimizer.schedule",),
        "islands",
        TRAINING,
        None,
        "A function of the clock, in steps of one island, that returns the learning rate. It is "
        "compiled, so it uses `jax.numpy`.",
        '[optimizer]\nschedule = "inner_optimizer:rate"',
        "inner_optimizer.py:rate",
    ),
    ExtensionPoint(
        "Tracker",
        ("monitor.track",),
        "fleet",
        ("run",),
        "Tracker",
        "A tracker sends the figures of a run to another tool. It can neither hold up nor end the "
        "run: a slow one gets fewer statuses, and one that raises is left out with a line in the "
        "log. Studies and replays call none.",
        '[monitor]\ntrack = ["csv_tracker:CsvTracker"]',
        "csv_tracker.py:CsvTracker",
    ),
    ExtensionPoint(
        "Task",
        ("task.target", "task.options"),
        "islands, evaluator",
        TRAINING,
        "Task",
        "A task has parameters, a loss and data ([your own model](../howto/own-model.md)). "
        "`archipelago.text_task` and `archipelago.supervised_task` make one with a data source. A "
        "training loop of your own (`task.loop`) works in a run only: a study refuses it "
        "([your own loop](../howto/own-loop.md)).",
        '[task]\ntarget = "small_task:task"\noptions = {inputs = 8}\n\n[sync]\nfragments = 2',
        "small_task.py:task",
    ),
    ExtensionPoint(
        "Data source",
        ("task.target",),
        "islands",
        TRAINING,
        "StreamLike",
        "The `stream` of a task makes the data source of an island, which yields batches from the "
        "leases that the syncer grants. The example reads no files: each window is computed from "
        "its number. `archipelago/examples/generated_data.py` has the task around it. Before a run "
        "starts, a source gets a lease and gives one batch, which is compared with a held-out "
        "batch.",
        '[task]\ntarget = "generated_data:task"\n\n[sync]\nfragments = 2',
        "generated_data.py:Generated",
    ),
)
"""All extension points, in the order of the page."""
