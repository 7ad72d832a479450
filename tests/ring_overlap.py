"""Measure whether computing continues beside a collective between CPUs.

`python -m tests.ring_overlap`. Two processes run one program: compute, send the result around,
compute on, send that around. One process starts late. The CPU seconds that the other has used by
then show this: half of all if its second computation waits for the first collective, all if not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from cluster.allreduce.rendezvous import Rendezvous, join

ROOT = Path(__file__).parents[1]
SIDE, PRODUCTS = 512, 300
"""The side of the matrices, and the number of products in a row."""
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
SEVERAL = "--xla_cpu_multi_thread_eigen=false"


def member(rank: int, address: str, kind: str) -> None:
    """Run as one of the two members; the first prints its CPU seconds."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    import numpy as np

    join(address, 2, rank)
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array([d for d in jax.devices() if d.process_index > 0]), ("all",))

    def computed(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, PRODUCTS, lambda _, y: jnp.tanh(y @ y), x)

    def sent(x: jax.Array) -> jax.Array:
        if kind == "psum":
            return lax.psum(x, "all")
        bits = lax.bitcast_convert_type(x.astype(jnp.bfloat16), jnp.uint16)
        parts = lax.all_to_all(bits.reshape(2, -1), "all", 0, 0)
        mine = lax.bitcast_convert_type(parts, jnp.bfloat16).astype(jnp.float32).sum(0)
        return lax.all_gather(mine, "all").reshape(x.shape)

    def body(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        first = computed(x)
        return sent(first), sent(computed(first))

    everywhere = PartitionSpec()
    mapped = jax.shard_map(
        body, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False
    )
    here = NamedSharding(mesh, everywhere)
    x: Any = jax.make_array_from_process_local_data(here, np.eye(SIDE, dtype=np.float32))
    program = jax.jit(mapped).lower(x).compile()
    jax.block_until_ready(program(x))  # connect
    before_s = time.perf_counter()
    jax.block_until_ready(program(x))
    late_s = 2 * (time.perf_counter() - before_s)
    jax.block_until_ready(program(x))
    if rank == 1:
        time.sleep(late_s)
    began_s, used_s, over = time.perf_counter(), time.process_time(), threading.Event()
    by_then_s = 0.0

    def watch() -> None:
        nonlocal by_then_s
        while not over.wait(0.05) and time.perf_counter() - began_s < 0.95 * late_s:
            by_then_s = time.process_time() - used_s

    watching = threading.Thread(target=watch)
    watching.start()
    jax.block_until_ready(program(x))
    all_s = time.process_time() - used_s
    over.set()
    watching.join()
    if rank == 0:
        print(json.dumps({"by_then_s": by_then_s, "all_s": all_s}), flush=True)
    time.sleep(0.5)  # until the other process has its answer, too
    os._exit(0)


def seen(kind: str, flags: str) -> dict[str, float]:
    """Return the figures of one pair of processes."""
    meeting = Rendezvous()
    address = meeting.open("127.0.0.1", 2)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.ring_overlap", str(rank), address, kind],
            cwd=ROOT,
            env={**os.environ, "XLA_FLAGS": flags},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(2)
    ]
    said = "".join(each.communicate()[0] for each in processes)
    meeting.close()
    (line,) = [each for each in said.splitlines() if each.startswith("{")]
    return json.loads(line)


def main() -> None:
    for kind in ("psum", "bits"):
        for flags in (ONE_THREAD, SEVERAL):
            told = seen(kind, flags)
            threads = "one thread" if flags == ONE_THREAD else "several threads"
            print(
                f"{kind}, {threads}: {told['by_then_s']:.2f} of {told['all_s']:.2f} CPU seconds "
                "were used before the other one came"
            )


if __name__ == "__main__":
    match sys.argv[1:]:
        case [number, where, name]:
            member(int(number), where, name)
        case _:
            main()
