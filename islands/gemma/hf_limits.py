"""The shapes that transformers cannot have, does not load, or computes differently.

Each limit was found with transformers 5.24 and torch 2.13, in their code and by trying shapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from islands.gemma.hf_config import config_of, spec_of
from islands.gemma.hf_folder import differences
from islands.gemma.spec import LOCAL, GemmaSpec

ROW_BYTES = 16
"""Bytes of which the rows of torch's grouped product must be a multiple."""
ROW_ELEMENTS = ROW_BYTES // 4
"""Elements of float32, the type of an exported model, in so many bytes."""


def export_problems(spec: GemmaSpec) -> list[str]:
    """Return why `archipelago export --format hf` refuses a shape; empty if it does not.

    Each problem names an option of the task, its value and what to do.
    """
    return [*_lost(spec), *_of_gemma_3(spec), *_of_gemma_4(spec), *_of_windows(spec)]


def _lost(spec: GemmaSpec) -> Iterator[str]:
    """Yield the options that a configuration of transformers has no field for."""
    there = replace(spec_of(config_of(spec)), layer_scalars=spec.layer_scalars)
    for each in differences(spec, there):
        yield (
            f"{each.replace('there', 'in transformers')}, which has no such field; leave the "
            "option out"
        )


def _of_gemma_3(spec: GemmaSpec) -> Iterator[str]:
    if spec.generation != 3:
        return
    if spec.width % spec.heads:
        yield (
            f"width = {spec.width} is no multiple of heads = {spec.heads}, and Gemma 3 of "
            f"transformers needs one; set width to {_multiples(spec.width, spec.heads)}"
        )
    if spec.query_scalar % 1:
        yield (
            f"query_scalar = {spec.query_scalar:g}: transformers takes only a whole number; set "
            "one, or leave the option out for head_size"
        )


def _of_gemma_4(spec: GemmaSpec) -> Iterator[str]:
    if spec.shared_kv_layers and not spec.per_layer_size:
        yield (
            f"shared_kv_layers = {spec.shared_kv_layers} with per_layer_size = 0: transformers "
            "fails in the first shared layer of such a model; set per_layer_size, or "
            "shared_kv_layers = 0"
        )
    for name in ("width", "expert_hidden") if spec.experts else ():
        size: int = getattr(spec, name)
        if size % ROW_ELEMENTS:
            yield (
                f"{name} = {size} with experts = {spec.experts}: the products of the experts in "
                f"torch need a multiple of {ROW_ELEMENTS}; set {name} to "
                f"{_multiples(size, ROW_ELEMENTS)}"
            )


def _of_windows(spec: GemmaSpec) -> Iterator[str]:
    if spec.window == 1 and LOCAL in spec.kinds:
        yield (
            "window = 1: the cache of transformers keeps all positions then, so that it generates "
            "other text; set window to 2 or more"
        )


def _multiples(size: int, of: int) -> str:
    """Return the multiples of a number that are next to a size."""
    lower = size - size % of
    return f"{lower} or {lower + of}" if lower else f"{of}"
