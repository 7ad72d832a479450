"""The method without the machines: islands in lock-step in one process, for ablations.

The same inner step, merge, outer step and adoption as everywhere; no Ray, no rounds that wait, no
wire, nobody who is late. What this and a real run differ by is the system's, not the method's.
`python -m cluster.bench.lockstep CONFIG.toml` prints the held-out loss as JSON.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from cluster.config.load import load
from cluster.config.rule import schedule_of
from cluster.config.schema import Config
from cluster.host.build import optimizer_of, task_of
from cluster.host.evaluator import Evaluator
from cluster.shard.build import first_of, outer_of
from cluster.storage.files import json_text
from coordinator import outer
from coordinator.fragments import Flat
from coordinator.merge import MergeRule, merge
from coordinator.outer import OuterRule
from coordinator.protocol import Fragment, Lease
from islands.adopt import AdoptRule, FragmentPort
from islands.inner import Inner


def train(config: Config) -> dict[str, float]:
    """All islands for T steps; a due fragment is handed in by all of them, and adopted by all
    `overlap` steps later. At T what is under way is adopted, and each fragment handed in once more:
    that is taken over as it is."""
    sync, evaluator = config.sync, Evaluator(config)
    task, layout, schedule = task_of(config), evaluator.layout, schedule_of(config)
    rule, outer_rule = MergeRule(sync.merge), outer_of(config)
    inner = Inner(task, optimizer_of(config))
    port = FragmentPort(layout, AdoptRule(sync.adopt), sync.blend or 0.0)
    masters = [np.array(flat) for flat in evaluator.initial()]
    momenta = [first_of(config, flat).momentum for flat in masters]
    batches = [group.batch_size for group in config.islands for _ in range(group.count)]
    weights = [size**2 / sum(each**2 for each in batches) for size in batches]  # tokens^2 / steps
    streams = [task.stream(size) for size in batches]
    states = [inner.start(task.init(config.run.seed)) for _ in batches]
    bases = [[np.array(flat) for flat in masters] for _ in batches]
    under_way = deque[tuple[int, Fragment, Flat, list[jax.Array]]]()
    leases, tokens = 0, 0

    def hand_in(p: Fragment) -> tuple[list[jax.Array], Flat]:
        """What each island has of the fragment, and the merged difference to its base."""
        sent = [port.take(state.params, p) for state in states]
        deltas = [np.asarray(flat) - base[p] for flat, base in zip(sent, bases, strict=True)]
        return sent, merge(rule, layout.fragments[p], deltas, weights)

    for t in range(1, config.run.steps + 1):
        for i, stream in enumerate(streams):
            while stream.remaining < batches[i]:
                stream.add(Lease(leases))
                leases += 1
            batch = stream.next()
            states[i], _ = inner.step(states[i], batch, t - 1)
            tokens += task.tokens(batch)
        last = t == config.run.steps
        for p in () if last else schedule.due(after=t - 1, upto=t):
            sent, delta = hand_in(p)
            if isinstance(outer_rule, OuterRule):
                outer.step(outer_rule, masters[p], momenta[p], delta)
            else:
                outer_rule.step(masters[p], momenta[p], delta)
            under_way.append((t + sync.overlap, p, masters[p].copy(), sent))
        while under_way and (last or under_way[0][0] <= t):
            _, p, public, sent = under_way.popleft()
            for i, state in enumerate(states):
                states[i] = replace(
                    state, params=port.put(state.params, p, jnp.asarray(public), sent[i])
                )
                bases[i][p] = public
    for p in map(Fragment, range(sync.fragments)):
        masters[p] += hand_in(p)[1]
    return {"heldout_loss": evaluator.loss(masters), "tokens_trained": tokens}


if __name__ == "__main__":
    print(json_text(train(load(Path(sys.argv[1])))))
