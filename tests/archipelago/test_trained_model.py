"""A run's model continues text and is judged, from its directory alone."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from archipelago.cli.main import main
from archipelago.cli.start import MOST_TOKENS, closing_lines, cut_lines, own_text
from archipelago.trained_model import TrainedModel, trained_model
from cluster.config.load import load
from cluster.fleet.outcome import SUMMARY_FIELDS
from cluster.storage.folder import Folder
from cluster.storage.layout import save_layout
from cluster.storage.model_file import PART_BYTES, ModelFiles
from cluster.workers.assembly import task_of
from cluster.workers.evaluator import Evaluator
from coordinator.errors import UserMistake
from coordinator.fragments import Flat, take
from coordinator.protocol import Fragment, Version
from islands.adopt import layout_of
from islands.data.buckets import names_below
from islands.data.text_tokens import library
from islands.initial_model import open_source
from islands.sources import held_out, root_and_files
from islands.text_model import Sampling
from tests.given import LEAST, data_spec, sums


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a run that has ended, with random parameters."""
    folder = tmp_path_factory.mktemp("judged")
    run_dir = folder / "runs" / "first"
    run_dir.mkdir(parents=True)
    text = LEAST.replace("SOURCE", str(sums(folder / "text")))
    (run_dir / "config.toml").write_text(text + "\n[[islands]]\ncount = 1\n")
    publish(run_dir)
    return run_dir


def leaves_of(run_dir: Path) -> list[np.ndarray]:
    """Return random leaves that a model has, and the initial ones do not."""
    rng = np.random.default_rng(1)
    task = task_of(load(run_dir / "config.toml"))
    return [rng.normal(0, 0.2, leaf.shape).astype("f4") for leaf in jax.tree.leaves(task.shapes)]


def flats_of(run_dir: Path) -> list[Flat]:
    config = load(run_dir / "config.toml")
    layout = layout_of(task_of(config), config.sync.fragments)
    return [take(layout, Fragment(p), leaves_of(run_dir)) for p in range(len(layout.fragments))]


def publish(run_dir: Path) -> None:
    """Leave the layout and the model of a run beside its configuration."""
    config = load(run_dir / "config.toml")
    layout = layout_of(task_of(config), config.sync.fragments)
    save_layout(Folder(run_dir), layout)
    files = ModelFiles(run_dir, layout, PART_BYTES)
    for flat in flats_of(run_dir):
        files.add(Version(0, 1), flat)
    files.publish()


def parameters_of(run_dir: Path) -> dict[str, np.ndarray]:
    source = open_source(str(run_dir / "model.safetensors"))
    return {path: source.read(path) for path in source.leaves}


def command(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*words])
    assert not ended.value.code, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.long
