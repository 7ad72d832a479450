"""A Ray cluster of several nodes on this machine, so that `bench recovery` can kill one.

`python -m archipelago.lab.bench.raylets NODES` prints the address, and ends when its standard input
closes. The head has no CPU for islands; each other node has one.
"""

from __future__ import annotations

import sys
from typing import Any

from ray.cluster_utils import Cluster

STORE_BYTES = 100 * 2**20
"""The size of each node's object store."""


def main() -> None:
    """Start the cluster, print its address, and stop it when the standard input closes."""
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
