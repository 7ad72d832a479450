"""A folder of transformers as a run's initial model: its shape is compared with the task's.

The layer scalars of Gemma 4 are constants of the folder that no parameter holds. They become the
option `layer_scalars` of the task, so that the run's configuration has them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cluster.config.schema import Config
from cluster.config.training_tables import TaskConfig
from coordinator.errors import UserMistake
from islands.gemma.hf_folder import SCALARS, HfFolder, differences, scalars_text
from islands.gemma.language_task import spec_named
from islands.gemma.presets import is_gemma
from islands.initial_model import HF, KEY, OtherShapes, parsed


def with_scalars(config: Config, folder: Path) -> Config:
    """Return the configuration with the layer scalars of a folder, unless it has some already.

    A folder that cannot be read changes nothing: `model_problems` reports it.
    """
    task = config.task
    if SCALARS in task.options or task.preset is None or not is_gemma(task.preset):
        return config
    try:
        spec = HfFolder(folder).spec
    except UserMistake:
        return config
    return _with(config, scalars_text(spec)) if spec.layer_scalars else config


def with_stored_scalars(config: Config, stored: TaskConfig) -> Config:
    """Return the configuration of a resumed run with the layer scalars that it began with."""
    scalars = stored.options.get(SCALARS)
    given = config.task.init_from or ""
    if scalars is None or SCALARS in config.task.options or not given.startswith(HF):
        return config
    return _with(config, scalars)


def model_problems(config: Config) -> list[str]:
    """Return why the task is not the model of the folder; empty if it is, as far as is known.

    With `task.init_other_shapes = "skip"` options may differ. The task of a user's own is known by
    its leaves only, so that a folder with layer scalars is refused for it.

    Errors: `UserMistake` if the folder cannot be read.
    """
    task, given = config.task, config.task.init_from
    if given is None or OtherShapes(task.init_other_shapes) is OtherShapes.SKIP:
        return []
    try:
        there = HfFolder(Path(parsed(given)[1])).spec
    except UserMistake as error:
        raise UserMistake(f"{KEY} = {given!r}: {error}") from error
    if task.preset is None or not is_gemma(task.preset):
        scalars = (
            f"{KEY} = {given!r}: its layer scalars are not one, and only Gemma presets have them"
        )
        return [scalars] if there.layer_scalars else []
    here = spec_named(task.preset, task.options)
    found = [f"{KEY} = {given!r}: {each}" for each in differences(here, there)]
    if found:
        found.append(
            f"{KEY}: take the folder's own shape with task.preset = "
            f'"{parsed(given)[1]}/config.json", or change the options in [task.options]'
        )
    return found


def _with(config: Config, scalars: Any) -> Config:
    options = {**config.task.options, SCALARS: scalars}
    return config.model_copy(update={"task": config.task.model_copy(update={"options": options})})
