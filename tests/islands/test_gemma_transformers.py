"""The Gemma models agree with transformers in logits and gradients, and ten wrong builds do not.

The reference is transformers' Gemma 3 and Gemma 4 in float32 on the CPU, in four small
configurations. Every parameter and every stored buffer is drawn away from its initial value, so
that no term is hidden behind a one or a zero. `WRONG` builds each trap of these architectures
wrongly on purpose, by a change of one line in memory, and the comparison must notice it.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from cluster.launch.hf_export import write_transformers
from islands.gemma import experts, forward, hf_config, layers, parameters
from islands.gemma.forward import LAYER_SCALARS
from islands.gemma.hf_weights import from_transformers, tensor_shapes, to_transformers
from islands.gemma.loss import cross_entropy
from islands.gemma.presets import PRESETS
from islands.gemma.spec import GemmaSpec
from islands.task import leaf_path

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

TOLERANCE = 1e-4
"""The largest difference, as a share of the largest value of the reference."""
MARGIN = 1e-3
"""The least distance between the probabilities of the last expert used and of the next one."""
SMALL = 3e-4
"""The scale of weights behind which a norm follows directly.

A norm hides a wrong factor of its input, unless the mean square of that is near its epsilon.
"""
TIME, WINDOW, VOCABULARY = 32, 8, 256
BASE: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "sliding_window": WINDOW,
    "pad_token_id": 0,
}
BOTH = ["sliding_attention", "full_attention"]
GEMMA_4: Mapping[str, Any] = {
    **BASE,
    "global_head_dim": 32,
    "final_logit_softcapping": 30.0,
    "hidden_size_per_layer_input": 0,
}
KEYS_ARE_VALUES: Mapping[str, Any] = {
    **GEMMA_4,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
}
CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gemma-3": (
        "Gemma3",
        {
            **BASE,
            "query_pre_attn_scalar": 16,
            "rope_parameters": {  # as in Gemma 3 of 4, 12 and 27 billion parameters
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            },
        },
    ),
    "gemma-4-e": (
        "Gemma4",
        {
            **GEMMA_4,
            "vocab_size_per_layer_input": VOCABULARY,
            "hidden_size_per_layer_input": 8,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "layer_types": BOTH * 3,
        },
    ),
    "gemma-4-31b": ("Gemma4", KEYS_ARE_VALUES),
    "gemma-4-moe": (
        "Gemma4",
        {
            **KEYS_ARE_VALUES,
            "enable_moe_block": True,
            "num_experts": 8,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
        },
    ),
}
"""The four small configurations."""
LOCAL_END: tuple[str, Mapping[str, Any]] = (
    "Gemma4",
    {**GEMMA_4, "global_head_dim": 16, "layer_types": [*BOTH, *BOTH, BOTH[0], BOTH[0]]},
)
"""A configuration whose last layer is local, so that transformers makes it global."""


@dataclass(frozen=True)
class Reference:
    """The model of transformers with drawn weights, and its results."""

    spec: GemmaSpec
    weights: dict[str, NDArray[np.float32]]
    tokens: NDArray[np.int32]
    logits: NDArray[np.float32]
    gradients: dict[str, NDArray[np.float32]]
    margin: float
    """Least distance between the last expert used and the next one; infinite without experts."""


def model_of(kind: str, options: Mapping[str, Any]) -> Any:
    """Build the model of transformers with every parameter and stored buffer drawn anew."""
    import torch
    import transformers

    config = getattr(transformers, f"{kind}TextConfig")(**deepcopy(dict(options)))
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval().float()
    model.set_attn_implementation("eager")
    if config.to_dict().get("enable_moe_block"):
        model.set_experts_implementation("eager")
    generator = torch.Generator().manual_seed(0)
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name == "lm_head.weight":  # the embedding
            continue
        before = tensor.detach().clone()
        with torch.no_grad():
            if "norm" in name or name.endswith(("scalar", "scale")):
                tensor.uniform_(0.5, 1.5, generator=generator)
            elif "embed_tokens" in name:
                tensor.normal_(0, 1, generator=generator)
            elif "router.proj" in name:  # scores of deviation 1.5, so that experts lie apart
                tensor.normal_(0, 1.5, generator=generator)
            else:
                hidden = name.endswith(("per_layer_projection.weight", "experts.down_proj"))
                deviation = (SMALL if hidden else 1.5) * tensor.shape[-1] ** -0.5
                tensor.normal_(0, deviation, generator=generator)
        assert not torch.any(tensor == before), name
    return model


def result_of(kind: str, options: Mapping[str, Any]) -> Reference:
    """Compute logits and gradients of the mean cross entropy by transformers."""
    import torch

    model = model_of(kind, options)
    spec = hf_config.spec_of(json.loads(model.config.to_json_string()))
    margins: list[NDArray[np.float32]] = []

    def watch(_: Any, __: Any, output: Any) -> None:
        best = torch.topk(output[0].detach(), spec.experts_used + 1, dim=-1).values
        margins.append((best[:, -2] - best[:, -1]).numpy())

    for layer in model.model.layers if spec.experts else ():
        layer.router.register_forward_hook(watch)
    logits, least = torch.zeros(1), np.zeros(TIME)
    # token 0 is padding, whose row transformers does not train
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, VOCABULARY, (1, TIME + 1), dtype=np.int32)
    for _ in range(200):
        margins.clear()
        logits = model(torch.tensor(tokens[:, :-1], dtype=torch.long), use_cache=False).logits
        least = np.min(margins, axis=0) if margins else np.full(TIME, np.inf)
        close = np.flatnonzero(least < MARGIN)
        if not close.size:
            break
        # no earlier position sees the tokens that are drawn again
        tokens[0, close[0] :] = rng.integers(1, VOCABULARY, TIME + 1 - close[0])
    labels = torch.tensor(tokens[:, 1:], dtype=torch.long)
    torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1)).backward()
    return Reference(
        spec,
        {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()},
        tokens,
        logits.detach().numpy(),
        {name: tensor.grad.numpy() for name, tensor in model.named_parameters()},
        float(np.min(least)),
    )


@cache
def reference(case: str) -> Reference:
    kind, options = LOCAL_END if case == "local end" else CASES[case]
    return result_of(kind, options)


def ours(found: Reference) -> tuple[Any, dict[str, NDArray[np.float32]]]:
    """Return the weights of the reference as our parameters and frozen arrays."""
    shapes = {name: tensor.shape for name, tensor in found.weights.items()}
    return from_transformers(found.spec, shapes, found.weights.__getitem__)


def distance(a: Any, b: Any) -> float:
    """Return the largest difference, as a share of the largest value of the reference `b`."""
    difference = float(np.max(np.abs(np.asarray(a) - b)) / np.max(np.abs(b)))
    return difference if np.isfinite(difference) else np.inf


def logits_distance(found: Reference) -> float:
    params, frozen = ours(found)
    compute = jax.jit(partial(forward.forward, found.spec))
    return distance(compute(params, found.tokens[:, :-1], frozen).logits, found.logits)


def gradient_distances(found: Reference) -> dict[str, float]:
    """Return the distance of each gradient by the name in transformers.

    The gradient of the frozen arrays, which transformers does not train, must be zero.
    """
    params, frozen = ours(found)

    def loss(params: Any, frozen: Any) -> Any:
        return cross_entropy(found.spec, params, jnp.asarray(found.tokens), frozen)[0]

    gradients, of_frozen = jax.jit(jax.grad(loss, (0, 1)))(params, frozen)
    own = dict(to_transformers(found.spec, gradients, frozen))
    trained = {name: each for name, each in own.items() if not name.endswith("layer_scalar")}
    assert trained.keys() == found.gradients.keys()
    distances = {name: distance(trained[name], b) for name, b in found.gradients.items()}
    distances["frozen"] = float(np.max(np.abs(of_frozen[LAYER_SCALARS])))
    return distances


@pytest.mark.parametrize("case", [*CASES, "local end"])
def test_logits_and_every_gradient_agree_with_transformers(case: str) -> None:
    found = reference(case)
    assert 3 * found.spec.window <= TIME
    assert found.spec.global_rope_scale == (8.0 if case == "gemma-3" else 1.0)
    assert found.margin >= MARGIN
    if found.spec.softcap:
        assert np.max(found.logits) > 20
        assert np.min(found.logits) < -20
    stored = {name for name in found.weights if name not in found.gradients}
    assert all(name == "lm_head.weight" or name.endswith("layer_scalar") for name in stored)
    assert logits_distance(found) <= TOLERANCE
    wrong = {k: d for k, d in gradient_distances(found).items() if not d <= TOLERANCE}
    assert not wrong


@pytest.mark.parametrize("case", [*CASES])
def test_conversion_returns_every_tensor_bit_for_bit(case: str) -> None:
    found = reference(case)
    back = dict(to_transformers(found.spec, *ours(found)))
    assert {name: tensor.shape for name, tensor in back.items()} == tensor_shapes(found.spec)
    assert {*found.weights} - {*back} == {"lm_head.weight"}
    assert all(np.array_equal(back[name], found.weights[name]) for name in back)


def test_gradients_with_activations_computed_again_agree() -> None:
    found = reference("gemma-4-e")
    again = replace(found, spec=replace(found.spec, remat=True))
    assert max(gradient_distances(again).values()) <= TOLERANCE


@dataclass(frozen=True)
class Wrong:
    """A trap built wrongly: a change of one function."""

    trap: int
    what: str
    case: str
    module: ModuleType
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.trap}: {self.what}"


GAIN = "(1 + weight if spec.generation == 3 else weight)"
WRONG = (
    Wrong(1, "Gemma 3 multiplies by the weight", "gemma-3", layers, GAIN, "weight"),
    Wrong(1, "Gemma 4 multiplies by 1 + weight", "gemma-4-31b", layers, GAIN, "(1 + weight)"),
    Wrong(2, "Gemma 3 does not scale scores", "gemma-3", layers, "scores * spec.score_scale",
          "scores"),
    Wrong(2, "Gemma 4 scales scores", "gemma-4-e", layers, "scores * spec.score_scale",
          "scores * heads.size**-0.5"),
    Wrong(2, "values are not normed", "gemma-4-31b", layers, "if spec.generation == 4:",
          "if spec.generation == 5:"),
    Wrong(2, "values are normed with a scale", "gemma-4-e", layers,
          "values = norm(spec, values)", "values = norm(spec, values, layer['key_norm'])"),
    Wrong(3, "exponents are divided by the rotated part", "gemma-4-31b", layers,
          "np.arange(0, 2 * pairs, 2) / size", "np.arange(0, 2 * pairs, 2) / (2 * pairs)"),
    Wrong(3, "all pairs are rotated", "gemma-4-31b", layers, "spec.rotated_pairs(kind)",
          "spec.heads_of(kind).size // 2"),
    Wrong(3, "neighbours are pairs", "gemma-4-31b", layers, "jnp.split(x, 2, axis=-1)",
          "(x[..., 0::2], x[..., 1::2])"),
    Wrong(3, "global positions are not scaled", "gemma-3", layers,
          "1.0 if kind == LOCAL else spec.global_rope_scale", "1.0"),
    Wrong(3, "local positions are scaled, too", "gemma-3", layers,
          "1.0 if kind == LOCAL else spec.global_rope_scale", "spec.global_rope_scale"),
    Wrong(4, "values are the normed and rotated keys", "gemma-4-31b", layers,
          'if "value" in layer else projected', 'if "value" in layer else keys'),
    Wrong(5, "shared layers use the first layer of their kind", "gemma-4-e", forward,
          "kept = {**kept, kind: used}",
          "kept = {**kept, kind: jax.tree.map(lambda a, b: jnp.where(jnp.any(a != 0), a, b), "
          "kept[kind], used)}"),
    Wrong(6, "layer scalars are left out", "gemma-4-31b", forward, "if scalar is not None:",
          "if False:"),
    Wrong(6, "layer scalars are trained", "gemma-4-31b", forward,
          "jax.lax.stop_gradient(frozen[LAYER_SCALARS])", "frozen[LAYER_SCALARS]"),
    Wrong(8, "the router reads the normed input", "gemma-4-moe", experts,
          "route(spec, layer, flat)", 'route(spec, layer, layers.norm(spec, flat, layer["norm"]))'),
    Wrong(8, "the router's input is not scaled down", "gemma-4-moe", experts,
          '* layer["router_scale"] * spec.width**-0.5', '* layer["router_scale"]'),
    Wrong(8, "weights are not renormalised", "gemma-4-moe", experts,
          "weights = weights / jnp.sum(weights, axis=-1, keepdims=True)", "pass"),
    Wrong(8, "no scale of each expert", "gemma-4-moe", experts,
          'weights = weights * layer["expert_scale"].astype(jnp.float32)[experts]', "pass"),
    Wrong(8, "the dense path has no norm of its own", "gemma-4-moe", experts,
          'layers.norm(spec, dense, layer["dense_post_norm"]) + sparse', "dense + sparse"),
    Wrong(9, "the sum is not divided by the root of 2", "gemma-4-e", layers, "* 2**-0.5", ""),
    Wrong(9, "the table is not scaled", "gemma-4-e", layers,
          "own[tokens].astype(x.dtype) * scale)", "own[tokens].astype(x.dtype))"),
    Wrong(9, "added without its norm", "gemma-4-e", layers,
          'x + norm(spec, projected, layer["norm"])', "x + projected"),
    Wrong(10, "embeddings are rounded to bfloat16", "gemma-3", layers,
          ".astype(dtype) * scale", ".astype(jnp.bfloat16).astype(dtype) * scale"),
    Wrong(10, "embeddings are not scaled", "gemma-4-31b", layers, ".astype(dtype) * scale",
          ".astype(dtype)"),
)  # fmt: skip


@contextmanager
def built(wrong: Wrong) -> Generator[None]:
    """Replace the changed functions, and methods, of a module for a while."""
    text = Path(str(wrong.module.__file__)).read_text("utf-8")
    assert text.count(wrong.old) == 1
    good, bad = functions(text), functions(text.replace(wrong.old, wrong.new))
    changed = [name for name in good if ast.dump(good[name]) != ast.dump(bad[name])]
    assert changed
    place = vars(wrong.module)
    before = {name: place[name] for name in changed}
    for name in changed:
        exec(compile(ast.Module([bad[name]], []), str(wrong), "exec"), place)
    try:
        yield
    finally:
        place.update(before)


def functions(text: str) -> dict[str, ast.stmt]:
    """Return the functions and classes with methods of a module by name, without annotations."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in [*node.args.args, *node.args.kwonlyargs]:
                argument.annotation = None
    return {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        or (isinstance(node, ast.ClassDef) and node.name[0] == "_")
    }


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_trap_built_wrongly_fails_the_comparison(wrong: Wrong) -> None:
    found = reference(wrong.case)
    with built(wrong), jax.disable_jit():  # operations are compiled once for all wrong builds
        if logits_distance(found) <= TOLERANCE:
            assert wrong.trap == 6  # a scalar that is trained changes only gradients
            assert max(gradient_distances(found).values()) > TOLERANCE


