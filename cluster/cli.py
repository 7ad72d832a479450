"""The command line: what users type, and nothing else; each command hands over at once."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from cluster import progress, runs
from cluster.cli_bench import Json, Overrides, bench
from cluster.files import json_text
from cluster.status import Status
from coordinator.errors import ArchipelagoError, UserMistake
from coordinator.protocol import Island

if TYPE_CHECKING:
    from cluster.steward import Outcome

FAILED, MISTAKEN, INTERRUPTED = 1, 2, 130
"""Exit codes; 0 is success."""

app = typer.Typer(
    name="archipelago",
    help="Train one model on many islands of compute that nobody has to keep in step.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(bench, name="bench")

ConfigPath = Annotated[
    Path, typer.Argument(metavar="CONFIG.toml", help="What to train, and where.")
]
RunName = Annotated[str | None, typer.Argument(metavar="[RUN]", help="Run directory or name.")]
NamedRun = Annotated[str, typer.Argument(metavar="RUN", help="Run directory or name.")]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="The Ray cluster that the run is in, if it is not known from its run directory; "
        "RAY_ADDRESS by default.",
    ),
]


@app.command()
def run(
    config_path: ConfigPath,
    overrides: Overrides = [],  # noqa: B006 - typer reads it, nobody changes it
    address: Annotated[
        str, typer.Option(help="A Ray cluster: auto, HOST:PORT, or local for an embedded one.")
    ] = "local",
    run_dir: Annotated[Path | None, typer.Option(help="Where to write; must be empty.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that died, in its run directory.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train to the end, here; the first Ctrl-C ends it gracefully, a second one at once.

    Example: archipelago run examples/demo.toml --set sync.quorum=2
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the terminal's process takes no accelerator
    from cluster.config import read
    from cluster.door import enter

    draft, now = read(config_path, overrides), datetime.now().astimezone()
    config, chosen, layout = enter(draft, config_path, run_dir, now, resume=resume, owned=True)
    from cluster import launch

    console = Console(file=sys.stderr if as_json else sys.stdout)  # as it is now: see launch.run
    if not as_json:
        console.print(f"run {chosen}, configuration {config.sha256[:12]}")
        console.print(config.toml(), style="dim", markup=False, highlight=False)
    with launch.Interrupts() as interrupts, progress.Display(console) as display:
        outcome = launch.run(
            config,
            chosen,
            layout,
            address=address,
            show=display.show,
            interrupts=interrupts,
            resumes=resume,
        )
    if as_json:
        print(json_text(outcome.summary))
    else:
        console.print(progress.summary_table(outcome.summary))
        console.print(f"model, events and metrics are in {chosen}")
    _say_what_is_missing(outcome)
    if interrupts.asked is not None:
        raise typer.Exit(INTERRUPTED)


@app.command()
def submit(
    config_path: ConfigPath,
    address: Annotated[
        str, typer.Option(metavar="http://HEAD:8265", help="The cluster's job server.")
    ],
    overrides: Overrides = [],  # noqa: B006 - typer reads it, nobody changes it
    working_dir: Annotated[
        Path | None,
        typer.Option(
            help="A folder of yours to send along: your task's code.", exists=True, file_okay=False
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Follow it, or leave once it is handed over.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Train as a job of a Ray cluster; the run goes on when this terminal goes.

    Example: archipelago submit examples/demo.toml --address http://head:8265 --no-wait
    """
    from cluster import submit as submitting
    from cluster.config import read

    config = read(config_path, overrides).accepted(submitting.problems(address, working_dir))
    name = runs.name_of(config, config_path, datetime.now().astimezone())
    job = submitting.submit(config, name, address, working_dir)
    talk = Console(stderr=as_json, highlight=False, markup=False)
    if not wait:
        if as_json:
            print(json_text({"run": name, "address": address}))
        talk.print(f"run {name} is submitted; `archipelago status {name}` from the cluster, or")
        talk.print(f"`ray job logs {name} --address {address} --follow`")
        return
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        talk.print(text, end="", soft_wrap=True)

    code = submitting.follow(job, say)
    if as_json:
        print(_last_json("".join(said)))
    if code != 0:
        raise typer.Exit(code)


def _last_json(said: str) -> str:
    """The summary that a job prints as its last object; `null` if it got to none."""
    return next((line for line in reversed(said.splitlines()) if line.startswith("{")), "null")


