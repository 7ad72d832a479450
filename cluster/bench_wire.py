"""`archipelago bench wire`: what each encoding costs, in bytes, in time and in what is learned."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cluster.bench import child, demo, median, told
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

ALL_REDUCE_BYTES = 2
"""Of a gradient's element, bf16: what islands would exchange at every step if they kept in step."""


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
    """One row a wire, used both ways: `bytes_per_parameter` of one message with all that goes with
    it, `encode_gb_s` and `decode_gb_s` (of f32, one thread), `all_reduce_ratio` (bytes that a
    member of a ring all-reduce of bf16 gradients sends and receives in H steps, to those of one
    round), and `heldout_loss` of the demo after `steps` steps, over `seeds` seeds.
    """
    every = demo(preset, steps=steps, seed=0, overrides=overrides).sync.every
    values = np.random.Generator(np.random.PCG64(0)).standard_normal(elements, np.float32)
    speeds = _speeds(values, repeats)
    rows: list[dict[str, object]] = []
    losses: dict[Wire, list[float]] = {each: [] for each in Wire}
    for seed in range(seeds):
        for each in Wire:
            losses[each].append(_loss(preset, steps, seed, each, overrides))
            say(f"seed {seed}, {each}: held-out loss {losses[each][-1]:.4f}")
    for each in Wire:
        up, down = message_bytes(encode(each, values))
        ring = 2 * 2 * (learners - 1) / learners * ALL_REDUCE_BYTES * elements
        encoding, decoding = speeds[each]
        rows.append(
            {
                "wire": str(each),
                "bytes_per_parameter": up / elements,
                "encode_gb_s": encoding,
                "decode_gb_s": decoding,
                "all_reduce_ratio": every * ring / (up + down),
                **told("heldout_loss", median(losses[each])),
            }
        )
    said = {"learners": learners, "every": every, "elements": elements}
    return {**said, "steps": steps, "samples": seeds, "rows": rows}


def message_bytes(payload: Payload) -> tuple[int, int]:
    """Of a hand-in and of a publication to one learner, pickled as they travel."""
    life, p, now = Life(Island("island-12"), Incarnation(1000)), Fragment(20), 10**6
    said, version = ContributionId(life, p, now, now + 24), Version(1, now)
    progress = Progress(now, 10**12, Lease(now))
    up = HandIn(said, version, now, 10**9, "0" * 16, progress)
    down = Publication(p, version, version, (said,) * 8)
    return _pickled((up, payload)), _pickled((down, payload))


def _pickled(message: object) -> int:
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    return len(head) + sum(buffer.raw().nbytes for buffer in buffers)


def _speeds(values: np.ndarray, repeats: int) -> dict[Wire, tuple[float, float]]:
    """GB/s of encoding and decoding, the wires in turn."""
    samples: dict[Wire, tuple[list[float], list[float]]] = {each: ([], []) for each in Wire}
    for turn in range(repeats + 1):
        for each, (encoding, decoding) in samples.items():
            began_s = time.perf_counter()
            payload = encode(each, values)
            halfway_s = time.perf_counter()
            decode(payload, values.size)
            ended_s = time.perf_counter()
            if turn:  # the first one compiles
                encoding.append(values.nbytes / (halfway_s - began_s) / 1e9)
                decoding.append(values.nbytes / (ended_s - halfway_s) / 1e9)
    return {each: (median(e).value, median(d).value) for each, (e, d) in samples.items()}


def _loss(preset: str, steps: int, seed: int, each: Wire, overrides: Sequence[str]) -> float:
    wires = [f"sync.wire_up={json.dumps(each)}", f"sync.wire_down={json.dumps(each)}"]
    config = demo(preset, steps=steps, seed=seed, overrides=[*overrides, *wires])
    with TemporaryDirectory(prefix="archipelago-wire-") as folder:
        path = Path(folder) / "wire.toml"
        path.write_text(config.toml())
        run = ["-m", "cluster", "run", str(path), "--json", "--run-dir", f"{folder}/run"]
        return child(run)["heldout_loss"]
