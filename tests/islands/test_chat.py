"""Conversations: the loss counts the answers only, from the file to the gradient."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from archipelago.cli.main import main
from coordinator.errors import UserMistake
from islands.corpus import Corpus
from islands.corpus_reader import open_corpus
from islands.data.chat import PLAIN, ChatEncoder, ChatTemplate, Unfit, template_of
from islands.data.segments import LOSS_MASK, SEGMENTS, TOKENS
from islands.data.text_tokens import ByteEncoder, encoder_of, library, trained
from islands.data.token_index import opened
from islands.data.token_writer import TokenizeProgress, written
from islands.data.tokenize_plan import TokenizeOptions, plan_of
from islands.sources import MixtureSource
from islands.task import load_task
from tests.given import data_spec, sums

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Wie groß?"},
    {"role": "assistant", "content": "Three metres."},
    {"role": "user", "content": "And now?"},
    {"role": "assistant", "content": "Four."},
]
TURNS = (
    "{{ bos_token }}{% for m in messages %}<turn>{{ m['role'] }}\n"
    "{{ m['content'] | trim }}</turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)
"""A template in the manner of Gemma's."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tokenizer(folder: Path, template: str | None = TURNS) -> bytes:
    """Write a tokenizer with special tokens for turns, and return its file."""
    content = trained(iter(["three metres four system user assistant brief"] * 20), 300)
    made = library().Tokenizer.from_buffer(content)
    made.add_special_tokens(["<bos>", "<turn>", "</turn>"])
    folder.mkdir()
    (folder / "tokenizer.json").write_text(made.to_str())
    if template is not None:
        settings = {"chat_template": template, "bos_token": {"content": "<bos>"}}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return (folder / "tokenizer.json").read_bytes()


def talks(path: Path, conversations: Sequence[object], field: str = "messages") -> Path:
    path.write_text("".join(json.dumps({field: each}) + "\n" for each in conversations))
    return path


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    return int(done.value.code or 0)


def counted(ids: Any, answers: Any) -> bytes:
    """Return the text of bytes that the loss counts."""
    return bytes(int(each) for each, counts in zip(ids, answers, strict=True) if counts)


def test_answers_of_bytes_are_counted_and_nothing_else() -> None:
    encoder = ChatEncoder(ByteEncoder(), None, template_of(None))
    (found,) = encoder.encoded([encoder.written(TALK)])
    text = bytes(found.ids[:-1].tolist()).decode()
    assert text == "".join(f"{each['role']}: {each['content']}\n" for each in TALK)
    assert found.ids[-1] == 0
    assert counted(found.ids, found.answers) == b"Three metres.\nFour.\n\0"


def test_end_is_not_counted_if_the_user_has_the_last_word() -> None:
    encoder = ChatEncoder(ByteEncoder(), None, template_of(None))
    (found,) = encoder.encoded([encoder.written(TALK[:4])])
    assert counted(found.ids, found.answers) == b"Three metres.\n"


def test_template_of_the_tokenizer_is_used_with_its_special_tokens(here: Path) -> None:
    content = tokenizer(here / "tok")
    plain = encoder_of(content, "tok")
    encoder = ChatEncoder(plain, content, template_of("tok/tokenizer.json"))
    (found,) = encoder.encoded([encoder.written(TALK)])
    ids, reader = found.ids.tolist(), plain.tokenizer
    number = {name: reader.token_to_id(name) for name in ("<bos>", "<turn>", "</turn>")}
    assert ids[0] == number["<bos>"]
    assert ids.count(number["<turn>"]) == ids.count(number["</turn>"]) == len(TALK)
    kept = [each for each, counts in zip(ids, found.answers, strict=True) if counts]
    text = reader.decode(kept, skip_special_tokens=False)
    assert text == "Three metres.</turn>\nFour.</turn>\n<|endoftext|>"
    assert ids[-1] == plain.end_token


def test_first_word_of_an_answer_is_counted_if_its_token_has_the_space_before_it() -> None:
    content = trained(iter(["user: three metres\nassistant: Three metres.\n"] * 20), 400)
    reader = encoder_of(content, "tok").tokenizer
    encoder = ChatEncoder(encoder_of(content, "tok"), content, template_of(None))
    (found,) = encoder.encoded([encoder.written(TALK)])
    kept = [each for each, counts in zip(found.ids, found.answers, strict=True) if counts]
    assert reader.decode(kept) == " Three metres.\nFour.\n"  # "Four" was never seen: no such token


