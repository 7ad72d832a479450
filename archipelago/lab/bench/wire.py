"""The benchmark `archipelago bench wire`: the cost of each encoding, in bytes, time and loss."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from archipelago.lab.bench.stats import child, demo, interval_of, median
from cluster.config.schema import Config
from coordinator.codec import Payload, Wire, decode, encode
from coordinator.protocol import (
    ContributionId,
    Fragment,
    HandIn,
    Incarnation,
    Island,
    Lease,
    Life,
    Progress,
    Publication,
    Version,
)
from islands.own_wire import built_in

ALL_REDUCE_BYTES = 2
"""Bytes of a gradient's element in bf16, for islands that would all-reduce at every step."""


def wire(
    *,
    preset: str,
    steps: int,
    seeds: int,
    elements: int,
    repeats: int,
    learners: int,
    overrides: Sequence[str],
    say: Callable[[str], None],
) -> dict[str, object]:
    """Compare the encodings, with a row for each, used in both directions.

    - `bytes_per_parameter`: one message with everything that goes with it.
    - `encode_gb_s`, `decode_gb_s`: GB/s of f32, on one thread.
    - `all_reduce_ratio`, `syncer_link_ratio`: see `WireTraffic`.
    - `heldout_loss`: that of the demo after `steps` steps, over `seeds` seeds.
    - `loss_over_f32`: the excess over the loss of f32 with the same seed.
    - `default_...`: the ratios of the default configuration, whatever is set here.

    Joins are in none of the ratios. Each join fetches `join_bytes_per_parameter` from the shard and
    `moments_bytes_per_parameter` from another island.
    """
    config, shipped = (
        demo(preset, steps=steps, seed=0, overrides=changed) for changed in (overrides, [])
    )
    every = config.sync.lasting_every
    values = np.random.Generator(np.random.PCG64(0)).standard_normal(elements, np.float32)
    speeds = _speeds(values, repeats)
    default = WireTraffic.of(
        values, built_in(shipped.sync.wire_up), built_in(shipped.sync.wire_down)
    )
    rows: list[dict[str, object]] = []
    losses: dict[Wire, list[float]] = {each: [] for each in Wire}
    for seed in range(seeds):
        for each in Wire:
            losses[each].append(_loss(preset, steps, seed, each, overrides))
            say(f"seed {seed}, {each}: held-out loss {losses[each][-1]:.4f}")
    for each in Wire:
        traffic = WireTraffic.of(values, each, each)
        encoding, decoding = speeds[each]
        over_f32 = [a - b for a, b in zip(losses[each], losses[Wire.F32], strict=True)]
        rows.append(
            {
                "wire": str(each),
                "bytes_per_parameter": traffic.up_bytes / elements,
                "encode_gb_s": encoding,
                "decode_gb_s": decoding,
                "all_reduce_ratio": traffic.all_reduce_ratio(every, learners),
                "syncer_link_ratio": traffic.syncer_link_ratio(every, learners),
                **interval_of("heldout_loss", median(losses[each])),
                **interval_of("loss_over_f32", median(over_f32)),
            }
        )
    usual = shipped.sync.lasting_every
    return {
        "learners": learners,
        "every": every,
        "elements": elements,
        "steps": steps,
        "samples": seeds,
        "default_every": usual,
        "default_wire_up": str(shipped.sync.wire_up),
        "default_wire_down": str(shipped.sync.wire_down),
        "default_all_reduce_ratio": default.all_reduce_ratio(usual, learners),
        "default_syncer_link_ratio": default.syncer_link_ratio(usual, learners),
        "join_bytes_per_parameter": Wire.F32.bytes_of(elements) / elements,
        "moments_bytes_per_parameter": moments_bytes_per_parameter(config),
        "rows": rows,
    }


