"""A folder of transformers as the source of initial parameters: `task.init_from = "hf:DIR"`.

The folder has `config.json` and the weights as safetensors, as `save_pretrained` and `archipelago
export --format hf` write them. Its arrays are named by our paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import UserMistake
from islands.gemma.hf_config import read_config
from islands.gemma.hf_weights import TensorPlace, places, problems_of, scalars_of
from islands.gemma.parameters import leaf_plans
from islands.gemma.spec import GLOBAL, GemmaSpec
from islands.parameter_files import SUFFIX, SafetensorsFiles, StoredLeaf

CONFIG, WEIGHTS = "config.json", f"model{SUFFIX}"
"""The files of such a folder; the weights may be in several files with an index."""
OURS = frozenset({"balance_weight", "compute_dtype", "logit_parts", "remat"})
"""The options of the training alone; a folder of transformers has none of them."""
SCALARS = "layer_scalars"
"""The option that holds the layer scalars."""
LONGEST = 60
"""Characters of a value that a message shows."""


class HfFolder:
    """The weights of a Gemma model in a folder of transformers, by the paths of our leaves."""

    def __init__(self, folder: Path) -> None:
        """Read the configuration, and the headers of the weights.

        Errors: `UserMistake` if a file is missing or broken, a field is not implemented, or the
        weights are not those of the configuration.
        """
        if not folder.is_dir():
            looked = "" if folder.is_absolute() else f" (looked in {Path.cwd()})"
            raise UserMistake(f"{folder}: there is no such folder{looked}")
        self._folder = folder
        self._spec = read_config(folder / CONFIG)
        self._files = SafetensorsFiles(folder / WEIGHTS)
        stored = self._files.leaves
        shapes = {name: leaf.shape for name, leaf in stored.items()}
        if problems := problems_of(self._spec, shapes):
            wanted = f"the weights do not fit {CONFIG}"
            raise UserMistake("\n".join(f"{folder}: {wanted}: {each}" for each in problems))
        self._places: dict[str, list[TensorPlace]] = {}
        for place in places(self._spec):
            self._places.setdefault(place.path, []).append(place)
        self.leaves: Mapping[str, StoredLeaf] = {
            path: StoredLeaf(plan.shape, self._dtype(path))
            for path, plan in leaf_plans(self._spec).items()
        }
        """The shape and type of each leaf."""

    @property
    def spec(self) -> GemmaSpec:
        """The shape of the model, with its layer scalars, which are read from the weights.

        Errors: `UserMistake` if they cannot be read.
        """
        scalars = scalars_of(self._spec, self._files.read)
        return replace(self._spec, layer_scalars=() if {*scalars} == {1.0} else scalars)

    def read(self, name: str) -> NDArray[np.float32]:
        """Return one leaf, cast to float32; of its tensors one at a time is in memory.

        Errors: `UserMistake` if it cannot be read.
        """
        leaf = np.empty(self.leaves[name].shape, np.float32)
        for place in self._places[name]:
            leaf[... if place.row is None else place.row] = place.take(self._files.read(place.name))
        return leaf

    def _dtype(self, path: str) -> str:
        """Return the type of the tensors of a leaf; one that is no float comes first."""
        stored = [self._files.leaves[place.name] for place in self._places[path]]
        return next((each.dtype for each in stored if not each.is_float), stored[0].dtype)


def differences(task: GemmaSpec, folder: GemmaSpec) -> Iterator[str]:
    """Yield the options in which a task differs from the model of a folder, with both values.

    Options of the training alone (`OURS`) may differ.
    """
    here, there = _written_out(task), _written_out(folder)
    for field in fields(GemmaSpec):
        values = getattr(here, field.name), getattr(there, field.name)
        if field.name not in OURS and values[0] != values[1]:
            ours, theirs = map(_short_repr, values)
            yield f"{field.name} = {ours} in the task and {theirs} there"


def _written_out(spec: GemmaSpec) -> GemmaSpec:
    """Return the shape with the values that its defaults stand for."""
    heads = spec.heads_of(GLOBAL)
    return replace(
        spec,
        pattern=(spec.pattern * spec.layers)[: spec.layers],
        query_scalar=spec.query_scalar or (1.0 if spec.generation == 4 else float(spec.head_size)),
        global_kv_heads=heads.keys,
        global_head_size=heads.size,
    )


def scalars_text(spec: GemmaSpec) -> str:
    """Return the layer scalars as the value of `task.options.layer_scalars`."""
    return " ".join(map(repr, spec.layer_scalars))


def _short_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
