"""Gemma models without a reference: shapes, presets, files of configuration, costs, training."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coordinator.errors import UserMistake
from coordinator.protocol import Lease
from islands.adopt import layout_of
from islands.gemma import costs, experts, parameters
from islands.gemma import layers as layers_of
from islands.gemma.forward import LAYER_SCALARS, forward
from islands.gemma.hf_config import config_of, read_config, spec_of
from islands.gemma.hf_weights import from_transformers, problems_of, tensor_shapes, to_transformers
from islands.gemma.language_task import BALANCE, language_model, spec_named
from islands.gemma.layers import attend, embed, norm, positions
from islands.gemma.loss import cross_entropy
from islands.gemma.presets import PRESETS
from islands.gemma.spec import GLOBAL, LOCAL, SHARED, GemmaSpec
from islands.inner import Inner
from islands.losses import evaluation_loss
from islands.mesh_shape import MeshShape, misfits
from islands.optimizer import direction
from islands.task import Option, leaf_path, load_task
from islands.trainable import of_loss, of_parameters, shapes_of
from tests.given import data_spec, first_of, optimizer_spec, sums

SMALL = GemmaSpec(
    vocabulary=40, width=16, layers=4, hidden=24, heads=2, kv_heads=1, head_size=8, window=3,
    pattern="LG",
)  # fmt: skip
LARGE_PARTS = replace(
    SMALL, generation=4, global_head_size=16, global_rope_share=0.25, shared_kv_layers=2,
    wide_shared=True, per_layer_size=4, softcap=30.0,
)  # fmt: skip
SPARSE = replace(SMALL, generation=4, experts=4, experts_used=2, expert_hidden=12)
KINDS = {"gemma 3": SMALL, "gemma 4": LARGE_PARTS, "experts": SPARSE}
PUBLISHED = {
    "gemma-3-270m": 268_098_176,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_099_328,
    "gemma-3-12b": 11_765_788_416,
    "gemma-3-27b": 27_009_002_240,
}
"""Parameters of the published models, without their vision parts."""
OWN = [name for name in PRESETS if not name.startswith(("gemma-3-", "gemma-4-"))]
"""The presets of our own, with their size in their names."""
CLOSE = 1e-5


def grown(spec: GemmaSpec, seed: int = 0) -> Any:
    """Return parameters as after some training."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: leaf + 0.1 * rng.standard_normal(leaf.shape).astype(np.float32),
        parameters.init(spec, seed),
    )


def tokens(spec: GemmaSpec, batch: int = 2, time: int = 12) -> np.ndarray:
    rng = np.random.default_rng(1)
    return rng.integers(0, spec.vocabulary, (batch, time), dtype=np.int32)


def logits_of(spec: GemmaSpec, params: Any, given: np.ndarray) -> np.ndarray:
    return np.asarray(jax.jit(lambda p, t: forward(spec, p, t).logits)(params, given))


# --- the model ------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("spec", KINDS.values(), ids=[*KINDS])
def test_no_position_sees_a_later_one(spec: GemmaSpec) -> None:
    params, given = grown(spec), tokens(spec)
    changed = given.copy()
    changed[:, 7:] = (changed[:, 7:] + 1) % spec.vocabulary
    before, after = logits_of(spec, params, given), logits_of(spec, params, changed)
    assert np.allclose(before[:, :7], after[:, :7], atol=CLOSE)
    assert not np.allclose(before[:, 7:], after[:, 7:], atol=CLOSE)


def test_local_layers_reach_as_far_as_their_windows() -> None:
    spec = replace(SMALL, pattern="L", layers=2)
    reach = spec.layers * (spec.window - 1)
    params, given = grown(spec), tokens(spec, batch=1)
    changed = given.copy()
    changed[0, 0] = (changed[0, 0] + 1) % spec.vocabulary
    moved: Any = logits_of(spec, params, given) - logits_of(spec, params, changed)
    differs: Any = np.abs(moved) > CLOSE
    assert [*differs.any(axis=(0, 2))] == [t <= reach for t in range(given.shape[1])]


