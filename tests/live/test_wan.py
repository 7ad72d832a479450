"""A network of regions: bandwidth, latency and cuts of real packets, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import DEVNULL

import pytest

from archipelago.lab.bench import wan as bench_wan
from archipelago.lab.bench import wan_bulk, wan_cut
from archipelago.lab.bench.wan_bulk import BulkPlan, bulk
from archipelago.lab.bench.wan_cut import CutPlan, cut_off
from archipelago.lab.bench.wan_points import WanPoint
from archipelago.lab.checks.token_counts import count_problems
from archipelago.lab.wan import ceiling, kernel, nodes, rig
from archipelago.lab.wan.network import Network, read
from coordinator.errors import UserMistake
from tests.live.cli import ROOT, Place, finish, place, until
from tests.live.over_links import happens, left_of, own_name, started
from tests.live.prometheus import prometheus_of

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="there is no TUN device"),
]

GBIT, RTT_MS = 0.1, 60.0
ROUND_TRIP = """
import socket, sys, time
began = time.monotonic()
try:
    socket.create_connection((sys.argv[1], 9), 2.0)
except ConnectionRefusedError:
    print(time.monotonic() - began)
except OSError:
    print(-1.0)
"""
"""A script that prints the seconds until a connection is refused; -1 if nothing answers."""


@contextmanager
def two_regions() -> Generator[Network]:
    network = Network.planned(own_name(), "10.79", ["eu", "us"], GBIT, RTT_MS)
    said = list[str]()
    with rig.running(network, said.append, size=None, force=True):  # it may forward little here
        assert "its ceiling here is" in said[0]
        yield network
    assert left_of(network.name) == []


def round_trip_s(network: Network) -> float:
    """Return the median round trip from the second region to the first; below 0: no answer."""
    command = [sys.executable, "-c", ROUND_TRIP, network.address(0)]
    inside = kernel.inside(network.namespace(network.regions[1]), *command)
    return statistics.median(
        float(subprocess.run(inside, check=True, capture_output=True, text=True).stdout)
        for _ in range(3)
    )


@pytest.mark.long
def test_links_have_their_bandwidth_and_latency_and_can_be_changed_and_cut() -> None:
    with two_regions() as network:
        name = network.name
        assert RTT_MS / 1000 <= round_trip_s(network) < 3 * RTT_MS / 1000
        before = {str(row["region"]): row for row in rig.links(network)}
        carried = ceiling.measure(network)
        assert 0.4 * GBIT < carried <= GBIT, "a shaped link carries what it says, and no more"
        after = {str(row["region"]): row for row in rig.links(network)}
        sent = int(str(after["us"]["sent_bytes"])) - int(str(before["us"]["sent_bytes"]))
        came = int(str(after["eu"]["received_bytes"])) - int(str(before["eu"]["received_bytes"]))
        assert sent > 1_000_000
        assert came == pytest.approx(sent, rel=0.2), "less what the queue dropped"
        rig.change(name, ["us"], rtt_ms=4 * RTT_MS)
        assert round_trip_s(network) >= 2.4 * RTT_MS / 1000
        rig.change(name, ["us"], cut=True)
        assert read(name).region("us").cut
        assert round_trip_s(network) < 0, "a cut link answers nothing"
        rig.change(name, ["us"], cut=False, rtt_ms=RTT_MS)
        assert round_trip_s(network) >= RTT_MS / 1000
        with pytest.raises(UserMistake, match=f"a network named {name} is up"):
            rig.up(network, print, size=None)
        with pytest.raises(UserMistake, match="has no region mars"):
            rig.change(name, ["mars"], cut=True)


@pytest.mark.long
def test_full_links_leave_all_nodes_alive() -> None:
    """`archipelago bench wan --bulk 600` does it for ten minutes."""
    plan = BulkPlan(15.0, regions=("r0", "r1"), rtt_ms=20.0, object_bytes=8 * 2**20)
    figures = bulk(plan, print)
    assert (figures["lost_nodes"], figures["failed_objects"], figures["first_failure"]) == (
        0,
        0,
        "",
    )
    assert figures["objects"] > 2 * plan.at_once * len(plan.regions)
    assert figures["link_fraction"] > 0.2, "else the links were not full"
    assert 0.02 <= figures["call_median_s"] <= figures["call_longest_s"] < 10.0, "20 ms away"
    assert left_of(wan_bulk.NAME) == []


@pytest.mark.long
def test_cut_region_with_a_shard_holds_up_its_own_fragments_only() -> None:
    plan = CutPlan(15.0, regions=3, usual_s=5.0, spread=True)
    figures = cut_off(plan, print)
    assert figures["ledger_problems"] == []
    assert figures["fragments_paused"] in (2, 3), "a shard has two or three of eight fragments"
    assert figures["longest_pause_s"] >= plan.cut_s
    assert figures["cut_gap_s"] < plan.cut_s / 2, "the others are merged"
    assert left_of(wan_cut.NAME) == []


@pytest.mark.long
def test_point_that_is_too_fast_for_this_machine_is_left_out_of_the_bench() -> None:
    """The limit shows when the network is up, when the points before may have taken an hour."""
    small = WanPoint(0.05, 20.0, 100_000, 0.01)
    points = [replace(small, gbit=50.0), small]
    figures = bench_wan.wan(points, methods=["data-parallel"], choices=[(1, 1)], say=print)
    assert [each["gbit_s"] for each in figures["left_out"]] == [50.0]
    assert [row["gbit_s"] for row in figures["rows"]] == [0.05]
    with pytest.raises(UserMistake, match="the links together carry up to 200 Gbit/s"):
        bench_wan.wan(points[:1], methods=["data-parallel"], choices=[(1, 1)], say=print)
    assert left_of(bench_wan.NAME) == []


REGIONS_ALIVE = """
import json, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False)
print(json.dumps([node["Labels"].get("region") for node in ray.nodes() if node["Alive"]]))
"""
"""A script that prints the regions of the nodes that a cluster considers alive."""


def regions_alive(network: Network) -> list[str]:
    command = [sys.executable, "-c", REGIONS_ALIVE, f"{network.address(0)}:{nodes.PORT}"]
    inside = kernel.inside(network.namespace(network.regions[0]), *command)
    env = nodes.environment(network)
    done = subprocess.run(inside, check=True, capture_output=True, text=True, env=env)
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return sorted(found)


@pytest.mark.long
def test_node_of_a_region_that_has_ended_is_started_again() -> None:
    network = Network.planned(own_name(), "10.79", ["eu", "us"], GBIT, RTT_MS)
    size = nodes.NodeSize(cpus=1.0, store_mb=100)
    with rig.running(network, print, size=size, force=True):
        assert regions_alive(network) == ["eu", "us"]
        of_us = nodes.CHILDREN[-1]
        of_us.terminate()
        of_us.wait(60.0)
        until(lambda: regions_alive(network) == ["eu"])
        command = [sys.executable, "-m", "archipelago", "wan", "set", "us", "--start-node"]
        options = ["--name", network.name, "--cpus", "1", "--store-mb", "100", "--json"]
        done = subprocess.run([*command, *options], check=True, capture_output=True, text=True)
        links = json.loads(done.stdout)["links"]
        assert [link["region"] for link in links] == ["eu", "us"]
        assert regions_alive(network) == ["eu", "us"]
    assert left_of(network.name) == []


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_command_that_was_ended(number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM clean up; after SIGKILL `down` does."""
    name = own_name()
    command = ["wan", "up", "--name", name, "--prefix", "10.80", "--regions", "2", "--no-ray"]
    process = subprocess.Popen(
        [sys.executable, "-m", "archipelago", *command, "--force"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("up;"):
            break
    os.kill(process.pid, number)
    process.communicate()
    if number != signal.SIGKILL:
        assert process.returncode == (0 if number == signal.SIGINT else 128 + number)
        assert left_of(name) == []
        return
    assert len(left_of(name)) > 4
    done = subprocess.run(
        [sys.executable, "-m", "archipelago", "wan", "down", "--name", name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("removed: 1 process,")
    assert left_of(name) == []


CONFIG = """
[run]
steps = 1000000
[task]
preset = "byte-tiny"
[data]
window = 32
lease_windows = 64
[sync]
every = 8
"""
GROUP = """
[[islands]]
group = "{name}"
batch_size = 4
resources = {{CPU = 0.5}}
label_selector = {{region = "{name}"}}
speed = 0.3
"""
ROUND = 8 * 4 * 32
"""The tokens that an island trains from one round of a fragment to the next."""
CUT_S = 25.0
"""Seconds of a cut: longer than a silent learner is waited for, shorter than Ray's limit."""


@pytest.mark.long
def test_region_that_is_cut_off_trains_on_and_its_work_is_accounted_for() -> None:
    names = ["eu", "us", "asia"]
    network = Network.planned(own_name(), "10.79", names, 0.2, 80.0)
    with place() as here:
        config = here.folder / "wan.toml"
        config.write_text(CONFIG + "".join(GROUP.format(name=name) for name in names))
        rig.up(network, print, size=nodes.NodeSize(cpus=1.0, store_mb=150), force=True)
        try:
            words = "doctor", "--links", "--json", "--mb", "4"
            examined = finish(started(here, network, *words))
            assert examined.code == 0, examined.err
            assert examined.json["ok"] is True
            links = examined.json["links"]
            assert {(each["from"][:2], each["to"][:2]) for each in links} == {
                ("us", "eu"), ("eu", "us"), ("as", "eu"), ("eu", "as")
            }  # fmt: skip
            assert all(80.0 <= each["rtt_ms"] < 240.0 for each in links)
            assert all(0.0 < each["gbit_s"] <= 0.2 for each in links)
            words = "run", str(config), "--json", "--run-dir", str(here.run_dir)
            process = started(here, network, *words)

            comes = partial(happens, process)
            comes(lambda: participants(here) == set(names))
            rig.change(network.name, ["us"], cut=True)
            comes(lambda: participants(here) == {"eu", "asia"})
            steps, merges = steps_of(here, "us"), here.merges
            comes(lambda: here.merges > merges + 10)
            rig.change(network.name, ["us"], cut=False)
            comes(lambda: participants(here) == set(names))
            assert steps_of(here, "us") > steps, "it trained on while it was cut off"
            os.killpg(process.pid, signal.SIGINT)
            finished = finish(process)
        finally:
            rig.down(network.name)
        assert finished.code == 130, finished.err
        assert count_problems(here.run_dir, 2 * ROUND * len(names)) == []
    assert left_of(network.name) == []


PAGE = ROOT / "docs" / "howto" / "wan.md"
CLOSED = """
import socket, sys
listener = socket.create_server((sys.argv[1], 7777))
listener.settimeout(5.0)
try:
    listener.accept()
    print("open")
except TimeoutError:
    print("closed")
"""
"""A script that prints whether a connection to a port that no rule names comes within 5 s."""


@pytest.mark.long
@pytest.mark.skipif(shutil.which("nft") is None, reason="nftables is not installed")
def test_run_trains_behind_the_firewall_of_the_page() -> None:
    """The rules and ports are those of docs/howto/wan.md, step 2."""
    names = ["eu", "us"]
    network = Network.planned(own_name(), "10.79", names, 0.1, 20.0)
    (rules,) = re.findall(r"```nft\n(.*?)```", PAGE.read_text(), re.DOTALL)
    rules = rules.replace("10.8.0.0/16", "10.79.0.0/16")
    with place() as here, rig.running(network, print, size=None, force=True):
        spaces = [network.namespace(region) for region in network.regions]
        for space in spaces:
            subprocess.run(
                kernel.inside(space, "nft", "-f", "-"), input=rules, text=True, check=True
            )
        command = kernel.inside(spaces[0], sys.executable, "-c", CLOSED, network.address(0))
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
            call = f"import socket; socket.create_connection(('{network.address(0)}', 7777), 3)"
            subprocess.run(
                kernel.inside(spaces[1], sys.executable, "-c", call), check=False, stderr=DEVNULL
            )
            assert listener.communicate()[0].strip() == "closed"
        for region in network.regions:
            nodes.bring_up(network, region, nodes.NodeSize(cpus=1.0, store_mb=150))
        examined = finish(started(here, network, "doctor", "--links", "--json", "--mb", "4"))
        assert examined.code == 0, examined.err
        assert all(each["gbit_s"] > 0.0 for each in examined.json["links"]), examined.json
        config = here.folder / "wan.toml"
        config.write_text(CONFIG + "".join(GROUP.format(name=name) for name in names))
        process = started(
            here, network, "run", str(config), "--json", "--run-dir", str(here.run_dir)
        )
        happens(process, lambda: contributors(here) == set(names))
        os.killpg(process.pid, signal.SIGINT)
        finished = finish(process)
        assert finished.code == 130, finished.err
    assert left_of(network.name) == []


WATCHED = """# one fragment of 1 MB: much more than the burst of a link's token bucket
[run]
steps = 1000000
[task]
preset = "byte-tiny"
[data]
window = 32
lease_windows = 64
[sync]
every = 8
fragments = 1
wire_up = "f32"
wire_down = "f32"
[monitor]
targets = "{targets}"
"""
STEP_S = 1.0
"""The least seconds of a step: the run then needs 1 Mbit/s of each link, in each direction."""
USUAL_GBIT, SLOW_GBIT = 0.02, 0.003
USUAL_S = 200.0
"""Seconds after which what is usual for a link is known: eight intervals, and a margin."""


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_alert_for_a_slow_link_and_for_a_cut_one_fires_at_a_real_prometheus() -> None:
    """The alert of the other region, or of a link that is as usual, never fires."""
    names = ["eu", "us", "asia"]
    network = Network.planned(own_name(), "10.79", names, USUAL_GBIT, 20.0)
    with place() as here:
        config, targets = here.folder / "wan.toml", here.folder / ".archipelago" / "targets"
        groups = "".join(GROUP.format(name=name) + f"step_s = {STEP_S}\n" for name in names)
        config.write_text(WATCHED.format(targets=targets) + groups)
        rig.up(network, print, size=nodes.NodeSize(cpus=1.0, store_mb=150), force=True)
        try:
            words = "run", str(config), "--json", "--run-dir", str(here.run_dir)
            process = started(here, network, *words)

            comes = partial(happens, process)

            def inside(*command: str) -> list[str]:
                return kernel.inside(network.namespace(network.regions[0]), *command)

            def links(alert: str) -> set[tuple[str, str]]:
                found = prometheus.ask(f'ALERTS{{alertname="{alert}",alertstate="firing"}}')
                return {(each["metric"]["link"], each["metric"]["direction"]) for each in found}

            with prometheus_of(here.folder, host=network.address(0), inside=inside) as prometheus:
                comes(lambda: contributors(here) == set(names))
                since_s = time.monotonic()
                comes(lambda: time.monotonic() > since_s + USUAL_S)
                assert not links("ArchipelagoLinkSlow") | links("ArchipelagoLinkDown")
                rig.change(network.name, ["us"], gbit=SLOW_GBIT)
                comes(lambda: links("ArchipelagoLinkSlow") == {("us", "up"), ("us", "down")})
                rig.change(network.name, ["us"], gbit=USUAL_GBIT)
                comes(lambda: not links("ArchipelagoLinkSlow"))
                rig.change(network.name, ["us"], cut=True)
                comes(lambda: {link for link, _ in links("ArchipelagoLinkDown")} == {"us"})
            os.killpg(process.pid, signal.SIGINT)
            finished = finish(process)
        finally:
            rig.down(network.name)
    assert finished.code == 130, finished.err
    assert "the link of us to the shards is slow: " in finished.err
    assert "the link of us to the shards is as usual again" in finished.err
    assert "the link of us to the shards is down: " in finished.err
    assert left_of(network.name) == []


def participants(here: Place) -> set[str]:
    """Return the groups that took part in the last merge of any fragment.

    On a busy machine few merges have all of them: an island in the region of the shards is faster.
    """
    fragments = here.last_status.get("fragments", ())
    return {each.partition("-")[0] for f in fragments for each in f["participants"]}


def contributors(here: Place) -> set[str]:
    """Return the groups whose islands have contributed."""
    islands = here.last_status.get("islands", ())
    return {each["group"] for each in islands if each["contributions"] > 0}


def steps_of(here: Place, group: str) -> int:
    islands = here.last_status.get("islands", ())
    return sum(each["steps"] for each in islands if each["group"] == group)
