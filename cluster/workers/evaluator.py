"""Evaluation of the syncer's model, never of a learner's: held-out loss of the public fragments.

The evaluator uses one core, unless `monitor.evaluator` gives it more, accelerators, or several
hosts. If there are several, each host calls the same methods in the same order, with its own ranges
of the fragments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from cluster.config.schema import Config
from cluster.workers.assembly import layout_for, task_of
from cluster.workers.evaluator_answers import Judged
from coordinator.errors import UserMistake
from coordinator.fragments import Flat, Layout, put_leaf, sew
from coordinator.protocol import Fragment
from islands.adopt import AdoptRule, FragmentPort
from islands.data.segments import counted_in
from islands.loop_task import host_evaluation
from islands.losses import evaluation_loss, frozen_of
from islands.masked_loss import mean_of_batches
from islands.mesh import Devices, placed
from islands.mesh_shape import FSDP_OVER_ALL, MeshShape
from islands.task import Batch, Params
from islands.trainable import of_loss, of_parameters, shapes_of

SAMPLE_WINDOWS = 64
"""Held-out windows of an evaluation during the run, while the islands need the cores."""
FINAL_WINDOWS = 512
"""Held-out windows of the evaluations at the beginning and at the end."""
EVALUATION_BATCH = 16
"""Windows in a batch; rounded up so that they split evenly over the evaluator's devices."""


