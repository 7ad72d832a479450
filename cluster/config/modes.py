"""The effect of `run.mode` on a configuration (docs/lab/baselines.md).

A mode fixes some values of `[sync]`, proposes others, and refuses what it cannot do. The loader
resolves the mode, so that no other code depends on the origin of a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cluster.config.fault_kinds import SHARD_PREFIX, FaultKind
from cluster.config.problem_text import Problem
from cluster.config.schema import Config, Harm, OuterConfig, SyncConfig
from cluster.config.toml import toml_value
from cluster.config.values import Mode
from coordinator.codec import Wire
from islands.own_wire import OwnWire

IsSet = Callable[[str], bool]
"""A predicate: True if the user set the key at this path, such as "sync.overlap", for this mode."""
RING_WIRES = (Wire.F32, Wire.BF16)
"""The wires of gradients: the others need error feedback, and a mean that is not a sum."""

OF_ANY = ("wire_up", "wire_down", "fragments")
"""The keys of `[sync]` that have an effect in a mode that sums gradients.

`fragments` cuts the result, and one wire serves both directions.
"""


@dataclass(frozen=True, slots=True)
class Preset:
    """The values of `[sync]` in one mode; keys of `[sync.outer]` begin with `outer.`."""

    why: str
    """The reason, as the end of the sentence that refuses a value."""
    fixed: Mapping[str, object] = field(default_factory=dict[str, object])
    """The values that define the mode; every other value is refused."""
    proposed: Mapping[str, object] = field(default_factory=dict[str, object])
    """The values that the authors of the mode use; the user may change them."""


NESTEROV: Mapping[str, object] = {"outer.learning_rate": 0.7, "outer.momentum": 0.9}
"""The values of DiLoCo (arXiv:2311.08105, table 5) and Streaming DiLoCo (arXiv:2501.18512)."""


def preset_of(config: Config) -> Preset | None:
    """Return the preset of the mode; None if decoupled, which takes the keys of `[sync]` as is."""
    island_count = max(1, len(config.island_names))
    lock_step = {"quorum": island_count, "merge": "mean", "anchor": "base"}
    match config.run.mode:
        case Mode.DECOUPLED:
            return None
        case Mode.DILOCO:
            return Preset(
                "merges the whole model of all islands, and they wait for it",
                {**lock_step, "fragments": 1, "overlap": 0},
                {"adopt": "overwrite", "direction": "off", **NESTEROV},
            )
        case Mode.STREAMING:
            return Preset(
                "merges each fragment of all islands, and they wait for it `overlap` steps later",
                lock_step,
                {"overlap": 2, "adopt": "blend", "blend": 0.5, "direction": "off", **NESTEROV},
            )
        case Mode.DATA_PARALLEL:
            return Preset(
                "sums the gradients of all islands at every step",
                {"quorum": island_count},
            )
        case Mode.ELASTIC:
            return Preset(
                "sums the gradients of all islands that are there, at every step",
                {"quorum": 1},
            )


def resolved(config: Config, is_set: IsSet) -> tuple[Config, list[Problem]]:
    """Return the configuration with the values of its mode, and the keys that contradict them."""
    if (preset := preset_of(config)) is None:
        return config, []
    mode, values, problems = config.run.mode, dict(_values(config.sync)), list[Problem]()
    for key, given in values.items():
        if key in preset.fixed:
            if (wanted := preset.fixed[key]) != given and is_set(f"sync.{key}"):
                remedy = f"leave it out, or at {toml_value(wanted)}"
                problems.append(_refusal(key, given, mode, preset.why, remedy))
        elif mode.sums_gradients and key not in OF_ANY and not _is_default(key, given):
            problems.append(_refusal(key, given, mode, preset.why, "leave it out"))
    proposed = {k: v for k, v in preset.proposed.items() if not is_set(f"sync.{k}")}
    if is_set("sync.adopt"):
        proposed.pop("blend", None)
    if config.sync.outer.target is not None:
        proposed = {k: v for k, v in proposed.items() if not k.startswith("outer.")}
    return _with(config, {**preset.fixed, **proposed}), problems


def set_by_user(config: Config, tables: Mapping[str, Any], overrides: Sequence[str]) -> IsSet:
    """Return the predicate of the keys that the user set for this mode.

    A configuration that a run has saved names every key. So if the mode is not the file's own,
    keys that the file has at their defaults do not count as set.
    """
    values, named = (
        dict(_values(config.sync)),
        {text.partition("=")[0].strip() for text in overrides},
    )
    run = tables.get("run")
    has_own_mode = isinstance(run, Mapping) and "mode" in run and "run.mode" not in named
    file_keys = {f"sync.{key}" for key in config.sync.model_fields_set}
    file_keys |= {f"sync.outer.{key}" for key in config.sync.outer.model_fields_set}

    def is_set(path: str) -> bool:
        key = path.removeprefix("sync.")
        changed = not _is_default(key, values[key])
        return changed or path in named or (has_own_mode and path in file_keys)

    return is_set


def fixed_islands(config: Config) -> str | None:
    """Return why islands can neither be added to the run nor removed from it; None if they can."""
    mode = config.run.mode
    if mode.lock_step or mode is Mode.DATA_PARALLEL:
        return (
            f'run.mode = "{mode}" waits for all {config.sync.quorum} islands that it began with: '
            f'end it with `archipelago stop`, or run it as "{Mode.DECOUPLED}"'
            + (f' or "{Mode.ELASTIC}"' if mode is Mode.DATA_PARALLEL else "")
        )
    return None


def misfit(config: Config, harm: Harm) -> str | None:
    """Return why this fault cannot be injected in this mode; None if it can."""
    mode = config.run.mode
    if harm.kind is FaultKind.DRAIN and (why := fixed_islands(config)) is not None:
        return f"the drain of {harm.island}: {why}"
    if harm.kind is FaultKind.PREEMPT and mode.sums_gradients:
        return (
            f'the preempt of {harm.island}: run.mode = "{mode}" ignores the notice, since all '
            'islands hold the model; use "kill" or "node"'
        )
    if mode.lock_step and harm.kind in (FaultKind.NAN, FaultKind.SCALE):
        return (
            f"the {harm.kind} of {harm.island}: the gate refuses its contributions from then on, "
            f'and run.mode = "{mode}" merges nothing without all islands: it would wait forever'
        )
    if not mode.sums_gradients:
        return None
    if harm.island.startswith(SHARD_PREFIX):
        return f'run.mode = "{mode}" has no shards: islands hold the model; hit one of them'
    if harm.kind is FaultKind.CUT:
        return (
            f'the cut of {harm.island}: in run.mode = "{mode}" its connections are the collective '
            'library\'s, which we do not hold; use "stop", which hangs it'
        )
    return None


def problems_of_ring(config: Config) -> Iterator[Problem]:
    """Check that a mode that sums gradients gets only what it supports."""
    mode = config.run.mode
    if not mode.sums_gradients:
        return
    if config.sync.wire_up not in RING_WIRES:
        known = " or ".join(toml_value(wire.value) for wire in RING_WIRES)
        yield Problem(
            "sync.wire_up",
            f'gradients of run.mode = "{mode}" are sent as {known}, given '
            f"{toml_value(str(config.sync.wire_up))}",
        )
    if config.optimizer.loss_scale == "dynamic":
        yield Problem(
            "optimizer.loss_scale",
            f'"dynamic" is not in run.mode = "{mode}", whose islands take every step together; '
            "give a number",
        )
    sizes = {group.batch_size for group in config.islands}
    if len(sizes) > 1:
        groups = ", ".join(f"{group.group} has {group.batch_size}" for group in config.islands)
        yield Problem(
            "islands",
            f"{groups}, and the mean of their gradients would not be that of the windows: give all "
            f'groups one batch_size, or use run.mode = "{Mode.DECOUPLED}", which weighs tokens',
        )
    for number, group in enumerate(config.islands):
        if group.devices.get("GPU") or group.devices.get("TPU") or group.accelerator:
            yield Problem(
                f"islands.{number}.resources",
                f'run.mode = "{mode}" runs on CPUs only so far: the processes of a ring meet at '
                "one that has no accelerator; take them out",
            )
        for key, refused, remedy in (
            (
                "spares",
                group.spares > 0,
                "leave it at 0: the ring waits for a lost island",
            ),
            ("encode", group.encode != "host", 'leave it at "host": there are no deltas to encode'),
            (
                "mesh",
                (group.mesh.devices or 1) > 1,
                "leave it out: the ring takes one device of each island",
            ),
            (
                "compute_dtype",
                group.compute_dtype is not None,
                "set task.compute_dtype: all compute alike",
            ),
            ("region", group.region is not None, "leave it out: all read one order of the data"),
            (
                "opportunistic",
                group.opportunistic and mode is Mode.DATA_PARALLEL,
                "leave it at false: nothing begins without all islands",
            ),
        ):
            if refused:
                yield Problem(f"islands.{number}.{key}", f'not in run.mode = "{mode}"; {remedy}')


def problems_of_streaming(config: Config) -> Iterator[Problem]:
    """Check that the streaming mode has a fixed overlap of 1 or more, and several fragments."""
    if config.run.mode is not Mode.STREAMING:
        return
    if config.sync.overlap == "auto":
        yield Problem(
            "sync.overlap",
            f'run.mode = "{Mode.STREAMING}" adopts a fragment at just one step for all islands: '
            f'give their number, or use "{Mode.DECOUPLED}", where each adopts as soon as it can',
        )
    if config.sync.overlap == 0:
        yield Problem(
            "sync.overlap",
            f'run.mode = "{Mode.STREAMING}" trains while a fragment travels: give 1 or more steps, '
            f'or use "{Mode.DILOCO}"',
        )
    if config.sync.fragments == 1:
        yield Problem(
            "sync.fragments",
            f'run.mode = "{Mode.STREAMING}" sends fragments in turn: give 2 or more, or use '
            f'"{Mode.DILOCO}"',
        )


def _refusal(key: str, given: object, mode: Mode, why: str, remedy: str) -> Problem:
    shown = toml_value(str(given) if isinstance(given, Wire | OwnWire) else given)
    return Problem(f"sync.{key}", f'{shown} is not for run.mode = "{mode}", which {why}; {remedy}')


def _values(sync: SyncConfig) -> Iterator[tuple[str, Any]]:
    """Yield each key of `[sync]` and `[sync.outer]` with its value."""
    for key in SyncConfig.model_fields:
        if key != "outer":
            yield key, getattr(sync, key)
    for key in OuterConfig.model_fields:
        yield f"outer.{key}", getattr(sync.outer, key)


def _with(config: Config, values: Mapping[str, object]) -> Config:
    outer = {k.removeprefix("outer."): v for k, v in values.items() if k.startswith("outer.")}
    sync = {k: v for k, v in values.items() if not k.startswith("outer.")}
    changed = {**sync, "outer": config.sync.outer.model_copy(update=outer)}
    return config.model_copy(update={"sync": config.sync.model_copy(update=changed)})


DEFAULTS: Mapping[str, object] = dict(_values(SyncConfig()))
"""The default values of `[sync]` and `[sync.outer]`."""
EARLIER_DEFAULTS: Mapping[str, object] = {"keep_differences": 4}
"""Defaults of earlier versions. A configuration that a run has saved names every key."""


def _is_default(key: str, value: object) -> bool:
    return value == DEFAULTS[key] or (key in EARLIER_DEFAULTS and value == EARLIER_DEFAULTS[key])
