"""The inner step with our hooks and without them, and the memory of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from archipelago.lab.bench.accelerator_device import F32_BYTES, Measured, figure, memory, timed
from archipelago.lab.bench.accelerator_loopback import WIRE, Loopback, StepTimes
from islands.encoder import Where

LEAD_STEPS = 4
"""Steps before a window with hooks, during which the first fragments come back."""
LEAST_ROUNDS = 3
"""Pairs of windows that are measured even if they use time reserved for other parts."""
BINS = 24
"""The number of bins in a histogram."""
PERCENTILES = (50, 90, 99, 100)
SUFFIXES: Mapping[Where, str] = {"device": "", "host": "_host_encode"}
"""The suffix of the figures' names, by the side on which deltas are encoded."""
OVERALL = "step_ms", "step_with_hooks_ms", "hook_fraction"


def measure_hooks(
    measured: Measured,
    windows: int,
    where: Where,
    tell: Callable[[dict[str, object]], None],
    left_s: Callable[[], float],
) -> None:
    """Measure steps with hooks beside steps without, and pass figures to `tell` as they come.

    `where` is the side on which deltas are encoded. `left_s` returns the seconds that are left; a
    round that would take longer is not begun.
    """
    cycle = measured.model.fragments
    learner = Loopback(measured, where, windows)
    suffix = SUFFIXES[where]
    try:
        tell(_warmed(learner, cycle, suffix))
        _rounds(learner, measured, suffix, tell, left_s)
    finally:
        learner.close()


def measure_alone(measured: Measured, windows: int) -> dict[str, object]:
    """Compile the step and take a few without a learner, to see the memory of training alone."""
    inner, batch = measured.inner, measured.batch(windows)
    compile_s = timed(lambda: inner.compile(batch))
    state = inner.started(measured.drawn(seed=0), None)
    moments_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state.opt_state))
    taken = list[float]()
    for clock in range(4):
        began_s = time.perf_counter()
        state, measures = inner.step(state, batch, clock)
        float(measures.loss)
        taken.append(time.perf_counter() - began_s)
    tokens = int(measured.task.tokens(batch))
    n = F32_BYTES * measured.parameters
    terms = {"parameters": n, "moments": moments_bytes, "gradients": n}
    cycle = measured.model.fragments
    return {
        "parameters": measured.parameters,
        "fragments": cycle,
        "every": cycle,
        "wire": WIRE.value,
        "batch_size": windows,
        "tokens_per_step": tokens,
        "compile_s": compile_s,
        "first_steps_ms": [1e3 * each for each in taken],
        "flops_per_step": measured.flops_per_token * tokens,
        "memory": {
            "step": memory(),
            "formula_step_bytes": {**terms, "total": sum(terms.values())},
            "formula_with_hooks_bytes": {
                **terms,
                "anchors": n,
                "residuals": n,
                "total": sum(terms.values()) + 2 * n,
            },
            "formula_host_bytes": {
                "public fragments": n,
                "rounding errors, if encoded on the host": n,
            },
            "without": "activations, the compiler's buffers; on the host: JAX's own 350 MB",
        },
    }


def _warmed(learner: Loopback, cycle: int, suffix: str) -> dict[str, object]:
    """Go twice through all fragments, so that everything is compiled; return the seconds."""
    began_s = time.perf_counter()
    learner.hooked(2 * cycle)
    learner.settle()
    return {f"warm_up{suffix}_s": time.perf_counter() - began_s}


def _rounds(
    learner: Loopback,
    measured: Measured,
    suffix: str,
    tell: Callable[[dict[str, object]], None],
    left_s: Callable[[], float],
) -> None:
    """Measure pairs of windows, with hooks and without, and report the figures after each pair."""
    cycle, rounds = measured.model.fragments, measured.model.rounds
    plain, hooked_windows = list[StepTimes](), list[StepTimes]()
    adopted, sent = learner.adopted, learner.sent_bytes
    for number in range(rounds):
        began_s = time.perf_counter()
        for kind in ("plain", "hooked") if number % 2 else ("hooked", "plain"):
            if kind == "plain":
                plain.append(learner.plain(cycle))
            else:
                learner.hooked(min(LEAD_STEPS, cycle))
                hooked_windows.append(learner.hooked(cycle))
                learner.settle()
        moved = {
            "adopted": learner.adopted - adopted,
            "sent_bytes": learner.sent_bytes - sent,
            "late": sum(each.late for each in hooked_windows),
            "loss": learner.loss,
            "memory": memory(),
        }
        tell({**_compared(plain, hooked_windows, suffix), f"hooks{suffix}": moved})
        took_s = time.perf_counter() - began_s
        if number + 1 >= LEAST_ROUNDS and left_s() < 1.5 * took_s:
            break


def _compared(
    plain: Sequence[StepTimes], hooked: Sequence[StepTimes], suffix: str
) -> dict[str, object]:
    """Compare each window with hooks to the one beside it."""
    means = [
        (float(np.mean(reference.step)), float(np.mean(measured.step)))
        for reference, measured in zip(plain, hooked, strict=True)
    ]
    step, with_hooks, fraction = (f"{name}{suffix}" for name in OVERALL)
    return {
        **figure(step, [1e3 * reference for reference, _ in means]),
        **figure(with_hooks, [1e3 * measured for _, measured in means]),
        **figure(fraction, [measured / reference - 1 for reference, measured in means]),
        f"rounds{suffix}": len(means),
        f"histogram{suffix}": histogram(plain, hooked),
    }


def histogram(plain: Sequence[StepTimes], hooked: Sequence[StepTimes]) -> dict[str, object]:
    """Count the steps by their time, and return percentiles of steps, hand-ins and adoptions."""
    samples = {
        "plain": _all(plain, "step"),
        "with_hooks": _all(hooked, "step"),
        "hand_in": _all(hooked, "hand_in"),
        "adopt": _all(hooked, "adopt"),
    }
    steps = np.concatenate([samples["plain"], samples["with_hooks"]])
    edges = np.geomspace(steps.min(), steps.max() * 1.0001, BINS + 1)
    edges[0] = steps.min()
    counts = {
        name: np.histogram(samples[name], edges)[0].tolist() for name in ("plain", "with_hooks")
    }
    percentiles = {
        name: {f"p{each}": float(np.percentile(values, each)) for each in PERCENTILES}
        for name, values in samples.items()
    }
    return {"edges_ms": edges.tolist(), **counts, "percentiles_ms": percentiles}


def _all(windows: Sequence[StepTimes], name: str) -> Any:
    return 1e3 * np.array([each for times in windows for each in getattr(times, name)])
