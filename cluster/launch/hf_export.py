"""The model of a run as a folder that transformers reads: configuration and weights by its names.

The weights are safetensors files of at most `FILE_BYTES` each, with an index if there are several.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from cluster.config.load import load
from cluster.storage.files import json_text
from cluster.workers.assembly import own_task_of
from coordinator.errors import UserMistake
from islands.data.text_tokens import BYTES
from islands.gemma.hf_config import config_of
from islands.gemma.hf_weights import to_transformers
from islands.gemma.language_task import DrawnGemma
from islands.gemma.parameters import nested
from islands.gemma.spec import GemmaSpec
from islands.parameter_files import INDEX, SUFFIX

FILE_BYTES = 5 * 10**9
"""The most bytes of one file, as transformers writes them."""
FORMAT = {"format": "pt"}
"""The metadata that transformers expects in each file."""


def spec_of_run(run_dir: Path) -> GemmaSpec:
    """Return the shape of the model of a run.

    Errors: `UserMistake` if it is no Gemma model.
    """
    task = own_task_of(load(run_dir / "config.toml"))
    if not isinstance(task.init, DrawnGemma):
        raise UserMistake(
            f"--format hf: {task.name} is no Gemma model, and transformers has no class for it; "
            'use --format safetensors, or train a preset such as "gemma-1m"'
        )
    return task.init.spec


def write_transformers(
    out: Path, spec: GemmaSpec, leaves: Mapping[str, NDArray[np.float32]]
) -> None:
    """Write a folder that `from_pretrained` of transformers reads.

    `leaves`: the parameters by path. The folder appears when it is complete.

    Errors: `OSError` if it cannot be written.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".archipelago-", dir=out.parent))
    try:
        _write_json(folder / "config.json", _config(spec))
        _write_json(folder / "generation_config.json", {"do_sample": False})
        _write_weights(folder, spec, leaves)
        folder.chmod(0o777 & ~_umask())
        folder.rename(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _config(spec: GemmaSpec) -> dict[str, Any]:
    """Return the configuration; bytes have no tokens that begin, end or fill up a text."""
    special = ("bos_token_id", "eos_token_id", "pad_token_id")
    return config_of(spec) | (dict.fromkeys(special) if spec.vocabulary == BYTES else {})


def _write_weights(
    folder: Path, spec: GemmaSpec, leaves: Mapping[str, NDArray[np.float32]]
) -> None:
    parts = [*_parts(to_transformers(spec, nested(leaves)), folder)]
    if len(parts) == 1:
        parts[0][0].rename(folder / f"model{SUFFIX}")
        return
    places: dict[str, str] = {}
    for number, (part, names) in enumerate(parts, 1):
        name = f"model-{number:05}-of-{len(parts):05}{SUFFIX}"
        part.rename(folder / name)
        places |= dict.fromkeys(names, name)
    total = sum(leaf.nbytes for leaf in leaves.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    _write_json(folder / f"model{INDEX}", index)


def _parts(
    tensors: Iterator[tuple[str, NDArray[np.float32]]], folder: Path
) -> Iterator[tuple[Path, list[str]]]:
    """Write the tensors into files; yield each file and the names in it."""
    held: dict[str, NDArray[np.float32]] = {}
    number = 0

    def written() -> tuple[Path, list[str]]:
        path = folder / f"part-{number}"
        save_file(held, path, metadata=FORMAT)
        return path, [*held]

    for name, tensor in tensors:
        if held and sum(each.nbytes for each in held.values()) + tensor.nbytes > FILE_BYTES:
            yield written()
            held, number = {}, number + 1
        held[name] = tensor
    yield written()


def _write_json(path: Path, value: object) -> None:
    path.write_text(json_text(value, indent=2) + "\n", encoding="utf-8")


def _umask() -> int:
    """Return the file mode mask of this process."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
