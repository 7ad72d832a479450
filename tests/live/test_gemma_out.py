"""A Gemma run goes out to transformers and comes back, speaks and answers, on real Ray."""

from __future__ import annotations

import json

import numpy as np
import pytest
from huggingface_hub import ModelCard
from safetensors.numpy import load_file

from tests.cluster.test_hf_transformers import greedy_text
from tests.given import sums
from tests.live.cli import TINY, place

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

SHAPE = '{ layers = 2, pattern = "LG", width = 32, hidden = 48, window = 8 }'
CHOICES = ("1", "2", "3", "4")


def test_export_import_continue_has_the_same_loss_to_the_last_bit() -> None:
    with place() as here:
        text = sums(here.folder / "text")
        settings = (
            "task.preset=gemma-0.1m", f"task.options={SHAPE}", f"data.source={text}",
            "data.heldout_percent=20.0", "run.steps=8", "islands.local.count=1",
        )  # fmt: skip
        given = [part for each in settings for part in ("--set", each)]

        def trained(*more: str) -> dict[str, object]:
            done = here.run("run", str(TINY), "--run-dir", str(here.run_dir), *given, *more)
            assert done.code == 0, done.err
            return json.loads((here.run_dir / "summary.json").read_text())

        before = trained()
        first, out = here.run_dir.rename(here.folder / "first"), here.folder / "out"
        done = here.run("export", str(first), str(out), "--format", "hf", "--json")
        assert done.code == 0, done.err
        after = trained("--set", f"task.init_from=hf:{out}")
        assert after["initial_heldout_loss"] == before["heldout_loss"]
        assert after["heldout_loss"] != before["heldout_loss"]
        at_start = here.folder / "start.safetensors"
        done = here.run("export", str(here.run_dir), str(at_start), "--at", "0")
        assert done.code == 0, done.err
        wanted, found = load_file(first / "model.safetensors"), load_file(at_start)
        assert {*wanted} == {*found}
        assert all(np.array_equal(array, found[path]) for path, array in wanted.items())

        audited = here.run("audit", str(first), "--json").json
        card = ModelCard.load(out / "README.md").data.to_dict()["archipelago"]
        assert card["lineage_sha256"] == audited["lineage_sha256"]
        for key in ("heldout_loss", "tokens_trained", "merges", "goodput", "global_sha256"):
            assert card[key] == before[key]

        spoken = here.run("sample", str(first), "3 times 1", "--tokens", "12", "--json")
        assert spoken.code == 0, spoken.err
        assert len(spoken.json["text"]) > 0
        rows = [
            {"question": f"{n} times 1 is", "choices": CHOICES, "answer": n - 1}
            for n in (1, 2, 3, 4)
        ]
        asked = here.folder / "times.jsonl"
        asked.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        judged = here.run("eval", str(first), "--tasks", str(asked), "--windows", "0", "--json")
        assert judged.code == 0, judged.err
        assert judged.json["heldout_loss"] == before["heldout_loss"]
        (score,) = judged.json["tasks"]
        assert (score["task"], score["questions"], score["chance"]) == ("times", 4, 0.25)
        assert 0 <= score["accuracy"] <= 1


@pytest.mark.parametrize("vocabulary", [256, 300])
def test_trained_run_continues_a_text_in_transformers(vocabulary: int) -> None:
    """A vocabulary of 256 is that of bytes; the other run has a tokenizer of its own."""
    with place() as here:
        source = sums(here.folder / "text")
        if vocabulary > 256:
            source = here.folder / "tokens"
            given = ("--train-vocab", str(vocabulary))
            done = here.run("data", "tokenize", str(here.folder / "text"), str(source), *given)
            assert done.code == 0, done.err
        settings = (
            "task.preset=gemma-0.1m", f"task.options.vocabulary={vocabulary}", "run.steps=60",
            f"data.source={source}", "data.heldout_percent=20.0", "islands.local.count=1",
        )  # fmt: skip
        given = [part for each in settings for part in ("--set", each)]
        done = here.run("run", str(TINY), "--run-dir", str(here.run_dir), *given)
        assert done.code == 0, done.err
        out = here.folder / "out"
        done = here.run("export", str(here.run_dir), str(out), "--format", "hf", "--json")
        assert done.code == 0, done.err
        words = ("3 times 1", "--temperature", "0", "--tokens", "16", "--json")
        spoken = here.run("sample", str(here.run_dir), *words)
        assert spoken.code == 0, spoken.err
        assert spoken.json["text"] == greedy_text(out, "3 times 1", 16)
