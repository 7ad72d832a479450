"""The parts of a network that need no root: its description, the order of packets, settings."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import socket
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from archipelago.cli.main import app
from archipelago.lab.wan import ceiling, kernel, rig
from archipelago.lab.wan.delay import HEADER_BYTES, Delays, HeldPackets
from archipelago.lab.wan.network import FILE, MARK, Network, WanRegion, parsed, read
from cluster.launch.wan_settings import settings_for
from coordinator.errors import RunFailed, UserMistake
from tests.cluster.test_growth import seeded

NAMES = ("eu", "us", "asia", "au")


@dataclass(frozen=True, slots=True)
class Made:
    """A network and the folder with its file."""

    network: Network
    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "net" / FILE

    def change(self, region: WanRegion) -> None:
        self.network.with_region(region).write(self.folder / "net")


@pytest.fixture
def made(tmp_path: Path) -> Made:
    planned = Network.planned("net", "10.77", NAMES, 0.2, 80.0)
    planned.write(tmp_path / "net")
    return Made(planned, tmp_path)


def packet(source: int, destination: int, number: int, version: int = 4) -> bytes:
    """Return a virtio header and an IPv4 header with these regions, and a number as content."""
    addresses = bytes([10, 77, source, 2, 10, 77, destination, 2])
    return bytes(HEADER_BYTES) + bytes([version << 4]) + bytes(11) + addresses + bytes([number])


def test_description_survives_its_file(made: Made) -> None:
    assert read("net", made.folder) == made.network
    assert parsed(made.file.read_text()).address(2) == "10.77.2.2"


def test_both_ends_of_the_ceiling_are_processes_of_the_network(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`archipelago wan down` finds the processes of a crashed command by this variable."""
    marks = tmp_path / "marks"
    fake = tmp_path / "ip"
    fake.write_text(f'#!/bin/sh\necho "$7 ${MARK}" >> {marks}\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(RunFailed, match="the regions of net cannot reach each other"):
        ceiling.measure(made.network)
    assert sorted(marks.read_text().splitlines()) == ["send net", "serve net"]


def test_connection_over_which_nothing_arrives_ends_the_measurement() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(TimeoutError):
        ceiling.arriving_gbit(ours, 0.05)


def test_unknown_networks_and_regions_are_named(made: Made) -> None:
    with pytest.raises(UserMistake, match="no network named other is up; up: net"):
        read("other", made.folder)
    with pytest.raises(UserMistake, match=r"--name \.\.: a name has 1 to 8 of a-z and 0-9"):
        read("..", made.folder)
    with pytest.raises(UserMistake, match="net has no region mars; it has eu, us, asia, au"):
        made.network.region("mars")


def test_every_problem_of_a_network_is_reported_at_once() -> None:
    with pytest.raises(UserMistake) as found:
        Network.planned("Much-too-long", "10", ["a", "a"], -1.0, 80.0)
    text = str(found.value)
    for part in ("--name Much-too-long", "--prefix 10:", "two regions are named a", "--gbit -1"):
        assert part in text
    with pytest.raises(UserMistake, match="1 regions: from 2"):
        Network.planned("net", "10.77", ["a"], 1.0, 80.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0])
@pytest.mark.parametrize("key", ["gbit", "rtt_ms", "jitter_ms"])
def test_what_is_no_number_from_0_up_is_refused_for_a_link(
    made: Made, key: str, value: float
) -> None:
    option = f"--{key.replace('_', '-')}"
    text = f"{option} {value:g}: a finite number from 0 up is needed"
    with pytest.raises(UserMistake, match=f"^{text}$"):
        rig.changed(made.network, ["us"], {key: value})
    if key != "jitter_ms":
        link = {"gbit": 0.2, "rtt_ms": 80.0} | {key: value}
        with pytest.raises(UserMistake, match=f"^{text}$"):
            Network.planned("net", "10.77", NAMES, link["gbit"], link["rtt_ms"])


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_no_settings_are_given_for_what_is_not_finite(wrong: float) -> None:
    for gbit, rtt_ms in ((wrong, 80.0), (4.0, wrong)):
        text = f"--gbit {gbit:g}, --rtt-ms {rtt_ms:g}: a finite bandwidth above 0 and a finite"
        with pytest.raises(UserMistake, match=text):
            settings_for(gbit, rtt_ms)
    words = ["wan", "settings", "--gbit", "4", "--rtt-ms", str(wrong)]
    assert CliRunner().invoke(app, words).exit_code != 0


