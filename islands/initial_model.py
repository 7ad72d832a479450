"""Initial parameters from a file or a checkpoint in place of a task's `init`.

The arrays are matched with the task's leaves by path. The digest of the arrays that are taken goes
into the configuration of a run (`task.init_sha256`), and every process that reads them compares it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from coordinator.errors import UserMistake
from islands.gemma.hf_folder import CONFIG, HfFolder
from islands.orbax_checkpoint import OrbaxCheckpoint
from islands.parameter_files import INDEX, SUFFIX, ParameterSource, SafetensorsFiles, StoredLeaf
from islands.task import Params, Task, leaf_path

ORBAX, RUN, HF = "orbax:", "run:", "hf:"
"""The beginnings of the sources that are not files."""
KEY = "task.init_from"
"""The key that names the source; messages begin with it."""
NAMED = 8
"""Names that a message lists before it only counts them."""

Shapes = Mapping[str, tuple[int, ...]]
"""The shape of each leaf of a task by path, in the order of the tree."""


class OtherShapes(StrEnum):
    """The treatment of leaves that the source has with another shape."""

    REFUSE = "refuse"
    SKIP = "skip"


class Misfit(NamedTuple):
    """A leaf that the source has with another shape, or with a type that is no float."""

    path: str
    here: tuple[int, ...]
    """The shape in the task."""
    there: StoredLeaf
    """The shape and type in the source."""

    def __str__(self) -> str:
        here = ",".join(map(str, self.here))
        return f"{self.path} is float32[{here}] in the task and {self.there} there"


class InitialMatch(NamedTuple):
    """A comparison of a task's leaves with a source."""

    taken: tuple[str, ...]
    """The leaves that are taken from the source."""
    missing: tuple[str, ...]
    """The leaves that the source does not have; they are kept from `init`."""
    unused: tuple[str, ...]
    """The arrays of the source that the task does not have."""
    misfits: tuple[Misfit, ...]
    """The leaves of another shape or type; if they are not refused, they are kept from `init`."""


def parsed(given: str) -> tuple[str, str]:
    """Return the kind of a source (`ORBAX`, `RUN`, `HF`; empty for a file), and the rest."""
    for kind in (ORBAX, RUN, HF):
        if given.startswith(kind):
            return kind, given.removeprefix(kind)
    return "", given


def open_source(given: str) -> ParameterSource:
    """Open a file or a checkpoint, by the value of `KEY`.

    Errors: `UserMistake` if it cannot be opened. A run is refused here: the start of a run puts a
    file in its place.
    """
    kind, place = parsed(given)
    path = Path(place).expanduser()
    try:
        if kind == ORBAX:
            return OrbaxCheckpoint(path)
        if kind == HF:
            return HfFolder(path)
        if kind == RUN:
            raise UserMistake(
                "a run is found only when another one starts; write its model with "
                "`archipelago export`, and name that file"
            )
        if not path.name.endswith((SUFFIX, INDEX)):
            raise UserMistake(
                f'name "FILE{SUFFIX}", "{ORBAX}DIR", "{HF}DIR" or "{RUN}NAME[@T]": this is none of '
                "them"
            )
        return SafetensorsFiles(path)
    except UserMistake as error:
        raise UserMistake(f"{KEY} = {given!r}: {error}") from error


def match(shapes: Shapes, leaves: Mapping[str, StoredLeaf]) -> InitialMatch:
    """Compare the leaves of a task with those of a source."""
    found = {path: leaves[path] for path in shapes if path in leaves}
    fits = [p for p, leaf in found.items() if leaf.shape == shapes[p] and leaf.is_float]
    return InitialMatch(
        taken=tuple(fits),
        missing=tuple(path for path in shapes if path not in found),
        unused=tuple(path for path in leaves if path not in shapes),
        misfits=tuple(Misfit(p, shapes[p], leaf) for p, leaf in found.items() if p not in {*fits}),
    )


def problems_of(given: str, found: InitialMatch, other_shapes: OtherShapes) -> list[str]:
    """Return why a model cannot start from this source; empty if it can."""
    problems = list[str]()
    if found.misfits and other_shapes is OtherShapes.REFUSE:
        problems += [f"{KEY} = {given!r}: {misfit}" for misfit in found.misfits[:NAMED]]
        if (more := len(found.misfits) - NAMED) > 0:
            problems.append(f"{KEY} = {given!r}: and {more} more leaves of another shape or type")
        problems.append(
            f'{KEY}: to keep leaves of another shape from init, set task.init_other_shapes = "skip"'
        )
    elif not found.taken:
        own = [*found.missing, *(misfit.path for misfit in found.misfits)]
        near = get_close_matches(own[0], found.unused, n=1) if own else []
        problems.append(
            f"{KEY} = {given!r}: no leaf matches; the task has {name_list(own)}, and there are "
            f"{name_list(found.unused)}"
            + (f"; is {near[0]!r} there meant to be {own[0]!r}?" if near else "")
        )
    if problems and (folder := _hugging_face_folder(given)) is not None:
        problems.append(
            f"{KEY} = {given!r}: {CONFIG} is beside it, so it is a model of transformers, whose "
            f'arrays have other names and shapes: write {KEY} = "{HF}{folder}" (Gemma only)'
        )
    return problems