@dataclass(frozen=True, slots=True)
class WireTraffic:
    """The traffic of an island in one round of all fragments.

    It is compared with that of a member of a ring all-reduce of bf16 gradients, in the H steps of a
    round.
    """

    elements: int
    """The elements of all fragments."""
    up_bytes: int
    """The bytes that an island sends."""
    down_bytes: int
    """The bytes that an island receives."""

    @staticmethod
    def of(values: np.ndarray, wire_up: Wire, wire_down: Wire) -> WireTraffic:
        """Encode these values, and count the bytes of the messages."""
        up_bytes, _ = message_bytes(encode(wire_up, values))
        _, down_bytes = message_bytes(encode(wire_down, values))
        return WireTraffic(values.size, up_bytes, down_bytes)

    def all_reduce_ratio(self, every: int, learners: int) -> float:
        """Return the bytes on the link of the ring's member, over those on an island's link."""
        ring = 2 * 2 * (learners - 1) / learners * ALL_REDUCE_BYTES * self.elements
        return every * ring / (self.up_bytes + self.down_bytes)

    def syncer_link_ratio(self, every: int, learners: int) -> float:
        """Return the bytes on the link of the ring's member, over those on the syncer's link.

        That link is shared by the syncer and all shards, and carries the traffic of every island.
        Below 1, it carries more than an all-reduce.
        """
        return self.all_reduce_ratio(every, learners) / learners


def moments_bytes_per_parameter(config: Config) -> float:
    """Return the bytes that a donor sends to a joining learner for each parameter of the model."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax  # JAX: for shapes only

    from cluster.workers.assembly import optimizer_of, task_of
    from islands.optimizer import direction

    task = task_of(config)
    params = task.shapes
    moments = jax.eval_shape(direction(optimizer_of(config), task).init, params)
    held, model = (
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
        for tree in (moments, params)
    )
    return Wire.F32.bytes_of(1) * held / model


def message_bytes(payload: Payload) -> tuple[int, int]:
    """Return the bytes of a hand-in, and of a publication to one learner, in pickled form."""
    life, p, now = Life(Island("island-12"), Incarnation(1000)), Fragment(20), 10**6
    contribution_id, version = ContributionId(life, p, now, now + 24), Version(1, now)
    progress = Progress(now, 10**12, Lease(now))
    hand_in = HandIn(contribution_id, version, now, 10**9, "0" * 16, progress)
    publication = Publication(p, version, version, (contribution_id,) * 8)
    return _pickled((hand_in, payload)), _pickled((publication, payload))


def _pickled(message: object) -> int:
    """Return the bytes of a pickled message with its buffers."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    return len(head) + sum(buffer.raw().nbytes for buffer in buffers)


def _speeds(values: np.ndarray, repeats: int) -> dict[Wire, tuple[float, float]]:
    """Return GB/s of encoding and decoding for each wire; the wires take turns."""
    samples: dict[Wire, tuple[list[float], list[float]]] = {each: ([], []) for each in Wire}
    for turn in range(repeats + 1):
        for each, (encoding, decoding) in samples.items():
            began_s = time.perf_counter()
            payload = encode(each, values)
            halfway_s = time.perf_counter()
            decode(payload, values.size)
            ended_s = time.perf_counter()
            if turn:  # the first turn compiles
                encoding.append(values.nbytes / (halfway_s - began_s) / 1e9)
                decoding.append(values.nbytes / (ended_s - halfway_s) / 1e9)
    return {each: (median(e).value, median(d).value) for each, (e, d) in samples.items()}


def _loss(preset: str, steps: int, seed: int, each: Wire, overrides: Sequence[str]) -> float:
    """Return the held-out loss of a run with this wire in both directions."""
    wires = [f"sync.wire_up={json.dumps(each)}", f"sync.wire_down={json.dumps(each)}"]
    config = demo(preset, steps=steps, seed=seed, overrides=[*overrides, *wires])
    with TemporaryDirectory(prefix="archipelago-wire-") as folder:
        path = Path(folder) / "wire.toml"
        path.write_text(config.toml())
        run = ["-m", "archipelago", "run", str(path), "--json", "--run-dir", f"{folder}/run"]
        return child(run)["heldout_loss"]