@pytest.mark.long
@pytest.mark.parametrize(
    ("pattern", "layers", "shared"),
    [("GL", 5, 0), ("LLG", 9, 4), ("LGG", 8, 3), ("G", 3, 0)],
)
def test_layers_of_any_pattern_are_those_computed_one_by_one(
    pattern: str, layers: int, shared: int
) -> None:
    """The reference computes each layer as a model of its own, from rows of the stacks."""
    spec = replace(SMALL, generation=4, pattern=pattern, layers=layers, shared_kv_layers=shared)
    assert not spec.problems()
    params, given = grown(spec), tokens(spec)
    x, kept = embed(params["embedding"], jnp.asarray(given), jnp.float32), dict[str, Any]()
    for section in spec.sections:
        for number, kind in enumerate(section.kinds):
            row = section.row(number)
            layer = jax.tree.map(lambda leaf, row=row: leaf[row], params[section.name][kind])
            where, attention, mlp = positions(spec, kind, 12), layer["attention"], layer["mlp"]
            mixed, used = attend(
                spec, attention, norm(spec, x, attention["norm"]), spec.heads_of(kind), where,
                kept[kind] if section.name == SHARED else None,
            )  # fmt: skip
            kept[kind] = used
            x = x + norm(spec, mixed, attention["post_norm"])
            hidden = layers_of.mlp(mlp, norm(spec, x, mlp["norm"]))
            x = x + norm(spec, hidden, mlp["post_norm"])
    wanted = norm(spec, x, params["norm"]) @ params["embedding"].T
    assert np.allclose(logits_of(spec, params, given), wanted, atol=1e-3)


@pytest.mark.parametrize("remat", [False, True])
def test_layers_are_written_out_unless_activations_are_computed_again(remat: bool) -> None:
    """A loop copies all activations that it saves, and takes 1.4 to 2 times as long."""
    spec = replace(SMALL, remat=remat)
    gradient = jax.jit(jax.grad(lambda params, given: cross_entropy(spec, params, given)[0]))
    program = gradient.lower(grown(spec), tokens(spec)).compile().as_text()
    assert (" while(" in str(program)) == remat


@pytest.mark.parametrize("count", first_of([3, 2, 50]))
def test_logits_in_parts_give_the_same_loss_and_gradients(count: int) -> None:
    """Windows of 11 predicted tokens are padded to whole parts, and parts can outnumber them."""
    spec = replace(SMALL, layers=2, softcap=30.0)
    given, params = tokens(spec), grown(spec)
    mask = np.random.default_rng(2).random(given.shape) < 0.7
    batch = {"tokens": given, "loss_mask": mask}

    def step(each: GemmaSpec) -> Any:
        loss = jax.value_and_grad(lambda p: cross_entropy(each, p, batch)[0])
        return jax.jit(loss)(params)

    whole, parts = step(spec), step(replace(spec, logit_parts=count))
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


def test_logits_in_parts_need_less_memory() -> None:
    spec = replace(SMALL, layers=1, vocabulary=4096)
    batch, shapes = jax.ShapeDtypeStruct((8, 65), np.int32), parameters.shapes(spec)

    def bytes_with(count: int) -> int:
        each = replace(spec, logit_parts=count)
        step = jax.jit(jax.grad(lambda p, b: cross_entropy(each, p, b)[0]))
        analysis = step.lower(shapes, batch).compile().memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    logits = 8 * 64 * spec.vocabulary * 4
    assert bytes_with(1) > 1.5 * logits
    assert bytes_with(8) < bytes_with(1) - logits


@pytest.mark.long
def test_layer_scalars_multiply_and_have_no_gradient() -> None:
    spec, params = LARGE_PARTS, grown(LARGE_PARTS)
    batch: Any = tokens(LARGE_PARTS)
    ones = {LAYER_SCALARS: np.ones(spec.layers, np.float32)}
    loss = jax.jit(lambda p, f: cross_entropy(spec, p, batch, f)[0])
    without = float(jax.jit(lambda p: cross_entropy(spec, p, batch)[0])(params))
    one_bit = float(np.spacing(np.float32(without)))  # two programs may round differently
    assert abs(float(loss(params, ones)) - without) <= 4 * one_bit
    other = {LAYER_SCALARS: np.linspace(0.5, 1.5, spec.layers, dtype=np.float32)}
    assert abs(float(loss(params, other)) - without) > 10_000 * one_bit
    assert not np.any(jax.grad(loss, 1)(params, other)[LAYER_SCALARS])


