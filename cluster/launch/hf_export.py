"""The model of a run as a folder that transformers reads: configuration, weights, tokenizer, card.

The weights are safetensors files of at most `FILE_BYTES` each, with an index if there are several.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from cluster.config.schema import Config
from cluster.launch.hf_card import CARD, card_of
from cluster.launch.hf_tokenizer import exported_tokenizer
from cluster.storage.files import json_text
from cluster.workers.assembly import data_spec, own_task_of
from coordinator.errors import UserMistake
from islands.data.text_tokens import BYTES
from islands.gemma.costs import counted
from islands.gemma.hf_config import config_of
from islands.gemma.hf_limits import export_problems
from islands.gemma.hf_weights import to_transformers
from islands.gemma.language_task import DrawnGemma
from islands.gemma.spec import GemmaSpec
from islands.nested_leaves import nested
from islands.parameter_files import INDEX, SUFFIX

FILE_BYTES = 5 * 10**9
"""The most bytes of one file, as transformers writes them."""
FORMAT = {"format": "pt"}
"""The metadata that transformers expects in each file."""


@dataclass(frozen=True, slots=True)
class HfExtras:
    """The files of an exported folder beside configuration and weights."""

    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """The content of each file by its name: tokenizer and model card."""
    special: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    """The ids of special tokens by the keys of `config.json`; others have their defaults there."""


def spec_of_run(config: Config) -> GemmaSpec:
    """Return the shape of the model of a run.

    Errors: `UserMistake` if it is no Gemma model, or transformers cannot load its shape.
    """
    task = own_task_of(config)
    if not isinstance(task.init, DrawnGemma):
        raise UserMistake(
            f"--format hf: {task.name} is no Gemma model, and transformers has no class for it; "
            'use --format safetensors, or train a preset such as "gemma-1m"'
        )
    spec = task.init.spec
    if problems := export_problems(spec):
        listed = "\n".join(f"  task.options.{each}" for each in problems)
        raise UserMistake(
            f"--format hf: transformers cannot have the shape of {task.name}; use --format "
            f"safetensors, or train another shape:\n{listed}"
        )
    return spec


def extras_of_run(
    run_dir: Path, config: Config, spec: GemmaSpec, at: int | None, lineage_sha256: str | None
) -> HfExtras:
    """Return the tokenizer and the model card of a run.

    `at`: the step of the model, None for the newest; `lineage_sha256`: the digest of its merges.

    Errors: `UserMistake` if the tokenizer cannot be read, or `huggingface_hub` is not installed.
    """
    tokenizer = exported_tokenizer(data_spec(config), spec.vocabulary)
    facts = {"parameters": counted(spec).total, "step": at, "lineage_sha256": lineage_sha256}
    card = card_of(run_dir, config, config_of(spec)["model_type"], facts)
    return HfExtras({**tokenizer.files, CARD: card.encode()}, tokenizer.special)


def write_transformers(
    out: Path,
    spec: GemmaSpec,
    leaves: Mapping[str, NDArray[np.float32]],
    extras: HfExtras | None = None,
) -> None:
    """Write a folder that `from_pretrained` of transformers reads.

    `leaves`: the parameters by path. The folder appears when it is complete.

    Errors: `OSError` if it cannot be written.
    """
    extras = HfExtras(special=_bytes_only(spec)) if extras is None else extras
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".archipelago-", dir=out.parent))
    try:
        _write_json(folder / "config.json", config_of(spec) | dict(extras.special))
        known = {name: each for name, each in extras.special.items() if each is not None}
        _write_json(folder / "generation_config.json", {"do_sample": False} | known)
        for name, content in extras.files.items():
            (folder / name).write_bytes(content)
        _write_weights(folder, spec, leaves)
        folder.chmod(0o777 & ~_umask())
        folder.rename(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _bytes_only(spec: GemmaSpec) -> dict[str, int | None]:
    """Return the special tokens of a model of bytes, which has none."""
    special = ("bos_token_id", "eos_token_id", "pad_token_id")
    return dict.fromkeys(special) if spec.vocabulary == BYTES else {}


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
