"""The commands for a first start: `init` and `dashboards` write files, `demo --check` judges."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from archipelago.cli.main import main
from archipelago.cli.start import WIDEST, cut_lines, problems

ROOT = Path(__file__).parents[2]
WELL: dict[str, Any] = {
    "initial_heldout_loss": 5.5,
    "heldout_loss": 2.5,
    "faults": 1,
    "merges": 40,
    "tokens_trained": 100,
    "tokens_merged": 90,
    "tokens_discarded": 4,
    "tokens_lost": 5,
    "tokens_outstanding": 1,
}


def called(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.long
def test_init_writes_a_configuration_that_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The task is built, traced and cut as in a run, in a process of its own."""
    assert called("init", str(tmp_path / "mine"), "--json") == 0
    written = json.loads(capsys.readouterr().out)["files"]
    assert {Path(path).name for path in written} == {"run.toml", "task.py"}
    script = (
        "import sys; sys.path.append('.')\n"
        "from datetime import datetime\n"
        "from pathlib import Path\n"
        "from cluster.config.load import read\n"
        "from cluster.launch.preflight import enter\n"
        "path = Path('run.toml')\n"
        "config, run_dir, layout = enter(read(path), path, None, datetime.now().astimezone())\n"
        "print(config.task.target, layout.parameters, run_dir.exists())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path / "mine",
        env={"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    parameters = 256 * 64 + 8 * 64 * 256 + 256 * 256
    assert done.stdout.split() == ["task:task", str(parameters), "False"], done.stderr


def test_init_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text("mine")
    assert called("init", str(tmp_path)) == 2
    assert f"{tmp_path} exists and is not empty" in capsys.readouterr().err
    assert (tmp_path / "run.toml").read_text() == "mine"


def test_dashboards_writes_boards_and_rules_for_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new"
    assert called("dashboards", "--out", str(folder), "--targets", "/t", "--json") == 0
    written = {
        Path(path).relative_to(folder) for path in json.loads(capsys.readouterr().out)["files"]
    }
    shipped = ROOT / "dashboards"
    assert written == {p.relative_to(shipped) for p in shipped.rglob("*") if p.is_file()}
    assert "- /t/*.json" in (folder / "prometheus.yml").read_text()
    providers = folder / "grafana" / "provisioning" / "dashboards" / "archipelago.yaml"
    assert f"path: {folder}/boards" in providers.read_text()


def test_unwritable_folder_is_a_user_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert called("dashboards", "--out", str(tmp_path / "file" / "below")) == 2
    assert "cannot be written: Not a directory" in capsys.readouterr().err


def test_successful_demo_has_no_problems() -> None:
    assert problems(WELL) == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"heldout_loss": 5.4}, "the held-out loss went from 5.5 to 5.4"),
        ({"heldout_loss": None}, "the held-out loss went from 5.5 to None"),
        ({"heldout_loss": float("nan")}, "the held-out loss went from 5.5 to nan"),
        ({"faults": 0}, "0 faults happened"),
        ({"merges": 0, "tokens_merged": 90}, "nothing was merged"),
        ({"tokens_lost": 4}, "100 tokens were trained and 99 are counted"),
    ],
)
def test_failed_demo_explains_why(wrong: dict[str, Any], words: str) -> None:
    (found,) = problems({**WELL, **wrong})
    assert found.startswith(words)


def test_text_of_the_model_is_cut_into_lines_that_a_terminal_can_print() -> None:
    text = "def one():\n\n  \n\treturn 1  \n" + "a" * (WIDEST + 1) + "\n\x1b[2Jred\r\x00"
    assert cut_lines(text) == [
        "def one():",
        "        return 1",
        "a" * WIDEST,
        "a",
        "\ufffd[2Jred\ufffd\ufffd",
    ]
