"""The effect of one contribution on the held-out loss, as an evaluator measures it.

The effect is the loss of the public model minus its loss without the contribution: without its
delta, times the weight that it had in its merge. Learning rate and momentum of the outer step are
left out. A negative effect is good: the contribution has lowered the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from cluster.workers.evaluator_answers import ContributionEffect
from coordinator.codec import Payload
from coordinator.fragments import Flat
from coordinator.protocol import Fragment, Island, Version
from islands.own_wire import AnyWire, decoded_of


class SampledContribution(NamedTuple):
    """A merged contribution, as a shard gives it to an evaluator."""

    island: Island
    """The island that handed it in."""
    fragment: Fragment
    """The fragment that it belongs to."""
    version: Version
    """The version of the fragment that it was merged into, which is public."""
    weight: float
    """The weight in that merge; the weights of a merge sum to one."""
    delta: Payload
    """The encoded delta, without moments."""


def effect_of(
    sampled: SampledContribution | None,
    model: Sequence[tuple[Version, Flat]],
    loss: float,
    wire: AnyWire,
    loss_of: Callable[[list[Flat]], float],
) -> ContributionEffect | None:
    """Return the effect of a contribution on a model that contains it.

    - `model`: the public fragments with their versions, fetched after the contribution.
    - `loss`: the loss of the model, over the windows of `loss_of`.
    - `wire`: the encoding of the delta.

    Return None if there is no contribution, if the model has been rolled back and no longer
    contains it, or if one of the losses is not finite.
    """
    if sampled is None or model[sampled.fragment][0] < sampled.version:
        return None
    effect = loss - loss_of(_without(sampled, [flat for _, flat in model], wire))
    if not math.isfinite(effect):
        return None
    return ContributionEffect(sampled.island, sampled.fragment, effect)


def _without(sampled: SampledContribution, flats: list[Flat], wire: AnyWire) -> list[Flat]:
    """Return the fragments without the contribution; only its own fragment is copied."""
    p = sampled.fragment
    delta = decoded_of(wire, sampled.delta, flats[p].size)
    changed = np.subtract(flats[p], np.float32(sampled.weight) * delta)
    return [*flats[:p], changed, *flats[p + 1 :]]
