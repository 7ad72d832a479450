"""`archipelago export --format hf`: the model card parses back, and the tokenizer comes along."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard

from archipelago.cli.main import main
from archipelago.lab.checks.audit import lineage_of
from cluster.config.load import load
from cluster.fleet.results import save_model
from cluster.launch.hf_card import FIGURES, card_of
from cluster.storage.folder import Folder
from cluster.storage.layout import save_layout
from cluster.workers.assembly import layout_for, task_of
from coordinator.fragments import take
from coordinator.protocol import Fragment, Version
from islands.data.text_tokens import library
from tests.cluster.played import Played
from tests.given import LEAST, sums

ISLANDS = "[[islands]]\ncount = 1\nbatch_size = 2\n"
SHAPE = '{ layers = 2, pattern = "LG", width = 24, hidden = 32, vocabulary = VOCABULARY }'
SUMMARY: dict[str, Any] = {
    "mode": "decoupled", "steps": 24, "tokens_trained": 123_456, "tokens_merged": 120_000,
    "tokens_lost": 1_000, "merges": 11, "mean_participants": 1.75, "heldout_loss": 2.5,
    "initial_heldout_loss": 5.5, "goodput": 0.875, "device_hours": 0.25,
    "global_sha256": "a" * 64, "source_sha256": "b" * 16,
}  # fmt: skip
"""Figures of a run; the sum of the tokens is that of no real one."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ended_run(
    here: Path,
    source: Path,
    vocabulary: int = 256,
    *,
    data: str = "",
    mixture: tuple[str, ...] = (),
    more: str = "",
) -> Path:
    """Leave the files of a run that has ended, with a random model; return its directory.

    `mixture`: sources in place of `source`.
    """
    run_dir = here / "runs" / "first"
    run_dir.mkdir(parents=True)
    least = [line for line in LEAST.splitlines() if not line.startswith(("preset", "options"))]
    if mixture:
        least = [line for line in least if not line.startswith("source")]
    text = "\n".join(least).replace("SOURCE", str(source))
    options = SHAPE.replace("VOCABULARY", str(vocabulary))
    task = f'[task]\npreset = "gemma-0.1m"\noptions = {options}'
    text = text.replace("[task]", task).replace("[data]", f"[data]\n{data}")
    for each in mixture:
        text += f'\n[[data.mixture]]\nsource = "{here / each}"\nweight = 1.0\n'
    (run_dir / "config.toml").write_text(f"{text}\n{more}\n{ISLANDS}")
    config = load(run_dir / "config.toml")
    layout, rng = layout_for(config, task_of(config)), np.random.default_rng(0)
    leaves = [rng.normal(0, 1, leaf.shape).astype(np.float32) for leaf in layout.leaves]
    flats = [take(layout, Fragment(p), leaves) for p in range(len(layout.fragments))]
    save_layout(Folder(run_dir), layout)
    save_model(run_dir, layout, [(Version(0, 0), flat) for flat in flats])
    (run_dir / "summary.json").write_text(json.dumps(SUMMARY))
    return run_dir


def exported(run_dir: Path, *more: str, name: str = "out") -> Path:
    with pytest.raises(SystemExit) as done:
        main(["export", str(run_dir), name, "--format", "hf", *more])
    assert not done.value.code
    return run_dir.parents[1] / name


def results_of(card: ModelCard) -> list[Any]:
    data: Any = card.data
    return data.eval_results or []


def refused(capsys: pytest.CaptureFixture[str], run_dir: Path) -> str:
    with pytest.raises(SystemExit) as done:
        main(["export", str(run_dir), "out", "--format", "hf"])
    assert done.value.code == 2
    assert not Path("out").exists()
    return capsys.readouterr().err


