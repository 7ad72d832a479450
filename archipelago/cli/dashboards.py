"""The command `archipelago dashboards`, which writes boards, rules and their configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archipelago.cli.options import Json
from cluster.storage.files import json_text
from coordinator.errors import UserMistake


def dashboards(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write.")] = Path("dashboards"),
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
    as_json: Json = False,
) -> None:
    """Write Grafana boards, Prometheus rules and alerts, and the configuration that uses them.

    Example: archipelago dashboards --out /etc/prometheus/archipelago
    """
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
