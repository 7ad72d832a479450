"""The sums of squares and inner products of tiles, as compiled loops like those of `kernels`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coordinator.kernels import F32, I64, compiled, frozen

LANES = 256
"""Number of partial sums of a norm, 2 kB of f64, added up in a fixed order."""
AT_ONCE = 8
"""The number of stretches whose partial sums are added up together."""
TOGETHER = (4, 16, 64)
"""Numbers of arrays that go to a kernel as one tuple: each length is compiled once."""
STRIP = 1 << 12
"""Elements of an array, 16 kB, that are read twice from the first or second level cache."""


def sum_of_squares(a: F32) -> float:
    """Return the sum of the squares in f64, which no finite f32 overflows.

    The sum is not finite exactly if an element is not.
    """
    found = np.empty(1)
    sums_of_squares(a, frozen(np.array([0, a.size])), found)
    return float(found[0])


@compiled
def sums_of_squares(a: F32, bounds: I64, sums: NDArray[np.float64]) -> None:
    """Write `sum_of_squares` of each stretch between two bounds.

    Each element is read in the order of memory, which a processor reads ahead best. The lanes of
    several stretches are added up at once, because each addition waits for the one before.
    """
    first, second, totals = np.empty(LANES), np.empty(LANES), np.empty(AT_ONCE)
    lanes = np.zeros((AT_ONCE, LANES))
    for begin in range(0, sums.size, AT_ONCE):
        count = min(AT_ONCE, sums.size - begin)
        for k in range(count):
            own = lanes[k]
            own[:] = 0.0
            values = a[bounds[begin + k] : bounds[begin + k + 1]]
            rows = values.size // (4 * LANES)
            for row in range(rows):
                start = row * 4 * LANES
                b, c = values[start : start + LANES], values[start + LANES : start + 2 * LANES]
                d = values[start + 2 * LANES : start + 3 * LANES]
                e = values[start + 3 * LANES : start + 4 * LANES]
                for i in range(LANES):
                    w = np.float64(b[i])
                    first[i] = w * w
                for i in range(LANES):
                    x = np.float64(c[i])
                    first[i] += x * x
                for i in range(LANES):
                    y = np.float64(d[i])
                    second[i] = y * y
                for i in range(LANES):
                    z = np.float64(e[i])
                    own[i] += first[i] + (second[i] + z * z)
            for start in range(rows * 4 * LANES, values.size, LANES):
                rest = values[start : start + LANES]
                for i in range(rest.size):
                    own[i] += np.float64(rest[i]) * np.float64(rest[i])
        if count == 1:
            total = 0.0
            for i in range(LANES):
                total += lanes[0, i]
            sums[begin] = total
        else:
            totals[:] = 0.0
            for i in range(LANES):
                for k in range(AT_ONCE):
                    totals[k] += lanes[k, i]
            for k in range(count):
                sums[begin + k] = totals[k]


@compiled
def products(a: F32, b: F32, lanes: NDArray[np.float64]) -> tuple[float, float]:
    """Return a . b and a . a, each in a fixed order: four products in f32, their sums in f64.

    `lanes`: scratch for LANES partial sums.
    """
    half, rows = LANES // 2, a.size // (2 * LANES)
    lanes[:] = 0.0
    for row in range(rows):
        start = row * 2 * LANES
        for i in range(half):
            w, x = a[start + i], a[start + half + i]
            y, z = a[start + 2 * half + i], a[start + 3 * half + i]
            p, q = b[start + i], b[start + half + i]
            r, s = b[start + 2 * half + i], b[start + 3 * half + i]
            lanes[i] += np.float64((w * p + x * q) + (y * r + z * s))
            lanes[half + i] += np.float64((w * w + x * x) + (y * y + z * z))
    both, own = 0.0, 0.0
    for i in range(rows * 2 * LANES, a.size):
        both += np.float64(a[i]) * np.float64(b[i])
        own += np.float64(a[i]) * np.float64(a[i])
    for i in range(half):
        both += lanes[i]
        own += lanes[half + i]
    return both, own


@compiled
def sum_and_products(
    total: F32,
    weights: F32,
    arrays: tuple[F32, ...],
    direction: F32,
    sums: NDArray[np.float64],
    along: NDArray[np.float64],
) -> None:
    """Write the weighted sum of arrays to `total`, and their products with it to `sums` [n, 2].

    The sum is over the first arrays, one for each weight, with the same bits as `add_f32` gives.
    The products are a . total and a . a of the first `len(sums)` arrays, as in `products`. Those of
    the first `len(along)` with `direction` go to `along`. Work goes strip by strip, so that an
    array is still in cache when it is read again.
    """
    half, count = LANES // 2, sums.shape[0]
    sums[:] = 0.0
    along[:] = 0.0
    lanes = np.zeros((count, 3, half))
    for start in range(0, total.size, STRIP):
        stop = min(start + STRIP, total.size)
        mean = total[start:stop]
        mean[:] = 0
        for k in range(weights.size):
            weight, a = weights[k], arrays[k][start:stop]
            for i in range(mean.size):
                mean[i] += weight * a[i]
        rows = mean.size // (2 * LANES)
        for k in range(count):
            a, both, own = arrays[k][start:stop], lanes[k, 0], lanes[k, 1]
            for row in range(rows):
                at = row * 2 * LANES
                b, c = a[at : at + half], a[at + half : at + 2 * half]
                d, e = a[at + 2 * half : at + 3 * half], a[at + 3 * half : at + 4 * half]
                p, q = mean[at : at + half], mean[at + half : at + 2 * half]
                r, s = mean[at + 2 * half : at + 3 * half], mean[at + 3 * half : at + 4 * half]
                for i in range(half):
                    w, x, y, z = b[i], c[i], d[i], e[i]
                    both[i] += np.float64((w * p[i] + x * q[i]) + (y * r[i] + z * s[i]))
                    own[i] += np.float64((w * w + x * x) + (y * y + z * z))
            for i in range(rows * 2 * LANES, mean.size):
                sums[k, 0] += np.float64(a[i]) * np.float64(mean[i])
                sums[k, 1] += np.float64(a[i]) * np.float64(a[i])
        for k in range(along.size):
            a, way, third = arrays[k][start:stop], direction[start:stop], lanes[k, 2]
            for row in range(rows):
                at = row * 2 * LANES
                b, c = a[at : at + half], a[at + half : at + 2 * half]
                d, e = a[at + 2 * half : at + 3 * half], a[at + 3 * half : at + 4 * half]
                p, q = way[at : at + half], way[at + half : at + 2 * half]
                r, s = way[at + 2 * half : at + 3 * half], way[at + 3 * half : at + 4 * half]
                for i in range(half):
                    third[i] += np.float64(
                        (b[i] * p[i] + c[i] * q[i]) + (d[i] * r[i] + e[i] * s[i])
                    )
            for i in range(rows * 2 * LANES, way.size):
                along[k] += np.float64(a[i]) * np.float64(way[i])
    for k in range(count):
        for i in range(half):
            sums[k, 0] += lanes[k, 0, i]
            sums[k, 1] += lanes[k, 1, i]
    for k in range(along.size):
        for i in range(half):
            along[k] += lanes[k, 2, i]
