"""A configuration of Hugging Face's transformers as a `GemmaSpec`, and the way back.

Every field of the file is read, or has one value that this model implements, or has no effect on
training. Any other field is named and refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.errors import UserMistake
from islands.gemma.hf_rope import FIELDS, rope_parameters, rotations
from islands.gemma.spec import GLOBAL, GemmaSpec

GENERATIONS = {"gemma3_text": 3, "gemma4_text": 4}
"""The model types that are accepted."""
CLASSES = {3: "Gemma3ForCausalLM", 4: "Gemma4ForCausalLM"}
LETTERS = {"sliding_attention": "L", "full_attention": "G"}
"""The layer types, and their letters in `GemmaSpec.pattern`."""
LAYER_TYPES = {letter: name for name, letter in LETTERS.items()}
USUAL_PATTERN = 6
"""Layers of a period, if the file has no layer types: five local ones, then a global one."""
USUAL_GLOBAL_HEAD_SIZE = 512
"""Head size of Gemma 4's global layers, if the file has none."""

SIZES = {
    "vocab_size": "vocabulary",
    "hidden_size": "width",
    "num_hidden_layers": "layers",
    "intermediate_size": "hidden",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_size",
    "sliding_window": "window",
}
"""Sizes that every file must have, and our names."""
GEMMA_4 = {
    "attention_k_eq_v": ("keys_are_values", False),
    "num_kv_shared_layers": ("shared_kv_layers", 0),
    "use_double_wide_mlp": ("wide_shared", False),
    "hidden_size_per_layer_input": ("per_layer_size", 256),
}
"""Features of Gemma 4 that a file may have: our names, and the default."""
EXPERTS = {
    "num_experts": "experts",
    "top_k_experts": "experts_used",
    "moe_intermediate_size": "expert_hidden",
}
IMPLEMENTED: Mapping[str, tuple[Any, ...]] = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "attention_bias": (False,),
    "attention_dropout": (0, None),
    "tie_word_embeddings": (True,),
    "attn_logit_softcapping": (None,),
    "is_encoder_decoder": (False,),
    "use_bidirectional_attention": (None, False, "vision"),
}
"""Fields with the values that are implemented; text is causal under "vision"."""
NO_EFFECT = frozenset({
    "architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "use_cache",
    "cache_implementation", "initializer_range", "pad_token_id", "eos_token_id", "bos_token_id",
    "unk_token_id", "max_position_embeddings", "_name_or_path", "_model_name_or_path",
    "_attn_implementation", "attn_implementation", "output_hidden_states", "output_attentions",
    "return_dict", "chunk_size_feed_forward", "id2label", "label2id", "problem_type",
})  # fmt: skip
"""Fields that change neither the parameters nor their training."""


