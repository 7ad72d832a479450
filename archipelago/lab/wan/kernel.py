"""The kernel's part of a network: namespaces, links, token buckets, latency and cuts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence

from archipelago.lab.wan.delay import DEVICE
from archipelago.lab.wan.network import HOST, Network, WanRegion
from coordinator.errors import RunFailed, UserMistake

TOOLS = ("ip", "tc", "sysctl")
END = "wan0"
"""The name of the interface on a region's side of its link."""
BURST_S, LEAST_BURST_BYTES = 0.004, 128 * 1024
"""A token bucket holds what its link carries in that time, and at least two packets of 64 KB."""
QUEUE_S = 0.1
"""A link's queue holds what it carries in this time, or in a round trip if that is longer."""
DELAYED = 77
"""The routing table of packets that are to be held back."""
CUT_PRIORITY, DELAY_PRIORITY = 10, 20
"""The order of the backbone's rules: a cut comes before latency."""
WINDOW_ROUNDS = 4
"""A tuned socket's largest window, in bandwidth-delay products of its link."""
LEAST_WINDOW_BYTES = 64 * 1024
DEFAULT_WINDOWS = {"rmem": 6 * 2**20, "wmem": 4 * 2**20}
"""Linux's largest windows without tuning, in bytes."""
REAL_GBIT = 4.0
"""The bandwidth of the real links that ours stand for; untuned windows shrink as the links do."""


def need_root(user: int | None = None, path: str | None = None) -> None:
    """Check that this process may make networks.

    `user` and `path`: a user id and a search path in place of this process's own.

    Errors: `UserMistake` with everything that is lacking.
    """
    problems = list[str]()
    if (os.geteuid() if user is None else user) != 0:
        problems.append("`archipelago wan` makes network namespaces; run it as root")
    if missing := [tool for tool in TOOLS if shutil.which(tool, path=path) is None]:
        problems.append(
            f"{', '.join(missing)} not found; install iproute2 and procps, or extend PATH"
        )
    if problems:
        raise UserMistake("\n".join(problems))


def run(*command: str) -> str:
    """Run a command of the kernel's tools, and return its output.

    Errors: `RunFailed` with its message.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailed(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.returncode}")
    return done.stdout


def inside(namespace: str, *command: str) -> list[str]:
    """Return a command that runs in a namespace."""
    return ["ip", "netns", "exec", namespace, *command]


def namespaces(name: str) -> list[str]:
    """Return the namespaces of a network, also of one whose process was killed."""
    listed = run("ip", "netns", "list").split("\n")
    own = re.compile(rf"{name}-(wan|r\d+)")
    names = [each.split()[0] for each in listed if each]
    return [each for each in names if own.fullmatch(each)]


def has_netem(namespace: str) -> bool:
    """Return whether the kernel can hold packets back by itself."""
    command = inside(namespace, "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode == 0:
        run(*inside(namespace, "tc", "qdisc", "del", "dev", "lo", "root"))
    return done.returncode == 0


def make(network: Network) -> None:
    """Make namespaces and links without limits or latency.

    Errors: `UserMistake` if the machine uses these addresses already; `RunFailed`.
    """
    route = run("ip", "-o", "route", "get", network.gateway(HOST))
    if f"dev {network.name}h" not in route and " via " not in route:
        raise UserMistake(
            f"this machine has addresses of {network.prefix}.0.0 already ({route.split(' uid')[0]})"
            "; choose others with --prefix"
        )
    backbone = network.backbone
    run("ip", "netns", "add", backbone)
    for setting in ("ip_forward=1", "conf.all.rp_filter=0", "conf.default.rp_filter=0"):
        run(*inside(backbone, "sysctl", "-qw", f"net.ipv4.{setting}"))
    run("ip", "-n", backbone, "link", "set", "lo", "up")
    for region in network.regions:
        namespace = network.namespace(region)
        run("ip", "netns", "add", namespace)
        run("ip", "-n", namespace, "link", "set", "lo", "up")
        _link(network, region.number, ["-n", namespace], END, ["netns", namespace])
        gateway = network.gateway(region.number)
        run("ip", "-n", namespace, "route", "add", "default", "via", gateway)
    _link(network, HOST, [], f"{network.name}h", [])
    subnet, gateway = f"{network.prefix}.0.0/16", network.gateway(HOST)
    run("ip", "route", "add", subnet, "via", gateway, "dev", f"{network.name}h")


def _link(
    network: Network, number: int, where: Sequence[str], end: str, owner: Sequence[str]
) -> None:
    """Join a namespace, or the machine itself, to the backbone."""
    device = network.device(number)
    peer = ["peer", "name", end, *owner]
    run("ip", "link", "add", device, "netns", network.backbone, "type", "veth", *peer)
    ends = ((["-n", network.backbone], device, network.gateway(number)),
            (where, end, network.address(number)))  # fmt: skip
    for place, name, address in ends:
        run("ip", *place, "address", "add", f"{address}/24", "dev", name)
        run("ip", *place, "link", "set", name, "up")


def delay_by_device(network: Network) -> None:
    """Route packets between regions through the forwarder's device, which must be there."""
    backbone = network.backbone
    run("ip", "-n", backbone, "link", "set", DEVICE, "txqueuelen", "10000", "up")
    run("ip", "-n", backbone, "route", "add", "default", "dev", DEVICE, "table", str(DELAYED))
    host = [f"{network.prefix}.{HOST}.0/24", "dev", network.device(HOST)]
    run("ip", "-n", backbone, "route", "add", *host, "table", str(DELAYED))
    for region in network.regions:
        rule = ["iif", network.device(region.number), "lookup", str(DELAYED)]
        run("ip", "-n", backbone, "rule", "add", *rule, "priority", str(DELAY_PRIORITY))


