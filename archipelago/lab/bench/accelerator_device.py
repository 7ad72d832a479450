"""The models, the device and the clocks of `archipelago bench accelerator`.

Nothing here needs Ray, pydantic, typer or rich.
"""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from archipelago.lab.bench import procfs
from archipelago.lab.bench.stats import interval_of, median
from coordinator.fragments import Layout
from islands.adopt import AdoptRule, FragmentPort, layout_of
from islands.inner import Inner
from islands.mesh import Devices
from islands.mesh_shape import FSDP_OVER_ALL
from islands.model import ModelSpec
from islands.optimizer import OptimizerSpec
from islands.sources import STDLIB, DataSpec
from islands.task import Params, Task, language_model

GB = 1e9
F32_BYTES = 4
SPREAD = 0.02
"""The standard deviation of drawn parameters.

Zeros would need less power than a model in training, and an accelerator that needs less power runs
faster.
"""


@dataclass(frozen=True, slots=True)
class BenchModel:
    """A model to measure, with the work of a step and the schedule of its fragments."""

    spec: ModelSpec
    batch_size: int
    """Windows in a step, before a smaller number is tried because that does not fit."""
    window: int
    """Tokens predicted in one window."""
    fragments: int
    """P; a fragment is due every P steps, so that one is handed in at each step."""
    rounds: int
    """Pairs of windows of steps, one with hooks and one without."""
    repeats: int
    """Measurements of each kernel."""
    elements: int
    """The most elements on which kernels are measured."""
    host_elements: int
    """The most elements that the host encodes and decodes in a measurement."""


MODELS = {
    "bench-125m": BenchModel(
        ModelSpec(25600, 768, 12, 12, 2048, "bfloat16"),
        batch_size=8,
        window=1024,
        fragments=24,
        rounds=6,
        repeats=9,
        elements=1 << 28,
        host_elements=1 << 25,
    ),
    "bench-1b": BenchModel(
        ModelSpec(32768, 2048, 18, 16, 5120, "bfloat16"),
        batch_size=8,
        window=512,
        fragments=24,
        rounds=6,
        repeats=9,
        elements=1 << 28,
        host_elements=1 << 25,
    ),
    "bench-quick": BenchModel(
        ModelSpec(64, 32, 2, 2, 64, "bfloat16"),
        batch_size=2,
        window=16,
        fragments=4,
        rounds=6,
        repeats=6,
        elements=1 << 20,
        host_elements=1 << 20,
    ),
}
"""The presets of this benchmark; a run cannot use them."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A model, compiled for the one device."""

    name: str
    model: BenchModel
    task: Task
    layout: Layout
    inner: Inner
    port: FragmentPort

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return self.layout.parameters

    def drawn(self, seed: int) -> Params:
        """Draw parameters on the device."""
        shapes, structure = jax.tree.flatten(self.task.shapes)
        keys = jax.random.split(jax.random.key(seed), len(shapes))
        places = self.inner.devices.leaves
        drawn = [
            _normal(key, leaf.shape, where)
            for key, leaf, where in zip(keys, shapes, places, strict=True)
        ]
        return jax.tree.unflatten(structure, drawn)

    def batch(self, windows: int) -> Any:
        """Return windows of random tokens; the cost of a step does not depend on them."""
        rng = np.random.default_rng(0)
        shape = (windows, self.model.window + 1)
        return rng.integers(0, self.model.spec.vocabulary, shape, np.int32)

    @property
    def flops_per_token(self) -> float:
        """Floating-point operations for each trained token, by the usual formula."""
        spec = self.model.spec
        products = self.parameters - spec.vocabulary * spec.width
        return 6.0 * products + 12.0 * spec.layers * spec.width * self.model.window


def compiled(name: str) -> Measured:
    """Return the preset with its step and its fragments, which are compiled at their first use."""
    model = MODELS[name]
    data = DataSpec(
        source=STDLIB,
        column=None,
        tokens=False,
        heldout_percent=5.0,
        window=model.window,
        seed=0,
        lease_windows=256,
    )
    task = language_model(name, model.spec, data)
    inner = Inner(task, ADAMW, Devices(task, FSDP_OVER_ALL, jax.local_devices()[:1]))
    layout = layout_of(task, model.fragments)
    port = FragmentPort(layout, AdoptRule.CARRY, devices=inner.devices)
    return Measured(name, model, task, layout, inner, port)


ADAMW = OptimizerSpec(
    kind="adamw",
    target=None,
    options=(),
    schedule="cosine",
    decay_fraction=0.2,
    learning_rate=1e-4,
    warmup_steps=20,
    floor_fraction=0.1,
    b1=0.9,
    b2=0.99,
    eps=1e-8,
    momentum=0.95,
    adamw_share=1.0,
    weight_decay=0.1,
    clip_norm=1.0,
    horizon_steps=10_000,
)
"""The optimizer of the measured steps, with 8 bytes of moments for each parameter."""


@partial(jax.jit, static_argnums=(1, 2))
def _normal(key: jax.Array, shape: tuple[int, ...], where: Any) -> jax.Array:
    """Draw a tensor on the device, with this sharding."""
    drawn = SPREAD * jax.random.normal(key, shape, jnp.float32)
    return jax.lax.with_sharding_constraint(drawn, where)


def described() -> dict[str, object]:
    """Describe the device and the programs on it."""
    device = jax.local_devices()[0]
    stats = memory_stats()
    return {
        "kind": device.device_kind,
        "platform": device.platform,
        "count": len(jax.local_devices()),
        "memory_limit_bytes": stats.get("bytes_limit"),
        "host_cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
    }


def memory_stats() -> dict[str, int]:
    """Return the counters of the device's memory; empty where it keeps none, such as on CPUs."""
    return dict(jax.local_devices()[0].memory_stats() or {})


def memory() -> dict[str, int | None]:
    """Return the peak bytes of this process so far, on the device and on the host."""
    return {
        "device_peak_bytes": memory_stats().get("peak_bytes_in_use"),
        "device_bytes": memory_stats().get("bytes_in_use"),
        "host_peak_bytes": _host_peak_bytes(),
    }


def _host_peak_bytes() -> int:
    """Return the peak memory on the host.

    Some sandboxes do not have it in /proc; then it comes from the kernel's resource usage.
    """
    try:
        return procfs.peak_bytes(os.getpid())
    except (OSError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * procfs.KIB


def timed(call: Callable[[], Any]) -> float:
    """Return the seconds until the device has done the work that this call dispatches."""
    began_s = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - began_s


def figure(name: str, samples: Sequence[float]) -> dict[str, float]:
    """Return the median with its interval under this name; nothing without samples."""
    return interval_of(name, median(samples)) if samples else {}
