"""The results of a run: its model and its summary, written where there is room for them.

The model goes to the run directory, and to the depot if that is elsewhere; one of the two is
enough. While neither accepts it the end is retried, and `archipelago save` can save it elsewhere.
"""

from __future__ import annotations

import errno
import logging
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.fleet.core_actors import CoreActors
from cluster.fleet.outcome import SUMMARY_KEYS, Outcome
from cluster.storage import runs
from cluster.storage.depot import Depot
from cluster.storage.files import json_bytes, write
from cluster.storage.folder import Folder
from cluster.storage.model_file import NAME, ModelFiles
from cluster.storage.sealed import SUFFIX
from coordinator.fragments import Flat, Layout
from coordinator.protocol import Version

log = logging.getLogger("archipelago.fleet")


@dataclass(frozen=True, slots=True)
class SavedModel:
    """The public model of a run, as it was written."""

    where: str
    """The folder or path."""
    versions: Sequence[Version]
    """The version of each fragment."""
    fingerprint: str
    """The sha256 of all fragments."""


def save_model(
    folder: Path,
    layout: Layout,
    public: Iterable[tuple[Version, Flat]],
    *,
    name: str = NAME,
    check: Callable[[], None] | None = None,
    then: Callable[[Path], None] | None = None,
) -> SavedModel:
    """Write the model to a folder, fragment by fragment.

    `check` is called before any file is put in its place; `then` with each file afterwards.

    Errors: `OSError`, and nothing is left; `Unavailable`; the errors of `check` and `then`.
    """
    files = ModelFiles(folder, layout, name=name)
    try:
        for version, flat in public:
            files.add(version, flat)
        if check is not None:
            check()
        for path in files.publish():
            if then is not None:
                then(path)
    finally:
        files.discard()
    return SavedModel(str(folder), files.versions, files.fingerprint)


def save_to(path: Path, layout: Layout, public: Iterable[tuple[Version, Flat]]) -> SavedModel:
    """Write the model to a path: a folder, or a file if its name ends with `.safetensors`.

    Errors: the errors of `save_model`.
    """
    if path.suffix == SUFFIX:
        return save_model(path.parent, layout, public, name=path.stem)
    return save_model(path, layout, public)


class Results:
    """The results of one run; a retry skips the files that are written."""

    def __init__(self, run_dir: Path, depot: Depot, layout: Layout) -> None:
        self._run_dir, self._depot, self._layout = run_dir, depot, layout
        self._model: SavedModel | None = None
        self._judged: tuple[dict[str, Any], str | None] | None = None

    def leave(
        self,
        core: CoreActors,
        measured: Mapping[str, object],
        *,
        check: Callable[[], None],
        began: float,
        asked: Callable[[], str | None],
        rescued: SavedModel | None = None,
    ) -> Outcome:
        """Save the public model, have it evaluated, write the summary; after an error call again.

        - `measured`: the syncer's figures; `paused_s`, the seconds between two owners, is
          subtracted from the wall time.
        - `check`: raises if another process owns the run.
        - `began`: seconds since 1970.
        - `asked`: returns the request to end the run. If one arrives during the evaluation, the run
          ends without its result.
        - `rescued`: the same model, saved elsewhere.

        Errors: `OSError` if no place accepts the model; `Unavailable`; the errors of `check`.
        """
        missing: list[str] = []
        if self._model is None:
            self._model = self._saved(core, check, rescued)
        if (model := self._model).where != str(self._run_dir):
            missing.append(f"the run directory did not take the model: it is in {model.where}")
        figures = dict.fromkeys(SUMMARY_KEYS) | dict(measured)
        figures["global_sha256"] = model.fingerprint
        if self._judged is None:
            self._sum_up(figures, began, rescued)  # write everything before the evaluation
            earlier_request = asked()
            self._judged = core.verdict(model.versions, lambda: asked() != earlier_request)
        losses, why = self._judged
        summary, problem = self._sum_up(figures | losses, began, rescued)
        problems = [each for each in (why, *missing, problem) if each is not None]
        return Outcome(summary, asked=asked(), missing="; ".join(problems) or None)

    def _saved(
        self, core: CoreActors, check: Callable[[], None], rescued: SavedModel | None
    ) -> SavedModel:
        layout, depot = self._layout, self._depot
        try:
            return save_model(self._run_dir, layout, core.public(), check=check, then=self._copy)
        except OSError as error:
            refused = error
        if depot != Folder(self._run_dir):
            log.error("%s does not take the model: %s", self._run_dir, refused)
            try:
                with _folder_of(depot) as folder:
                    saved = save_model(folder, layout, core.public(), check=check)
                    if not isinstance(depot, Folder):
                        for path in sorted(folder.iterdir()):
                            depot.copy(path)
                return SavedModel(str(depot), saved.versions, saved.fingerprint)
            except OSError as error:
                log.error("%s does not take the model: %s", depot, error)
        if rescued is not None:
            return rescued
        raise refused

    def _sum_up(
        self, figures: Mapping[str, object], began: float, rescued: SavedModel | None
    ) -> tuple[dict[str, object], str | None]:
        """Write the summary; return it, and why the run directory lacks it if it does.

        Errors: `OSError` if no place accepts it, unless the model was rescued.
        """
        paused = figures.get("paused_s")
        wall_s = time.time() - began - (paused if isinstance(paused, float) else 0.0)
        summary = {key: figures[key] for key in SUMMARY_KEYS} | {"wall_s": wall_s}
        content, problem = json_bytes(summary), None
        try:
            write(self._run_dir / runs.SUMMARY, content)
            self._copy(self._run_dir / runs.SUMMARY)
        except OSError as error:
            problem = f"the run directory did not take {runs.SUMMARY}: {error}"
            try:
                if self._depot == Folder(self._run_dir):
                    raise
                self._depot.write(runs.SUMMARY, content)
            except OSError:
                if rescued is None:
                    raise error from None
        return summary, problem

    def _copy(self, path: Path) -> None:
        """Copy a file to the depot, if that is elsewhere."""
        if self._depot == Folder(self._run_dir):
            return
        try:
            self._depot.copy(path)
        except OSError as error:
            log.error("%s is not in %s: %s", path.name, self._depot, error)


@contextmanager
def _folder_of(depot: Depot) -> Generator[Path]:
    """Yield the depot's own folder, or a temporary one from which files are copied there."""
    if isinstance(depot, Folder):
        yield depot.path
        return
    with tempfile.TemporaryDirectory(prefix="archipelago-") as folder:
        yield Path(folder)


def no_room(error: OSError, run: str, place: str) -> str:
    """Return the message for people while the end of a run cannot be written."""
    reason = "there is no room" if error.errno == errno.ENOSPC else str(error.strerror or error)
    return (
        f"the end of the run cannot be written to {place}: {reason}; make room there, or take the "
        f"model with `archipelago save {run} PATH`, and the run ends"
    )
