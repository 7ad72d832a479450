"""The command line: what users type, and nothing else; each command hands over at once."""

from __future__ import annotations

import json
import logging
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
from cluster.names import FLEET
from cluster.status import Status
from coordinator.errors import ArchipelagoError, UserMistake
from coordinator.protocol import Island

if TYPE_CHECKING:
    from cluster.config import Config
    from coordinator.fragments import Layout

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
    from cluster.config import load

    config = load(config_path, overrides)
    now = datetime.now().astimezone()
    chosen, layout = _check(config, config_path, run_dir, now, resume=resume, owned=True)
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
        print(json.dumps(outcome.summary))
    else:
        console.print(progress.summary_table(outcome.summary))
        console.print(f"model, events and metrics are in {chosen}")
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
    from cluster.config import load

    config = load(config_path, overrides)
    name = runs.name_of(config, config_path, datetime.now().astimezone())
    from cluster import submit as submitting

    job = submitting.submit(config, name, address, working_dir)
    talk = Console(stderr=as_json, highlight=False, markup=False)
    if not wait:
        if as_json:
            print(json.dumps({"run": name, "address": address}))
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
    from cluster.config import load

    config = load(config_path, overrides)
    run_dir = runs.home_of_job(config)
    _, layout = _check(config, config_path, run_dir, datetime.now().astimezone())
    from cluster import launch

    console = Console(file=sys.stdout, width=progress.WIDTH)
    console.print(f"run {config.run.name}, configuration {config.sha256[:12]}, in {run_dir}")
    with launch.Interrupts() as interrupts, progress.Display(console) as display:
        outcome = launch.keep_as_job(
            config, run_dir, layout, show=display.show, interrupts=interrupts
        )
    console.print(progress.summary_table(outcome.summary))
    print(json.dumps(outcome.summary), flush=True)
    if outcome.asked is not None:
        raise typer.Exit(INTERRUPTED)


def _check(
    config: Config,
    config_path: Path,
    run_dir: Path | None,
    now: datetime,
    *,
    resume: bool = False,
    owned: bool = False,
) -> tuple[Path, Layout]:
    """Everything that can be found wrong before anything is started, all of it at once.

    `owned`: by this process, so that the run ends with its fleet.
    """
    from cluster.depot import depot_of
    from cluster.island import task_of
    from cluster.meaning import outer_of, same_layout
    from islands.adopt import layout_of

    problems: list[str] = []
    chosen, layout = Path(), None
    try:
        if resume:
            chosen = runs.resume(config, run_dir)
        else:
            chosen = runs.choose(config, config_path, run_dir, now)
    except UserMistake as error:
        problems.append(str(error))
    if owned and any(fault.island == FLEET for fault in config.faults.plan):
        problems.append(
            "faults.plan: the fleet of `archipelago run` is not restarted, and the run would end "
            "with it; take its kill out of the plan, or use `archipelago submit`"
        )
    try:
        outer_of(config)
    except UserMistake as error:
        problems.append(str(error))
    try:
        task = task_of(config)
        layout = layout_of(task, config.sync.fragments)
        if resume and not problems and not same_layout(depot_of(config, chosen), layout):
            problems.append(f"--resume: the model of {chosen} is another one, its task has changed")
        for group in config.islands:
            task.stream(group.batch_size)
            task.heldout(group.batch_size)
    except UserMistake as error:
        problems.append(str(error))
    if problems or layout is None:
        raise UserMistake("\n".join(problems))
    return chosen, layout


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
        print(json.dumps(shown))
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
    counts: dict[str, int] = {}
    for text in texts:
        group, sign, count = text.partition("=")
        if not sign or not group or not count.isdecimal():
            raise UserMistake(f"{text!r}: that is not GROUP=N, such as local=4")
        counts[group] = int(count)
    return counts


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
    if (plan is None) == (every_s is None):
        raise UserMistake("either --plan PLAN.toml or --kill-every S says what to break, and when")
    if strange := [kind for kind in kinds if kind not in known]:
        raise UserMistake(f"--kind {strange[0]}: not known; there are {', '.join(known)}")
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
        print(json.dumps({"run": live.run, "faults": [each._asdict() for each in struck]}))


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
        print(json.dumps(result))
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
    seed: Annotated[int, typer.Option(help="Of all chance; the same seed, the same runs.")] = 0,
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0: one for each core.")] = 0,
    as_json: Json = False,
) -> None:
    """A run in virtual time, or many that are broken at random; every invariant after every event.

    Example: archipelago simulate examples/demo.toml --set sync.quorum=2
    """
    if config_path is None:
        if overrides:
            raise UserMistake("--set changes a configuration; give it too: simulate CONFIG.toml")
        from cluster import fuzz

        result = asdict(fuzz.fuzz(schedules or 100, seed, jobs=jobs or os.cpu_count() or 1))
    else:
        if schedules is not None:
            raise UserMistake("either CONFIG.toml or --fuzz N says what to simulate")
        from cluster import sim_config
        from cluster.config import load

        result = asdict(sim_config.simulate(load(config_path, overrides), seed))
    if as_json:
        print(json.dumps(result))
    else:
        Console().print(progress.figures_table(result))
    if result["violations"]:
        raise typer.Exit(FAILED)


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
    return json.loads(lines[-1])


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
