"""The documentation agrees with the program: generated pages, commands, configurations, alerts."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

import archipelago.cli.main as command_line
from archipelago.cli.options import app
from archipelago.lab.study.study_file import OURS, checked
from cluster.config.load import draft
from cluster.config.schema import Config
from cluster.queue.quotas import Quotas

assert command_line.app is app, "importing it registers the commands"

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "AGENTS.md", *(ROOT / "docs").rglob("*.md")])
ALERTS = ROOT / "dashboards" / "alerts.yml"
HEADINGS = ["Meaning", "Where to look", "What to do", "Cost", "Rollback"]
MOST_README_LINES = 150
LEFT_OUT = {"task", "islands"}
"""Tables that a configuration must have, and that an excerpt on a page may leave out."""


def blocks(language: str) -> list[Any]:
    """Return the code blocks of a language as parameters of a test, named by page and number."""
    blocks: list[Any] = []
    for page in PAGES:
        found = re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
        for number, text in enumerate(found):
            blocks.append(pytest.param(text, id=f"{page.relative_to(ROOT)}-{number}"))
    return blocks


def commands_in(block: str) -> Iterator[list[str]]:
    """Yield the arguments of each `archipelago` command of a bash block."""
    for line in block.replace("\\\n", " ").splitlines():
        for part in re.split(r"&&|\|\||;", line):
            words = shlex.split(part, comments=True) if "archipelago" in part else []
            if words and Path(words[0]).name == "archipelago":
                yield words[1:]


def test_reference_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "reference", "--check"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@cache
def command_tree() -> Any:
    """Return all commands; building them takes a tenth of a second."""
    return typer.main.get_command(app)


@pytest.mark.parametrize("block", blocks("bash"))
def test_commands_have_known_options(block: str) -> None:
    root = command_tree()
    for words in commands_in(block):
        command, rest = root, words
        while rest and rest[0] in getattr(command, "commands", {}):
            command, rest = command.commands[rest[0]], rest[1:]
        known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        known |= {"-h", "--help"}
        if command is root:
            assert rest in (["--version"], ["-h"], ["--help"]), f"no command: {words}"
        unknown = [w for w in rest if w.startswith("-") and w.partition("=")[0] not in known]
        assert not unknown, f"archipelago {' '.join(words)}: {unknown}"


def test_a_page_with_a_wrong_option_is_noticed() -> None:
    with pytest.raises(AssertionError, match="--evry"):
        test_commands_have_known_options("archipelago top first --evry 2\n")


@pytest.mark.parametrize("block", blocks("toml"))
def test_configurations_have_known_keys(block: str) -> None:
    tables = tomllib.loads(block)
    if "faults" in tables and isinstance(tables["faults"], list):
        return  # a plan of `chaos`
    if tables.keys() <= Quotas.model_fields.keys():
        assert Quotas.model_validate(tables)  # a file of `archipelago queue`
        return
    of_study = {name: tables.pop(name) for name in OURS if name in tables}
    assert not checked(of_study)[1]  # of `archipelago study`
    known = {name: tables[name] for name in tables if name in Config.model_fields}
    assert known == tables, f"tables that no configuration has: {set(tables) - set(known)}"
    found = draft(tables, origin="page").problems
    assert not [str(each) for each in found if each.where not in LEFT_OUT]


def test_a_page_with_a_wrong_key_is_noticed() -> None:
    with pytest.raises(AssertionError):
        test_configurations_have_known_keys("[sync]\nevry = 8\n")
    with pytest.raises(AssertionError):
        test_configurations_have_known_keys("[study]\nmesure = 'goodput'\n")


@pytest.mark.parametrize("block", blocks("yaml"))
def test_yaml_can_be_read(block: str) -> None:
    assert yaml.safe_load(block)


@pytest.mark.parametrize("block", blocks("python"))
def test_python_compiles_and_uses_public_names(block: str) -> None:
    compile(block, "page", "exec")
    import archipelago as public

    for name in re.findall(r"\barchipelago\.(\w+)", block):
        assert hasattr(public, name), f"archipelago.{name} is not public"


@pytest.mark.parametrize(
    ("alert", "severity"),
    [
        pytest.param(rule["alert"], rule["labels"]["severity"], id=rule["alert"])
        for group in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
        for rule in group["rules"]
    ],
)
def test_every_alert_has_a_page_with_its_severity(alert: str, severity: str) -> None:
    pages = [
        page
        for page in (ROOT / "docs" / "howto" / "alerts").glob("*.md")
        if f"`{alert}`" in page.read_text("utf-8")
    ]
    assert len(pages) == 1
    index = (ROOT / "docs" / "howto" / "index.md").read_text("utf-8")
    assert f"[`{alert}`](alerts/{pages[0].name}) | {severity} |" in index
    assert f"Prometheus alert `{alert}`, severity `{severity}`." in pages[0].read_text("utf-8")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem)
        for folder in ("alerts", "symptoms")
        for page in sorted((ROOT / "docs" / "howto" / folder).glob("*.md"))
    ],
)
def test_pages_of_alerts_answer_every_question(page: Path) -> None:
    sections = re.split(r"^## ", page.read_text("utf-8"), flags=re.M)[1:]
    assert [section.partition("\n")[0] for section in sections] == HEADINGS
    assert all(section.partition("\n")[2].strip() for section in sections)


def test_installs_are_in_a_clone_and_of_extras_that_exist() -> None:
    """This project is not on PyPI, so no page and no message may install it by its name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    packages = [path for package in ("archipelago", "cluster", "islands")
                for path in (ROOT / package).rglob("*.py")]  # fmt: skip
    notebooks = (ROOT / "archipelago" / "examples").glob("*.ipynb")
    for path in (*PAGES, *packages, *notebooks):
        text = path.read_text("utf-8")
        assert f"{project['name']}[" not in text, path
        for names in re.findall(r"[\"']\.\[([\w,]+)\]|install_command\([\"'](\w+)", text):
            extras = {*"".join(names).split(",")}
            assert extras <= project["optional-dependencies"].keys(), path


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= MOST_README_LINES


def unknown_extras(text: str) -> set[str]:
    """Return the extras that a text names, and that pyproject.toml does not have.

    An extra of another package, such as `ray[default]`, has that form on the same line.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lists = re.findall(r"\barchipelago(?:-diloco)?\[([\w,-]+)\]", text)
    named = {name for each in lists for name in each.split(",")}
    for line in text.splitlines():
        in_words = re.findall(r"\bextras? `([\w-]+)`", line)
        others = set(re.findall(r"(?<!archipelago)(?<!-diloco)\[([\w-]+)\]", line))
        named |= {*in_words} - others
    return named - project["optional-dependencies"].keys()


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES]
)
def test_extras_that_a_page_names_exist(page: Path) -> None:
    assert unknown_extras(page.read_text("utf-8")) == set()


def test_a_page_with_a_wrong_extra_is_noticed() -> None:
    text = (
        "the extra `pictures`\n`archipelago-diloco[lab,plots]`\n`ray[default]`: the extra `default`"
    )
    assert unknown_extras(text) == {"pictures", "plots"}
