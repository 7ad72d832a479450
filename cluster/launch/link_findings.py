"""The settings that limit the links between nodes, judged from measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cluster.launch.wan_settings import (
    CONNECTIONS,
    FAILED_CHECKS,
    LEAST_TIMEOUT_S,
    RECONNECT_S,
)

LONG_RTT_MS = 10.0
"""The round-trip time from which windows and connections matter."""
WINDOW_SHARE = 0.6
"""A link is limited by its windows if it carries at least this share of what they allow."""
DEFAULT_CONNECTIONS = 2
"""Ray's own number of bulk connections between two nodes."""
DEFAULT_PULL_TIMEOUT_MS = 10_000
"""Ray's own timeout of a pull."""
SILENCE_DEFAULTS = {
    "RAY_health_check_failure_threshold": "5 failed checks, some 65 s of silence, end a node",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "a node ends itself after 60 s without the head",
}
"""The settings that let Ray keep a node whose link is silent, and what Ray does without them."""
SILENCE_VALUES = {
    "RAY_health_check_failure_threshold": FAILED_CHECKS,
    "RAY_gcs_rpc_server_reconnect_timeout_s": RECONNECT_S,
}
"""The values that `archipelago wan settings` prints for them."""
LARGE_BYTES = 256 * 2**20
"""An object that must arrive within the timeout: a fragment of 64 million parameters in f32."""


class Severity(StrEnum):
    """The severity of a finding."""

    PROBLEM = "problem"
    """Something does not work."""
    WARNING = "warning"
    """Something works, but slower than it could."""
    NOTE = "note"
    """Something was done on purpose."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and what to do."""

    where: str
    what: str
    severity: Severity
    hint: str


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The settings of one node."""

    name: str
    """The address of the node, with its region if it has that label."""
    receive_bytes: int
    """The largest receive buffer of a connection (`net.ipv4.tcp_rmem`)."""
    send_bytes: int
    """The largest send buffer of a connection (`net.ipv4.tcp_wmem`)."""
    slow_start_after_idle: bool
    ray: Mapping[str, str]
    """The `RAY_*` settings of its processes."""
    known: bool = True
    """Whether the node has answered; otherwise the settings are empty."""


@dataclass(frozen=True, slots=True)
class LinkMeasured:
    """A measured link, in one direction."""

    source: NodeFacts
    target: NodeFacts
    rtt_ms: float
    """The median round trip of a connection."""
    gbit_s: float
    """The rate of one large object through Ray, in Gbit/s; 0 if it did not arrive."""
    error: str | None = None
    """The reason if the object did not arrive."""

    @property
    def window_gbit_s(self) -> float:
        """The rate that socket windows and connections allow, in Gbit/s.

        Linux uses half of a receive buffer as window.
        """
        window = min(self.target.receive_bytes / 2, float(self.source.send_bytes))
        connections = int(
            self.source.ray.get("RAY_object_manager_client_connection_num", DEFAULT_CONNECTIONS)
        )
        return connections * window * 8 / (max(self.rtt_ms, 0.01) / 1000) / 1e9


def findings_of(links: Sequence[LinkMeasured]) -> list[Finding]:
    """Return everything that limits these links, the worst first."""
    found = list[Finding]()
    for link in links:
        found += _of_link(link)
    for node in {each.source.name: each.source for each in links}.values():
        found += _of_node(node, [each for each in links if node in (each.source, each.target)])
    found += _differences([each.source for each in links])
    return sorted(dict.fromkeys(found), key=lambda each: each.severity is not Severity.PROBLEM)


def _of_link(link: LinkMeasured) -> list[Finding]:
    where = f"{link.source.name} to {link.target.name}"
    if link.error is not None:
        return [
            Finding(
                where,
                f"an object did not arrive: {link.error}",
                Severity.PROBLEM,
                "open Ray's ports in both directions (docs/howto/wan.md, step 2)",
            )
        ]
    found = list[Finding]()
    if link.rtt_ms >= LONG_RTT_MS and link.gbit_s >= WINDOW_SHARE * link.window_gbit_s:
        found.append(
            Finding(
                where,
                f"{link.gbit_s:.2f} Gbit/s at a round trip of {link.rtt_ms:.0f} ms: the socket "
                f"windows allow {link.window_gbit_s:.2f}",
                Severity.WARNING,
                "raise net.ipv4.tcp_rmem and net.ipv4.tcp_wmem on both nodes; `archipelago wan "
                f"settings --gbit BANDWIDTH --rtt-ms {link.rtt_ms:.0f}` prints the values",
            )
        )
    timeout_ms = int(
        link.target.ray.get("RAY_object_manager_pull_timeout_ms", DEFAULT_PULL_TIMEOUT_MS)
    )
    if link.gbit_s and (needed_s := LARGE_BYTES * 8 / (link.gbit_s * 1e9)) > timeout_ms / 1000:
        wanted_ms = int(1000 * max(LEAST_TIMEOUT_S, 4 * needed_s))
        found.append(
            Finding(
                where,
                f"{LARGE_BYTES / 2**20:.0f} MiB take {needed_s:.0f} s, and Ray asks again after "
                f"{timeout_ms / 1000:g} s",
                Severity.WARNING,
                f"export RAY_object_manager_pull_timeout_ms={wanted_ms}",
            )
        )
    return found


def _of_node(node: NodeFacts, links: Sequence[LinkMeasured]) -> list[Finding]:
    """Return what is wrong with a node's settings, if it has a long link."""
    rtt_ms = max(each.rtt_ms for each in links)
    if rtt_ms < LONG_RTT_MS:
        return []
    found = list[Finding]()
    if node.slow_start_after_idle:
        found.append(
            Finding(
                node.name,
                f"each fragment starts slowly: a round trip of {rtt_ms:.0f} ms, and slow start "
                "after idle time is on",
                Severity.WARNING,
                "net.ipv4.tcp_slow_start_after_idle = 0",
            )
        )
    name = "RAY_object_manager_client_connection_num"
    if int(node.ray.get(name, DEFAULT_CONNECTIONS)) < CONNECTIONS:
        found.append(
            Finding(
                node.name,
                f"{node.ray.get(name, DEFAULT_CONNECTIONS)} bulk connections to each node over a "
                f"round trip of {rtt_ms:.0f} ms",
                Severity.WARNING,
                f"export {name}={CONNECTIONS} before `ray start`",
            )
        )
    for setting, effect in SILENCE_DEFAULTS.items():
        if setting not in node.ray:
            found.append(
                Finding(
                    node.name,
                    f"{setting} is not set over a round trip of {rtt_ms:.0f} ms: {effect}, so a "
                    "cut of a minute may end it",
                    Severity.WARNING,
                    f"export {setting}={SILENCE_VALUES[setting]} before `ray start`",
                )
            )
    return found


def _differences(nodes: Sequence[NodeFacts]) -> list[Finding]:
    """Return the Ray settings that are not the same on all nodes."""
    by_name = {node.name: node for node in nodes if node.known}
    names = sorted({name for node in by_name.values() for name in node.ray})
    found = list[Finding]()
    for name in names:
        values = {where: node.ray.get(name, "not set") for where, node in by_name.items()}
        if len({*values.values()}) > 1:
            told = ", ".join(f"{where}: {value}" for where, value in values.items())
            found.append(
                Finding(
                    "all nodes",
                    f"{name} differs: {told}",
                    Severity.PROBLEM,
                    "set it to the same value before `ray start` on every node",
                )
            )
    return found