def _hugging_face_folder(given: str) -> Path | None:
    """Return the folder of a file that belongs to a model of transformers; None for others."""
    kind, place = parsed(given)
    folder = Path(place).expanduser().parent
    return folder if not kind and (folder / CONFIG).is_file() else None


def name_list(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - NAMED
    return (", ".join(names[:NAMED]) or "none") + (f" and {more} more" if more > 0 else "")


class LeafDigest:
    """A digest of leaves, one after another: paths, shapes and float32 values."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, path: str, leaf: NDArray[np.float32]) -> None:
        """Add a leaf."""
        self._digest.update(f"{path} {leaf.shape}\n".encode())
        self._digest.update(np.ascontiguousarray(leaf, "<f4").reshape(-1).view(np.uint8).data)

    @property
    def sha256(self) -> str:
        """The digest of the leaves so far, in hexadecimal."""
        return self._digest.hexdigest()


def digest_of(given: str, source: ParameterSource, found: InitialMatch) -> str:
    """Read all leaves that are taken, one at a time, and return their digest.

    Errors: `UserMistake` if one cannot be read, or holds NaN or infinity.
    """
    digest, unsound = LeafDigest(), list[str]()
    try:
        for path in found.taken:
            leaf = source.read(path)
            digest.add(path, leaf)
            if not np.isfinite(leaf).all():
                unsound.append(path)
    except UserMistake as error:
        raise UserMistake(f"{KEY} = {given!r}: {error}") from error
    if unsound:
        raise UserMistake(f"{KEY} = {given!r}: NaN or infinity is in {name_list(unsound)}")
    return digest.sha256


def changed(given: str, sha256: str, wanted: str) -> str:
    """Return the message for a source whose leaves have another digest than they must have."""
    return (
        f"{KEY} = {given!r}: its leaves have the digest {sha256[:12]}..., and task.init_sha256 is "
        f"{wanted[:12]}...: it is not the model that was meant, or it has changed since the run "
        "began; put that one back"
    )


def started_from(task: Task, given: str, sha256: str | None, other_shapes: OtherShapes) -> Task:
    """Return the task with initial parameters from this source, which is opened when needed."""
    return replace(task, init=LoadedInit(task, given, sha256, other_shapes))


@dataclass(frozen=True, slots=True)
class LoadedInit:
    """The `init` of a task that starts from a source."""

    task: Task
    """The task as its author made it."""
    given: str
    """The value of `KEY`."""
    sha256: str | None
    """The digest that the leaves must have; None: any."""
    other_shapes: OtherShapes

    def __call__(self, seed: int) -> Params:
        """Return the initial parameters. Errors: the errors of `initial_leaves`."""
        structure = jax.tree.structure(self.task.shapes)
        return jax.tree.unflatten(structure, [*self.initial_leaves(seed)])

    def shapes(self) -> Params:
        """Return the parameters as `jax.ShapeDtypeStruct`."""
        return self.task.shapes

    @property
    def user_callable(self) -> Any:
        """The task's own `init`, for `islands.user_lines.place_of`."""
        return self.task.init

    @property
    def whole(self) -> bool:
        """Whether all leaves must be in memory at once, since `init` makes some of them."""
        if self.task.init_leaf is not None:
            return False
        try:
            return bool(self._drawn(open_source(self.given)))
        except UserMistake:  # nothing can be loaded; another check reports that
            return False

    def initial_leaves(self, seed: int) -> Iterator[Any]:
        """Yield the leaves in the order of the tree, one at a time.

        The digest is known only after the last one: use no leaf before the iterator has ended.

        Errors: `UserMistake` if the source does not fit the task, cannot be read, or has another
        digest.
        """
        source, digest = open_source(self.given), LeafDigest()
        draw = self._draw(seed, drawn := self._drawn(source))
        for path in shapes_by_path(self.task):
            if path in drawn:
                yield draw(path)
                continue
            try:
                leaf = source.read(path)
            except UserMistake as error:
                raise UserMistake(f"{KEY} = {self.given!r}: {error}") from error
            digest.add(path, leaf)
            yield leaf
        if self.sha256 is not None and digest.sha256 != self.sha256:
            raise UserMistake(changed(self.given, digest.sha256, self.sha256))

    def _drawn(self, source: ParameterSource) -> frozenset[str]:
        """Return the leaves that are kept from the task's own `init`.

        Errors: `UserMistake` if the source does not fit the task.
        """
        found = match(shapes_by_path(self.task), source.leaves)
        if problems := problems_of(self.given, found, self.other_shapes):
            raise UserMistake("\n".join(problems))
        return frozenset((*found.missing, *(misfit.path for misfit in found.misfits)))

    def _draw(self, seed: int, wanted: frozenset[str]) -> Callable[[str], Any]:
        """Return a function that makes one of these leaves by the task's own `init`."""
        if (draw := self.task.init_leaf) is not None:
            return lambda path: draw(path, seed)
        kept = dict[str, Any]()
        if wanted:
            pairs = jax.tree_util.tree_flatten_with_path(self.task.init(seed))[0]
            kept = {path: leaf for keys, leaf in pairs if (path := leaf_path(keys)) in wanted}
        return kept.__getitem__


def shapes_by_path(task: Task) -> Shapes:
    """Return the shape of each leaf of a task by path, in the order of the tree."""
    pairs = jax.tree_util.tree_flatten_with_path(task.shapes)[0]
    return {leaf_path(keys): tuple(leaf.shape) for keys, leaf in pairs}
