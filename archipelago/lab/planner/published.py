"""Published figures to compare with, in per cent where no unit is given."""

from __future__ import annotations

from archipelago.lab.planner.configurations import Configuration as C

CHIPS = (150_000, 300_000, 600_000, 1_200_000, 2_400_000)
"""The columns of table 1 of arXiv:2604.21428."""
TABLE_1: dict[tuple[C, int], tuple[int, ...]] = {
    (C.NOT_ELASTIC, 1): (72, 57, 38, 27, 18),
    (C.ELASTIC, 1): (88, 80, 69, 58, 40),
    (C.DECOUPLED, 2): (94, 88, 80, 70, 54),
    (C.DECOUPLED, 4): (96, 93, 89, 82, 73),
    (C.DECOUPLED, 8): (98, 96, 94, 88, 80),
    (C.DECOUPLED, 16): (99, 98, 96, 93, 86),
}
"""The goodput of table 1, by configuration and learners; a chip is interrupted once a year."""
MOST_LEARNERS = 16
"""The largest number of learners in table 1."""
UPTIME_FROM_LEARNERS = 4
"""The number of learners from which on uptime in table 1 is 100."""
LLAMA_3_YEARS = 5.8
"""Years between interruptions of a GPU: 419 in 54 days on 16,384 of them (arXiv:2407.21783)."""
RESUME_S = 57.0
"""Seconds from a kill to training again.

An implementation of the same algorithm measured it under 125 faults an hour, with a goodput of 97.7
(ft-diloco).
"""
REPAIR_SPREAD = 0.5
"""Sigma of the logarithm of a return time.

Repairs of large systems are log-normal rather than exponential (Schroeder and Gibson, TDSC 2010).
The value is our assumption; results hardly depend on it.
"""
SLICE_CHIPS = 256
"""A pod of TPU v5e; the paper's slices are not public."""