def shape(network: Network, region: WanRegion, *, netem: bool) -> None:
    """Give a region's link its bandwidth, latency and windows, and cut or heal it."""
    namespace, device = network.namespace(region), network.device(region.number)
    for where, name in ((namespace, END), (network.backbone, device)):
        for command in qdiscs(region, name, netem=netem):
            if command[2] == "del":  # there may be none
                subprocess.run(inside(where, *command), capture_output=True, check=False)
            else:
                run(*inside(where, *command))
    for name in DEFAULT_WINDOWS:
        window = window_bytes(region, name, tuned=network.tuned)
        value = f"4096 {min(131072, window)} {window}"
        run(*inside(namespace, "sysctl", "-qw", f"net.ipv4.tcp_{name}={value}"))
    idle = 0 if network.tuned else 1
    run(*inside(namespace, "sysctl", "-qw", f"net.ipv4.tcp_slow_start_after_idle={idle}"))
    _cut(network, region)


def qdiscs(region: WanRegion, device: str, *, netem: bool) -> list[list[str]]:
    """Return the `tc` commands that shape one end of a region's link."""
    start = ["tc", "qdisc"]
    commands = [[*start, "del", "dev", device, "root"]]
    place = ["root"]
    if netem and region.rtt_ms:
        spread_ms = region.jitter_ms / 4  # both ends of a way: from 0 to `jitter_ms` in all
        delay = [f"{1000 * region.delay_s + spread_ms:g}ms"]
        if region.jitter_ms:
            delay.append(f"{spread_ms:g}ms")
        queue = ["netem", "limit", "100000", "delay", *delay]
        commands.append([*start, "add", "dev", device, "root", "handle", "1:", *queue])
        place = ["parent", "1:"]
    if region.gbit:
        rate = region.gbit * 1e9
        burst = max(LEAST_BURST_BYTES, int(rate * BURST_S / 8))
        limit = burst + int(rate * max(QUEUE_S, region.rtt_ms / 1000) / 8)
        bucket = ["tbf", "rate", f"{int(rate)}bit", "burst", str(burst), "limit", str(limit)]
        commands.append([*start, "add", "dev", device, *place, *bucket])
    return commands