@app.command(hidden=True)
def job(config_path: ConfigPath, overrides: Overrides = []) -> None:  # noqa: B006 - see above
    """What `submit` has the cluster run: the run's configuration is in the job's folder."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from cluster.config import read
    from cluster.door import enter

    draft, now = read(config_path, overrides), datetime.now().astimezone()
    config, run_dir, layout = enter(
        draft, config_path, runs.home_of_job(draft.config, config_path, now), now
    )
    from cluster import launch

    console = Console(file=sys.stdout, width=progress.WIDTH)
    console.print(f"run {config.run.name}, configuration {config.sha256[:12]}, in {run_dir}")
    with launch.Interrupts() as interrupts, progress.Display(console) as display:
        outcome = launch.keep_as_job(
            config, run_dir, layout, show=display.show, interrupts=interrupts
        )
    console.print(progress.summary_table(outcome.summary))
    print(json_text(outcome.summary), flush=True)
    _say_what_is_missing(outcome)
    if outcome.asked is not None:
        raise typer.Exit(INTERRUPTED)


def _say_what_is_missing(outcome: Outcome) -> None:
    """The run has ended well, with its model, and a figure of its summary is null."""
    if outcome.missing is not None:
        print(f"archipelago: {outcome.missing}; the model is whole", file=sys.stderr)


@app.command()
def status(name: RunName = None, address: Cluster = None, as_json: Json = False) -> None:
    """Islands and fragments of a run, once.

    Example: archipelago status runs/demo --json
    """
    live = runs.reach(name, address)
    if isinstance(live, Path):
        shown = _last_status(live)
    else:
        live.prepare()
        from cluster import remote

        shown = remote.status_of(live)
    if as_json:
        print(json_text(shown))
    else:
        Console().print(progress.render(shown))


@app.command()
def scale(
    name: NamedRun,
    counts: Annotated[list[str], typer.Argument(metavar="GROUP=N ...", help="Islands to have.")],
    address: Cluster = None,
) -> None:
    """Set how many islands groups have, live; those that go hand in what they have first.

    Example: archipelago scale runs/demo local=6
    """
    wanted = _counts(counts)
    live = _live(name, address)
    from cluster import remote

    remote.scale(live, wanted)
    said = ", ".join(f"{group} = {count}" for group, count in wanted.items())
    Console().print(f"{live.run}: {said}; `archipelago status` shows how far it is")


def _counts(texts: Sequence[str]) -> dict[str, int]:
    parts = {text: text.partition("=") for text in texts}
    if wrong := [text for text, (group, _, n) in parts.items() if not group or not n.isdecimal()]:
        raise UserMistake(
            "\n".join(f"{text!r}: that is not GROUP=N, such as local=4" for text in wrong)
        )
    return {group: int(count) for group, _, count in parts.values()}


@app.command()
def drain(
    name: NamedRun,
    island: Annotated[str, typer.Argument(metavar="ISLAND")],
    address: Cluster = None,
) -> None:
    """Let one island hand in what it has and leave; its group has one less from then on.

    Example: archipelago drain runs/demo local-3
    """
    live = _live(name, address)
    from cluster import remote

    remote.drain(live, Island(island))
    Console().print(f"{live.run}: {island} hands in what it has and leaves")


@app.command()
def chaos(
    name: NamedRun,
    plan: Annotated[
        Path | None,
        typer.Option(metavar="PLAN.toml", help="[[faults]] with after_s, kind, island."),
    ] = None,
    every_s: Annotated[
        float | None,
        typer.Option("--kill-every", min=0.1, metavar="S", help="By chance, each S s."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the victims; the same seed, the same draws.")] = 0,
    for_s: Annotated[float, typer.Option("--for", metavar="S", help="For how long.")] = 60.0,
    kinds: Annotated[
        list[str], typer.Option("--kind", help="Instead of kill: stop, slow, cut, nan, drain ...")
    ] = ["kill"],  # noqa: B006 - typer reads it, nobody changes it
    address: Cluster = None,
    as_json: Json = False,
) -> None:
    """Break a live run on purpose: islands, syncer, shard, disk; see cluster/faults.py.

    Example: archipelago chaos runs/demo --kill-every 15 --seed 7 --for 120
    """
    from cluster.config import Harm

    known = Harm.kinds()
    wrong = [
        f"--kind {kind}: not known; there are {', '.join(known)}"
        for kind in kinds
        if kind not in known
    ]
    if (plan is None) == (every_s is None):
        wrong.append("either --plan PLAN.toml or --kill-every S says what to break, and when")
    if wrong:
        raise UserMistake("\n".join(wrong))
    live = _live(name, address)
    from cluster import chaos as breaking

    attacks = (
        breaking.at_random(seed, every_s or for_s, for_s, kinds)
        if plan is None
        else breaking.read_plan(plan)
    )
    talk = Console(file=sys.stderr if as_json else sys.stdout, highlight=False, markup=False)
    struck: list[breaking.Struck] = []
    for each in breaking.strike(live, attacks, seed):
        struck.append(each)
        because = f": refused, {each.refused}" if each.refused else ""
        talk.print(f"{progress.duration(each.at_s)}  {each.kind} {each.island}{because}")
    if as_json:
        print(json_text({"run": live.run, "faults": [each._asdict() for each in struck]}))


@app.command()
def replay(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR")], as_json: Json = False
) -> None:
    """Rebuild a run from its tape, compare with what it left to the last bit, and judge it: every
    invariant after every event.

    Example: archipelago replay runs/demo
    """
    from cluster import replay as replaying

    result = replaying.replay(run_dir)
    if as_json:
        print(json_text(result))
    else:
        Console().print(progress.figures_table(result))
    if not result["exact"] or result["violations"]:
        raise typer.Exit(FAILED)


@app.command()
def simulate(
    config_path: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG.toml]", help="A run to play, with its fault plan."),
    ] = None,
    overrides: Overrides = [],  # noqa: B006 - typer reads it, nobody changes it
    schedules: Annotated[
        int | None,
        typer.Option("--fuzz", min=1, metavar="N", help="Or so many random ones; 100 by default."),
    ] = None,
    for_s: Annotated[
        float | None,
        typer.Option("--for", min=0, metavar="SECONDS", help="Random ones for so long."),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(metavar="SEED/NUMBER", help="One of the random ones once more."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Of all chance; the same seed, the same runs. 0 by default; with --for a new one."
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0: one for each core.")] = 0,
    as_json: Json = False,
) -> None:
    """A run in virtual time, or many that are broken at random; every invariant after every event.

    Example: archipelago simulate examples/demo.toml --set sync.quorum=2
    """
    if config_path is None:
        if overrides:
            raise UserMistake("--set changes a configuration; give it too: simulate CONFIG.toml")
        result = _fuzz(schedules, for_s, schedule, seed, jobs or os.cpu_count() or 1)
    else:
        if not (schedules is for_s is schedule is None):
            raise UserMistake("either CONFIG.toml or --fuzz N says what to simulate")
        from cluster import sim_config
        from cluster.config import load

        result = asdict(sim_config.simulate(load(config_path, overrides), seed or 0))
    if as_json:
        print(json_text(result))
    else:
        Console().print(progress.figures_table(result))
    if result["violations"]:
        raise typer.Exit(FAILED)


def _fuzz(
    schedules: int | None, for_s: float | None, schedule: str | None, seed: int | None, jobs: int
) -> dict[str, object]:
    """Random schedules; which seed they are of, and how to repeat those that fail, is said at once
    on standard error."""
    from cluster import fuzz

    def found(failure: fuzz.Failure) -> None:
        typer.echo(f"{failure.seed}: {failure.words}\n{fuzz.keep(failure)}", err=True)

    if schedule is not None:
        if not (schedules is for_s is seed is None):
            raise UserMistake("--schedule SEED/NUMBER is one schedule: it needs nothing else")
        result = fuzz.again(schedule)
        for failure in result.failures:
            found(failure)
    else:
        if seed is None:
            seed = 0 if for_s is None else fuzz.new_seed()
        typer.echo(f"seed {seed}", err=True)
        if schedules is None and for_s is None:
            schedules = 100
        for_s = math.inf if for_s is None else for_s
        result = fuzz.fuzz(schedules, seed, jobs=jobs, for_s=for_s, found=found)
    return asdict(result)


@app.command()
def stop(name: RunName = None, address: Cluster = None) -> None:
    """Let all islands of a run hand in what they have, and end it with its summary.

    Example: archipelago stop runs/demo
    """
    live = _live(name, address)
    from cluster import remote

    remote.stop(live)
    Console().print(f"{live.run} was asked to stop; its terminal, or its job, prints the summary")


def _live(name: str | None, address: str | None) -> runs.Live:
    """A run that is going on, and this process ready to speak to its cluster."""
    live = runs.reach(name, address)
    if isinstance(live, Path):
        raise UserMistake(f"run {live} is not live; there is nothing to do")
    live.prepare()
    return live


def _last_status(run_dir: Path) -> Status:
    """What a run that is over said last."""
    try:
        lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        lines = []
    if not lines:
        raise UserMistake(f"run {run_dir} is not live, and ended before it had anything to say")
    status: Status = json.loads(lines[-1])
    curve: list[tuple[int, float | None]] = [*status.get("heldout", [])]
    return {**status, "heldout": [(t, math.nan if x is None else x) for t, x in curve]}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script: errors become one clear message and an exit code."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
    try:
        app(args=arguments, prog_name="archipelago", standalone_mode=True)
    except UserMistake as error:
        _fail(str(error), MISTAKEN)
    except ArchipelagoError as error:
        _fail(str(error), FAILED)
    except KeyboardInterrupt:
        _fail("interrupted", INTERRUPTED)
    sys.exit(0)


def _fail(message: str, code: int) -> NoReturn:
    print(f"archipelago: {message}", file=sys.stderr)
    sys.exit(code)
