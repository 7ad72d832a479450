"""A Ray cluster of one head and three raylets on this machine, until standard input ends.

The script prints its address as JSON; its job server listens at the first given port, its agent at
the second. The head holds no island. The line "down" on standard input kills the head's control
service, "up" starts it again; the script echoes each line afterwards.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from ray.cluster_utils import Cluster

STORE_BYTES = 100 * 2**20
REGIONS = ("eu", "eu", "us")


REAP_S = 1.0


def reap(cluster: Cluster) -> None:
    """Reap ended processes: to Ray's workers a zombie raylet is still alive."""
    never = threading.Event()
    while not never.wait(REAP_S):
        for node in [*cluster.list_all_nodes()]:
            for processes in [*node.all_processes.values()]:
                for each in processes:
                    each.process.poll()


def main() -> None:
    head: dict[str, Any] = {
        "num_cpus": 0,
        "object_store_memory": STORE_BYTES,
        "include_dashboard": True,
        "dashboard_host": "127.0.0.1",
        "dashboard_port": int(sys.argv[1]),
        "dashboard_agent_listen_port": int(sys.argv[2]),  # Ray's default may be in use
    }
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for number, region in enumerate(REGIONS):
        cluster.add_node(
            num_cpus=2,
            labels={"region": region},
            object_store_memory=STORE_BYTES,
            # On real machines each node unpacks a job's packages for itself. With one folder for
            # all, a node removes them while a worker of another one imports them.
            runtime_env_dir_name=f"runtime_resources_{number}",
        )
    threading.Thread(target=reap, args=(cluster,), daemon=True).start()
    print(json.dumps({"address": cluster.address}), flush=True)
    node: Any = cluster.head_node
    for line in sys.stdin:
        if line == "down\n":
            node.kill_gcs_server()  # SIGKILL
        else:
            node.start_gcs_server()
        print(line, end="", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
