"""The commands that train: run, and the job of a submitted run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from archipelago.cli.display import Display
from archipelago.cli.formatting import WIDTH
from archipelago.cli.options import INTERRUPTED, ConfigPath, Json, Overrides, RunDir, Verbose
from archipelago.cli.run_header import export_lines, header, initial_lines, page_line
from archipelago.cli.tables import summary_table
from cluster.storage import runs
from cluster.storage.files import json_text
from coordinator.errors import UserMistake

if TYPE_CHECKING:
    from cluster.config.schema import Config
    from cluster.fleet.outcome import Outcome
    from coordinator.fragments import Layout


def run(
    config_path: ConfigPath,
    overrides: Overrides = [],  # noqa: B006 - typer reads it; it never changes
    address: Annotated[
        str, typer.Option(help="A Ray cluster: auto, HOST:PORT, or local for an embedded one.")
    ] = "local",
    run_dir: RunDir = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume a run that died, in its run directory.")
    ] = False,
    from_stored: Annotated[
        bool,
        typer.Option(
            "--from-stored",
            help="With --resume: continue from the newest stored version of each fragment, where "
            "the log that leads to them is damaged or missing.",
        ),
    ] = False,
    from_step: Annotated[
        int | None,
        typer.Option(
            "--from",
            metavar="T",
            help="With --resume: go back to the state of step T that durability.keep_hourly or "
            "keep_daily has kept; newer states are set aside.",
        ),
    ] = None,
    or_resume: Annotated[
        bool,
        typer.Option(
            "--continue",
            help="Resume the run if it has begun, else begin it: for a scheduler that starts the "
            "command again. SIGTERM then ends only this process, not the run.",
        ),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Check everything, start nothing; exit code 2 if wrong.")
    ] = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Train to the end in this terminal; one Ctrl-C ends it gracefully, a second one at once.

    Example: archipelago run run.toml --set sync.quorum=2
    """
    train(
        config_path,
        overrides,
        address=address,
        run_dir=run_dir,
        resume=resume,
        from_stored=from_stored,
        from_step=from_step,
        or_resume=or_resume,
        check=check,
        verbose=verbose,
        as_json=as_json,
    )