def test_links_are_not_made_faster_than_half_of_the_ceiling(made: Made) -> None:
    network = replace(made.network, ceiling_gbit=2.0)
    assert rig.changed(network, [], {"gbit": 0.25}).region("eu").gbit == 0.25
    text = (
        "the links together carry up to 1.1 Gbit/s, more than half of the 2.00 Gbit/s that this "
        "machine forwards"
    )
    with pytest.raises(rig.LinksTooFast, match=text):
        rig.changed(network, ["us"], {"gbit": 0.5})
    forced = rig.changed(network, ["us"], {"gbit": 0.5}, force=True)
    assert forced.region("us").gbit == 0.5
    text = r"the links of eu, us have no limit, so they carry more than half of the 2\.00 Gbit/s"
    with pytest.raises(rig.LinksTooFast, match=text) as refusal:
        rig.changed(network, ["eu", "us"], {"gbit": 0.0})
    assert str(refusal.value).endswith("take a --gbit above 0, or --force")
    free = rig.changed(network, [], {"gbit": 0.0}, force=True)
    assert {region.gbit for region in free.regions} == {0.0}
    assert rig.changed(made.network, [], {"gbit": 0.0}).region("eu").gbit == 0.0, "not measured"
    network.write(made.folder / "net")
    assert read("net", made.folder).ceiling_gbit == 2.0


def test_links_that_were_forced_stay_changeable(made: Made) -> None:
    network = replace(made.network, ceiling_gbit=0.1)
    assert rig.changed(network, ["us"], {}, cut=True).region("us").cut, "no bandwidth changes"
    forced = replace(network, forced=True)
    assert rig.changed(forced, [], {"gbit": 0.3, "rtt_ms": None}).region("eu").gbit == 0.3
    assert rig.changed(made.network, [], {"gbit": 50.0}).region("eu").gbit == 50.0, "not measured"


def test_status_needs_the_tools_as_the_other_commands_do() -> None:
    found = CliRunner().invoke(app, ["wan", "status"], env={"PATH": ""})
    assert isinstance(found.exception, UserMistake)
    assert "ip, tc, sysctl not found" in str(found.exception)


def test_packet_waits_for_half_of_the_round_trip(made: Made) -> None:
    held = HeldPackets(Delays(made.file))
    held.take(packet(1, 0, 7), 100.0)
    assert held.due(100.0399) is None
    assert held.next_s() == pytest.approx(100.04)
    assert held.due(100.0401) == packet(1, 0, 7)
    held.sent()
    assert held.next_s() is None


def test_round_trip_between_two_regions_is_the_mean_of_theirs(made: Made) -> None:
    made.change(WanRegion("us", 1, 0.2, 20.0))
    delays = Delays(made.file)
    assert delays.of(0, 1) + delays.of(1, 0) == pytest.approx(0.05)
    assert delays.of(0, 2) + delays.of(2, 0) == pytest.approx(0.08)


def test_delays_follow_the_file(made: Made) -> None:
    delays = Delays(made.file)
    made.change(WanRegion("us", 1, 0.2, 400.0))
    delays.look()
    assert delays.of(1, 0) == pytest.approx(0.12)


def test_packets_between_two_regions_never_overtake_despite_jitter(made: Made) -> None:
    dice = seeded()
    made.change(WanRegion("eu", 0, 0.2, 80.0, jitter_ms=50.0))
    held, now_s, sent = HeldPackets(Delays(made.file)), 0.0, list[bytes]()
    for number in range(200):
        now_s += dice.uniform(0.0, 0.01)
        held.take(packet(dice.choice((1, 2)), 0, number), now_s)
    while (next_s := held.next_s()) is not None:
        found = held.due(next_s)
        assert found is not None
        sent.append(found)
        held.sent()
    assert len(sent) == 200
    for source in (1, 2):
        numbers = [each[-1] for each in sent if each[HEADER_BYTES + 14] == source]
        assert numbers == sorted(numbers)
    assert [each[-1] for each in sent] != sorted(each[-1] for each in sent), "others overtake"


