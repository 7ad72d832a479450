"""The command `archipelago dashboards`, which writes boards, rules and their configuration."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archipelago.cli.options import Json, on_this_machine
from cluster.storage.files import json_text
from coordinator.errors import UserMistake

LAST_S = 1800.0
"""Seconds that pictures show."""


def dashboards(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where to write.", callback=on_this_machine)
    ] = Path("dashboards"),
    at: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="The folder of the files on the machine of Prometheus and Grafana; that of --out.",
        ),
    ] = None,
    targets: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="monitor.targets of the runs; ~/.archipelago/targets."),
    ] = None,
    docs_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="This documentation, for the runbooks of alerts."),
    ] = None,
    grafana_url: Annotated[
        str, typer.Option(metavar="URL", help="Grafana, for links from alerts to boards.")
    ] = "http://127.0.0.1:3000",
    prometheus_url: Annotated[
        str, typer.Option(metavar="URL", help="Prometheus, for Grafana.")
    ] = "http://127.0.0.1:9090",
    namespace: Annotated[
        str, typer.Option(metavar="NAME", help="Namespace of the Kubernetes objects.")
    ] = "monitoring",
    release: Annotated[
        str, typer.Option(metavar="NAME", help="Label by which the Prometheus operator finds them.")
    ] = "prometheus",
    threshold: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Change the limit of an alert; repeat it."),
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Draw the boards as PNG, from what Prometheus at --prometheus-url has of a run.",
            callback=on_this_machine,
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="The run of the pictures, if Prometheus knows several."),
    ] = None,
    last_s: Annotated[
        float | None,
        typer.Option("--last", min=10.0, metavar="S", help="Seconds that they show; 1800."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write Grafana boards, Prometheus rules and alerts, and the configuration that uses them.

    With --pictures: write pictures of the boards instead, without a Grafana.

    Example: archipelago dashboards --out /etc/prometheus/archipelago
    """
    if pictures is not None:
        _draw(pictures, prometheus_url, run, last_s or LAST_S, as_json=as_json)
        return
    if given := [name for name, value in (("--run", run), ("--last", last_s)) if value is not None]:
        raise UserMistake(f"{', '.join(given)}: only pictures have that; give --pictures DIR too")
    from archipelago.boards.settings import BoardSettings, thresholds_of
    from archipelago.boards.written import board_files

    settings = BoardSettings(
        at=at or str(out.resolve()),
        targets=targets or str(Path.home() / ".archipelago" / "targets"),
        docs_url=docs_url,
        grafana_url=grafana_url,
        prometheus_url=prometheus_url,
        namespace=namespace,
        release=release,
        thresholds=thresholds_of(threshold or []),
    )
    paths: list[str] = []
    try:
        for name, text in board_files(settings).items():
            path = out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            paths.append(str(path))
    except OSError as error:
        raise UserMistake(f"{out} cannot be written: {error.strerror}") from error
    if as_json:
        print(json_text({"files": paths}))
    else:
        Console(highlight=False, soft_wrap=True).print(*paths, sep="\n", markup=False)


def _draw(folder: Path, url: str, run: str | None, last_s: float, *, as_json: bool) -> None:
    """Carry out `dashboards --pictures`."""
    from archipelago.boards.pictures import caption, draw_boards
    from archipelago.boards.prometheus_answers import Answers, chosen_run
    from archipelago.boards.written import BOARDS

    now_s = time.time()
    answers = Answers(url, chosen_run(url, run), now_s - last_s, now_s)
    drawn = draw_boards(BOARDS, answers, folder)
    if as_json:
        empty = {str(each.path): [*each.empty] for each in drawn}
        print(json_text({"run": answers.run, "files": [*empty], "without_data": empty}))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(caption(answers), markup=False)
    for each in drawn:
        words = f", without data: {', '.join(each.empty)}" if each.empty else ""
        console.print(f"{each.path}{words}", markup=False)