def read_config(path: Path) -> GemmaSpec:
    """Return the shape of the model that a `config.json` describes.

    Errors: `UserMistake` with every problem of the file.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        looked = "" if path.is_absolute() else f" (looked in {Path.cwd()})"
        raise UserMistake(f"{path}: there is no such file{looked}") from error
    except (OSError, ValueError) as error:
        raise UserMistake(f"{path} is no JSON file: {error}") from error
    if not isinstance(found, dict):
        raise UserMistake(f"{path} holds no JSON object")
    return spec_of(found, str(path))


def spec_of(config: Mapping[str, Any], where: str = "config.json") -> GemmaSpec:
    """Return the shape that the fields of a configuration describe; `where` begins each message.

    Errors: `UserMistake` with every problem.
    """
    kind = config.get("model_type")
    if kind not in GENERATIONS:
        inner = config.get("text_config")
        hint = (
            "; its text model is in text_config: save that as a file of its own"
            if isinstance(inner, dict) and inner.get("model_type") in GENERATIONS
            else ""
        )
        raise UserMistake(
            f"{where}: model_type = {kind!r}: known are {', '.join(GENERATIONS)}{hint}"
        )
    fields = _Fields(config, GENERATIONS[kind])
    options = fields.options()
    problems = fields.problems()
    if not problems:
        problems = GemmaSpec(**options).problems()
    if problems:
        raise UserMistake("\n".join(f"{where}: {problem}" for problem in problems))
    return GemmaSpec(**options)


class _Fields:
    """The fields of a configuration; those that are read are noted, and the others refused."""

    def __init__(self, config: Mapping[str, Any], generation: int) -> None:
        self._config, self._generation = config, generation
        self._read = {*NO_EFFECT}
        self._problems: list[str] = []

    def options(self) -> dict[str, Any]:
        """Return the options of a `GemmaSpec`."""
        found: dict[str, Any] = {"generation": self._generation}
        for name, own in SIZES.items():
            found[own] = self._of(name, int, None)
        found["pattern"] = self._pattern(found["layers"])
        found["norm_epsilon"] = self._of("rms_norm_eps", float, 1e-6)
        found["softcap"] = self._of("final_logit_softcapping", float, 0.0)
        if self._generation == 3:
            scalar = self._of("query_pre_attn_scalar", float, 256.0)
            found["query_scalar"] = 0.0 if scalar == found["head_size"] else scalar
        else:
            for name, (own, usual) in GEMMA_4.items():
                found[own] = self._of(name, type(usual), usual)
            self._per_layer_vocabulary(found)
            found |= _unless_equal(found, self._global_heads(found))
            if self._of("enable_moe_block", bool, False):
                found |= {own: self._of(name, int, None) for name, own in EXPERTS.items()}
            self._read |= {*EXPERTS}
        found |= self._rotations()
        return found

    def problems(self) -> list[str]:
        """Return the problems of the fields that were read, and name those that were not."""
        for name, values in IMPLEMENTED.items():
            if name in self._config and self._config[name] not in values:
                shown = " or ".join(map(repr, values))
                self._problems.append(
                    f"{name} = {self._config[name]!r} is not implemented, only {shown}"
                )
        unknown = [name for name in self._config if name not in self._read | {*IMPLEMENTED}]
        return self._problems + [
            f"{name} = {_short(self._config[name])} is not implemented; if it changes nothing, "
            "remove it from the file"
            for name in unknown
        ]

    def _of(self, name: str, kind: type, usual: Any) -> Any:
        """Return the value of a field or the default; without a default the field must exist."""
        self._read.add(name)
        value = self._config.get(name)
        if value is None:
            if usual is None:
                self._problems.append(f"{name} is missing")
                return 1
            return usual
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is not kind:
            self._problems.append(f"{name} = {_short(value)}: must be of type {kind.__name__}")
            return 1 if usual is None else usual
        return value

    def _pattern(self, layers: int) -> str:
        """Return the shortest pattern of the layer types."""
        self._read |= {"layer_types", "sliding_window_pattern", "_sliding_window_pattern"}
        types: Any = self._config.get("layer_types")
        if types is None:
            every = self._config.get("sliding_window_pattern", USUAL_PATTERN)
            if type(every) is not int or every < 1:
                self._problems.append(f"sliding_window_pattern = {_short(every)}: must be over 0")
                every = USUAL_PATTERN
            types = [
                "full_attention" if (i + 1) % every == 0 else "sliding_attention"
                for i in range(layers)
            ]
        given = map(str, types) if isinstance(types, list) else [_short(types)]
        if wrong := ", ".join(sorted({*given} - {*LETTERS})):
            self._problems.append(f"layer_types: {wrong} is not one of {', '.join(LETTERS)}")
            return "G"
        if len(types) != layers:
            self._problems.append(
                f"layer_types has {len(types)} entries, and num_hidden_layers is {layers}"
            )
            return "G"
        letters = [LETTERS[each] for each in types]
        if self._generation == 4:
            letters[-1] = "G"  # transformers makes the last layer of Gemma 4 global, too
        text = "".join(letters)
        return next(text[:n] for n in range(1, layers + 1) if (text[:n] * layers)[:layers] == text)

    def _per_layer_vocabulary(self, found: Mapping[str, Any]) -> None:
        size = self._of("vocab_size_per_layer_input", int, 262_144)
        if found["per_layer_size"] and size != found["vocabulary"]:
            self._problems.append(
                f"vocab_size_per_layer_input = {size} is not implemented, only vocab_size = "
                f"{found['vocabulary']}"
            )

    def _global_heads(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Read the heads of global layers, which a file has in one of two forms."""
        self._read |= {"per_layer_config", "global_head_dim", "num_global_key_value_heads"}
        each: Any = self._config.get("per_layer_config")
        if each is None:
            keys = self._of("num_global_key_value_heads", int, 0)
            size = self._of("global_head_dim", int, USUAL_GLOBAL_HEAD_SIZE)
            return {
                "global_head_size": size,
                "global_kv_heads": keys if found["keys_are_values"] else 0,
            }
        spec = GemmaSpec(layers=found["layers"], pattern=found["pattern"])
        layers = {str(i) for i, kind in enumerate(spec.kinds) if kind == GLOBAL}
        known = {"head_dim": "global_head_size", "num_key_value_heads": "global_kv_heads"}
        values = list(each.values()) if isinstance(each, dict) else [None]
        first = values[0] if values else {}
        if (
            not isinstance(each, dict)
            or {str(key).lstrip("0") or "0" for key in each} not in (layers, set())  # also "05"
            or any(value != first for value in values)
            or not isinstance(first, dict)
            or {*first} - {*known}
        ):
            self._problems.append(
                f"per_layer_config = {_short(each)} is not implemented, only one head_dim and one "
                "num_key_value_heads for all layers of full attention"
            )
            return {}
        return {own: first[name] for name, own in known.items() if name in first}

    def _rotations(self) -> dict[str, float]:
        self._read |= {*FIELDS}
        found = rotations(self._config, self._generation)
        self._problems += found.problems
        return found.options