def test_only_ipv4_is_forwarded(made: Made) -> None:
    held = HeldPackets(Delays(made.file))
    held.take(packet(0, 1, 1, version=6), 0.0)
    assert held.next_s() is None


def test_token_bucket_holds_a_large_packet_and_its_queue_a_round_trip() -> None:
    (_, command) = kernel.qdiscs(WanRegion("eu", 0, 0.2, 80.0), "wan0", netem=False)
    words = dict(itertools.pairwise(command))
    assert words["rate"] == "200000000bit"
    assert int(words["burst"]) >= 2 * 65536
    assert int(words["limit"]) - int(words["burst"]) == 2_500_000


def test_latency_comes_from_netem_where_the_kernel_has_it() -> None:
    commands = kernel.qdiscs(WanRegion("eu", 0, 0.2, 80.0, jitter_ms=4.0), "wan0", netem=True)
    assert commands[1][-3:] == ["delay", "21ms", "1ms"]
    assert commands[2][5:8] == ["parent", "1:", "tbf"]
    assert kernel.qdiscs(WanRegion("eu", 0, 0.0, 0.0), "wan0", netem=True) == [commands[0]]


@pytest.mark.parametrize("gbit", [0.05, 0.2, 1.0])
def test_untuned_window_limits_every_link_to_the_same_part(gbit: float) -> None:
    region = WanRegion("eu", 0, gbit, 80.0)
    window = kernel.window_bytes(region, "rmem", tuned=False)
    product = gbit * 1e9 / 8 * 0.08
    assert window == pytest.approx(product * 6 * 2**20 / 40e6, rel=0.01)
    assert kernel.window_bytes(region, "rmem", tuned=True) == 4 * product


def test_settings_grow_with_the_link() -> None:
    chance = random.Random(seed := random.randrange(10**6))
    gbit, rtt_ms = chance.uniform(0.1, 100.0), chance.uniform(1.0, 300.0)
    found = settings_for(gbit, rtt_ms)
    buffer = int({each.name: each.value for each in found.sysctl}["net.core.rmem_max"])
    assert buffer >= 2 * found.product_bytes, (seed, gbit, rtt_ms)
    timeout_s = int({e.name: e.value for e in found.ray}["RAY_object_manager_pull_timeout_ms"])
    assert timeout_s / 1000 >= 2**29 * 8 / (gbit * 1e9 / 4) - 1, (seed, gbit, rtt_ms)


def test_settings_are_printed_as_lines_and_as_json() -> None:
    printed = CliRunner().invoke(app, ["wan", "settings", "--gbit", "4", "--rtt-ms", "80"])
    assert "net.ipv4.tcp_rmem = 4096 131072 134217728" in printed.stdout
    assert "export RAY_object_manager_client_connection_num=8" in printed.stdout
    words = ["wan", "settings", "--gbit", "4", "--rtt-ms", "80", "--json"]
    figures = json.loads(CliRunner().invoke(app, words).stdout)
    assert figures["bandwidth_delay_product_bytes"] == 40_000_000
    assert figures["ray"]["RAY_gcs_grpc_min_reconnect_backoff_ms"] == "1000"
    head_s = 13 * int(figures["ray"]["RAY_health_check_failure_threshold"])
    node_s = int(figures["ray"]["RAY_gcs_rpc_server_reconnect_timeout_s"])
    assert 120 < head_s < node_s < 240, "two minutes without a link end no node, four minutes do"


def test_root_and_tools_are_needed() -> None:
    with pytest.raises(UserMistake) as found:
        kernel.need_root(user=1000, path="")
    assert "run it as root" in str(found.value)
    assert "ip, tc, sysctl not found" in str(found.value)


@pytest.mark.parametrize("name", ["..", "../../tmp", "", "UPPER", "-x"])
def test_down_refuses_what_is_no_name(name: str) -> None:
    """A name becomes a part of a path that is deleted."""
    with pytest.raises(UserMistake, match="a name has 1 to 8"):
        rig.down(name)
