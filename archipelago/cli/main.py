"""The console script, which turns errors into one clear message and an exit code."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import typer

from archipelago.cli.audit import audit
from archipelago.cli.bench import bench
from archipelago.cli.control import chaos, drain, save, scale, stop
from archipelago.cli.dashboards import dashboards
from archipelago.cli.data import data
from archipelago.cli.doctor import doctor
from archipelago.cli.export import export
from archipelago.cli.keep import backup, verify
from archipelago.cli.listing import list_runs
from archipelago.cli.manifest import manifest
from archipelago.cli.model import model
from archipelago.cli.options import FAILED, INTERRUPTED, MISTAKEN, Interrupted, app
from archipelago.cli.planning import plan
from archipelago.cli.queueing import queue
from archipelago.cli.replay import replay
from archipelago.cli.report import report, trace
from archipelago.cli.simulate import simulate
from archipelago.cli.stage import stage
from archipelago.cli.start import demo, init
from archipelago.cli.study import study
from archipelago.cli.submit import submit
from archipelago.cli.train import import_from_here, job, run
from archipelago.cli.use_model import evaluate, sample
from archipelago.cli.wan import wan
from archipelago.cli.watch import page, status, top
from cluster.storage.files import json_text
from coordinator.errors import ArchipelagoError, UserMistake

for command in (
    init, demo, run, submit, status, top, page, scale, drain, save, export, stop, chaos, replay,
    report, trace, simulate, plan, study, model, dashboards, doctor, verify, backup, audit, stage,
    sample, queue,
):  # fmt: skip
    app.command()(command)
app.command(name="eval")(evaluate)
app.command(name="list")(list_runs)
app.command(hidden=True)(job)
app.add_typer(bench, name="bench")
app.add_typer(data, name="data")
app.add_typer(manifest, name="manifest")
app.add_typer(wan, name="wan")
KINDS = {FAILED: "failure", MISTAKEN: "mistake", INTERRUPTED: "interrupted"}
"""The kind of an error with each exit code."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command with these arguments, and end the process with its exit code.

    With `--json` among them, an error is also an object on standard output: `error_json`.
    """
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
    words = sys.argv[1:] if arguments is None else [*arguments]
    as_json = "--json" in words
    with suppress(UserMistake):
        import_from_here()  # the task of a run, which most commands use, may be in this folder
    try:
        # Standalone, the application prints a mistake in the arguments with the command's usage.
        code = app(args=words, prog_name="archipelago", standalone_mode=not as_json)
        sys.exit(code if isinstance(code, int) else 0)
    except typer.TyperException as error:  # a mistake in the arguments
        _fail(error.format_message(), error.exit_code, as_json)
    except UserMistake as error:
        _fail(str(error), MISTAKEN, as_json)
    except ArchipelagoError as error:
        _fail(str(error), FAILED, as_json)
    except Interrupted:
        _deaf()
        _fail("interrupted", INTERRUPTED, as_json)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            _deaf()
        raise
    except Exception as error:
        if as_json:
            print(error_json("defect", f"{type(error).__name__}: {error}"))
        raise


def error_json(kind: str, message: str) -> str:
    """Return the JSON object of an error: `{"error": {"kind", "message", "hints"}}`.

    `kind` is "mistake" (exit code 2), "failure" (1), "interrupted" (130), or "defect" (1, an error
    of this program). "message" is the first line of the message, "hints" are its further lines:
    each problem in a configuration, or what to do.
    """
    first, *further = message.splitlines() or [""]
    hints = [line.strip() for line in further if line.strip()]
    return json_text({"error": {"kind": kind, "message": first, "hints": hints}})


def _deaf() -> None:
    """Ignore further Ctrl-C, which would interrupt the shutdown of the interpreter."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _fail(message: str, code: int, as_json: bool) -> NoReturn:
    print(f"archipelago: {message}", file=sys.stderr)
    if as_json:
        print(error_json(KINDS.get(code, "failure"), message))
    sys.exit(code)
