"""Checks between fields of `[sync]`, and between these and other tables."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from cluster.config.field_check import reads
from cluster.config.modes import preset_of
from cluster.config.problem_text import Problem
from cluster.config.rule import schedule_of
from cluster.config.schema import Config, SyncConfig
from cluster.config.values import AUTO, MERGE_RULES
from islands.own_wire import OwnWire


@reads("sync.fragments", "sync.every")
def fragments_fit(config: Config) -> Iterator[Problem]:
    """Check that P is at most H, so that no two fragments are due at one step."""
    given = config.sync.fragments
    if config.sync.every == AUTO:
        fixed = () if (preset := preset_of(config)) is None else preset.fixed
        if given != SyncConfig.model_fields["fragments"].default and "fragments" not in fixed:
            yield Problem(
                "sync.fragments",
                f'sync.every = "auto" chooses it; leave {given} out, or give sync.every a number',
            )
        return
    if given > (every := min(every for _, every in config.sync.stretches)):
        yield Problem(
            "sync.fragments",
            f"two of {given} fragments would be due at one step, as sync.every is {every}; "
            f"use {every} fragments or fewer, or a longer interval",
        )


@reads("sync.overlap", "sync.every", "sync.fragments", "sync.adopt", "sync.anchor")
def overlap_fits(config: Config) -> Iterator[Problem]:
    """Check that the overlap ends before the next round of the fragment."""
    sync = config.sync
    if sync.every == AUTO:
        return
    given, least = sync.least_overlap, schedule_of(config).least
    # A free-running learner that carries its late hand-ins may hand in again before it adopts.
    keeps = sync.adopt == "carry" and sync.anchor == "base" and not config.run.mode.lock_step
    most = least if keeps else least - 1
    if given > most:
        kind = "sync.every" if isinstance(sync.every, int) else "the least interval of sync.every"
        yield Problem(
            "sync.overlap",
            f"{given} steps would reach the fragment's next round, as {kind} is {least}; "
            f"use {most} at most",
        )


@reads("sync.outer")
def one_outer_optimizer(config: Config) -> Iterator[Problem]:
    """Check that the outer step is either our SGD or a target, and that options have a target."""
    outer = config.sync.outer
    sgd_keys = {"learning_rate", "momentum", "nesterov"} & outer.model_fields_set
    if outer.target is None and outer.options:
        yield Problem("sync.outer.options", "are those of a target, and there is none")
    if outer.target is not None and (sgd_keys := sorted(k for k in sgd_keys if _changed(outer, k))):
        yield Problem(
            f"sync.outer.{sgd_keys[0]}",
            f"is not for {outer.target}; put it into sync.outer.options",
        )


def _changed(table: BaseModel, key: str) -> bool:
    """Return whether a key is not at its default: a resolved configuration names every key."""
    return getattr(table, key) != type(table).model_fields[key].default


@reads("sync.shards", "sync.fragments")
def shards_have_fragments(config: Config) -> Iterator[Problem]:
    """Check that each shard has a fragment."""
    given, fragments = config.sync.shards, config.sync.fragments
    if given > fragments and config.sync.every != AUTO:
        yield Problem(
            "sync.shards", f"{given} processes cannot share {fragments} fragments; use fewer"
        )


@reads("sync.shard_labels", "durability.dir")
def shards_elsewhere_are_durable_there(config: Config) -> Iterator[Problem]:
    """Check that shards on other nodes have a durable store that they can reach."""
    if config.sync.shard_labels is not None and config.durability.dir is None:
        yield Problem(
            "sync.shard_labels",
            "puts shards on nodes that do not see the run directory; give durability.dir, a folder "
            "that every node sees or a bucket",
        )


@reads("sync.quorum", "islands.*.count")
def quorum_exists(config: Config) -> Iterator[Problem]:
    """Check that the quorum is not larger than the number of islands."""
    given, total = config.sync.quorum, len(config.island_names)
    if 0 < total < given:
        yield Problem(
            "sync.quorum",
            f"no round could ever close: {given} contributions are needed and there are {total} "
            f"islands; use {total} or less, or more islands",
        )


@reads("sync.adopt", "sync.blend")
def blend_has_alpha(config: Config) -> Iterator[Problem]:
    """Check that `blend` is given exactly if `adopt` is "blend"."""
    if config.sync.adopt == "blend" and config.sync.blend is None:
        yield Problem("sync.blend", 'is needed by adopt = "blend": a share between 0 and 1')
    if config.sync.adopt != "blend" and config.sync.blend is not None:
        yield Problem(
            "sync.blend",
            f'is read only by adopt = "blend", and adopt is "{config.sync.adopt}"; leave one out',
        )


@reads("sync.merge", "sync.kappa")
def kappa_is_of_rda(config: Config) -> Iterator[Problem]:
    """Check that `kappa` is given only for radial-directional averaging."""
    if config.sync.merge != "rda" and config.sync.kappa is not None:
        yield Problem(
            "sync.kappa",
            f'is read only by merge = "rda", and merge is "{config.sync.merge}"; leave one out',
        )


@reads("sync.merge", "sync.merge_options", "sync.merge_sha256")
def merge_options_have_rule(config: Config) -> Iterator[Problem]:
    """Check that the keys about the user's own merge rule are set only if there is one."""
    sync = config.sync
    if sync.merge not in MERGE_RULES:
        return
    for key, given in (("merge_options", sync.merge_options), ("merge_sha256", sync.merge_sha256)):
        if given:
            yield Problem(
                f"sync.{key}",
                f"is of a merge rule of your own (module:attribute), and merge is "
                f'"{sync.merge}"; leave one out',
            )


