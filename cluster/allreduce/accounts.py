"""The costs of a ring: bytes, merges and gaps, added to the measures of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cluster.allreduce.ring import Ring
from cluster.allreduce.ring_messages import Form
from cluster.allreduce.wire import wire_bytes
from cluster.syncer.measures import Measures
from cluster.syncer.merge_measures import RECENT_MERGES
from coordinator.codec import Wire
from coordinator.fragments import Layout
from coordinator.protocol import Life


class RingAccounts:
    """The accounts of all rings of a run; they add to its measures."""

    def __init__(self, measures: Measures, layout: Layout, wire: Wire) -> None:
        """Begin the accounts. `wire`: the encoding of gradients."""
        self._measures, self._wire = measures, wire
        self._sizes = [math.prod(leaf.shape) for leaf in layout.leaves]

    def stepped(self, members: Sequence[Life], steps: int, now_s: float) -> None:
        """Count `steps` more steps of a ring with these members."""
        counts = self._measures.counts
        sent = wire_bytes(self._sizes, len(members), self._wire) * len(members) * steps
        counts.up_bytes += sent
        counts.down_bytes += sent
        for member in members:
            counts.islands[member.island].contributions += steps - 1
            self._measures.delivered(member, now_s)
        counts.recent = [*counts.recent, len(members)][-RECENT_MERGES:]
        if not math.isnan(counts.merged_s):
            counts.max_gap_s = max(counts.max_gap_s, (now_s - counts.merged_s) / steps)
        counts.merged_s = now_s

    def formed(self, before: Ring, form: Form) -> None:
        """Count the steps to be repeated, and the bytes of the states that donors send.

        A state is the parameters and two moments, in f32.
        """
        counts = self._measures.counts
        counts.merges_lost += max(0, before.held.step - form.held.step)
        if form.donor is None:
            return
        for life in form.members:
            member = before.members.get(life.island)
            if member is None or member.held != form.held:
                counts.down_bytes += 3 * 4 * sum(self._sizes)