@pytest.mark.long
@pytest.mark.parametrize("spec", [SMALL, LARGE_PARTS], ids=["gemma 3", "gemma 4"])
def test_bfloat16_is_close_to_float32(spec: GemmaSpec) -> None:
    params, given = grown(spec), tokens(spec)
    exact = logits_of(spec, params, given)
    rounded = logits_of(replace(spec, compute_dtype="bfloat16"), params, given)
    assert rounded.dtype == np.float32
    assert 0 < np.max(np.abs(exact - rounded)) < 0.1 * np.max(np.abs(exact))


@pytest.mark.long
def test_experts_compute_what_each_token_alone_asks_of_them() -> None:
    spec, rng = SPARSE, np.random.default_rng(0)
    layer = jax.tree.map(lambda leaf: leaf[0], grown(spec)["layers"]["local"]["experts"])
    x = rng.standard_normal((20, spec.width)).astype(np.float32)
    routing = experts.route(spec, layer, jnp.asarray(x))
    found = experts.compute(spec, layer, jnp.asarray(x), routing)
    for token in range(len(x)):
        wanted = np.zeros(spec.width)
        for weight, expert in zip(routing.weights[token], routing.experts[token], strict=True):
            gate, up = x[token] @ layer["gate"][expert], x[token] @ layer["up"][expert]
            hidden = np.asarray(jax.nn.gelu(gate, approximate=True)) * up
            wanted += float(weight) * (hidden @ layer["down"][expert])
        assert np.allclose(found[token], wanted, atol=1e-4)


def test_load_balance_loss_is_one_for_equal_load_and_grows_with_unequal_load() -> None:
    equal: Any = np.full((8, 4), 0.25, np.float32)
    rounds: Any = np.stack([np.arange(8) % 4, (np.arange(8) + 1) % 4], axis=1)
    weights: Any = np.full((8, 2), 0.5, np.float32)
    assert float(experts.balance(SPARSE, experts.Routing(equal, weights, rounds))) == 1
    skewed: Any = np.tile(np.array([0.7, 0.3, 0, 0], np.float32), (8, 1))
    same: Any = np.tile([0, 1], (8, 1))
    assert float(experts.balance(SPARSE, experts.Routing(skewed, weights, same))) == pytest.approx(
        2
    )


# --- presets, options, files ----------------------------------------------------------------------


def test_presets_have_the_sizes_of_their_names() -> None:
    assert not [problem for spec in PRESETS.values() for problem in spec.problems()]
    counts = {name: costs.counted(spec) for name, spec in PRESETS.items()}
    assert {name: counts[name].total for name in PUBLISHED} == PUBLISHED
    for name in OWN:
        size = name.rpartition("-")[2]
        stated = float(size[:-1]) * {"m": 1e6, "b": 1e9}[size[-1]]
        assert counts[name].total == pytest.approx(stated, rel=0.15), name
    assert 25.0e9 < counts["gemma-4-26b-a4b"].total < 25.5e9
    assert 3.7e9 < counts["gemma-4-26b-a4b"].active < 4.0e9
    assert counts["gemma-4-e2b"].total - counts["gemma-4-e2b"].active == 262_144 * 35 * 256
    assert 30.5e9 < counts["gemma-4-31b"].total < 31e9