class Evaluator:
    """A process that makes the initial model and evaluates models, off the islands' devices."""

    def __init__(self, config: Config, mesh: MeshShape | None = None) -> None:
        """Load the task, its held-out data and the layout.

        `mesh`: of all devices that JAX has; None: use one device.

        Errors: `UserMistake` if the task cannot be trained, or does not fit such a mesh; the code
        here may differ from the code where the run was started.
        """
        self._config = config
        self._task = task = task_of(config)
        one_device = None if mesh is not None else jax.local_devices()[:1]
        self._devices = devices = Devices(task, mesh or FSDP_OVER_ALL, one_device)
        self._windows = -(-EVALUATION_BATCH // devices.ways) * devices.ways
        self._batches = task.heldout(self._windows)
        shapes = shapes_of(task)
        first = self._batches[0]
        problems = of_parameters(task, shapes) or of_loss(task, shapes, first) or self._odd(first)
        if problems:
            raise UserMistake("\n".join(problems))
        self._layout = layout_for(config, task, shapes)
        self._structure = jax.tree.structure(shapes)
        self._loss = (
            jax.jit(
                evaluation_loss(task),
                in_shardings=(devices.params, devices.batch, None),
                out_shardings=devices.everywhere,
            )
            if task.evaluate is None
            else host_evaluation(task)
        )
        self._drawn: Params | None = None
        self.metrics: dict[str, float] = {}
        """The task's metrics of the last evaluation, by name; means over batches, as the loss."""
        self._judged = Judged(0, 0.0, 0.0, self._few, 2 * self._count(FINAL_WINDOWS) + self._few)

    def _odd(self, batch: Batch) -> list[str]:
        """Return what prevents splitting a held-out batch over the devices; empty if nothing."""
        ways, sizes = self._devices.ways, {leaf.shape[0] for leaf in jax.tree.leaves(batch)}
        return [
            f"a held-out batch has {size} windows, which cannot be split over the evaluator's "
            f"{ways} devices; hold more out (data.heldout_percent), or give monitor.evaluator fewer"
            for size in sizes
            if size % ways
        ]

    @cached_property
    def _frozen(self) -> Any:
        """The task's frozen arrays on the devices; None if there are none."""
        return placed(self._devices, frozen_of(self._task))

    @property
    def judged(self) -> Judged:
        """The progress so far; also readable during an evaluation."""
        return self._judged

    @property
    def layout(self) -> Layout:
        """The partition of the model into fragments."""
        return self._layout

    def initial(self) -> list[Flat]:
        """Return the run's initial model, as fragments.

        Errors: `UserMistake` if it comes from a file (`task.init_from`) that has changed.
        """
        flats = [np.empty(size, np.float32) for size in self._layout.sizes]
        for number, leaf in enumerate(self._leaves):  # room for one leaf beside the fragments
            put_leaf(self._layout, number, leaf, flats)
        return flats

    @cached_property
    def initial_loss(self) -> float:
        """The held-out loss of the initial model, in nats per token."""
        if not self._devices.shared:
            return self.loss(self.initial())
        params, self._drawn = self._on_devices, None
        return self._over(params, range(self._count(FINAL_WINDOWS)))

    # --- evaluators of several hosts --------------------------------------------------------------

    @cached_property
    def ranges(self) -> dict[Fragment, slice]:
        """The range of each fragment that this host holds."""
        own = self._devices.own
        return {Fragment(p): own(size) for p, size in enumerate(self._layout.sizes)}

    def initial_fragment(self, p: Fragment) -> Flat:
        """Return a fragment of the initial model, whole.

        The model is drawn on the devices and kept there until it is evaluated. No host holds more
        of it than this fragment.
        """
        flat = self._gathered(self._port.take(self._on_devices, p))
        return np.asarray(flat)[: self._layout.sizes[p]].copy()

    @cached_property
    def _gathered(self) -> Callable[[jax.Array], jax.Array]:
        """A function that gathers a split array onto all devices."""
        return jax.jit(lambda flat: flat, out_shardings=self._devices.everywhere)

    @property
    def _on_devices(self) -> Params:
        """The initial model, split over the devices according to the mesh.

        The host needs memory for one leaf at a time, or for all if the task cannot draw leaves one
        by one.
        """
        if self._drawn is None:
            places = self._devices.leaves
            placed = [self._devices.put(*each) for each in zip(self._leaves, places, strict=True)]
            self._drawn = jax.tree.unflatten(self._structure, placed)
        return self._drawn

    @property
    def _leaves(self) -> Iterator[NDArray[np.float32]]:
        """The leaves of the initial model, drawn one by one if the task can."""
        return map(np.asarray, self._task.initial_leaves(self._config.run.seed))

    # --- losses -----------------------------------------------------------------------------------

    def sample(self, flats: Sequence[Flat]) -> float:
        """Return a rougher held-out loss, for use during the run, in nats per token.

        The windows are spread evenly over those of `loss`, and are always the same. If no token
        counts in them, they are all windows of `loss`.
        """
        return self._mean(flats, self._sampled)

    @cached_property
    def _sampled(self) -> Sequence[int]:
        """The numbers of the batches of a sample."""
        count, sample_size = self._count(FINAL_WINDOWS), self._few
        spread = [i * count // sample_size for i in range(sample_size)]
        counts = (counted_in(self._batches[i]) for i in spread)
        return spread if any(each is None or each > 0 for each in counts) else range(count)

    @property
    def _few(self) -> int:
        """The number of batches of a sample."""
        return min(self._count(FINAL_WINDOWS), self._count(SAMPLE_WINDOWS))

    def loss(self, flats: Sequence[Flat], windows: int = FINAL_WINDOWS) -> float:
        """Return the held-out loss in nats per token, over that many windows or all there are.

        Batches with masks are weighted by the tokens that the loss counts.
        `metrics` are those of the same batches afterwards.
        """
        return self._mean(flats, range(self._count(windows)))

    def _count(self, windows: int) -> int:
        """Return the number of whole batches in that many windows; at least one."""
        return max(1, min(len(self._batches), windows // self._windows))

    def _mean(self, flats: Sequence[Flat], batches: Sequence[int]) -> float:
        return self._over(self._placed(flats), batches)

    def _placed(self, flats: Sequence[Flat]) -> Params:
        """Place parameters on the devices; with several hosts, each places its own ranges."""
        devices = self._devices
        if not devices.shared:
            leaves = [*sew(self._layout, flats)][::-1]  # each leaf is freed once it is placed
            placed = [devices.put(leaves.pop(), place) for place in devices.leaves]
            return jax.tree.unflatten(self._structure, placed)
        params = devices.zeros
        for p, (flat, size) in enumerate(zip(flats, self._layout.sizes, strict=True)):
            params = self._port.fill(params, Fragment(p), devices.place_flat(flat, size))
        return params

    @cached_property
    def _port(self) -> FragmentPort:
        return FragmentPort(self._layout, AdoptRule.OVERWRITE, devices=self._devices)

    def _over(self, params: Params, batches: Sequence[int]) -> float:
        counts, losses, metrics = list[int | None](), list[float](), dict[str, list[float]]()
        for i in batches:
            loss, named = self._judge(params, batch := self._batches[i])
            losses.append(loss)
            counted = counted_in(batch)
            counts.append(None if counted is None else int(counted))
            for name, value in named.items():
                metrics.setdefault(name, []).append(value)
        self.metrics = {name: mean_of_batches(each, counts) for name, each in metrics.items()}
        return mean_of_batches(losses, counts)

    def _judge(self, params: Params, batch: Batch) -> tuple[float, dict[str, float]]:
        """Return the loss and the metrics of one batch, and record how long it took."""
        began_s = time.monotonic()
        result, named = self._loss(params, self._devices.split(batch), self._frozen)
        loss, metrics = float(result), {name: float(value) for name, value in named.items()}
        took_s, before = time.monotonic() - began_s, self._judged
        self._judged = before._replace(
            batches=before.batches + 1,
            longest_s=max(before.longest_s, took_s),
            spent_s=before.spent_s + (took_s if before.batches else 0.0),
        )
        return loss, metrics
