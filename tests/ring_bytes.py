"""Count the bytes that a ring sends on the interface: `python -m tests.ring_bytes` (as root).

Each ring runs in a network namespace of its own, whose loopback carries nothing else. The bytes per
step are compared with `cluster.allreduce.wire.wire_bytes`, which runs use for their figures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from cluster.allreduce.rendezvous import Rendezvous, join
from cluster.allreduce.wire import wire_bytes
from coordinator.codec import Wire
from islands.task import load_task
from tests.given import data_spec, optimizer_spec

STEPS, WARM = 10, 3
ROOT = Path(__file__).parents[1]


def sent() -> int:
    """Return the bytes that the loopback of this namespace has sent so far."""
    (line,) = [each for each in Path("/proc/net/dev").read_text().splitlines() if "lo:" in each]
    return int(line.split()[9])


def member(rank: int, members: int, address: str, wire: Wire) -> None:
    """Run some steps as a member of a ring; the first member prints the bytes sent by all."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    import numpy as np

    join(address, members, rank)
    from cluster.allreduce.step import RingStep

    task = load_task("byte-tiny", None, {}, data_spec(window=32))
    step = RingStep(task, optimizer_spec(), wire, members)
    state, before = step.start(task.init(0), None), 0
    batch = np.zeros((2, 33), np.int32)
    for number in range(WARM + STEPS):
        if number == WARM:
            before = sent()
        loss, buckets = step.gradients(state, batch)
        buckets, _ = step.mean(loss, buckets, 64, leaving=False)
        state = step.update(state, buckets, number)
    if rank == 0:
        each = (sent() - before) / STEPS / members
        told = {"members": members, "wire": wire, "bytes": each}
        told["formula"] = wire_bytes(step.sizes, members, wire)
        print(json.dumps(told), flush=True)
    os._exit(0)


def inside(members: int, wire: Wire) -> None:
    """Run a ring in this namespace."""
    meeting = Rendezvous()
    address = meeting.open("127.0.0.1", members)
    command = [sys.executable, "-m", "tests.ring_bytes", "member"]
    processes = [
        subprocess.Popen([*command, str(rank), str(members), address, wire], cwd=ROOT)
        for rank in range(members)
    ]
    for each in processes:
        each.wait()
    meeting.close()


def main() -> None:
    for members in (2, 4):
        for wire in (Wire.F32, Wire.BF16):
            again = f"{sys.executable} -m tests.ring_bytes inside {members} {wire}"
            up = f"ip link set lo up && exec {again}"
            done = subprocess.run(
                ["unshare", "-n", "sh", "-c", up],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=True,
            )
            (told,) = [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]
            share = told["bytes"] / told["formula"]
            print(
                f"{members} members, {wire}: {told['bytes']:,.0f} bytes a member and step on the "
                f"interface, {told['formula']:,} counted: {share:.3f}"
            )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["member", rank, count, where, name]:
            member(int(rank), int(count), where, Wire(name))
        case ["inside", count, name]:
            inside(int(count), Wire(name))
        case _:
            main()
