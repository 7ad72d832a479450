"""Weighted sums of f32 and bf16 arrays, as compiled loops like those of `kernels`.

Each function works on stretches of the arrays, one for each of `columns`: stretch j lies between
two `bounds`, counted from `at` in the arrays and from 0 in `total`. `weights` is [arrays, columns];
an array has the row `row`. The array of row 0 begins the sum, so what `total` held is not read.
"""

from __future__ import annotations

import numpy as np

from coordinator.kernels import F32, I64, U16, compiled


@compiled
def add_f32(total: F32, at: int, bounds: I64, columns: I64, weights: F32, row: int, a: F32) -> None:
    """Compute total += weight * a."""
    for j in range(columns.size):
        weight, start, stop = weights[row, columns[j]], bounds[j], bounds[j + 1]
        sums, values = total[start:stop], a[at + start : at + stop]
        if row == 0:
            sums[:] = 0
        for i in range(sums.size):
            sums[i] += weight * values[i]


@compiled
def add_four_f32(
    total: F32,
    at: int,
    bounds: I64,
    columns: I64,
    weights: F32,
    row: int,
    a: F32,
    b: F32,
    c: F32,
    d: F32,
) -> None:
    """Compute four times `add_f32`, in this order; four streams keep the memory busy."""
    zero = np.float32(0)
    for j in range(columns.size):
        s, t = weights[row, columns[j]], weights[row + 1, columns[j]]
        u, v = weights[row + 2, columns[j]], weights[row + 3, columns[j]]
        start, stop = bounds[j], bounds[j + 1]
        sums, w, x = total[start:stop], a[at + start : at + stop], b[at + start : at + stop]
        y, z = c[at + start : at + stop], d[at + start : at + stop]
        if row == 0:
            for i in range(sums.size):
                sums[i] = (((zero + s * w[i]) + t * x[i]) + u * y[i]) + v * z[i]
        else:
            for i in range(sums.size):
                sums[i] = (((sums[i] + s * w[i]) + t * x[i]) + u * y[i]) + v * z[i]


@compiled
def add_bf16(
    total: F32, at: int, bounds: I64, columns: I64, weights: F32, row: int, a: U16
) -> None:
    """Compute total += weight * a."""
    half = np.uint32(16)  # bf16 is the upper half of an f32
    for j in range(columns.size):
        weight, start, stop = weights[row, columns[j]], bounds[j], bounds[j + 1]
        sums, values = total[start:stop], a[at + start : at + stop]
        if row == 0:
            sums[:] = 0
        for i in range(sums.size):
            sums[i] += weight * np.uint32(np.uint32(values[i]) << half).view(np.float32)


@compiled
def add_four_bf16(
    total: F32,
    at: int,
    bounds: I64,
    columns: I64,
    weights: F32,
    row: int,
    a: U16,
    b: U16,
    c: U16,
    d: U16,
) -> None:
    """Compute four times `add_bf16`, in this order."""
    zero, half = np.float32(0), np.uint32(16)
    for j in range(columns.size):
        s, t = weights[row, columns[j]], weights[row + 1, columns[j]]
        u, v = weights[row + 2, columns[j]], weights[row + 3, columns[j]]
        start, stop = bounds[j], bounds[j + 1]
        sums, p, q = total[start:stop], a[at + start : at + stop], b[at + start : at + stop]
        r, o = c[at + start : at + stop], d[at + start : at + stop]
        for i in range(sums.size):
            w = np.uint32(np.uint32(p[i]) << half).view(np.float32)
            x = np.uint32(np.uint32(q[i]) << half).view(np.float32)
            y = np.uint32(np.uint32(r[i]) << half).view(np.float32)
            z = np.uint32(np.uint32(o[i]) << half).view(np.float32)
            before = zero if row == 0 else sums[i]
            sums[i] = (((before + s * w) + t * x) + u * y) + v * z


@compiled
def widen_bf16(values: F32, a: U16) -> None:
    """Write a bf16 array as f32; a negative zero becomes a zero."""
    zero, half = np.float32(0), np.uint32(16)
    for i in range(a.size):
        values[i] = zero + np.uint32(np.uint32(a[i]) << half).view(np.float32)
