"""Test of the parameters of a live run whose model is too large for one file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import archipelago
from cluster.storage.model_file import ModelFiles
from coordinator.protocol import Version
from tests.cluster.played import LAYOUT


class RunWithParts(archipelago.Run):
    """A run that is live, and whose shards write a model in several files."""

    @property
    def live(self) -> bool:
        """Always true."""
        return True

    def save(self, path: Path | str) -> str:
        """Write the model as the shards do above 5 GB."""
        path = Path(path)
        files = ModelFiles(path.parent, LAYOUT, 16, name=path.name.removesuffix(".safetensors"))
        for size in LAYOUT.sizes:
            files.add(Version(0, 0), np.arange(size, dtype=np.float32))
        files.publish()
        assert not path.exists()
        assert len([*path.parent.glob("*-of-*.safetensors")]) > 1
        return str(path)


def test_parameters_of_a_model_in_several_files() -> None:
    run = RunWithParts({"task": {"preset": "byte-tiny"}, "islands": [{"count": 1}]})
    params = run.params()
    assert {*params} == {leaf.path for leaf in LAYOUT.leaves}
    assert sum(array.size for array in params.values()) == sum(LAYOUT.sizes)
