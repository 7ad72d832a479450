"""The application, and the options and exit codes of several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cluster.launch.exit_message import not_live
from cluster.storage import runs
from coordinator.errors import UserMistake
from islands.data.local_paths import local_path

FAILED, MISTAKEN, INTERRUPTED = 1, 2, 130
"""The exit codes of failures; 0 is success."""


class Interrupted(Exception):
    """Ctrl-C in a command that does not handle it; exit code 130."""


class Application(TyperGroup):
    """The application; it reports Ctrl-C as `Interrupted`, and Typer does not exit by itself."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command in `ctx`, the context of the arguments, and return its result.

        Errors: `Interrupted` if Ctrl-C was pressed and the command has not handled it.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted from error


app = typer.Typer(
    name="archipelago",
    cls=Application,
    help="Train one model on many islands of compute, without keeping them in step.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        import archipelago

        typer.echo(f"archipelago {archipelago.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Read the options of the command itself."""


def run_names(incomplete: str) -> list[str]:
    """Return the runs of the current folder whose path begins so, for the completion of a shell."""
    try:
        found = [path.parent for path in Path("runs").glob(f"*/{runs.CONFIG}")]
    except OSError:
        return []
    return sorted(str(path) for path in found if str(path).startswith(incomplete))


ConfigPath = Annotated[
    Path, typer.Argument(metavar="CONFIG.toml", help="What to train, and where.")
]
RunName = Annotated[
    str | None,
    typer.Argument(metavar="[RUN]", help="Run directory or name.", autocompletion=run_names),
]
NamedRun = Annotated[
    str, typer.Argument(metavar="RUN", help="Run directory or name.", autocompletion=run_names)
]
Overrides = Annotated[
    list[str], typer.Option("--set", metavar="A.B=C", help="Override one value; may be repeated.")
]


def on_this_machine(option: typer.CallbackParam, path: Path | None) -> Path | None:
    """Return the path of an option or argument that a command writes to.

    Errors: `UserMistake` if it is the address of a bucket.
    """
    if path is None:
        return None
    name = option.opts[0] if option.opts[0].startswith("-") else option.metavar
    return local_path(name or option.opts[0], path)


RunDir = Annotated[
    Path | None,
    typer.Option("--run-dir", help="Where to write; must be empty.", callback=on_this_machine),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print the whole configuration, defaults included.")
]
ClusterAddress = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="The Ray cluster that the run is in, if it is not known from its run directory; "
        "RAY_ADDRESS by default.",
    ),
]


def live_run(name: str | None, address: str | None) -> runs.Live:
    """Return a live run, after preparing this process to connect to its cluster.

    Errors: `UserMistake` if the run is not live or cannot be reached.
    """
    live = runs.reach(name, address)
    if isinstance(live, Path):
        raise UserMistake(not_live(live))
    live.prepare()
    return live