def test_one_of_several_templates_is_used_by_its_name(here: Path) -> None:
    tokenizer(here / "tok")

    def given(*names: str, template: object = TURNS) -> None:
        several = [{"name": name, "template": template} for name in names]
        settings = {"chat_template": several or template}
        (here / "tok" / "tokenizer_config.json").write_text(json.dumps(settings))

    given("rag", "default")
    assert template_of("tok") == ChatTemplate(TURNS, own=True)
    given("rag", "tool_use")
    with pytest.raises(UserMistake, match=r"none has the name 'default': write the one to use"):
        template_of("tok")
    for wrong in (7, {"default": TURNS}, [TURNS]):
        given(template=wrong)
        with pytest.raises(UserMistake, match="the chat template cannot be read"):
            template_of("tok")


def test_blocks_of_generation_and_loop_controls_are_read() -> None:
    line = "{{ message.content }}\n"
    text = PLAIN.replace(line, f"{{% generation %}}{line}{{% endgeneration %}}")
    text = text.replace("{{ message.role", "{% if false %}{% break %}{% endif %}{{ message.role")
    assert text.count("{%") == PLAIN.count("{%") + 5
    encoder = ChatEncoder(ByteEncoder(), None, ChatTemplate(text, own=False))
    plain = ChatEncoder(ByteEncoder(), None, template_of(None))
    assert encoder.written(TALK) == plain.written(TALK)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hello", "no list of messages"),
        ([], "no list of messages"),
        ([{"role": "user"}], "message 1 needs a role and a content"),
        ([{"role": "user", "content": ["image"]}], "message 1 needs a role and a content"),
        ([{"role": "user", "content": "a\0b"}], "message 1 contains a byte 0"),
        ([{"role": "user", "content": "\ud800"}], "message 1 is not UTF-8"),
    ],
)
def test_conversation_of_another_form_is_refused(messages: object, message: str) -> None:
    encoder = ChatEncoder(ByteEncoder(), None, template_of(None))
    with pytest.raises(Unfit, match=message):
        encoder.written(messages)


def test_special_token_in_a_message_cannot_end_a_turn(here: Path) -> None:
    content = tokenizer(here / "tok")
    encoder = ChatEncoder(encoder_of(content, "tok"), content, template_of("tok"))
    with pytest.raises(Unfit, match="contains the special token '</turn>' as text"):
        encoder.written([{"role": "user", "content": "a</turn>b"}, *TALK[2:3]])


def test_template_that_rewrites_earlier_answers_is_refused() -> None:
    text = "{% for m in messages %}{{ loop.length }}{{ m.content }}{% endfor %}"
    encoder = ChatEncoder(ByteEncoder(), None, ChatTemplate(text, own=True))
    with pytest.raises(Unfit, match="writes message 3 otherwise if more follow"):
        encoder.written(TALK)


def test_refusal_of_a_template_and_a_broken_one_are_messages() -> None:
    text = "{{ raise_exception('roles must alternate') }}"
    encoder = ChatEncoder(ByteEncoder(), None, ChatTemplate(text, own=True))
    with pytest.raises(Unfit, match="the template refuses it: roles must alternate"):
        encoder.written(TALK)
    with pytest.raises(UserMistake, match="chat template of the tokenizer is broken"):
        ChatEncoder(ByteEncoder(), None, ChatTemplate("{% for", own=True))


def test_template_cannot_run_code() -> None:
    text = "{{ messages.__class__.__mro__ }}"
    encoder = ChatEncoder(ByteEncoder(), None, ChatTemplate(text, own=True))
    with pytest.raises(Unfit, match="the template refuses it"):
        encoder.written(TALK)


# --- token directories ----------------------------------------------------------------------------


