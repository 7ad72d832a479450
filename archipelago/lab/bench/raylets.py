"""A Ray cluster of several nodes on this machine, so that one can die: for `bench recovery`.

`python -m archipelago.lab.bench.raylets NODES` prints its address, and ends with its standard
input. The head has no room for islands, each node for one.
"""

from __future__ import annotations

import sys
from typing import Any

from ray.cluster_utils import Cluster

STORE_BYTES = 100 * 2**20


def main() -> None:
    room: dict[str, Any] = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **room})
    try:
        for _ in range(int(sys.argv[1])):
            cluster.add_node(num_cpus=1, **room)
        print(cluster.address, flush=True)
        sys.stdin.read()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
