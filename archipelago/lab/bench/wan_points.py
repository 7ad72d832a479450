"""The points of `bench wan`: links, a model and a step, and what the planner predicts there."""

from __future__ import annotations

from dataclasses import dataclass

from archipelago.lab.planner.bandwidth import Exchange, ExchangeMethod, utilisation

REGIONS = ("r0", "r1", "r2", "r3")
STREAMING_OVERLAP = 5
"""Steps for which streaming may overlap an all-reduce with training (arXiv:2501.18512)."""


@dataclass(frozen=True, slots=True)
class WanPoint:
    """Links, a model and a step at which methods are compared."""

    gbit: float
    rtt_ms: float
    parameters: int
    step_s: float
    every: int = 24
    """H, and the number of fragments of decoupled training."""
    wire: str = "int4"
    quorum: int = len(REGIONS)
    """K of decoupled training; below the number of regions, merges begin while some still join."""
    spread: bool = False
    """Whether each region has a shard of decoupled training; otherwise all are in the first one."""

    @property
    def scaled(self) -> float:
        """Seconds of a step in which the link carries a bit of each parameter, times 24.

        It is 28.8 for 12 billion parameters, 2 Gbit/s and steps of 5 s.
        """
        return self.parameters * 24 / (self.gbit * 1e9 * self.step_s)


MAIN = WanPoint(0.2, 80.0, 48_000_000, 0.2)
QUICK = WanPoint(0.2, 80.0, 16_000_000, 0.2 / 3)


def predicted(point: WanPoint, method: str, tcp_gbit: float, measured: float) -> dict[str, float]:
    """Return the share of computing that the planner predicts, and how far `measured` is off.

    `tcp_gbit`: the rate of one plain TCP connection over the same link. `utilisation_off` is in
    points.
    """
    wire = {"diloco": "bf16", "streaming": "int4", "decoupled": point.wire}.get(method, "bf16")
    exchange = Exchange(
        ExchangeMethod(method), len(REGIONS), point.every, point.every, STREAMING_OVERLAP, wire
    )
    share = utilisation(exchange, point.parameters, point.step_s, tcp_gbit, point.rtt_ms / 1000)
    return {"predicted_utilisation": share, "utilisation_off": 100 * (measured - share)}
