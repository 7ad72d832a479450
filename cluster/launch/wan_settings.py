"""Settings of the kernel and of Ray for nodes that are joined by a long link."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cluster.launch.ray_cluster import RAY_SETTINGS
from coordinator.errors import UserMistake

WINDOW_ROUNDS = 2
"""Socket buffers in bandwidth-delay products; Linux uses half of a receive buffer as window."""
LEAST_BUFFER_BYTES = 16 * 2**20
"""Buffers below this are not worth a setting: Linux grows them only as far as they are needed."""
CONNECTIONS = 8
"""Bulk connections between two nodes; Ray opens two by default."""
LEAST_TIMEOUT_S = 30.0
"""The shortest time for the transfer of one object.

A transfer that is lost with its connection, after a cut of the link, is repeated after it.
"""
LARGEST_OBJECT_BYTES = 512 * 2**20
"""The object for whose transfer the timeouts must suffice, at a quarter of the link."""
RECONNECT_DELAYS = 8
"""The least backoff of a reconnection in one-way delays: Ray uses it as timeout of the connect."""
FAILED_CHECKS = 12
"""Failed checks in a row after which Ray gives a node up: 156 s of silence, 36 s of refusals."""
RECONNECT_S = 180
"""Seconds after which a node that is cut off ends itself; not before the head gives it up."""


@dataclass(frozen=True, slots=True)
class NodeSetting:
    """One setting of every node."""

    name: str
    value: str
    why: str


@dataclass(frozen=True, slots=True)
class WanSettings:
    """All settings for one link."""

    gbit: float
    rtt_ms: float
    product_bytes: int
    """The bandwidth-delay product of the link, in bytes."""
    sysctl: tuple[NodeSetting, ...]
    ray: tuple[NodeSetting, ...]

    def as_dict(self) -> dict[str, object]:
        """Return the settings for JSON."""
        return {
            "gbit": self.gbit,
            "rtt_ms": self.rtt_ms,
            "bandwidth_delay_product_bytes": self.product_bytes,
            "sysctl": {each.name: each.value for each in self.sysctl},
            "ray": {each.name: each.value for each in self.ray},
        }

    def text(self) -> str:
        """Return the settings as lines for a sysctl file and a shell, with the reason of each."""
        lines = [
            f"# {self.gbit:g} Gbit/s at a round trip of {self.rtt_ms:g} ms: "
            f"{self.product_bytes / 1e6:.1f} MB are on the way at any time.",
            "# On every node, in /etc/sysctl.d/90-archipelago.conf; then `sysctl --system`:",
        ]
        for each in self.sysctl:
            lines += [f"# {each.why}", f"{each.name} = {each.value}"]
        lines += ["", "# On every node, before `ray start`, and the same on all of them:"]
        for each in self.ray:
            lines += [f"# {each.why}", f"export {each.name}={each.value}"]
        return "\n".join(lines)


def settings_for(gbit: float, rtt_ms: float) -> WanSettings:
    """Return the settings of every node for links of this bandwidth and round-trip time.

    Errors: `UserMistake` if they are not finite, or the bandwidth is not above 0.
    """
    if not (math.isfinite(gbit) and math.isfinite(rtt_ms) and gbit > 0 and rtt_ms >= 0):
        raise UserMistake(
            f"--gbit {gbit:g}, --rtt-ms {rtt_ms:g}: a finite bandwidth above 0 and a finite round "
            "trip from 0 up are needed"
        )
    product = int(gbit * 1e9 / 8 * rtt_ms / 1000)
    buffer = max(LEAST_BUFFER_BYTES, 1 << math.ceil(math.log2(max(1, WINDOW_ROUNDS * product))))
    return WanSettings(gbit, rtt_ms, product, _sysctl(buffer), _ray(gbit, rtt_ms))


def _sysctl(buffer: int) -> tuple[NodeSetting, ...]:
    most = "The largest buffer that a program may ask for."
    grows = "Least, first and largest buffer of a connection, in bytes; two products of the link."
    return (
        NodeSetting("net.core.rmem_max", str(buffer), most),
        NodeSetting("net.core.wmem_max", str(buffer), most),
        NodeSetting("net.ipv4.tcp_rmem", f"4096 131072 {buffer}", grows),
        NodeSetting("net.ipv4.tcp_wmem", f"4096 65536 {buffer}", grows),
        NodeSetting("net.core.default_qdisc", "fq", "BBR paces its packets with this queue."),
        NodeSetting(
            "net.ipv4.tcp_congestion_control", "bbr", "One lost packet does not halve the rate."
        ),
        NodeSetting(
            "net.ipv4.tcp_slow_start_after_idle",
            "0",
            "A fragment every few seconds would start slowly each time.",
        ),
        NodeSetting("net.ipv4.tcp_mtu_probing", "1", "A VPN carries less than its MTU."),
    )


def _ray(gbit: float, rtt_ms: float) -> tuple[NodeSetting, ...]:
    transfer_s = LARGEST_OBJECT_BYTES * 8 / (gbit * 1e9 / 4)
    timeout_ms = str(int(1000 * max(LEAST_TIMEOUT_S, transfer_s)))
    reconnect_ms = max(1000, math.ceil(RECONNECT_DELAYS * rtt_ms / 2))
    chosen = {
        "RAY_object_manager_client_connection_num": (
            str(CONNECTIONS), "Bulk connections between two nodes; the default of 2 is too few."
        ),
        "RAY_object_manager_pull_timeout_ms": (
            timeout_ms, "After 10 s, the default, Ray would fetch a large object a second time."
        ),
        "RAY_object_manager_push_timeout_ms": (
            timeout_ms, "The same for the node that sends."
        ),
        "RAY_gcs_grpc_min_reconnect_backoff_ms": (
            str(reconnect_ms), "Ray uses it as the timeout of a connection, too."
        ),
        "RAY_health_check_failure_threshold": (
            str(FAILED_CHECKS), "A node is given up after up to 13 s for each; the default is 5."
        ),
        "RAY_gcs_rpc_server_reconnect_timeout_s": (
            str(RECONNECT_S), "A node that does not reach the head for so long ends itself."
        ),
    }  # fmt: skip
    others = {
        name: (value, "As in the Ray that `archipelago run` starts itself.")
        for name, value in RAY_SETTINGS.items()
        if name not in chosen
    }
    return tuple(NodeSetting(name, *each) for name, each in (chosen | others).items())
