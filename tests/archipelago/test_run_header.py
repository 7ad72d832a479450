"""The header of a run: eight lines at most, whatever the configuration is."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from archipelago.cli.formatting import WIDTH
from archipelago.cli.main import main
from archipelago.cli.run_header import MOST_LINES, changes, export_lines, header
from cluster.config.load import parse
from cluster.config.schema import Config
from coordinator.fragments import Layout, Leaf, cut
from tests.together import ROOT

LAYOUT: Layout = cut([Leaf("w", (16, 8), False)], 8)
TINY = ROOT / "examples" / "tiny.toml"


def config_of(text: str) -> Config:
    return parse(tomllib.loads('[task]\npreset = "byte-tiny"\n' + text))


ISLAND = "[[islands]]\ngroup = 'eu'\n"


def test_names_model_data_islands_and_directory() -> None:
    config = config_of(ISLAND + "count = 3\nbatch_size = 5\nregion = 'west'\n")
    text = "\n".join(header(config, Path("runs/here"), LAYOUT))
    for part in (
        "byte-tiny, 128 parameters",
        "python-stdlib",
        "3 eu in west (batch 5",
        "runs/here",
    ):
        assert part in text
    assert config.sha256[:12] in text
    assert "changed" not in text


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ("", "data     read by train:task, 5 % held out"),
        ("[data]\nwindow = 64\n", "data     read by train:task, 5 % held out"),
        ("[data]\nsource = 'books'\n", "data     books, windows of 128 tokens, 5 % held out"),
        (
            "[data]\nsource = 'python-stdlib'\n",
            "data     python-stdlib, windows of 128 tokens, 5 % held out",
        ),
    ],
)
def test_default_corpus_is_not_named_for_a_task_of_the_user(data: str, shown: str) -> None:
    given = parse(tomllib.loads(f"[task]\ntarget = 'train:task'\n{data}{ISLAND}"))
    assert shown in header(given, Path("runs/here"), LAYOUT)


def test_shows_only_changed_keys() -> None:
    config = config_of("[sync]\nquorum = 2\nmerge = 'rda'\n" + ISLAND + "count = 2\n")
    assert [*changes(config)] == ["sync.quorum = 2", 'sync.merge = "rda"']


def test_long_change_does_not_hide_shorter_ones() -> None:
    config = config_of(f"[data]\nsource = '{'x' * 300}'\n[sync]\nquorum = 2\n{ISLAND}count = 2\n")
    assert "changed  sync.quorum = 2, and 1 more (--verbose)" in header(config, Path("r"), LAYOUT)


def test_adamw_default_rate_is_no_change() -> None:
    config = config_of("[optimizer]\nkind = 'adamw'\n" + ISLAND)
    assert [*changes(config)] == ['optimizer.kind = "adamw"']


def test_stays_short_for_any_configuration() -> None:
    seed = np.random.SeedSequence().entropy
    print("seed", seed)
    rng = np.random.default_rng(seed)
    for _ in range(50):
        groups = "".join(
            f"[[islands]]\ngroup = 'g{number}'\ncount = {rng.integers(1, 900)}\n"
            for number in range(rng.integers(1, 40))
        )
        text = (
            f"[data]\nsource = '{'x' * rng.integers(1, 300)}'\n[optimizer]\nb1 = {rng.random():f}\n"
        )
        lines = header(config_of(text + groups), Path("runs/r"), LAYOUT)
        assert len(lines) <= MOST_LINES
        assert max(map(len, lines)) <= WIDTH


def test_check_starts_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as end:
        main(["run", str(TINY), "--check", "--json", "--set", f"run.dir={tmp_path / 'runs'}"])
    assert end.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["islands"]) == (True, ["local-0", "local-1"])
    assert not [*tmp_path.iterdir()]


def test_verbose_prints_every_key(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    where = f"run.dir={tmp_path / 'runs'}"
    with pytest.raises(SystemExit):
        main(["run", str(TINY), "--check", "--verbose", "--set", where])
    assert "keep_contributions = false" in capsys.readouterr().out


def test_shape_that_cannot_be_exported_is_named_at_the_start() -> None:
    def lines(options: str) -> list[str]:
        task = f'[task]\npreset = "gemma-0.1m"\noptions = {{ {options} }}\n'
        return export_lines(parse(tomllib.loads(task + ISLAND)))

    assert lines("") == []
    (line,) = lines("width = 50")
    assert line.startswith(
        "export   --format hf will refuse task.options.width = 50 is no multiple"
    )
    assert export_lines(config_of(ISLAND)) == []