@pytest.mark.parametrize("preset", [*PRESETS])
def test_configuration_of_every_preset_comes_back(preset: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config_of(PRESETS[preset])))
    assert read_config(file) == PRESETS[preset]
    assert spec_named(str(file), {"remat": True}) == replace(PRESETS[preset], remat=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "model_type = 'llama': known are gemma3_text, gemma4_text"),
        (
            {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}},
            "its text model is in text_config",
        ),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0 is not implemented"),
        ({"vision_config": {"depth": 3}}, "vision_config = {'depth': 3} is not implemented"),
        ({"hidden_activation": "silu"}, "hidden_activation = 'silu' is not implemented, only"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention = True is not"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"head_dim": 16.5}, "head_dim = 16.5: must be of type int"),
        ({"layer_types": ["chunked_attention"] * 48}, "chunked_attention is not one of"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries"),
        ({"num_key_value_heads": 7}, "heads = 16: must be a multiple of the 7 key heads"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 4.0}}},
            "rope_parameters.full_attention.rope_type = 'yarn' is not implemented",
        ),
        (
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 4.0}}},
            "rope_parameters.sliding_attention.rope_type = 'linear' is not implemented",
        ),
    ],
)  # fmt: skip
def test_field_that_is_not_implemented_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserMistake) as caught:
        spec_of({**config_of(PRESETS["gemma-3-12b"]), **change}, "my.json")
    assert message in str(caught.value)
    assert all(line.startswith("my.json: ") for line in str(caught.value).splitlines())


def test_uneven_heads_of_gemma_4_are_refused() -> None:
    config = config_of(PRESETS["gemma-4-31b"])
    config["per_layer_config"]["5"] = {"head_dim": 128}
    with pytest.raises(UserMistake, match="only one head_dim and one num_key_value_heads"):
        spec_of(config)


def test_layers_are_found_by_numbers_with_leading_zeros() -> None:
    """Transformers writes "05" where a model has ten layers or more."""
    config = config_of(PRESETS["gemma-4-31b"])
    heads = config["per_layer_config"]
    config["per_layer_config"] = {f"{int(layer):02}": each for layer, each in heads.items()}
    assert spec_of(config) == PRESETS["gemma-4-31b"]
    config["per_layer_config"]["04"] = config["per_layer_config"].pop("05")
    with pytest.raises(UserMistake, match="per_layer_config"):
        spec_of(config)


def test_former_fields_of_gemma_3_are_read() -> None:
    config = config_of(PRESETS["gemma-3-12b"])
    del config["rope_parameters"], config["layer_types"]
    config |= {
        "rope_theta": 1_000_000,
        "rope_local_base_freq": 10_000,
        "rope_scaling": {"type": "linear", "factor": 8.0},
        "sliding_window_pattern": 6,
    }
    assert spec_of(config) == PRESETS["gemma-3-12b"]


@pytest.mark.parametrize(
    ("preset", "options", "message"),
    [
        ("gemma-1n", {}, "did you mean 'gemma-1m'"),
        ("gemma-1m", {"widht": 3}, "task.options.widht = 3: did you mean 'width'"),
        ("gemma-1m", {"width": 2.5}, "task.options.width = 2.5: must be of type int"),
        ("gemma-1m", {"kv_heads": 3}, "task.options.heads = 4: must be a multiple of the 3"),
        ("gemma-1m", {"experts": 4}, "experts = 4: Gemma 3 has no such feature"),
        ("gemma-1m", {"pattern": "LX"}, "pattern = 'LX': letters L (local) and G (global)"),
        ("gemma-1m", {"softcap": math.inf}, "softcap = inf: must be finite"),
        ("gemma-1m", {"window": 0}, "window = 0: must be at least 1"),
        ("gemma-moe-1m", {"experts_used": 9}, "experts_used = 9: from 1 to experts = 8"),
        ("gemma-moe-1m", {"pattern": "GL"}, "the last of 6 layers is local"),
        ("gemma-moe-1m", {"shared_kv_layers": 5}, "no global layer comes before them"),
        ("nowhere.json", {}, "nowhere.json: there is no such file (looked in"),
    ],
)  # fmt: skip
def test_mistakes_are_explained(preset: str, options: dict[str, Option], message: str) -> None:
    with pytest.raises(UserMistake) as caught:
        load_task(preset, None, options, data_spec())
    assert message in str(caught.value)


def test_whole_numbers_are_allowed_for_real_options() -> None:
    assert spec_named("gemma-1m", {"softcap": 30}).softcap == 30.0


# --- parameters and weights -----------------------------------------------------------------------


