"""Tokens from a Gemma model: the decoder gives the scores of the whole model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from archipelago.trained_model import TrainedModel
from cluster.config.load import load
from islands.gemma import parameters
from islands.gemma.decoder import GemmaDecoder
from islands.gemma.forward import forward, frozen_of
from islands.gemma.language_task import spec_named
from islands.gemma.spec import GemmaSpec
from islands.initial_model import shapes_by_path
from islands.text_model import Sampling, generated
from tests.given import LEAST, sums

WINDOW, VOCABULARY = 20, 30
DENSE = GemmaSpec(vocabulary=VOCABULARY, width=16, layers=5, pattern="LLG", hidden=24, heads=4,
                  kv_heads=2, head_size=8, window=6)  # fmt: skip
FOURTH = replace(DENSE, generation=4, layers=6, pattern="LG", softcap=8.0, global_head_size=12,
                 global_rope_share=0.5)  # fmt: skip
SPECS: Mapping[str, GemmaSpec] = {
    "gemma 3": DENSE,
    "per-layer embeddings and shared keys": replace(
        FOURTH, per_layer_size=4, shared_kv_layers=2, wide_shared=True
    ),
    "keys are values, with layer scalars": replace(
        FOURTH, keys_are_values=True, global_kv_heads=1,
        layer_scalars=(0.5, 1.5, 0.75, 1.25, 0.5, 0.8),
    ),
    "experts": replace(FOURTH, experts=4, experts_used=2, expert_hidden=8),
}  # fmt: skip


@pytest.fixture(params=SPECS)
def spec(request: pytest.FixtureRequest) -> GemmaSpec:
    return SPECS[request.param]


def drawn(spec: GemmaSpec) -> Any:
    """Return parameters of which none has its initial value."""
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: leaf + rng.normal(0, 0.3, leaf.shape).astype(np.float32),
        parameters.init(spec, 0),
    )


def scores_of(spec: GemmaSpec, params: Any, tokens: list[int]) -> np.ndarray:
    """Return the scores after each token, of the whole model."""
    compute = jax.jit(partial(forward, spec))
    given = np.asarray([tokens], np.int32)
    return np.asarray(compute(params, given, frozen_of(spec)).logits)[0]


@pytest.mark.long
def test_decoder_gives_the_scores_of_the_model(spec: GemmaSpec) -> None:
    assert 3 * spec.window < WINDOW
    params = drawn(spec)
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, WINDOW).tolist()
    wanted = scores_of(spec, params, tokens)
    decoder = GemmaDecoder(spec, WINDOW)
    found = [decoder.read(params, tokens[:9])]
    found += [decoder.step(params, token) for token in tokens[9:]]
    np.testing.assert_allclose(found, wanted[8:], rtol=1e-4, atol=1e-4)
    assert np.abs(wanted).max() > 0.5
    with pytest.raises(ValueError, match="read first"):
        decoder.step(params, 1)
    np.testing.assert_allclose(decoder.read(params, tokens[:3]), wanted[2], rtol=1e-4, atol=1e-4)


@pytest.mark.long
def test_text_goes_on_beyond_the_window() -> None:
    spec = SPECS["gemma 3"]
    params, sampling = drawn(spec), Sampling(seed=5)
    found = [*generated(GemmaDecoder(spec, WINDOW), params, [1] * 30, 2 * WINDOW, sampling)]
    assert len(found) == 2 * WINDOW
    assert len({*found}) > 3


@pytest.mark.long
def test_run_of_a_gemma_model_continues_a_text(tmp_path: Any) -> None:
    """`archipelago sample` takes the greedy tokens of the whole model, and `eval` its loss."""
    least = [line for line in LEAST.splitlines() if not line.startswith(("preset", "options"))]
    text = "\n".join(least).replace("SOURCE", str(sums(tmp_path / "text")))
    shape = 'preset = "gemma-0.1m"\noptions = { layers = 2, pattern = "LG", window = 8 }'
    islands = "[[islands]]\ncount = 1\nbatch_size = 2\n"
    text = text.replace("[task]", f"[task]\n{shape}")
    (tmp_path / "run.toml").write_text(f"{text}\n{islands}")
    config = load(tmp_path / "run.toml")
    assert config.task.preset is not None
    spec = spec_named(config.task.preset, config.task.options)
    params = drawn(spec)
    paths = shapes_by_path(TrainedModel("run", config, {}, None).task)
    leaves = dict(zip(paths, jax.tree.leaves(params), strict=True))
    model = TrainedModel("run", config, leaves, None)
    prompt, count = "1 + 2", 8
    pieces = [*model.continued(prompt, count, Sampling(temperature=0))]
    tokens = [*prompt.encode()]
    for _ in range(count):
        tokens.append(int(np.argmax(scores_of(spec, params, tokens)[-1])))
    assert "".join(pieces) == bytes(tokens[len(prompt) :]).decode(errors="replace")
    judged = model.judged(windows=4)
    assert judged.bits_per_byte is not None
    assert [each.heldout_loss > 0 for each in judged.types] == [True]