def test_card_parses_back_to_the_figures_of_the_run(here: Path) -> None:
    run_dir = ended_run(here, sums(here / "text"), more='[run]\nname = "first"\nseed = 4')
    card = ModelCard.load(exported(run_dir) / "README.md")
    header: Any = card.data.to_dict()
    assert header["library_name"] == "transformers"
    assert header["pipeline_tag"] == "text-generation"
    assert {*header["tags"]} >= {"archipelago", "gemma3_text"}
    figures = header["archipelago"]
    assert {name: figures[name] for name in SUMMARY} == SUMMARY
    config = load(run_dir / "config.toml")
    assert figures["config_sha256"] == config.sha256
    assert figures["data"] == [str(here / "text")]
    assert figures["seed"] == 4
    weights = json.loads((here / "out" / "config.json").read_text())
    assert weights["model_type"] in header["tags"]
    results = {each.metric_type: each.metric_value for each in results_of(card)}
    assert results == {"loss": 2.5, "perplexity": pytest.approx(np.exp(2.5))}
    for shown in ("123,456", "2.5", "0.875", "a" * 64, str(here / "text")):
        assert shown in card.text
    assert {*FIGURES} <= {*SUMMARY}


def test_card_has_the_lineage_that_an_audit_computes(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The digest of the merges comes from the tape of a run whose rules and stores are real."""
    run_dir = here / "played"
    Played(run_dir).to_the_end(24)
    with pytest.raises(SystemExit):
        main(["audit", str(run_dir), "--json"])
    wanted = json.loads(capsys.readouterr().out)["lineage_sha256"]
    assert lineage_of(run_dir) == wanted
    facts = {"parameters": 37, "step": None, "lineage_sha256": wanted}
    text = card_of(run_dir, load(run_dir / "config.toml"), "gemma3_text", facts)
    header: Any = ModelCard(text).data.to_dict()
    assert header["archipelago"]["lineage_sha256"] == wanted
    summary = json.loads((run_dir / "summary.json").read_text())
    assert header["archipelago"]["global_sha256"] == summary["global_sha256"]
    assert wanted in text
    assert lineage_of(here) is None


def test_card_of_an_earlier_step_or_a_live_run_has_no_figures_of_the_end(here: Path) -> None:
    run_dir = ended_run(here, sums(here / "text"))
    config = load(run_dir / "config.toml")
    facts = {"parameters": 37, "step": 8, "lineage_sha256": None}
    early: Any = ModelCard(card_of(run_dir, config, "gemma3_text", facts)).data.to_dict()
    assert early["archipelago"]["step"] == 8
    (run_dir / "summary.json").unlink()
    live = ModelCard.load(exported(run_dir) / "README.md")
    assert results_of(live) == []
    for figures in (early["archipelago"], live.data.to_dict()["archipelago"]):
        assert not {*figures} & {*SUMMARY}
        assert figures["config_sha256"] == config.sha256


def test_tokenizer_comes_along_with_its_special_tokens(here: Path) -> None:
    sums(here / "text")
    with pytest.raises(SystemExit):
        main(["data", "tokenize", "text", "tokens", "--train-vocab", "300"])
    index = json.loads((here / "tokens" / "index.json").read_text())
    run_dir = ended_run(here, here / "tokens", vocabulary=300)
    out = exported(run_dir)
    tokenizer = (here / "tokens" / "tokenizer.json").read_bytes()
    assert (out / "tokenizer.json").read_bytes() == tokenizer
    settings = json.loads((out / "tokenizer_config.json").read_text())
    assert settings["eos_token"] == "<|endoftext|>"
    fields = json.loads((out / "config.json").read_text())
    ids = [fields[f"{name}_token_id"] for name in ("bos", "eos", "pad")]
    assert ids == [None, index["end_token"], None]
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == 0
    header: Any = ModelCard.load(out / "README.md").data.to_dict()
    assert header["archipelago"]["data_sha256"] == index["sha256"]


def test_model_of_bytes_gets_a_tokenizer_whose_ids_are_bytes(here: Path) -> None:
    """A model may have more ids than bytes; no id of it is special."""
    run_dir = ended_run(here, sums(here / "text"), vocabulary=320)
    out = exported(run_dir)
    found = library().Tokenizer.from_file(str(out / "tokenizer.json"))
    text = "Grüße\0 \n\t  it's 10 €" + "".join(map(chr, range(256)))
    assert found.encode(text).ids == [*text.encode()]
    assert found.decode([*text.encode()]) == text
    assert sorted(found.get_vocab().values()) == [*range(256)]
    fields = json.loads((out / "config.json").read_text())
    assert [fields[f"{name}_token_id"] for name in ("bos", "eos", "pad")] == [None] * 3
    assert json.loads((out / "generation_config.json").read_text()) == {"do_sample": False}


def test_mixture_gets_its_common_tokenizer(here: Path) -> None:
    sums(here / "text")
    for out, how in (("one", "--train-vocab 300"), ("two", "--tokenizer one")):
        with pytest.raises(SystemExit):
            main(["data", "tokenize", "text", out, *how.split()])
    run_dir = ended_run(here, here / "text", vocabulary=300, mixture=("one", "two"))
    out = exported(run_dir)
    tokenizer = (here / "one" / "tokenizer.json").read_bytes()
    assert (out / "tokenizer.json").read_bytes() == tokenizer
    assert json.loads((out / "config.json").read_text())["eos_token_id"] == 0


def test_mixture_of_several_tokenizers_has_no_special_ids(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sums(here / "text")
    with pytest.raises(SystemExit):
        main(["data", "tokenize", "text", "one", "--train-vocab", "300"])
    out = exported(ended_run(here, here / "text", vocabulary=300, mixture=("one", "text")))
    assert not (out / "tokenizer.json").exists()
    fields = json.loads((out / "config.json").read_text())
    assert [fields[f"{name}_token_id"] for name in ("bos", "eos", "pad")] == [None] * 3
    assert "the export has no tokenizer: data.mixture" in caplog.text


def test_settings_beside_a_tokenizer_are_copied(here: Path) -> None:
    sums(here / "text")
    with pytest.raises(SystemExit):
        main(["data", "tokenize", "text", "tokens", "--train-vocab", "300"])
    kept = here / "kept"
    kept.mkdir()
    (kept / "tokenizer.json").write_bytes((here / "tokens" / "tokenizer.json").read_bytes())
    (kept / "tokenizer_config.json").write_text('{"of": "the user"}')
    (kept / "chat_template.jinja").write_text("{{ messages }}")
    run_dir = ended_run(here, here / "text", 300, data=f'tokenizer = "{kept}"')
    out = exported(run_dir)
    assert json.loads((out / "tokenizer_config.json").read_text()) == {"of": "the user"}
    assert (out / "chat_template.jinja").read_text() == "{{ messages }}"


def test_shape_without_a_field_in_transformers_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = ended_run(here, sums(here / "text"))
    config = (run_dir / "config.toml").read_text()
    fourth = "generation = 4, query_scalar = 9.0, layers"
    (run_dir / "config.toml").write_text(config.replace("{ layers", f"{{ {fourth}"))
    said = refused(capsys, run_dir)
    assert "query_scalar = 9.0 in the task and 1.0 in transformers" in said


def test_shape_that_transformers_does_not_load_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = ended_run(here, sums(here / "text"))
    config = (run_dir / "config.toml").read_text()
    (run_dir / "config.toml").write_text(config.replace("width = 24", "width = 23"))
    said = refused(capsys, run_dir)
    assert "task.options.width = 23 is no multiple of heads = 3" in said
    assert "set width to 21 or 24" in said
    assert "--format safetensors" in said


def test_missing_package_is_named_before_anything_is_written(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = ended_run(here, sums(here / "text"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install -c constraints.txt '.[hf]'" in refused(capsys, run_dir)
