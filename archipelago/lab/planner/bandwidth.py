"""The link that each method needs, and the share of time that islands compute behind a given link.

Bits are counted on one island's link, each way. Links are full duplex and carry nothing else. An
exchange is a chain of hops, each of which waits for the one before, and exchanges do not overlap
one another. The four methods differ in how much they send, how often, and how much computing hides
it:

- data-parallel: a ring all-reduce of all gradients in every step, hidden by the backward pass.
- diloco: a ring all-reduce of the model every H steps, hidden by nothing (arXiv:2311.08105).
- streaming: one of P fragments every H / P steps, hidden by τ steps (arXiv:2501.18512).
- decoupled: one fragment up to the syncer and one down every H / P steps; no learner waits for it.
  If the link is too slow for that, fragments are merged less often, which is counted as lost steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

GIGA = 1e9
BITS = {"f32": 32.0, "bf16": 16.0, "int8": 8.25, "int4": 4.25, "int2": 2.25}
"""Bits per element on the wire, including scales (docs/lab/benchmarks.md, wire)."""
BACKWARD = 2 / 3
"""The share of a step in which gradients can be sent: its backward pass, twice the forward one."""
UTILISATIONS = (50, 80, 90, 95, 99)
PARAMETERS = (1e9, 12e9, 100e9)
STEPS_S = (1.0, 3.0, 10.0)


class ExchangeMethod(StrEnum):
    """A method of exchanging gradients or parameters between islands."""

    DATA_PARALLEL = "data-parallel"
    DILOCO = "diloco"
    STREAMING = "streaming"
    DECOUPLED = "decoupled"


@dataclass(frozen=True, slots=True)
class Exchange:
    """The exchanges of a run: the method, the number of islands, and how often they exchange."""

    method: ExchangeMethod
    islands: int
    """M."""
    every: int
    """H, in steps."""
    fragments: int
    """P."""
    overlap: int
    """τ, in steps."""
    wire: str
    """The wire format, a key of `BITS`; data-parallel ignores it and sends bf16."""

    @property
    def gap(self) -> float:
        """Steps between two exchanges."""
        match self.method:
            case ExchangeMethod.DATA_PARALLEL:
                return 1.0
            case ExchangeMethod.DILOCO:
                return float(self.every)
            case _:
                return self.every / self.fragments

    def bits(self, parameters: float) -> float:
        """Return the bits of one exchange, one way, on one island's link."""
        ring = 2.0 * (1.0 - 1.0 / self.islands)
        match self.method:
            case ExchangeMethod.DATA_PARALLEL:
                return ring * parameters * BITS["bf16"]
            case ExchangeMethod.DILOCO:
                return ring * parameters * BITS[self.wire]
            case ExchangeMethod.STREAMING:
                return ring * parameters / self.fragments * BITS[self.wire]
            case ExchangeMethod.DECOUPLED:
                return parameters / self.fragments * BITS[self.wire]

    @property
    def hops(self) -> int:
        """Messages of one exchange that wait for one another, and a learner for all of them.

        Each takes half a round trip. A ring passes 2 (M - 1) pieces on.
        """
        return 0 if self.method is ExchangeMethod.DECOUPLED else 2 * (self.islands - 1)

    def hidden_steps(self) -> float:
        """Return the number of steps of computing behind which an exchange costs no time."""
        match self.method:
            case ExchangeMethod.DATA_PARALLEL:
                return BACKWARD
            case ExchangeMethod.DILOCO:
                return 0.0
            case ExchangeMethod.STREAMING:
                return min(float(self.overlap), self.gap)
            case ExchangeMethod.DECOUPLED:
                return self.gap


def utilisation(
    exchange: Exchange, parameters: float, step_s: float, gbit_s: float, rtt_s: float = 0.0
) -> float:
    """Return the share of the time in which an island computes, from 0 to 1.

    `rtt_s`: seconds of a round trip between two islands.
    """
    busy_s = exchange.gap * step_s
    sends_s = exchange.bits(parameters) / (gbit_s * GIGA) + exchange.hops * rtt_s / 2
    return busy_s / (busy_s + max(0.0, sends_s - exchange.hidden_steps() * step_s))


def needed_gbit_s(exchange: Exchange, parameters: float, step_s: float, share: float) -> float:
    """Return the slowest link, in Gbit/s, with which an island computes for a `share` < 1.

    This is the inverse of `utilisation` without a round trip.
    """
    waits_s = exchange.gap * step_s * (1.0 / share - 1.0)
    return exchange.bits(parameters) / (waits_s + exchange.hidden_steps() * step_s) / GIGA


def compared_exchanges(islands: int, every: int, fragments: int, overlap: int) -> list[Exchange]:
    """Return the methods to compare: each of them with bf16, and decoupled also with int4."""
    return [
        *(
            Exchange(method, islands, every, fragments, overlap, "bf16")
            for method in ExchangeMethod
        ),
        Exchange(ExchangeMethod.DECOUPLED, islands, every, fragments, overlap, "int4"),
    ]


@dataclass(frozen=True, slots=True)
class NeededLink:
    """The link that a method needs for one model, step time and utilisation."""

    method: ExchangeMethod
    wire: str
    parameters: float
    step_s: float
    utilisation: int
    """The wanted share of time computing, in per cent."""
    gbit_s: float


def rows(exchanges: list[Exchange]) -> list[NeededLink]:
    """Return the needed links for each model, step time and utilisation."""
    return [
        NeededLink(
            exchange.method,
            "bf16" if exchange.method is ExchangeMethod.DATA_PARALLEL else exchange.wire,
            parameters,
            step_s,
            wanted,
            needed_gbit_s(exchange, parameters, step_s, wanted / 100),
        )
        for parameters in PARAMETERS
        for step_s in STEPS_S
        for exchange in exchanges
        for wanted in UTILISATIONS
    ]