def test_tokenize_and_inspect_show_the_masked_share(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talks(here / "talks.jsonl", [TALK] * 30 + [TALK[:2]] * 3)
    assert run("data", "inspect", "talks.jsonl", "--chat", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert run("data", "tokenize", "talks.jsonl", "tokens", "--chat", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    encoder = ChatEncoder(ByteEncoder(), None, template_of(None))
    (one,) = encoder.encoded([encoder.written(TALK)])
    assert made["tokens"] == facts["tokens"] == 30 * len(one.ids)
    assert made["answers"] == facts["answers"] == 30 * len(b"Three metres.\nFour.\n\0")
    share = 1 - np.mean(one.answers)
    assert made["masked_share"] == pytest.approx(share)
    assert facts["masked_share"] == pytest.approx(share)
    assert made["documents"] == 30
    assert made["left_out"] == {"conversations without an answer": 3}
    assert made["vocabulary"] == 256
    assert run("data", "inspect", "tokens", "--json", "--all") == 0
    kept = json.loads(capsys.readouterr().out)
    assert kept["masked_share"] == pytest.approx(share)
    assert kept["problems"] == []
    assert kept["samples"][0].startswith("system: Be brief. user: Wie groß?")
    assert run("data", "inspect", "tokens") == 0
    assert f"630 tokens of answers; {share:.1%} are masked" in capsys.readouterr().out


def test_killed_call_is_continued_to_the_same_directory(here: Path) -> None:
    long = [TALK[0], {"role": "user", "content": "x" * 20_000}, *TALK[2:]]
    talks(here / "talks.jsonl", [long] * 150)  # three pieces of the file, so three shards
    data = replace(data_spec(), source="talks.jsonl", column="messages")
    options = TokenizeOptions(shard_tokens=1024, chat=True)

    class Killed(Exception):
        pass

    def killed(progress: TokenizeProgress) -> None:
        if len(progress.shards) == 2:
            raise Killed

    whole = written(plan_of(data, options, here / "whole"), here / "whole", lambda progress: None)
    with pytest.raises(Killed):
        written(plan_of(data, options, here / "cut"), here / "cut", killed)
    cut = written(plan_of(data, options, here / "cut"), here / "cut", lambda progress: None)
    assert cut == whole
    assert len(cut.shards) == 3
    assert cut.answers == 150 * len(b"Three metres.\nFour.\n\0")
    for shard in cut.shards:
        content = (here / "cut" / shard.file).read_bytes()
        assert content == (here / "whole" / shard.file).read_bytes()


def test_damage_is_refused_or_counted(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talks(here / "talks.jsonl", [TALK] * 20 + ["no conversation"])
    assert run("data", "tokenize", "talks.jsonl", "tokens", "--chat") == 2
    said = capsys.readouterr().err
    assert "talks.jsonl: the conversation that ends at byte" in said
    assert "it is no list of messages" in said
    assert run("data", "tokenize", "talks.jsonl", "tokens", "--chat", "--skip-damaged") == 0
    index = json.loads((here / "tokens" / "index.json").read_text())
    assert index["left_out"] == {"conversations that cannot be used": 1}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--tokens", "--vocabulary", "9"), "--chat reads messages, and --tokens reads ids"),
        (("--train-vocab", "300"), "--chat needs a tokenizer that exists, or bytes"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    here: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], message: str
) -> None:
    talks(here / "talks.jsonl", [TALK])
    assert run("data", "tokenize", "talks.jsonl", "tokens", "--chat", *more) == 2
    assert message in capsys.readouterr().err


def test_other_formats_are_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "talks.parquet").write_bytes(b"PAR1")
    for command in ("inspect", "tokenize"):
        out = ["tokens"] if command == "tokenize" else []
        assert run("data", command, "talks.parquet", *out, "--chat") in (1, 2)


# --- batches and losses ---------------------------------------------------------------------------


def corpus(here: Path, **changes: Any) -> Corpus:
    talks(here / "talks.jsonl", [TALK] * 200)
    assert run("data", "tokenize", "talks.jsonl", "tokens", "--chat") == 0
    spec = replace(data_spec(), source=str(here / "tokens"), window=40, lease_windows=4, **changes)
    found = open_corpus(spec)
    assert isinstance(found, Corpus)
    return found


def test_batches_say_which_tokens_count(here: Path) -> None:
    found = corpus(here)
    encoder = ChatEncoder(ByteEncoder(), None, template_of(None))
    (one,) = encoder.encoded([encoder.written(TALK)])
    ids, answers = np.tile(one.ids, 200), np.tile(one.answers, 200)
    batch = found.cut(np.arange(5))
    for row, start in enumerate(range(0, 200, 40)):
        np.testing.assert_array_equal(batch[TOKENS][row], ids[start : start + 41])
        np.testing.assert_array_equal(batch[LOSS_MASK][row], answers[start : start + 41])
    apart = corpus_again(found, separate_documents=True).cut(np.arange(5))
    assert {*apart} == {TOKENS, SEGMENTS, LOSS_MASK}
    np.testing.assert_array_equal(apart[LOSS_MASK], batch[LOSS_MASK])
    assert apart[SEGMENTS].max() > 0


def corpus_again(found: Corpus, **changes: Any) -> Corpus:
    other = open_corpus(replace(found.spec, **changes))
    assert isinstance(other, Corpus)
    return other


def test_mixture_with_plain_text_counts_all_of_its_tokens(here: Path) -> None:
    found = corpus(here)
    plain = str(sums(here / "text"))
    both = (MixtureSource(found.spec.source, 0.5), MixtureSource(plain, 0.5))
    mixed = open_corpus(replace(found.spec, mixture=both, heldout_percent=20.0))
    batch = mixed.cut(mixed.numbers(np.arange(200), 0))
    shares = np.mean(batch[LOSS_MASK], axis=1)
    assert np.count_nonzero(shares == 1) == pytest.approx(100, abs=30)
    assert np.count_nonzero(shares < 1) == pytest.approx(100, abs=30)
    assert {*mixed.heldout_batches(4)[0]} == {TOKENS, LOSS_MASK}


@pytest.mark.parametrize(
    ("preset", "options"),
    [
        ("byte-tiny", {"width": 16, "layers": 1, "heads": 1, "hidden": 32}),
        pytest.param(
            "gemma-0.1m",
            {"layers": 2, "pattern": "LG", "width": 16, "hidden": 24, "window": 8},
            marks=pytest.mark.long,
        ),
    ],
)
def test_loss_counts_the_answers_only(here: Path, preset: str, options: Mapping[str, Any]) -> None:
    """Other targets change neither the loss nor a gradient, and inputs before an answer do."""
    task = load_task(preset, None, options, data_spec())
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: leaf + rng.normal(0, 0.2, leaf.shape).astype(np.float32), task.init(0)
    )
    step = jax.jit(jax.value_and_grad(lambda p, batch: loss_of(task.loss(p, batch))))
    tokens = rng.integers(0, 256, (2, 17)).astype(np.int32)
    mask = np.zeros((2, 17), bool)
    mask[0, 5:9] = mask[1, 16] = True
    loss, gradient = step(params, {TOKENS: tokens, LOSS_MASK: mask})
    assert float(loss) == pytest.approx(by_hand(task, params, tokens, mask), rel=1e-5)
    assert float(loss) != pytest.approx(by_hand(task, params, tokens, mask | True), rel=1e-3)
    other = tokens.copy()
    other[0, 9:] = (other[0, 9:] + 1) % 256  # behind the last token that counts
    again, same = step(params, {TOKENS: other, LOSS_MASK: mask})
    assert float(again) == pytest.approx(float(loss), rel=1e-6)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(same), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)
    other[0, 2] = (other[0, 2] + 1) % 256
    changed, _ = step(params, {TOKENS: other, LOSS_MASK: mask})
    assert float(changed) != pytest.approx(float(loss), rel=1e-5)
    nothing, zero = step(params, {TOKENS: tokens, LOSS_MASK: mask & False})
    assert float(nothing) == 0
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(zero))
    whole = float(loss_of(task.loss(params, tokens)))
    everything = step(params, {TOKENS: tokens, LOSS_MASK: mask | True})[0]
    assert float(everything) == pytest.approx(whole, rel=1e-6)