def test_sample_continues_with_the_tokens_of_the_model(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = command(capsys, "sample", str(run_dir), "7 ti", "--tokens", "6", "--temperature", "0")
    task = task_of(load(run_dir / "config.toml"))
    params = jax.tree.unflatten(jax.tree.structure(task.shapes), leaves_of(run_dir))
    assert task.text is not None
    tokens = [*b"7 ti"]
    for _ in range(6):
        scores = task.text.logits(params, jnp.asarray([tokens], jnp.int32))
        tokens.append(int(jnp.argmax(scores[0, -1])))
    assert out == bytes(tokens).decode(errors="replace") + "\n"


@pytest.mark.long
def test_sample_as_json_says_what_was_generated(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("sample", str(run_dir), "7 ti", "--tokens", "40", "--seed", "3", "--json")
    once, again = (json.loads(command(capsys, *words)) for _ in range(2))
    assert (once["run"], once["prompt"], once["tokens"]) == ("first", "7 ti", 40)
    assert once["text"] == again["text"]
    assert len(once["text"].encode()) >= 40


def test_demo_ends_with_three_lines_of_its_model(run_dir: Path) -> None:
    figures = {"tokens_trained": 90_000, "heldout_loss": 2.5}
    assert {*figures} <= {*SUMMARY_FIELDS}
    report, heading, *lines = closing_lines(run_dir, figures)
    assert "report" in report
    assert "after 90.0k tokens, at a held-out loss of 2.50, they are rough" in heading
    text = "".join(trained_model(str(run_dir)).continued("\n", MOST_TOKENS, Sampling()))
    assert lines == cut_lines(text)[:3]
    assert len(lines) == 3
    assert lines == own_text(run_dir)


def test_demo_whose_model_is_gone_ends_with_the_reason(run_dir: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(run_dir, copied)
    (copied / "model.safetensors").unlink()
    *_, last = closing_lines(copied, {})
    assert last.startswith("the model has written no text: ")
    assert "copied" in last


def test_eval_gives_the_loss_of_the_evaluator(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(command(capsys, "eval", str(run_dir), "--json"))
    config = load(run_dir / "config.toml")
    loss = Evaluator(config).loss(flats_of(run_dir))
    assert found["heldout_loss"] == loss
    assert found["perplexity"] == pytest.approx(math.exp(loss))
    assert found["bits_per_byte"] == pytest.approx(loss / math.log(2))
    assert found["source"] == config.data.source


@pytest.mark.long
def test_eval_reads_another_source(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("z" * 20_000)
    found = json.loads(command(capsys, "eval", str(run_dir), "--data", str(other), "--json"))
    own = json.loads(command(capsys, "eval", str(run_dir), "--json"))
    assert found["source"] == str(other)
    assert found["heldout_loss"] != own["heldout_loss"]
    assert "nats per token" in command(capsys, "eval", str(run_dir))


@pytest.fixture
def own_data(tmp_path: Path) -> Path:
    """Return the directory of a run whose task has examples of its own."""
    run_dir = tmp_path / "runs" / "own"
    run_dir.mkdir(parents=True)
    (run_dir / "config.toml").write_text(OWN_DATA)
    config = load(run_dir / "config.toml")
    (run_dir / "config.toml").write_text(config.toml())  # as a run does: with all defaults
    publish(run_dir)
    return run_dir


OWN_DATA = """
[task]
target = "archipelago.examples.small_task:task"
[sync]
fragments = 2
[data]
window = 16
lease_windows = 32
[[islands]]
count = 1
"""


def test_eval_names_the_task_that_reads_its_own_data(
    own_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(command(capsys, "eval", str(own_data), "--json"))
    assert found["source"] == "read by archipelago.examples.small_task:task"
    out = command(capsys, "eval", str(own_data))
    assert out.startswith("own on data read by archipelago.examples.small_task:task: ")


def test_large_loss_has_a_finite_perplexity(own_data: Path) -> None:
    large = {path: np.float32(1e4) * leaf for path, leaf in parameters_of(own_data).items()}
    found = TrainedModel("own", load(own_data / "config.toml"), large, None).judged(windows=0)
    assert found.heldout_loss > 710
    assert math.isfinite(found.perplexity)


def test_another_source_is_refused_for_a_task_with_its_own_data(
    own_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["eval", str(own_data), "--data", "/does/not/exist"])
    assert ended.value.code == 2
    assert (
        "--data '/does/not/exist': the task archipelago.examples.small_task:task of run own does "
        "not read data.source, so the loss would be that of its own data: leave --data out"
    ) in capsys.readouterr().err


def test_run_whose_task_has_changed_is_refused(run_dir: Path) -> None:
    config = load(run_dir / "config.toml")
    parameters = {**parameters_of(run_dir), "norm": np.zeros(3, np.float32)}
    with pytest.raises(UserMistake, match=r"the task has changed since: its leaf norm is \(16,\)"):
        _ = TrainedModel("first", config, parameters, None).params


def test_task_that_is_no_model_of_text_is_refused(run_dir: Path) -> None:
    model = trained_model(str(run_dir))
    model.task = replace(model.task, text=None)
    with pytest.raises(UserMistake, match=r"run first: its task byte-tiny is not known as a model"):
        next(model.continued("a", 1, Sampling()))


def test_empty_prompt_is_refused(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sample", str(run_dir), ""])
    assert ended.value.code == 2
    assert "the prompt is empty" in capsys.readouterr().err


@pytest.mark.long
def test_losses_by_type_add_up_to_those_of_each_text(run_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    for number in range(10, 30):
        (folder / f"{number}.py").write_text(f"value = {number}\n" * 40)
        (folder / f"{number}.md").write_text(f"{number} is a number, and so on.\n" * 40)
    model = trained_model(str(run_dir))
    found = {each.type: each for each in model.judged(str(folder), windows=10_000).types}
    assert {*found} == {".py", ".md"}
    spec = replace(data_spec(str(folder)), window=16, heldout_percent=20.0)
    root, files = root_and_files(spec)
    names = names_below(root, files)
    scores_of, nats, tokens = jax.jit(model.text.logits), 0.0, 0
    for name, is_out in zip(names, held_out(names, spec), strict=True):
        if is_out and name.endswith(".py"):
            text = [*(folder / name).read_bytes(), 0]
            for first in range(0, len(text) - 1, 16):
                part = jnp.asarray([text[first : first + 17]], jnp.int32)
                scores = jax.nn.log_softmax(scores_of(model.params, part[:, :-1]))
                nats -= float(jnp.take_along_axis(scores, part[:, 1:, None], -1).sum())
                tokens += part.shape[1] - 1
    assert tokens == found[".py"].tokens == found[".py"].bytes
    assert found[".py"].heldout_loss == pytest.approx(nats / tokens, rel=1e-4)
    assert found[".py"].bits_per_byte == pytest.approx(nats / tokens / math.log(2), rel=1e-4)
    few = {each.type: each for each in model.judged(str(folder), windows=3).types}
    assert few[".py"].tokens <= 3 * 16 < found[".py"].tokens
    assert model.judged(str(folder), windows=0).types == []


# --- token directories and mixtures ---------------------------------------------------------------


def made(folder: Path, data: str, vocabulary: int) -> Path:
    """Leave the files of a run with these keys, or tables, of `[data]`, and random parameters."""
    run_dir = folder / "runs" / "first"
    run_dir.mkdir(parents=True)
    text = LEAST.replace('source = "SOURCE"\n', "") + data
    text = text.replace("hidden = 32", f"hidden = 32, vocabulary = {vocabulary}")
    (run_dir / "config.toml").write_text(text + "\n[[islands]]\ncount = 1\n")
    publish(run_dir)
    return run_dir


def token_directory(folder: Path, name: str, vocabulary: int | None = None) -> Path:
    """Tokenize the text of `sums` as bytes, or with a tokenizer of this vocabulary."""
    given = [] if vocabulary is None else ["--train-vocab", str(vocabulary)]
    with pytest.raises(SystemExit) as done:
        main(["data", "tokenize", str(sums(folder / "text")), str(folder / name), *given])
    assert not done.value.code
    return folder / name


def test_another_source_replaces_a_mixture(tmp_path: Path) -> None:
    text = sums(tmp_path / "text")
    one, other = tmp_path / "ones.txt", tmp_path / "zs.txt"
    one.write_text("1" * 20_000)
    other.write_text("z" * 20_000)
    tables = "".join(f'[[data.mixture]]\nsource = "{each}"\nweight = 1.0\n' for each in (text, one))
    run_dir = made(tmp_path, tables, 256)
    model = trained_model(str(run_dir))
    found = model.judged(str(other), windows=0)
    alone = trained_model(str(made(tmp_path / "alone", f'source = "{other}"\n', 256)))
    assert found.source == str(other)
    assert found.heldout_loss == alone.judged(windows=0).heldout_loss
    own = model.judged(windows=0)
    assert own.heldout_loss != found.heldout_loss
    assert own.source == f"{text}, {one}"


def test_text_is_judged_with_the_tokenizer_of_a_token_directory(tmp_path: Path) -> None:
    tokens = token_directory(tmp_path, "tokens", 300)
    run_dir = made(tmp_path, f'source = "{tokens}"\n', 300)
    other = tmp_path / "more"
    other.mkdir()
    for number in range(8):
        (other / f"{number}.txt").write_text(f"{number} plus {number}, and so on\n" * 200)
    model = trained_model(str(run_dir))
    assert model.text.codec.encode("3 times 1")[0] != ord("3")
    found = model.judged(str(other), windows=50)
    data = f'source = "{other}"\ntokenizer = "{tokens}"\n'
    wanted = trained_model(str(made(tmp_path / "as-text", data, 300))).judged(windows=50)
    assert found.heldout_loss == wanted.heldout_loss
    assert found.types == wanted.types
    assert found.types[0].bytes > found.types[0].tokens
    with pytest.raises(UserMistake, match="and the model was trained with a tokenizer"):
        model.judged(str(token_directory(tmp_path, "bytes")), windows=0)


def test_token_directory_has_bits_per_byte_of_its_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A token of this tokenizer has a character for each byte; the last one of a document none."""
    tokens = token_directory(tmp_path, "tokens", 300)
    run_dir = made(tmp_path, f'source = "{tokens}"\n', 300)
    found = trained_model(str(run_dir)).judged(windows=0)
    tokenizer = library().Tokenizer.from_file(str(tokens / "tokenizer.json"))
    end = json.loads((tokens / "index.json").read_text())["end_token"]
    sizes = [0 if i == end else len(tokenizer.id_to_token(i)) for i in range(300)]
    batches = task_of(load(run_dir / "config.toml")).heldout(16)
    predicted = [
        token
        for number in range(min(len(batches), 512 // 16))
        for token in np.asarray(batches[number])[:, 1:].ravel().tolist()
    ]
    ratio = len(predicted) / sum(sizes[token] for token in predicted)
    assert ratio < 0.9
    wanted = found.heldout_loss / math.log(2) * ratio
    assert found.bits_per_byte == pytest.approx(wanted, rel=1e-9)
    assert found.bits_per_byte_missing is None
    out = command(capsys, "eval", str(run_dir), "--windows", "0")
    assert f"{wanted:.4f} bits per byte" in out


def test_tokens_of_several_tokenizers_have_no_bits_per_byte(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = (token_directory(tmp_path, "one", 300), sums(tmp_path / "more"))
    tables = "".join(f'[[data.mixture]]\nsource = "{s}"\nweight = 1.0\n' for s in sources)
    run_dir = made(tmp_path, tables, 300)
    out = command(capsys, "eval", str(run_dir), "--windows", "0")
    assert "bits per byte are not known: data.mixture: its sources have different tokeni" in out
    found = trained_model(str(run_dir)).judged(windows=0)
    assert found.bits_per_byte is None
    assert "tokenize all sources with one tokenizer" in (found.bits_per_byte_missing or "")