def _unless_equal(local: Mapping[str, Any], whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of global heads; 0, the default, for those that local heads have, too."""
    return {
        name: 0 if size == local[name.removeprefix("global_")] else size
        for name, size in whole.items()
    }


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def config_of(spec: GemmaSpec) -> dict[str, Any]:
    """Return the fields of a `config.json` that makes transformers build such a model."""
    kinds = (spec.pattern * spec.layers)[: spec.layers]
    rope = rope_parameters(
        spec.local_rope_base,
        spec.global_rope_base,
        spec.global_rope_scale,
        spec.global_rope_share,
    )
    found: dict[str, Any] = {
        "architectures": [CLASSES[spec.generation]],
        "model_type": next(name for name, n in GENERATIONS.items() if n == spec.generation),
        "dtype": "float32",
        **{name: getattr(spec, own) for name, own in SIZES.items()},
        "layer_types": [LAYER_TYPES[letter] for letter in kinds],
        "rms_norm_eps": spec.norm_epsilon,
        "final_logit_softcapping": spec.softcap or None,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "rope_parameters": rope,
    }
    if spec.generation == 3:
        scalar = spec.query_scalar or float(spec.head_size)
        found["query_pre_attn_scalar"] = int(scalar) if scalar == int(scalar) else scalar
        return found
    heads = spec.heads_of(GLOBAL)
    found |= {name: getattr(spec, own) for name, (own, _) in GEMMA_4.items()}
    found["vocab_size_per_layer_input"] = spec.vocabulary
    found["per_layer_config"] = {
        str(i): {"head_dim": heads.size, "num_key_value_heads": heads.keys}
        for i, letter in enumerate(kinds)
        if letter == "G"
    }
    found["enable_moe_block"] = bool(spec.experts)
    if spec.experts:
        found |= {name: getattr(spec, own) for name, own in EXPERTS.items()}
    return found