def window_bytes(region: WanRegion, name: str, *, tuned: bool) -> int:
    """Return the largest window of a region's sockets, in bytes; `name`: rmem or wmem.

    It grows with the link, so that an untuned window limits a thin link as it limits a thick one.
    A link without a limit has the windows of 1 Gbit/s.
    """
    gbit = region.gbit or 1.0
    if tuned:
        wanted = WINDOW_ROUNDS * gbit * 1e9 / 8 * region.rtt_ms / 1000
    else:
        wanted = DEFAULT_WINDOWS[name] * gbit / REAL_GBIT
    return max(LEAST_WINDOW_BYTES, int(wanted))


def _cut(network: Network, region: WanRegion) -> None:
    """Drop all packets of a region, or none; a sender gets no error."""
    rules = json.loads(run("ip", "-n", network.backbone, "-j", "rule") or "[]")
    device = network.device(region.number)
    subnet = f"{network.prefix}.{region.number}.0"
    words = (["iif", device], ["to", f"{subnet}/24"])
    is_cut = any(
        each["priority"] == CUT_PRIORITY
        and (each.get("iif") == device or each.get("dst") == subnet)
        for each in rules
    )
    if is_cut != region.cut:
        for each in words:
            verb = "add" if region.cut else "del"
            rule = ["rule", verb, "priority", str(CUT_PRIORITY), *each, "blackhole"]
            run("ip", "-n", network.backbone, *rule)


def counters(network: Network) -> dict[str, dict[str, int]]:
    """Return the bytes and packets of each region's link; `sent` is what the region sent."""
    links = json.loads(run("ip", "-n", network.backbone, "-s", "-j", "link"))
    found = {each["ifname"]: each["stats64"] for each in links}
    figures = dict[str, dict[str, int]]()
    for region in network.regions:
        stats = found[network.device(region.number)]
        figures[region.name] = {
            "sent_bytes": stats["rx"]["bytes"],
            "received_bytes": stats["tx"]["bytes"],
            "sent_packets": stats["rx"]["packets"],
            "received_packets": stats["tx"]["packets"],
            "dropped_packets": stats["tx"]["dropped"] + stats["rx"]["dropped"],
        }
    return figures


def resent_segments(network: Network) -> dict[str, int]:
    """Return how many TCP segments the processes of each region have sent again."""
    found = dict[str, int]()
    for region in network.regions:
        text = run(*inside(network.namespace(region), "cat", "/proc/net/snmp"))
        names, values = (line.split() for line in text.splitlines() if line.startswith("Tcp:"))
        found[region.name] = int(values[names.index("RetransSegs")])
    return found


def bytes_between(network: Network) -> dict[tuple[str, str], int]:
    """Return the bytes that each region has sent to each other one, by region of both.

    Only connections that are still open count, and bytes that were sent again count once.
    """
    names = {network.address(each.number): each.name for each in network.regions}
    found = dict[tuple[str, str], int]()
    for region in network.regions:
        text = run(*inside(network.namespace(region), "ss", "-tinOH", "state", "established"))
        for line in text.splitlines():
            address = line.split()[3].rpartition(":")[0].strip("[]").removeprefix("::ffff:")
            acknowledged = re.search(r"bytes_acked:(\d+)", line)
            name = names.get(address, region.name)
            if acknowledged is not None and name != region.name:
                key = region.name, name
                found[key] = found.get(key, 0) + int(acknowledged[1])
    return found


def remove(name: str) -> list[str]:
    """Remove the namespaces of a network and all that is in them; return their names."""
    found = namespaces(name)
    if found:  # the kernel deletes it with the backbone, too, but later
        link = ["ip", "link", "delete", f"{name}h"]
        subprocess.run(link, capture_output=True, check=False)
    for each in found:
        run("ip", "netns", "delete", each)
    return found
