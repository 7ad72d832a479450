"""The shapes that an export for transformers refuses, and that transformers itself cannot have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster.launch.hf_export import HfExtras, write_transformers
from islands.gemma.hf_limits import export_problems
from islands.gemma.parameters import leaf_plans
from islands.gemma.presets import PRESETS
from islands.gemma.spec import GemmaSpec

GEMMA_3 = GemmaSpec(
    vocabulary=64, width=32, layers=4, pattern="LG", hidden=24, heads=4, kv_heads=2, head_size=8,
    window=4,
)  # fmt: skip
GEMMA_4 = replace(GEMMA_3, generation=4, global_head_size=16, softcap=30.0, global_rope_share=0.25)
EXPERTS = replace(GEMMA_4, experts=4, experts_used=2, expert_hidden=8)
REFUSED: Mapping[str, tuple[GemmaSpec, str]] = {
    "width": (
        replace(GEMMA_3, width=30),
        "width = 30 is no multiple of heads = 4, and Gemma 3 of transformers needs one; set width "
        "to 28 or 32",
    ),
    "scalar": (
        replace(GEMMA_3, query_scalar=12.5),
        "query_scalar = 12.5: transformers takes only a whole number; set one, or leave the option "
        "out for head_size",
    ),
    "window": (
        replace(GEMMA_3, window=1),
        "window = 1: the cache of transformers keeps all positions then, so that it generates "
        "other text; set window to 2 or more",
    ),
    "shared": (
        replace(GEMMA_4, shared_kv_layers=2),
        "shared_kv_layers = 2 with per_layer_size = 0: transformers fails in the first shared "
        "layer of such a model; set per_layer_size, or shared_kv_layers = 0",
    ),
    "experts' width": (
        replace(EXPERTS, width=30),
        "width = 30 with experts = 4: the products of the experts in torch need a multiple of 4; "
        "set width to 28 or 32",
    ),
    "expert_hidden": (
        replace(EXPERTS, expert_hidden=3),
        "expert_hidden = 3 with experts = 4: the products of the experts in torch need a multiple "
        "of 4; set expert_hidden to 4",
    ),
}
FAILS: Mapping[str, str] = {
    "width": "is not a multiple of the number of attention heads",
    "scalar": "expected int, got float",
    "shared": "'NoneType' object is not subscriptable",
    "experts' width": "strides should be multiple of 16 bytes",
    "expert_hidden": "strides should be multiple of 16 bytes",
}
"""The errors of transformers and torch; other refused shapes are computed differently."""
ACCEPTED: Mapping[str, GemmaSpec] = {
    "whole scalar": replace(GEMMA_3, query_scalar=12.0),
    "window of 2": replace(GEMMA_3, window=2),
    "only global layers": replace(GEMMA_3, pattern="G", window=1),
    "odd width of Gemma 4": replace(GEMMA_4, width=31),
    "shared": replace(GEMMA_4, shared_kv_layers=2, per_layer_size=1, wide_shared=True),
    "experts": replace(EXPERTS, width=28, expert_hidden=4),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_shape_has_one_message(name: str) -> None:
    spec, message = REFUSED[name]
    assert not spec.problems()
    assert export_problems(spec) == [message]


def test_other_shapes_are_accepted() -> None:
    for spec in (GEMMA_3, GEMMA_4, EXPERTS, *PRESETS.values(), *ACCEPTED.values()):
        assert export_problems(spec) == []


def same_text(spec: GemmaSpec, out: Path) -> bool:
    """Return whether transformers generates the same text with and without its cache."""
    import torch
    import transformers

    rng = np.random.default_rng(0)
    leaves = {
        path: rng.normal(0.7, 0.2, plan.shape).astype(np.float32)
        if "norm" in path
        else rng.normal(0, 0.3, plan.shape).astype(np.float32)
        for path, plan in leaf_plans(spec).items()
    }
    special: dict[str, int | None] = {f"{name}_token_id": None for name in ("bos", "eos", "pad")}
    write_transformers(out, spec, leaves, HfExtras(special=special))
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(out)
    prompt = torch.tensor(rng.integers(0, 64, (4, 6)), dtype=torch.long)
    both = [
        model.generate(prompt, max_new_tokens=12, use_cache=cached, do_sample=False).tolist()
        for cached in (True, False)
    ]
    return bool(both[0] == both[1])


@pytest.mark.long
@pytest.mark.parametrize("name", REFUSED)
def test_transformers_cannot_have_a_refused_shape(name: str, tmp_path: Path) -> None:
    """If a later version can, its limit should be lifted."""
    spec, out = REFUSED[name][0], tmp_path / "out"
    if name in FAILS:
        with pytest.raises(Exception, match=FAILS[name]):
            same_text(spec, out)
    else:
        assert not same_text(spec, out)


@pytest.mark.long
@pytest.mark.parametrize("name", ACCEPTED)
def test_transformers_has_a_shape_next_to_a_limit(name: str, tmp_path: Path) -> None:
    assert same_text(ACCEPTED[name], tmp_path / "out")
