"""The commands `data tokenize` and `data inspect`, as users type them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from archipelago.cli.main import main

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with JSON lines and texts."""
    monkeypatch.chdir(tmp_path)
    rows = "".join(json.dumps({"text": f"a line with the number {n}"}) + "\n" for n in range(400))
    (tmp_path / "a.jsonl").write_text(rows)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text("once upon a time\n" * 30)
    return tmp_path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


def test_tokenize_and_inspect(cli: Cli) -> None:
    options = ["--column", "text", "--train-vocab", "300", "--json"]
    code, out, err = cli("data", "tokenize", "a.jsonl", "tokens", *options)
    assert code == 0
    made = json.loads(out)
    assert made["documents"] == 400
    assert made["vocabulary"] == 300
    assert "1 shards" in err
    code, out, _ = cli("data", "inspect", "tokens", "--all", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["kind"], found["documents"]) == ("token directory", 400)
    assert found["tokens"] == made["tokens"]
    assert found["samples"][1] == "a line with the number 1"
    assert found["longest_document"] < 30
    assert cli("data", "inspect", "tokens", "--all")[1].endswith("all digests agree (files: 1)\n")
    assert "digests" not in cli("data", "inspect", "tokens")[1]


def test_inspect_counts_what_tokenize_writes(cli: Cli) -> None:
    _, out, _ = cli("data", "inspect", "a.jsonl", "--column", "text", "--json")
    found = json.loads(out)
    _, out, _ = cli("data", "tokenize", "a.jsonl", "tokens", "--column", "text", "--json")
    made = json.loads(out)
    assert (found["documents"], found["tokens"]) == (made["documents"], made["tokens"])
    assert found["complete"]
    assert found["longest_document"] == len("a line with the number 399") + 1


def test_inspect_ends_with_1_if_there_are_problems(cli: Cli, here: Path) -> None:
    with (here / "a.jsonl").open("a") as file:
        file.write('{"body": "no text"}\n')
    code, out, _ = cli("data", "inspect", "a.jsonl", "--column", "text")
    assert code == 1
    assert "left out: 1 lines that are no JSON object with the field" in out
    assert "problem: a.jsonl: the line that ends at byte" in out
    code, out, _ = cli("data", "inspect", "texts")
    assert code == 0
    assert "texts: text, 1 files" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tokenize", "nowhere", "out"], "there is no such file or folder"),
        (["tokenize", "a.jsonl", "texts"], "texts is a folder that is not empty"),
        (
            ["tokenize", "a.jsonl", "out", "--tokenizer", "no.json"],
            "the tokenizer 'no.json' cannot",
        ),
        (["tokenize", "a.jsonl", "out", "--tokenizer", "a.jsonl"], "is no tokenizer of Hugging"),
        (["tokenize", "a.jsonl", "out", "--column", "body"], "has no field 'body'; its fields are"),
        (["tokenize", "a.jsonl", "out", "--train-vocab", "9"], "must be at least 257"),
        (["inspect", "nowhere"], "there is no such file or folder"),
    ],
)
def test_mistakes_give_one_message_and_exit_code_2(
    cli: Cli, here: Path, arguments: list[str], message: str
) -> None:
    code, out, err = cli("data", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert not (here / "out").exists()
