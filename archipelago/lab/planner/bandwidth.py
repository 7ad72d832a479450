"""Which link a method needs, and how much of the time islands compute behind a given one.

Bits are those of one island's link, each way; links are full duplex and do nothing else. The four
methods differ in what they send, how often, and behind how much computing it hides:

data-parallel: a ring all-reduce of all gradients in every step, behind its backward pass.
diloco: a ring all-reduce of the model every H steps, behind nothing (arXiv:2311.08105).
streaming: one of P fragments every H / P steps, behind τ steps (arXiv:2501.18512).
decoupled: one fragment up to the syncer and one down every H / P steps; nobody waits for it. What
    a link cannot carry that often is merged less often: counted as if the steps were lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

GIGA = 1e9
BITS = {"f32": 32.0, "bf16": 16.0, "int8": 8.25, "int4": 4.25, "int2": 2.25}
"""Bits an element on the wire, with scales (docs/benchmarks.md, wire)."""
BACKWARD = 2 / 3
"""Share of a step in which gradients come and can be sent: the backward pass costs twice the
forward one."""
UTILISATIONS = (50, 80, 90, 95, 99)
PARAMETERS = (1e9, 12e9, 100e9)
STEPS_S = (1.0, 3.0, 10.0)


class ExchangeMethod(StrEnum):
    DATA_PARALLEL = "data-parallel"
    DILOCO = "diloco"
    STREAMING = "streaming"
    DECOUPLED = "decoupled"


@dataclass(frozen=True, slots=True)
class Exchange:
    """What is exchanged: by whom, how, how often.

    `islands`: M. `every`, `fragments`, `overlap`: H, P and τ. `wire`: of what islands exchange;
    data-parallel always sends bf16.
    """

    method: ExchangeMethod
    islands: int
    every: int
    fragments: int
    overlap: int
    wire: str

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
        """Of one exchange, one way, on one island's link."""
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

    def hidden_steps(self) -> float:
        """Behind so many steps' time an exchange costs nothing."""
        match self.method:
            case ExchangeMethod.DATA_PARALLEL:
                return BACKWARD
            case ExchangeMethod.DILOCO:
                return 0.0
            case ExchangeMethod.STREAMING:
                return min(float(self.overlap), self.gap)
            case ExchangeMethod.DECOUPLED:
                return self.gap


def utilisation(exchange: Exchange, parameters: float, step_s: float, gbit_s: float) -> float:
    """Share of the time in which an island computes, from 0 to 1."""
    busy_s = exchange.gap * step_s
    sends_s = exchange.bits(parameters) / (gbit_s * GIGA)
    return busy_s / (busy_s + max(0.0, sends_s - exchange.hidden_steps() * step_s))


def needed_gbit_s(exchange: Exchange, parameters: float, step_s: float, wanted: float) -> float:
    """The slowest link that leaves this share of the time for computing; `wanted` below 1.

    The inverse of `utilisation`.
    """
    waits_s = exchange.gap * step_s * (1.0 / wanted - 1.0)
    return exchange.bits(parameters) / (waits_s + exchange.hidden_steps() * step_s) / GIGA


def shown(islands: int, every: int, fragments: int, overlap: int) -> list[Exchange]:
    """The methods side by side, with bf16; and decoupled with int4."""
    return [
        *(
            Exchange(method, islands, every, fragments, overlap, "bf16")
            for method in ExchangeMethod
        ),
        Exchange(ExchangeMethod.DECOUPLED, islands, every, fragments, overlap, "int4"),
    ]


@dataclass(frozen=True, slots=True)
class NeededLink:
    """The link that a method needs; `utilisation` in per cent."""

    method: ExchangeMethod
    wire: str
    parameters: float
    step_s: float
    utilisation: int
    gbit_s: float


def rows(exchanges: list[Exchange]) -> list[NeededLink]:
    """For each model and step time, the link for each utilisation."""
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