@pytest.mark.parametrize("spec", KINDS.values(), ids=[*KINDS])
def test_each_leaf_is_drawn_as_in_the_whole(spec: GemmaSpec) -> None:
    whole = jax.tree_util.tree_flatten_with_path(parameters.init(spec, 3))[0]
    shapes = jax.tree_util.tree_leaves(parameters.shapes(spec))
    for (keys, leaf), shape in zip(whole, shapes, strict=True):
        assert np.array_equal(leaf, parameters.init_leaf(spec, leaf_path(keys), 3))
        assert (leaf.shape, leaf.dtype) == (shape.shape, shape.dtype)


def test_layers_with_shared_keys_have_none_of_their_own() -> None:
    paths = {*parameters.leaf_plans(LARGE_PARTS)}
    shared = {path for path in paths if path.startswith("shared/")}
    assert shared
    assert not [path for path in shared if "key" in path or "value" in path]
    assert "layers/global/attention/value" in paths
    equal = replace(LARGE_PARTS, keys_are_values=True)
    assert "layers/global/attention/value" not in parameters.leaf_plans(equal)


@pytest.mark.parametrize("spec", KINDS.values(), ids=[*KINDS])
def test_weights_go_to_transformers_and_back(spec: GemmaSpec) -> None:
    params = grown(spec)
    frozen = {LAYER_SCALARS: np.linspace(0.5, 1.5, spec.layers, dtype=np.float32)}
    tensors = dict(to_transformers(spec, params, frozen))
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    assert shapes == tensor_shapes(spec)
    back, scalars = from_transformers(spec, shapes, tensors.__getitem__)
    assert jax.tree.all(jax.tree.map(np.array_equal, back, params))
    if spec.generation == 4:
        assert np.array_equal(scalars[LAYER_SCALARS], frozen[LAYER_SCALARS])


def test_other_weights_are_refused() -> None:
    shapes = tensor_shapes(SMALL)
    lost = {name: shape for name, shape in shapes.items() if "layers.1.mlp" not in name}
    other = {**lost, "model.vision.weight": (3,), "model.norm.weight": (7,)}
    problems = problems_of(SMALL, other)
    assert len(problems) == 3
    assert "no tensor model.layers.1.mlp" in problems[0]
    assert "model.vision.weight" in problems[1]
    assert "model.norm.weight is [7], and the model has [16]" in problems[2]
    with pytest.raises(UserMistake, match="weights of transformers: no tensor"):
        from_transformers(SMALL, other, lambda _: np.zeros(()))


# --- costs ----------------------------------------------------------------------------------------


def test_twelve_billion_parameters_are_planned_without_allocating_them() -> None:
    tracemalloc.start()
    task = load_task("gemma-3-12b", None, {"remat": True, "compute_dtype": "bfloat16"}, data_spec())
    spec, mesh = spec_named("gemma-3-12b", {"remat": True}), MeshShape(1, 8, 4)
    shapes = shapes_of(task)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(shapes))
    assert not of_parameters(task, shapes)
    assert not misfits(task, mesh)
    layout = layout_of(task, 24)
    moments = jax.eval_shape(direction(optimizer_spec(), task).init, shapes)
    memory = costs.memory_plan(task, spec, moments, mesh.sizes, 32, 1024)
    batch = jax.ShapeDtypeStruct((2, 1025), np.int32)
    loss = jax.eval_shape(task.loss, shapes, batch)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert loss.shape == ()
    assert layout.parameters == PUBLISHED["gemma-3-12b"]
    assert max(layout.sizes) < 1.1 * layout.parameters / 24
    share = 4 * PUBLISHED["gemma-3-12b"] / 32
    assert share < memory.parameters < 1.3 * share  # tensor does not split the embedding
    assert memory.gradients == memory.parameters
    assert memory.moments == pytest.approx(2 * memory.parameters, rel=1e-3)
    assert memory.total < 80 * 2**30
    assert peak < 200 * 2**20


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["gemma-0.1m", "gemma-moe-1m"])
def test_loss_of_preset_has_a_gradient_for_each_leaf(preset: str) -> None:
    task = load_task(preset, None, {}, data_spec())
    assert not of_loss(task, shapes_of(task), np.zeros((2, 9), np.int32))


PLAIN = replace(SMALL, width=64, hidden=256, vocabulary=512, head_size=32, pattern="G")


