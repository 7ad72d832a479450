"""`archipelago model` prints the costs of a model that is never made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from archipelago.cli.main import main
from islands.gemma.hf_config import config_of
from islands.gemma.presets import PRESETS

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Return a function that runs the command in this process."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["model", *arguments])
        out, err = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, out, err

    return run


def test_costs_of_twelve_billion_parameters_as_json(cli: Cli) -> None:
    code, out, err = cli(
        "gemma-3-12b", "--mesh", "fsdp=8,tensor=4", "--set", "remat=true", "--set",
        "compute_dtype=bfloat16", "--batch-size", "32", "--fragments", "24", "--json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    found = json.loads(out)
    total = 11_765_788_416
    assert found["parameters"]["total"] == sum(f["parameters"] for f in found["fragments"]) == total
    assert len(found["fragments"]) == 24
    assert all(f["bytes"] == 4 * f["parameters"] for f in found["fragments"])
    memory = found["memory"]
    assert total * 4 / 32 < memory["parameters"] < 1.3 * total * 4 / 32
    parts = ("parameters", "gradients", "moments", "activations")
    assert memory["total"] == sum(memory[part] for part in parts)
    splits = {leaf["path"]: leaf["split"] for leaf in found["leaves"]}
    assert splits["layers/local/mlp/gate"] == "-, fsdp, tensor"
    assert splits["layers/global/attention/output"] == "-, tensor, fsdp"
    assert splits["embedding"] == "fsdp, -"
    assert found["flops_per_token"]["training"] == 4 * found["flops_per_token"]["forward"]
    assert found["flops_per_token"]["forward"] > 2 * total
    assert found["spec"]["remat"] is True


@pytest.mark.parametrize("name", ["byte-1m", "gemma-4-26b-a4b"])
def test_costs_as_a_table(cli: Cli, name: str) -> None:
    code, out, err = cli(name)
    assert (code, err) == (0, "")
    for label in ("parameters", "active", "training", "activations", "fragments", "hand-in"):
        assert label in out
    if name == "byte-1m":
        assert "1,016,960" in out
        assert "984,192" in out


def test_shape_that_cannot_be_exported_is_named(cli: Cli) -> None:
    wrong = ("gemma-1m", "--set", "width=130")
    assert "will refuse width = 130 is no multiple of heads = 4" in cli(*wrong)[1]
    (problem,) = json.loads(cli(*wrong, "--json")[1])["export_problems"]
    assert "set width to 128 or 132" in problem
    assert json.loads(cli("byte-1m", "--json")[1])["export_problems"] == []


def test_file_of_transformers_costs_what_its_preset_costs(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_of(PRESETS["gemma-4-31b"])))
    own, preset = (json.loads(cli(name, "--json")[1]) for name in (str(path), "gemma-4-31b"))
    assert own.pop("model") == str(path)
    assert preset.pop("model") == "gemma-4-31b"
    assert own == preset


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gemma-3-12"], "did you mean 'gemma-3-12b'"),
        (["gemma-1m", "--mesh", "fdsp=2"], "'fdsp=2' must be AXIS=N, with an axis of data, fsdp"),
        (["gemma-1m", "--mesh", "fsdp=0"], "'fsdp=0' must be AXIS=N"),
        (["gemma-1m", "--mesh", "tensor=3"], "--mesh: task gemma-1m: layers/global/attention"),
        (["gemma-1m", "--set", "width"], "--set width: must look like"),
        (["gemma-1m", "--set", "widht=3"], "did you mean 'width'"),
        (["nowhere.json"], "there is no such file"),
        (["gemma-1m", "--fragments", "99999999"], "can be cut into"),
    ],
)
def test_mistakes_are_explained(cli: Cli, arguments: list[str], message: str) -> None:
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
