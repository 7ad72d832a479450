"""Folders that transformers itself wrote start a run, and it reads our tokenizer and template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archipelago.cli.main import main
from cluster.config.load import read
from cluster.config.schema import Config
from cluster.launch.preflight import enter
from cluster.workers.assembly import own_task_of, task_of
from islands.data.chat import ChatEncoder, template_of
from islands.data.text_tokens import encoder_of, library, trained
from islands.initial_model import shapes_by_path
from tests.cluster.test_hf_export import ended_run, exported
from tests.given import LEAST, sums

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

NOW = datetime(2026, 4, 5, tzinfo=UTC)
ISLANDS = "[[islands]]\ncount = 1\nbatch_size = 2\n"
BASE: Mapping[str, Any] = {
    "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8,
    "max_position_embeddings": 64, "pad_token_id": 0,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gemma-3": ("Gemma3", {**BASE, "query_pre_attn_scalar": 16}),
    "gemma-4": (
        "Gemma4",
        {
            **BASE,
            "global_head_dim": 16,
            "final_logit_softcapping": 30.0,
            "hidden_size_per_layer_input": 4,
            "vocab_size_per_layer_input": 256,
            "num_kv_shared_layers": 2,
        },
    ),
}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<turn>{{ m['role'] }}\n"
    "{{ m['content'] | trim }}</turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)
TALK = [
    {"role": "user", "content": "  Wie groß? "},
    {"role": "assistant", "content": "Three metres."},
    {"role": "user", "content": "And now?"},
    {"role": "assistant", "content": "Four."},
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    least = [line for line in LEAST.splitlines() if not line.startswith(("preset", "options"))]
    text = "\n".join(least).replace("SOURCE", str(sums(tmp_path / "text")))
    (tmp_path / "run.toml").write_text(f"{text}\n{ISLANDS}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def saved(case: str, folder: Path, **options: Any) -> Any:
    """Save a model whose parameters and buffers are all drawn, and return it."""
    import torch
    import transformers

    kind, fields = CASES[case]
    config = getattr(transformers, f"{kind}TextConfig")(**fields)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval().float()
    generator = torch.Generator().manual_seed(0)
    for name, tensor in model.state_dict(keep_vars=True).items():
        with torch.no_grad():
            if "norm" in name or name.endswith("scalar"):
                tensor.uniform_(0.5, 1.5, generator=generator)
            elif name != "lm_head.weight":
                tensor.normal_(0, tensor.shape[-1] ** -0.5, generator=generator)
    model.save_pretrained(folder, **options)
    return model


def entered(case_dir: str) -> Config:
    overrides = [f"task.preset={case_dir}/config.json", f"task.init_from=hf:{case_dir}"]
    config, _, layout = enter(
        read(Path("run.toml"), overrides), Path("run.toml"), Path("runs/new"), NOW
    )
    assert {leaf.path for leaf in layout.leaves} == {*shapes_by_path(own_task_of(config))}
    return config


@pytest.mark.parametrize("case", CASES)
def test_run_from_a_saved_model_begins_with_its_loss(case: str, here: Path) -> None:
    """The loss of the first step is that of transformers, so shape, weights and scalars are."""
    import torch

    model = saved(case, here / "model", max_shard_size="40KB")
    assert (here / "model" / "model.safetensors.index.json").exists()
    config = entered("model")
    task = task_of(config)
    tokens = np.random.default_rng(0).integers(1, 256, (2, 33), dtype=np.int32)
    found: Any = task.loss(task.init(config.run.seed), tokens)
    given = torch.tensor(tokens, dtype=torch.long)
    with torch.no_grad():
        logits = model(given[:, :-1], use_cache=False).logits
        wanted = torch.nn.functional.cross_entropy(
            logits.reshape(-1, 256), given[:, 1:].reshape(-1)
        )
    assert float(found) == pytest.approx(float(wanted), rel=1e-5)
    drawn: Any = own_task_of(config).loss(own_task_of(config).init(0), tokens)
    assert abs(float(drawn) - float(wanted)) > 1e-3
    assert ("layer_scalars" in config.task.options) is (case == "gemma-4")


def test_model_in_bfloat16_is_read_as_it_was_saved(here: Path) -> None:
    import torch

    model = saved("gemma-3", here / "model")
    model.to(torch.bfloat16).save_pretrained(here / "half")
    config = entered("half")
    task = task_of(config)
    leaves = dict(zip(shapes_by_path(task), task.initial_leaves(0), strict=True))
    wanted = model.model.embed_tokens.weight.detach().float().numpy()
    np.testing.assert_array_equal(leaves["embedding"], wanted)


def test_tokenizer_and_template_give_the_ids_of_transformers(here: Path) -> None:
    import transformers

    content = trained(iter(["three metres four user assistant"] * 20), 300)
    made = library().Tokenizer.from_buffer(content)
    made.add_special_tokens(["<bos>", "<turn>", "</turn>"])
    folder = here / "tokenizer"
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>",
        "eos_token": "<|endoftext|>", "chat_template": TEMPLATE,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    content = (folder / "tokenizer.json").read_bytes()
    encoder = ChatEncoder(encoder_of(content, "tokenizer"), content, template_of(str(folder)))
    theirs: Any = transformers.AutoTokenizer.from_pretrained(folder)
    text, spans = encoder.written(TALK)
    (found,) = encoder.encoded([(text, spans)])
    assert text == theirs.apply_chat_template(TALK, tokenize=False)
    wanted = theirs.apply_chat_template(TALK, tokenize=True, return_dict=False)
    assert found.ids[:-1].tolist() == list(wanted)
    for number, (begin, _) in zip((1, 3), spans, strict=True):
        prompt = theirs.apply_chat_template(
            TALK[:number], tokenize=False, add_generation_prompt=True
        )
        assert text[:begin] == prompt


def greedy_text(out: Path, prompt: str, tokens: int) -> str:
    """Return the text with which transformers continues a prompt."""
    import torch
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(out)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(out)
    given = tokenizer(prompt, return_tensors="pt")
    with torch.no_grad():
        found = model.generate(**given, max_new_tokens=tokens)[0, given.input_ids.shape[1] :]
    assert len(found) == tokens, "nothing ended the text"
    return str(tokenizer.decode(found))


@pytest.mark.parametrize("vocabulary", [256, 300])
def test_exported_run_continues_a_text_as_the_command_sample(
    vocabulary: int, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model has random weights; a vocabulary of 256 is that of bytes."""
    source = here / "text"
    if vocabulary > 256:
        source = here / "tokens"
        with pytest.raises(SystemExit):
            main(["data", "tokenize", "text", "tokens", "--train-vocab", str(vocabulary)])
    run_dir = ended_run(here, source, vocabulary)
    out = exported(run_dir)
    capsys.readouterr()
    words = ["sample", str(run_dir), "7 times", "--temperature", "0", "--tokens", "8", "--json"]
    with pytest.raises(SystemExit):
        main(words)
    assert greedy_text(out, "7 times", 8) == json.loads(capsys.readouterr().out)["text"]


def test_tokenizer_of_bytes_loads_in_transformers(here: Path) -> None:
    import transformers

    out = exported(ended_run(here, here / "text"))
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(out)
    for text in ("Grüße", "  two\nlines , it 's \0 <eos> </s>"):
        found = tokenizer(text).input_ids
        assert found == [*text.encode()]
        assert tokenizer.decode(found) == text
    assert len(tokenizer) == 256
    assert tokenizer.special_tokens_map == {}
    config = transformers.GenerationConfig.from_pretrained(out)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (None, None, None)
