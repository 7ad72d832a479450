"""The model of a run, written as a file, a checkpoint or a folder for transformers, or returned.

The newest model of a live run comes from its fleet, as `archipelago save` has it. All others come
from the files of the run.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cluster.config.load import load
from cluster.fleet.results import save_to
from cluster.launch.hf_export import extras_of_run, spec_of_run, write_transformers
from cluster.launch.run_model import model_of
from cluster.storage import runs
from coordinator.errors import UserMistake
from islands.orbax_checkpoint import orbax, write_orbax
from islands.parameter_files import INDEX, SUFFIX, SafetensorsFiles

UNFINISHED = ".archipelago-"
"""The beginning of the names of folders that an export writes to before it is complete."""


class ExportFormat(StrEnum):
    """The format of an exported model."""

    SAFETENSORS = "safetensors"
    ORBAX = "orbax"
    HF = "hf"
    """A folder for `from_pretrained` of transformers, for Gemma models."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A model that was written."""

    path: str
    """The file, or the folder of files or of a checkpoint."""
    step: int | None
    """The step that was asked for; None: the newest model."""


def export(
    found: runs.Live | Path,
    out: Path,
    at: int | None,
    kind: ExportFormat,
    *,
    name: str | None,
    lineage: Callable[[Path], str | None] = lambda run_dir: None,
) -> Exported:
    """Write the model of a run, which `runs.reach` has found.

    `name`: the name or directory of the run as the user wrote it, to find the files of a live run.
    `lineage`: run directory -> digest of the merges of a run that has ended, for the model card.

    Errors: `UserMistake` if there is no such model, or `out` exists or cannot be written.
    """
    out = out.expanduser().absolute()
    if kind is ExportFormat.ORBAX:
        orbax()  # refused before anything is read
    if taken := [path for path in (out, Path(f"{out}.index.json")) if path.exists()]:
        raise UserMistake(f"{taken[0]} exists already: name another path, or remove it")
    try:
        if kind is ExportFormat.ORBAX:
            write_orbax(out, parameters(found, at, name=name))
        elif kind is ExportFormat.HF:
            run_dir = _directory(found, name)
            config = load(run_dir / runs.CONFIG)
            spec = spec_of_run(config)
            digest = lineage(run_dir) if isinstance(found, Path) and at is None else None
            extras = extras_of_run(run_dir, config, spec, at, digest)
            write_transformers(out, spec, parameters(found, at, name=name), extras)
        elif isinstance(found, runs.Live) and at is None:
            from cluster.launch.client import save

            return Exported(save(found, out), None)
        else:
            model = model_of(_directory(found, name), at)
            save_to(out, model.layout, model.public())
    except OSError as error:
        raise UserMistake(f"{out} does not take the model: {error}") from error
    return Exported(str(out), at)


def parameters(
    found: runs.Live | Path, at: int | None = None, *, name: str | None = None
) -> dict[str, NDArray[np.float32]]:
    """Return the model of a run: float32 arrays by the paths of their leaves.

    Errors: `UserMistake` if there is no such model, or the run is on another machine.
    """
    if isinstance(found, runs.Live) and at is None:
        with _saved(found) as file:
            source = SafetensorsFiles(file)
            return {path: source.read(path) for path in source.leaves}
    return model_of(_directory(found, name), at).parameters()


def _directory(found: runs.Live | Path, name: str | None) -> Path:
    """Return the directory of a run on this machine.

    Errors: `UserMistake` if the run is on another machine.
    """
    if isinstance(found, Path):
        return found
    if not found.pid:
        raise UserMistake(
            f"run {found.run} is known only by its cluster: an earlier step is in its run "
            "directory, so export it on the machine that has that"
        )
    return runs.here(name)


@contextmanager
def _saved(live: runs.Live) -> Generator[Path]:
    """Yield a file with the newest model of a live run, which is deleted afterwards.

    Errors: `UserMistake` if the fleet's machine is another one.
    """
    from cluster.launch.client import save

    folder = Path(tempfile.mkdtemp(prefix=UNFINISHED))
    file = folder / f"model{SUFFIX}"
    try:
        save(live, file)
        if not file.exists() and not (folder / f"model{INDEX}").exists():
            raise UserMistake(
                f"run {live.run} is of another machine, which has written its model to {folder} "
                "there; use `archipelago save` with a path that both machines see"
            )
        yield file
    finally:
        shutil.rmtree(folder, ignore_errors=True)