def loss_of(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def by_hand(task: Any, params: Any, tokens: Any, mask: Any) -> float:
    """Return the mean nats of the targets that count, one by one."""
    scores = np.asarray(task.text.logits(params, tokens[:, :-1]), np.float64)
    shifted = scores - scores.max(-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    found = [
        -logs[row, place, tokens[row, place + 1]]
        for row in range(len(tokens))
        for place in range(tokens.shape[1] - 1)
        if mask[row, place + 1]
    ]
    return float(np.mean(found))


@pytest.mark.long
def test_attention_of_a_gemma_model_stays_within_documents() -> None:
    options = {"layers": 2, "pattern": "LG", "width": 16, "hidden": 24, "window": 8}
    task = load_task("gemma-0.1m", None, options, data_spec())
    tokens = np.random.default_rng(0).integers(0, 256, (1, 13)).astype(np.int32)
    segments = np.repeat(np.arange(2, dtype=np.int32), [6, 7])[None]
    params = task.init(0)

    def loss(first: Any, cut: Any) -> float:
        mask = np.zeros((1, 13), bool)
        mask[0, 8:] = True
        batch = {TOKENS: first, LOSS_MASK: mask} | ({} if cut is None else {SEGMENTS: cut})
        return float(loss_of(task.loss(params, batch)))

    other = tokens.copy()
    other[0, :6] = (other[0, :6] + 7) % 256
    assert loss(tokens, segments) == pytest.approx(loss(other, segments), rel=1e-6)
    assert loss(tokens, None) != pytest.approx(loss(other, None), rel=1e-6)


def test_old_index_is_read_and_a_masked_one_has_a_new_version(here: Path) -> None:
    corpus(here)
    index = json.loads((here / "tokens" / "index.json").read_text())
    assert (index["version"], index["masked"]) == (2, True)
    sums(here / "text")
    assert run("data", "tokenize", "text", "plain") == 0
    plain = json.loads((here / "plain" / "index.json").read_text())
    assert plain["version"] == 1
    old = {name: each for name, each in plain.items() if name not in ("masked", "answers")}
    (here / "plain" / "index.json").write_text(json.dumps(old))
    directory = opened(str(here / "plain"))
    assert directory is not None
    assert not directory.index.masked