def train(
    config_path: Path,
    overrides: Sequence[str],
    *,
    address: str = "local",
    run_dir: Path | None = None,
    resume: bool = False,
    from_stored: bool = False,
    from_step: int | None = None,
    or_resume: bool = False,
    check: bool = False,
    verbose: bool = False,
    as_json: bool = False,
    closing: Callable[[Path, Mapping[str, Any]], Iterable[str]] | None = None,
) -> Mapping[str, object]:
    """Run a configuration in this terminal to its end, and return the summary.

    With `check`, start nothing and return what would run. `closing`: (run directory, summary) ->
    the last lines to print.

    Errors: `UserMistake`, `RunFailed`; `typer.Exit` if a signal has ended it.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the accelerators belong to the islands
    from cluster.config.load import read
    from cluster.launch.preflight import enter, has_begun
    from cluster.storage.ladder import chosen_rung
    from cluster.storage.open_depot import depot_of

    if from_stored and not resume:
        raise UserMistake("--from-stored: it is an option of --resume; give --resume as well")
    if from_step is not None and (not resume or from_stored):
        raise UserMistake("--from T: it is an option of --resume, without --from-stored")
    import_from_here()
    draft, now = read(config_path, overrides), datetime.now().astimezone()
    if or_resume and not resume and not draft.problems:
        resume = has_begun(draft.config, run_dir)
    config, chosen, layout = enter(draft, config_path, run_dir, now, resume=resume, owned=True)
    if from_stored and config.run.mode.sums_gradients:
        raise UserMistake(
            f'--from-stored: run.mode = "{config.run.mode}" has no fragments; --resume '
            "continues from the newest readable snapshot"
        )
    if from_step is not None:
        chosen_rung(depot_of(config, chosen), from_step)
    console = Console(file=sys.stderr if as_json else sys.stdout)  # as it is now: see launch.run
    if verbose or not as_json:
        _say_header(console, config, chosen, layout, resume=resume, verbose=verbose)
    if check:
        found = checked(config, chosen, layout)
        print(json_text(found) if as_json else "no problem was found, and nothing was started")
        return found
    from cluster.launch.interrupts import SIGNALS, Interrupts
    from cluster.launch.run import run

    with (
        Interrupts(SIGNALS[:1] if or_resume else SIGNALS) as interrupts,
        Display(console) as display,
    ):
        outcome = run(
            config,
            chosen,
            layout,
            address=address,
            show=display.show,
            interrupts=interrupts,
            say=display.say,
            page=lambda link: display.say(page_line(link)),
            resumes=resume,
            from_stored=from_stored,
            from_step=from_step,
        )
    if as_json:
        print(json_text(outcome.summary))
    else:
        console.print(summary_table(outcome.summary))
        console.print(f"model, events and metrics are in {chosen}")
    _print_missing(outcome)
    for line in closing(chosen, outcome.summary) if closing else ():
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if interrupts.asked is not None:
        raise typer.Exit(INTERRUPTED)
    return outcome.summary


def checked(config: Config, run_dir: Path, layout: Layout) -> Mapping[str, object]:
    """Return what `run --check --json` prints: what the run would be."""
    from cluster.launch.initial_source import is_gone, report

    given = config.task.init_from
    init = None if given is None or is_gone(given) else report(config, layout.leaves, given)
    return {
        "ok": True,
        "run_dir": str(run_dir),
        "mode": str(config.run.mode),
        "steps": config.run.steps,
        "seed": config.run.seed,
        "config_sha256": config.sha256,
        "parameters": layout.parameters,
        "islands": [*config.island_names],
        "init": init,
    }


def _say_header(
    console: Console,
    config: Config,
    run_dir: Path,
    layout: Layout,
    *,
    resume: bool = False,
    verbose: bool = False,
) -> None:
    begun = header(config, run_dir, layout, resume=resume)
    for line in (*begun, *initial_lines(config, layout), *export_lines(config)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if verbose:
        console.print()
        console.print(config.toml(), style="dim", markup=False, highlight=False, soft_wrap=True)


def import_from_here() -> None:
    """Let this process import the user's task from the current folder, as Ray's workers do.

    Errors: `UserMistake` if that folder is gone.
    """
    try:
        folder = os.getcwd()
    except FileNotFoundError as error:
        raise UserMistake("the current folder was deleted; start in one that exists") from error
    if folder not in sys.path:
        sys.path.append(folder)


def job(config_path: ConfigPath, overrides: Overrides = []) -> None:  # noqa: B006 - see above
    """Run a submitted configuration on the cluster; it is in the folder of the job."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from cluster.config.load import read
    from cluster.launch.preflight import enter

    import_from_here()
    draft, now = read(config_path, overrides), datetime.now().astimezone()
    config, run_dir, layout = enter(
        draft, config_path, runs.home_of_job(draft.config, config_path, now), now
    )
    from cluster.launch.interrupts import Interrupts
    from cluster.launch.run import keep_as_job

    console = Console(file=sys.stdout, width=WIDTH)
    console.print(f"run {config.run.name}", markup=False, highlight=False)
    _say_header(console, config, run_dir, layout)
    with Interrupts() as interrupts, Display(console) as display:
        outcome = keep_as_job(
            config,
            run_dir,
            layout,
            show=display.show,
            interrupts=interrupts,
            say=display.say,
            page=lambda link: display.say(page_line(link)),
        )
    console.print(summary_table(outcome.summary))
    print(json_text(outcome.summary), flush=True)
    _print_missing(outcome)
    if outcome.asked is not None:
        raise typer.Exit(INTERRUPTED)


def _print_missing(outcome: Outcome) -> None:
    """Print why a figure of the summary is null, although the run has ended with its model."""
    if outcome.missing is not None:
        print(f"archipelago: {outcome.missing}; the model is whole", file=sys.stderr)
