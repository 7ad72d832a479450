"""The command group `archipelago wan`: regions on one machine, and settings for a real network."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from archipelago.cli.options import Json
from cluster.storage.files import json_text

wan = typer.Typer(
    help="Regions on one machine, joined by thin links; settings for a real network.",
    no_args_is_help=True,
)
Name = Annotated[str, typer.Option("--name", help="The network's name: a-z, 0-9, at most 8.")]
Regions = Annotated[
    list[str], typer.Argument(metavar="[REGION ...]", help="The regions to change; all of them.")
]
DEFAULT_NAME = "wan"


@wan.command()
def up(
    regions: Annotated[int, typer.Option(min=2, help="How many; named r0, r1 and so on.")] = 4,
    region: Annotated[
        list[str], typer.Option("--region", metavar="NAME", help="A region's name; repeat it.")
    ] = [],  # noqa: B006 - typer reads it; it never changes
    gbit: Annotated[
        float, typer.Option(help="Bandwidth of each link, each way; 0: no limit, with --force.")
    ] = 0.2,
    rtt_ms: Annotated[float, typer.Option(help="Round-trip time between two regions.")] = 80.0,
    tuned: Annotated[
        bool, typer.Option(help="Socket windows for the link, or Linux's defaults in proportion.")
    ] = True,
    ray: Annotated[bool, typer.Option(help="Start a Ray cluster with one node in each.")] = True,
    cpus: Annotated[float, typer.Option(min=0.0, help="CPUs of each node.")] = 2.0,
    store_mb: Annotated[int, typer.Option(min=80, help="MiB of each object store.")] = 512,
    name: Name = DEFAULT_NAME,
    prefix: Annotated[str, typer.Option(help="The first half of all addresses.")] = "10.77",
    detach: Annotated[bool, typer.Option(help="Return, and leave it up until `wan down`.")] = False,
    force: Annotated[bool, typer.Option(help="Also above half of this machine's ceiling.")] = False,
    as_json: Json = False,
) -> None:
    """Bring up regions with thin links and latency, and a Ray cluster in them; needs root.

    It stays up until Ctrl-C, which removes everything; with --detach until `archipelago wan down`.

    Example: archipelago wan up --regions 4 --gbit 0.2 --rtt-ms 80
    """
    from archipelago.lab.wan import nodes, rig
    from archipelago.lab.wan.network import Network

    names = region or [f"r{number}" for number in range(regions)]
    network = Network.planned(name, prefix, names, gbit, rtt_ms, tuned=tuned)
    console = Console(stderr=as_json)
    size = nodes.NodeSize(cpus, store_mb) if ray else None

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False)

    def say_how_to_submit(latency: rig.Latency) -> None:
        head = network.address(0)
        token = str(nodes.token_file(network))
        jobs = f"http://{head}:{nodes.JOBS_PORT}"
        if as_json:
            cluster = {"address": f"{head}:{nodes.PORT}", "jobs": jobs, "token_file": token}
            found = {"name": name, "links": rig.links(network)}
            found |= {"ceiling_gbit": latency.ceiling_gbit, "ray": cluster if ray else None}
            print(json_text(found), flush=True)
        if ray:
            say(
                f"Ray: address {head}:{nodes.PORT}, job server {jobs}\n"
                f"export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={token}\n"
                f"archipelago submit CONFIG.toml --address {jobs}"
            )

    if detach:
        say_how_to_submit(rig.up(network, say, size=size, force=force))
        return
    with (
        suppress(KeyboardInterrupt),
        rig.running(network, say, size=size, force=force) as latency,
    ):
        say_how_to_submit(latency)
        say("up; Ctrl-C takes it down")
        signal.pause()


@wan.command()
def down(name: Name = DEFAULT_NAME, as_json: Json = False) -> None:
    """End and remove a network with all its processes, also after a crash.

    Example: archipelago wan down
    """
    from archipelago.lab.wan import kernel, rig

    kernel.need_root()
    found = rig.down(name)
    if as_json:
        print(json_text({"name": name, "removed": found}))
        return
    Console().print(f"removed: {', '.join(found)}" if found else f"nothing of {name} is there")


@wan.command(name="set")
def change(
    regions: Regions = [],  # noqa: B006 - typer reads it; it never changes
    gbit: Annotated[
        float | None, typer.Option(help="Bandwidth, each way; 0: no limit, with --force.")
    ] = None,
    rtt_ms: Annotated[float | None, typer.Option(help="Round-trip time.")] = None,
    jitter_ms: Annotated[float | None, typer.Option(help="Largest addition to a delay.")] = None,
    cut: Annotated[
        bool | None, typer.Option("--cut/--heal", help="Drop all packets, or no longer.")
    ] = None,
    node: Annotated[bool, typer.Option("--start-node", help="Start its Ray node again.")] = False,
    cpus: Annotated[float, typer.Option(min=0.0, help="CPUs of that node.")] = 2.0,
    store_mb: Annotated[int, typer.Option(min=80, help="MiB of its object store.")] = 512,
    name: Name = DEFAULT_NAME,
    force: Annotated[bool, typer.Option(help="Also above half of this machine's ceiling.")] = False,
    as_json: Json = False,
) -> None:
    """Change links while a run uses them.

    Example: archipelago wan set r2 --cut
    """
    from archipelago.lab.wan import nodes, rig

    network = rig.change(
        name, regions, gbit=gbit, rtt_ms=rtt_ms, jitter_ms=jitter_ms, cut=cut, force=force
    )
    if node:
        for region in regions or [each.name for each in network.regions]:
            rig.restart_node(name, region, nodes.NodeSize(cpus, store_mb))
    if as_json:
        print(json_text({"name": name, "links": rig.links(network)}))


@wan.command()
def status(name: Name = DEFAULT_NAME, as_json: Json = False) -> None:
    """Print the links of a network, and what they have carried.

    Example: archipelago wan status --json
    """
    from archipelago.lab.wan import kernel, rig
    from archipelago.lab.wan.network import read

    kernel.need_root()
    rows = rig.links(read(name))
    if as_json:
        print(json_text({"name": name, "links": rows}))
        return
    table = Table(box=None)
    for column in ("region", "address", "Gbit/s", "rtt ms", "link", "sent MB", "received MB"):
        table.add_column(column)
    for row in rows:
        megabytes = [f"{int(str(row[key])) / 1e6:.1f}" for key in ("sent_bytes", "received_bytes")]
        link = "cut" if row["cut"] else "up"
        words = [str(row["region"]), str(row["address"]), f"{row['gbit']:g}", f"{row['rtt_ms']:g}"]
        table.add_row(*words, link, *megabytes)
    Console().print(table)


@wan.command()
def settings(
    gbit: Annotated[float, typer.Option(min=0.001, help="Bandwidth of a link.")],
    rtt_ms: Annotated[float, typer.Option(min=0.0, help="Round-trip time.")],
    as_json: Json = False,
) -> None:
    """Print the kernel and Ray settings of every node for a link; each line has its reason.

    Example: archipelago wan settings --gbit 4 --rtt-ms 80
    """
    from cluster.launch.wan_settings import settings_for

    found = settings_for(gbit, rtt_ms)
    if as_json:
        print(json_text(found.as_dict()))
        return
    print(found.text())
