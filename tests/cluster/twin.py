"""A naive twin of DiLoCo and Streaming DiLoCo, in lock-step and in f64.

Only the gradient is the task's own.
"""

from collections.abc import Sequence

import jax
import numpy as np

from coordinator.fragments import Layout
from coordinator.merge import MergeRule
from coordinator.outer import OuterRule
from islands.optimizer import OptimizerSpec
from islands.task import Batch, Task


def twin(
    task: Task, layout: Layout, inner: OptimizerSpec, every: int, rule: MergeRule, outer: OuterRule,
    data: Sequence[Sequence[Batch]], overlap: int = 0, blend: float = 0,
) -> list[np.ndarray]:  # fmt: skip
    """Return the leaves of the global model after all the batches `data[island][step]`.

    Merged fragments are adopted `overlap` steps later, with a share of `blend` of what a learner
    has. At the end every fragment is merged as it is, if there were steps since it was adopted.
    """
    start, tree = jax.tree.flatten(task.init(0))
    model = [np.array(leaf, float) for leaf in start]
    velocity = [0 * leaf for leaf in model]  # b of the outer Nesterov step
    learners = [[[leaf.copy(), 0 * leaf, 0 * leaf] for leaf in model] for _ in data]
    count, gradient = len(layout.fragments), jax.jit(jax.grad(task.loss))
    tokens, steps = np.zeros((count, len(data))), np.zeros(count)
    adopting = [-1] * count  # the step at which each fragment is adopted
    for t in range(1, (end := len(data[0])) + 1):
        for learner, batches in zip(learners, data, strict=True):
            params = jax.tree.unflatten(tree, [np.float32(theta) for theta, _, _ in learner])
            adamw(inner, learner, jax.tree.leaves(gradient(params, batches[t - 1])), t)
        tokens, steps = tokens + [task.tokens(batches[t - 1]) for batches in data], steps + 1
        eta, mu = (1, 0) if t == end else (outer.learning_rate, outer.momentum)
        for p in (p for p in range(count) if t == adopting[p] or (t == end and adopting[p] > t)):
            adopt(layout, p, model, learners, blend)
            tokens[p], steps[p] = 0, 0
        for p in (p for p in range(count) if t == end or t % every == p * every // count):
            if not steps[p].any():
                continue
            weights = tokens[p] ** 2 / steps[p] / np.sum(tokens[p] ** 2 / steps[p])
            for i, at, plain in ((e.leaf, e.index, e.embedding) for e in layout.fragments[p]):
                deltas = np.array([learner[i][0][at] - model[i][at] for learner in learners])
                mean = plain or rule is MergeRule.MEAN
                merged = np.tensordot(weights, deltas, 1) if mean else rda(weights, deltas)
                velocity[i][at] = mu * velocity[i][at] - merged
                model[i][at] -= eta * (mu * velocity[i][at] - merged)
            adopting[p] = t + overlap
            if overlap == 0:
                adopt(layout, p, model, learners, blend)
                tokens[p], steps[p] = 0, 0
    return model


def adopt(layout: Layout, p: int, model: list, learners: list, blend: float) -> None:
    for i, at in ((e.leaf, e.index) for e in layout.fragments[p]):
        for learner in learners:
            learner[i][0][at] = blend * learner[i][0][at] + (1 - blend) * model[i][at]


def adamw(spec: OptimizerSpec, learner: list, grads: list, t: int) -> None:
    norm = np.sqrt(sum(np.sum(np.float64(grad) ** 2) for grad in grads))
    for state, grad in zip(learner, grads, strict=True):
        (theta, m, v), g = state, np.float64(grad) * min(1, spec.clip_norm / norm)
        m, v = spec.b1 * m + (1 - spec.b1) * g, spec.b2 * v + (1 - spec.b2) * g**2
        step = m / (1 - spec.b1**t) / (np.sqrt(v / (1 - spec.b2**t)) + spec.eps)
        state[:] = theta - float(spec.rate(t - 1)) * (step + spec.weight_decay * theta), m, v


def rda(weights: np.ndarray, deltas: np.ndarray) -> np.ndarray:
    norms = np.array([np.linalg.norm(delta) for delta in deltas])
    direction = np.tensordot(weights / norms, deltas, 1)
    return weights @ norms * direction / np.linalg.norm(direction)