@reads("sync")
def gate_and_fragmenting_fit(config: Config) -> Iterator[Problem]:
    """Check that options have a gate or fragmenting, and that P is known to a fragmenting."""
    sync = config.sync
    if sync.gate is None and sync.gate_options:
        yield Problem("sync.gate_options", "are those of a gate, and there is none")
    if sync.fragmenting is None and sync.fragmenting_options:
        yield Problem("sync.fragmenting_options", "are those of a fragmenting, and there is none")
    if sync.fragmenting is not None and sync.every == AUTO:
        yield Problem(
            "sync.fragmenting",
            f'{sync.fragmenting} needs a number of fragments, and sync.every = "auto" chooses it '
            "later; give sync.every and sync.fragments numbers",
        )


@reads("sync", "islands", "monitor")
def own_wires_fit(config: Config) -> Iterator[Problem]:
    """Check that codecs of the user's have what they need, and their keys a codec."""
    sync = config.sync
    own = {key: wire for key, wire in sync.fragment_wires.items() if isinstance(wire, OwnWire)}
    if not own:
        for key, given in (("wire_options", sync.wire_options), ("wire_sha256", sync.wire_sha256)):
            if given:
                yield Problem(
                    f"sync.{key}",
                    "is of a codec of your own (module:attribute), and wire_up and wire_down are "
                    "built in; leave it out",
                )
        return
    for number, group in enumerate(config.islands):
        if group.encode != "host" and "wire_up" in own:
            yield Problem(
                f"islands.{number}.encode",
                f'"{group.encode}" is not for the codec {own["wire_up"]}, which runs on hosts; '
                'leave it at "host"',
            )
    names = " and ".join(sorted({str(wire) for wire in own.values()}))
    places = {f"islands.{number}": group.hosts for number, group in enumerate(config.islands)}
    for place, hosts in {**places, "monitor.evaluator": config.monitor.evaluator.hosts}.items():
        if hosts > 1:
            yield Problem(
                f"{place}.hosts",
                f"each of {hosts} hosts has a part of a fragment, and the codec {names} encodes "
                "whole ones; use a built-in wire",
            )


@reads("sync.moments", "sync.moments_every", "sync.wire_moments")
def moments_are_shared(config: Config) -> Iterator[Problem]:
    """Check that the keys of shared moments are set only if moments are shared."""
    if config.sync.moments == "mean":
        return
    for key in ("moments_every", "wire_moments"):
        if getattr(config.sync, key) != SyncConfig.model_fields[key].default:
            yield Problem(
                f"sync.{key}",
                'is read only by moments = "mean", and moments is "own"; leave one out',
            )
