"""Ray's provider of local nodes for its autoscaler, with a folder of packages for each node.

On real machines each node unpacks a job's packages for itself. With one folder for all, a node that
starts removes the packages of a job whose processes import them on another one.
"""

from __future__ import annotations

import itertools
from typing import Any

from ray._private import parameter
from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider

NUMBERS = itertools.count(1)


class LocalNodes(FakeMultiNodeProvider):
    """Nodes on this machine, each a raylet of its own."""

    def create_node_with_resources_and_labels(
        self, node_config: Any, tags: Any, count: Any, resources: Any, labels: Any
    ) -> None:
        whole: Any = parameter.RayParams

        def with_folder(**settings: Any) -> Any:
            return whole(runtime_env_dir_name=f"runtime_resources_{next(NUMBERS)}", **settings)

        parameter.RayParams = with_folder
        try:
            super().create_node_with_resources_and_labels(
                node_config, tags, count, resources, labels
            )
        finally:
            parameter.RayParams = whole