@pytest.mark.parametrize("spec", [PLAIN, LARGE_PARTS], ids=["plain", "gemma 4"])
def test_operations_are_those_that_the_compiler_counts(spec: GemmaSpec) -> None:
    spec = replace(spec, window=64)
    time = 32
    lowered = jax.jit(lambda p, t: forward(spec, p, t).logits).lower(
        parameters.shapes(spec), jax.ShapeDtypeStruct((1, time), np.int32)
    )
    analysis: Any = lowered.cost_analysis()
    counted = analysis["flops"] / time
    scores = sum(4 * h.queries * h.size * time for h in map(spec.heads_of, spec.kinds))
    ours = costs.forward_flops(spec, time)
    mean = sum(4 * h.queries * h.size * (time + 1) / 2 for h in map(spec.heads_of, spec.kinds))
    whole = ours - mean + scores  # the compiler counts masked positions, too
    assert costs.attended(spec, LOCAL, time) == costs.attended(spec, GLOBAL, time) == (time + 1) / 2
    assert whole < counted < (1.2 if spec.generation == 3 else 2.0) * whole


def test_window_limits_the_positions() -> None:
    spec = replace(SMALL, window=3)
    assert costs.attended(spec, LOCAL, 10) == (1 + 2 + 3 * 8) / 10
    assert costs.attended(spec, GLOBAL, 10) == 5.5


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("remat", [False, True])
def test_activations_are_near_those_of_the_compiler(remat: bool) -> None:
    spec = replace(SMALL, width=64, hidden=256, layers=12, vocabulary=256, heads=4, head_size=16,
                   window=64, remat=remat)  # fmt: skip
    batch = jax.ShapeDtypeStruct((4, 129), np.int32)
    shapes = parameters.shapes(spec)
    step = jax.jit(jax.grad(lambda p, b: cross_entropy(spec, p, b)[0]))
    compiled = step.lower(shapes, batch).compile().memory_analysis()
    if compiled is None or not compiled.temp_size_in_bytes:
        pytest.fail("this JAX reports no memory of a compiled function")
    estimate = costs.activation_bytes(spec, 4, 128)
    assert 0.5 < compiled.temp_size_in_bytes / estimate < 2


# --- training -------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("preset", ["gemma-0.1m", "gemma-moe-1m"])
def test_preset_learns_from_bytes(preset: str, tmp_path: Path) -> None:
    data = data_spec(str(sums(tmp_path / "text")), heldout_percent=20, window=16, lease_windows=32)
    options = {"width": 32, "layers": 2, "pattern": "LG"}
    task = load_task(preset, None, options, data)
    inner = Inner(task, optimizer_spec(warmup_steps=5))
    state = inner.start(task.init(0))
    stream, losses = task.stream(8), list[float]()
    for lease in range(30):
        stream.add(Lease(lease))
    for clock in range(40):
        state, measures = inner.step(state, stream.next(), clock)
        losses.append(float(measures.loss))
    assert losses[0] == pytest.approx(math.log(256), abs=1.5)
    assert np.mean(losses[-5:]) < losses[0] - 1.5
    nats, metrics = jax.jit(evaluation_loss(task))(state.params, task.heldout(4)[0])
    assert float(nats) < losses[0]
    assert (BALANCE in metrics) == preset.startswith("gemma-moe")


@pytest.mark.long
def test_training_has_the_load_balance_loss_and_evaluations_do_not() -> None:
    spec = replace(SPARSE, balance_weight=0.5)
    task = language_model("sparse", spec, data_spec())
    both = jax.jit(lambda p, b: (task.loss(p, b), evaluation_loss(task)(p, b)))
    loss, (nats, metrics) = both(grown(spec), tokens(spec))
    assert float(loss) == pytest.approx(float(nats) + 0.5 * float(metrics[BALANCE]), rel=1e-5)
    assert float(metrics[BALANCE]) >= 1


def test_every_field_of_the_shape_is_an_option() -> None:
    usual: Mapping[str, Option] = {f.name: getattr(SPARSE, f.name) for f in fields(SPARSE)}
    assert spec_named("gemma-1m", usual) == SPARSE