def test_last_layer_that_stays_local_fails_the_comparison() -> None:
    """Trap 7: transformers makes the last layer of Gemma 4 global."""
    found = reference("local end")
    wrong = replace(found, spec=replace(found.spec, pattern="LGLGLL"))
    assert wrong.spec.kinds[:-1] == found.spec.kinds[:-1]
    with jax.disable_jit():
        assert logits_distance(wrong) > TOLERANCE


def test_last_layer_of_a_file_is_global_as_in_transformers() -> None:
    _, options = LOCAL_END
    assert options["layer_types"][-1] == "sliding_attention"
    config = {**options, "model_type": "gemma4_text"}
    assert hf_config.spec_of(config) == reference("local end").spec


def test_every_trap_is_built_wrongly() -> None:
    assert {wrong.trap for wrong in WRONG} | {7} == {*range(1, 11)}  # 7 has a test of its own


@pytest.mark.parametrize("preset", [*PRESETS])
def test_published_shapes_have_the_parameters_of_transformers(preset: str) -> None:
    """The names and shapes of all tensors are those of the model that our file makes."""
    import torch
    import transformers

    spec = PRESETS[preset]
    fields = hf_config.config_of(spec)
    name = fields["architectures"][0]
    config = getattr(transformers, name.replace("ForCausalLM", "TextConfig"))(**fields)
    with torch.device("meta"):
        model = getattr(transformers, name)(config)
    shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    shapes.pop("lm_head.weight")
    assert shapes == tensor_shapes(spec)
    assert hf_config.spec_of(json.loads(config.to_json_string())) == spec


@pytest.mark.parametrize("preset", ["gemma-0.1m", "gemma-moe-1m"])
def test_exported_folder_gives_the_same_greedy_text(preset: str, tmp_path: Path) -> None:
    import torch
    import transformers

    spec, rng = PRESETS[preset], np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: leaf + 0.1 * rng.standard_normal(leaf.shape).astype(np.float32),
        parameters.init(spec, 0),
    )
    flat = jax.tree_util.tree_flatten_with_path(params)[0]
    leaves = {leaf_path(keys): leaf for keys, leaf in flat}
    write_transformers(tmp_path / "out", spec, leaves)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert type(model).__name__ == hf_config.CLASSES[spec.generation]
    prompt = rng.integers(0, 256, (1, 40), dtype=np.int32)
    given = torch.tensor(prompt, dtype=torch.long)
    found = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=8)
    compute = jax.jit(lambda p, t: forward.forward(spec, p, t).logits)
    text = np.zeros((1, 48), np.int32)  # a position does not see the zeros after it
    text[:, :40] = prompt
    for end in range(40, 48):
        text[0, end] = int(np.argmax(compute(params, text)[0, end - 1]))
    assert found.tolist() == text.tolist()
