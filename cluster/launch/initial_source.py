"""The source of a run's initial parameters (`task.init_from`): found, checked and written down.

A new run gets an absolute path and the digest of the leaves in its configuration. If the source is
a run whose model is in no file yet, its model is first written to `initial.safetensors` in the new
run's directory. A resumed run keeps the source in its stored configuration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.config.schema import Config
from cluster.fleet.results import save_to
from cluster.launch.hf_source import model_problems, with_scalars, with_stored_scalars
from cluster.launch.run_model import model_of
from cluster.storage import runs
from cluster.storage.files import write_json
from cluster.storage.layout import has_layout
from cluster.storage.open_depot import depot_of
from cluster.storage.store_check import unusable
from coordinator.errors import UserMistake
from coordinator.fragments import Leaf
from islands.initial_model import (
    HF,
    KEY,
    ORBAX,
    RUN,
    InitialMatch,
    OtherShapes,
    changed,
    digest_of,
    match,
    open_source,
    parsed,
    problems_of,
)
from islands.parameter_files import StoredLeaf

REPORT = "init.json"
"""The file of a run directory with the report on the leaves that were taken."""
COPY = "initial.safetensors"
"""The file of a run directory with the model of another run that it starts from."""


def located(config: Config) -> Config:
    """Return the configuration with an absolute path of the source.

    Relative paths start at the current folder, as those of `data.source` do. A run that has ended
    becomes the file of its model; any other one becomes `run:DIR[@T]`.

    Errors: `UserMistake` if there is no such run.
    """
    if (given := config.task.init_from) is None:
        return config
    kind, place = parsed(given)
    if kind != RUN:
        path = Path(place).expanduser().absolute()
        config = _with(config, f"{kind}{path}")
        return with_scalars(config, path) if kind == HF else config
    run_dir, at = _found_run(given)
    try:
        file = model_of(run_dir, at).file  # an impossible step is refused here
    except UserMistake as error:
        raise UserMistake(f"{KEY} = {given!r}: {error}") from error
    if file is not None:
        return _with(config, str(file))
    return _with(config, _run_text(run_dir, at))


def with_stored_source(config: Config, run_dir: Path | None) -> Config:
    """Return the configuration of a resumed run with the source and digest that it began with.

    They stay as they are if the user names another source, so that `runs.resume` refuses it.

    Errors: `UserMistake` if neither directory nor name is given, or a file cannot be read.
    """
    if config.task.init_from is None:
        return config
    depot = depot_of(config, runs.resumed_dir(config, run_dir))
    try:
        if not depot.has(runs.CONFIG):
            return config  # `runs.resume` refuses it
        stored = runs.begun(depot).task
    except OSError as error:
        raise UserMistake(unusable(config, error)) from error
    if stored.init_from is None:
        return config
    sha256 = config.task.init_sha256 or stored.init_sha256
    if not config.task.init_from.startswith(RUN):
        return with_stored_scalars(_with(located(config), None, sha256), stored)
    if _same_run(config.task.init_from, stored.init_from):  # the first start has chosen its file
        return _with(config, stored.init_from, sha256)
    return config


def is_durable(config: Config, run_dir: Path) -> bool:
    """Return whether a resumed run has its initial model, and does not need the source again."""
    return has_layout(depot_of(config, run_dir))


def checked(config: Config, leaves: Sequence[Leaf], *, durable: bool = False) -> Config:
    """Check that a model with these leaves can start from the source; return it with the digest.

    The digest of a run that is in no file yet is known only once it is written (`begin`).

    `durable`: the run has its initial model. Then the source may be gone, but not have changed.

    Errors: `UserMistake` with every problem.
    """
    if (given := config.task.init_from) is None or (durable and is_gone(given)):
        return config
    found = matched(config, leaves)
    problems = problems_of(given, found, OtherShapes(config.task.init_other_shapes))
    if given.startswith(HF):
        problems += model_problems(config)
    if given.startswith(ORBAX) and config.monitor.evaluator.hosts > 1:
        problems.append(
            f"{KEY} = {given!r}: an evaluator of several hosts (monitor.evaluator) reads only "
            "safetensors files; write the model as one"
        )
    if problems:
        raise UserMistake("\n".join(problems))
    if given.startswith(RUN):
        return config
    sha256, wanted = digest_of(given, open_source(given), found), config.task.init_sha256
    if wanted is not None and sha256 != wanted:
        raise UserMistake(changed(given, sha256, wanted))
    return _with(config, None, sha256)


def matched(config: Config, leaves: Sequence[Leaf]) -> InitialMatch:
    """Compare leaves with those of the source, whose headers alone are read.

    Errors: `UserMistake` if it cannot be opened.
    """
    given = config.task.init_from
    assert given is not None, "only a run with a source asks"
    there = _leaves_of_run(given) if given.startswith(RUN) else open_source(given).leaves
    return match({leaf.path: leaf.shape for leaf in leaves}, there)


def is_gone(given: str) -> bool:
    """Return whether nothing is at the absolute path of a file or checkpoint any more."""
    kind, place = parsed(given)
    paths = Path(place), Path(f"{place}.index.json")
    return kind != RUN and not any(path.exists() for path in paths)


def begin(config: Config, run_dir: Path, leaves: Sequence[Leaf]) -> Config:
    """Write down what a new run starts from; return its configuration with a file and a digest.

    Errors: `UserMistake` if the model of another run cannot be read or written, or has another
    digest than it must have.
    """
    if (given := config.task.init_from) is None:
        return config
    if given.startswith(RUN):
        copy = run_dir.absolute() / COPY
        try:
            model = model_of(*_found_run(given))
            save_to(copy, model.layout, model.public())
        except (UserMistake, OSError) as error:
            raise UserMistake(f"{KEY} = {given!r}: {error}") from error
        config = checked(_with(config, str(copy)), leaves)
    write_json(run_dir / REPORT, report(config, leaves, given))
    return config


def report(config: Config, leaves: Sequence[Leaf], given: str) -> Mapping[str, Any]:
    """Return the content of `REPORT`."""
    found = matched(config, leaves)
    return {
        "init_from": given,
        "read_from": config.task.init_from,
        "sha256": config.task.init_sha256,
        "taken": [*found.taken],
        "missing": [*found.missing],
        "unused": [*found.unused],
        "other_shapes": [
            {"path": each.path, "here": list(each.here), "there": str(each.there)}
            for each in found.misfits
        ],
    }


def _same_run(given: str, stored: str) -> bool:
    """Return whether a run, as the user names it, is the one that this file has the model of."""
    try:
        run_dir, at = _found_run(given)
    except UserMistake:
        return False
    if at is None and Path(stored).parent == run_dir:  # the file is the other run's own
        return True
    try:
        first = json.loads((Path(stored).parent / REPORT).read_text())["init_from"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return first == _run_text(run_dir, at)


def _found_run(given: str) -> tuple[Path, int | None]:
    """Return the directory of a run that is named as `run:NAME[@T]`, and T.

    Errors: `UserMistake` if there is none.
    """
    place = given.removeprefix(RUN)
    name, mark, step = place.rpartition("@")
    at = int(step) if mark and step.isdecimal() else None
    name = place if at is None else name
    if not name:
        raise UserMistake(f'{KEY} = {given!r}: name the run, as "{RUN}NAME" or "{RUN}NAME@T"')
    try:
        return runs.here(str(Path(name).expanduser())).absolute(), at
    except UserMistake as error:
        raise UserMistake(f"{KEY} = {given!r}: {error}") from error


def _run_text(run_dir: Path, at: int | None) -> str:
    return f"{RUN}{run_dir}" + ("" if at is None else f"@{at}")


def _leaves_of_run(given: str) -> Mapping[str, StoredLeaf]:
    layout = model_of(_found_run(given)[0]).layout
    return {leaf.path: StoredLeaf(leaf.shape, "float32") for leaf in layout.leaves}


def _with(config: Config, given: str | None, sha256: str | None = None) -> Config:
    """Return the configuration with this source, if any, and this digest, if any."""
    changes = {"init_from": given, "init_sha256": sha256}
    update = {key: value for key, value in changes.items() if value is not None}
    return config.model_copy(update={"task": config.task.model_copy(update=update)})
