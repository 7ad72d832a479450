"""The model of a run: its newest state or an earlier step, from its files, as fragments.

The files have the newest state. An earlier step is rebuilt from the tape and the contributions that
the run kept (`durability.keep_contributions`), to the last bit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cluster.allreduce.saved_state import read_back
from cluster.config.load import load
from cluster.config.rule import rule_of
from cluster.config.schema import Config
from cluster.shard.rebuild import RebuiltFragments
from cluster.storage.depot import Depot
from cluster.storage.folder import Folder
from cluster.storage.format import Damaged
from cluster.storage.fragments import FragmentStore
from cluster.storage.layout import load_layout
from cluster.storage.model_file import NAME
from cluster.storage.open_depot import contribution_store, depot_of
from cluster.storage.playback import Playback, edition_of
from cluster.storage.snapshots import beginning_of, load_snapshot
from cluster.storage.state_history import OtherRules, ReplayedEvent, relive
from coordinator.errors import UserMistake
from coordinator.fragments import Flat, Layout, sew, take
from coordinator.protocol import Fragment, Store, Version
from islands.parameter_files import SUFFIX, SafetensorsFiles

Public = Iterator[tuple[Version, Flat]]
"""The public fragments of a model in order, with their versions."""


@dataclass(frozen=True, slots=True)
class RunModel:
    """The model of a run, read when it is needed."""

    layout: Layout
    file: Path | None
    """The file with the model, if there is one; its index if there are several."""
    _public: Callable[[], Public]

    def public(self) -> Public:
        """Yield the fragments one after another.

        Errors: `UserMistake` if they cannot be read or rebuilt.
        """
        try:
            yield from self._public()
        except (Damaged, OtherRules, OSError) as error:
            raise UserMistake(f"the model cannot be read: {error}") from error

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """Return all leaves by path.

        Errors: `UserMistake` if they cannot be read or rebuilt.
        """
        leaves = sew(self.layout, [flat for _, flat in self.public()])
        return {leaf.path: array for leaf, array in zip(self.layout.leaves, leaves, strict=True)}


def model_of(run_dir: Path, at: int | None = None) -> RunModel:
    """Return the model of a run from its files: the newest state, or as of step `at`.

    The model of step T has everything that was published before step T + 1. A run that has not
    ended has the newest stored version of each fragment.

    Errors: `UserMistake` if there is no such run or model, or the step is out of range.
    """
    config = load(run_dir / "config.toml")
    depot = depot_of(config, run_dir)
    try:
        layout = load_layout(depot)
        file = next((f for place in (run_dir, depot) if (f := _model_file(place))), None)
        if at is not None:
            return RunModel(layout, None, _at_step(run_dir, config, layout, file, at))
        if file is not None:
            return RunModel(layout, file, lambda: _from_file(file, layout))
    except (Damaged, OtherRules, OSError) as error:
        raise UserMistake(f"run {run_dir}: its model cannot be read: {error}") from error
    stored = _ring_state if config.run.mode.sums_gradients else _stored
    return RunModel(layout, None, lambda: stored(config, layout, depot))


def _model_file(place: Path | Depot) -> Path | None:
    """Return the final model in a folder: its file, or the index of several; None if none."""
    folder = place.path if isinstance(place, Folder) else place
    if not isinstance(folder, Path):
        return None
    names = (f"{NAME}{SUFFIX}", f"{NAME}{SUFFIX}.index.json")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _from_file(file: Path, layout: Layout) -> Public:
    """Yield the fragments of a model that a run has written; each block is read by itself."""
    source = SafetensorsFiles(file)
    versions = json.loads(source.metadata["versions"])
    for pieces, version in zip(layout.fragments, versions, strict=True):
        blocks = [
            source.read_block(layout.leaves[piece.leaf].path, piece.index).reshape(-1)
            for piece in pieces
        ]
        yield Version(*version), np.concatenate(blocks)


def _stored(config: Config, layout: Layout, depot: Depot) -> Public:
    """Yield the newest stored version of each fragment."""
    store = FragmentStore(depot, layout, keep=config.durability.keep_snapshots)
    for p in map(Fragment, range(len(layout.fragments))):
        arrays = store.newest(p)
        yield arrays.version, arrays.public


def _ring_state(config: Config, layout: Layout, depot: Depot) -> Public:
    """Yield the newest snapshot of a run that sums gradients, as fragments."""
    del config
    state = read_back(depot).state
    if state is None:
        raise Damaged(f"{depot} has no state of the ring yet")
    for p in map(Fragment, range(len(layout.fragments))):
        yield Version(0, state.held.step), take(layout, p, state.params)


def _at_step(
    run_dir: Path, config: Config, layout: Layout, file: Path | None, at: int
) -> Callable[[], Public]:
    """Return a function that yields the fragments as of a step.

    Errors: `UserMistake` if the step is out of range, or cannot be rebuilt.
    """
    if (mode := config.run.mode).sums_gradients:
        raise UserMistake(
            f'run {run_dir} is of run.mode = "{mode}", which has no tape of merges: only its '
            "newest model can be had; leave out the step"
        )
    depot, kept = depot_of(config, run_dir), config.durability.keep_contributions
    if beginning_of(depot, layout.fingerprint) is not None:
        raise UserMistake(
            f"run {run_dir}: the beginning of its tape is gone (durability.keep_segments = "
            f"{config.durability.keep_segments}): only its newest model can be had"
        )

    def rebuilt() -> Public:
        made = RebuiltFragments(config, layout, depot, contribution_store(config, run_dir))
        for each in _events(config, layout, depot):
            if each.after.t > at:
                break
            made.follow(each.event, each.effects)
        return made.public()

    if kept and 0 <= at <= _known_step(depot, layout):
        return rebuilt
    last, first_merge = 0, None
    for each in _events(config, layout, depot):
        last = each.after.t
        if first_merge is None and any(isinstance(effect, Store) for effect in each.effects):
            first_merge = last
    if not 0 <= at <= last:
        raise UserMistake(f"run {run_dir} has no step {at}: its steps are 0 to {last}")
    if kept or first_merge is None or at < first_merge:
        return rebuilt
    if at == last and file is not None:
        return lambda: _from_file(file, layout)
    raise UserMistake(
        f"run {run_dir} has not kept what step {at} is rebuilt from: only its newest model and "
        "step 0 can be had; set durability.keep_contributions = true in a run of which you want "
        "other steps"
    )


def _events(config: Config, layout: Layout, depot: Depot) -> Iterator[ReplayedEvent]:
    """Yield the events of a run, from its beginning."""
    rule = rule_of(config, layout, edition_of(depot))
    return relive(rule, Playback(depot, layout.fingerprint))


def _known_step(depot: Depot, layout: Layout) -> int:
    """Return the step of the newest snapshot, which the run has got to; -1 if there is none."""
    try:
        snapshot = load_snapshot(depot, layout.fingerprint)
    except Damaged:
        return -1
    return -1 if snapshot is None else snapshot.state.t
