"""Errors as JSON: what a script reads on standard output when a command fails."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from archipelago.cli.main import main
from archipelago.cli.options import Json, app


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "Missing argument 'CONFIG.toml'."),
        (["run", "run.toml", "--stepz", "3"], "No such option: --stepz"),
        (["nap"], "No such command 'nap'."),
        (["wan", "settings", "--gbit", "x", "--rtt-ms", "1"], "Invalid value for '--gbit'"),
        (["status", "none-such"], "no run 'none-such'"),
    ],
)
def test_json_has_the_message_of_a_wrong_argument(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--json"])
    assert end.value.code == 2
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert error["kind"] == "mistake"
    assert error["message"].startswith(message)
    assert error["hints"] == []
    assert err == f"archipelago: {error['message']}\n"


@pytest.fixture
def failing() -> Iterator[None]:
    """Register a command `fail NAME`, which raises the exception with that name."""

    def fail(name: str, as_json: Json = False) -> None:
        raise {"OSError": OSError("disk"), "KeyboardInterrupt": KeyboardInterrupt()}[name]

    app.command()(fail)
    yield
    app.registered_commands.pop()


@pytest.mark.usefixtures("failing")
def test_json_names_a_defect_and_keeps_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match="disk"):
        main(["fail", "OSError", "--json"])
    error = json.loads(capsys.readouterr().out)["error"]
    assert error == {"kind": "defect", "message": "OSError: disk", "hints": []}


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("option", [[], ["--json"]])
def test_ctrl_c_ends_with_code_130(capsys: pytest.CaptureFixture[str], option: list[str]) -> None:
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as end:
            main(["fail", "KeyboardInterrupt", *option])
    finally:
        signal.signal(signal.SIGINT, handler)
    assert end.value.code == 130
    out, err = capsys.readouterr()
    assert err == "archipelago: interrupted\n"
    if option:
        error = {"kind": "interrupted", "message": "interrupted", "hints": []}
        assert json.loads(out)["error"] == error


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the object of each command, those of groups included."""
    inner: dict[str, Any] = getattr(command, "commands", {})
    if not inner:
        yield name, command
    for key, each in inner.items():
        yield from commands(f"{name} {key}".strip(), each)


def test_all_commands_take_json() -> None:
    without = {
        name
        for name, command in commands("", typer.main.get_command(app))
        if not any("--json" in each.opts for each in command.params)
    }
    assert without == {"job", "top"}, "the hidden command of a job, and a table that keeps changing"
