"""The named arguments of a loss, placed on an island's devices."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from islands.losses import frozen_of
from islands.mesh import Devices, placed
from islands.randomness import key_of
from islands.state_tree import FROZEN, KEY, named_arguments
from islands.task import Task


class NamedArguments:
    """The named arguments of one task; its frozen arrays are loaded at the first use."""

    def __init__(self, task: Task, devices: Devices) -> None:
        self._task, self._devices = task, devices
        self._names = named_arguments(task.loss)

    def at(self, draw: NDArray[np.uint32]) -> dict[str, Any]:
        """Return the arguments of a step as arrays; the key is its words, uint32 [4]."""
        given = dict[str, Any]()
        if KEY in self._names:
            given[KEY] = self._devices.put(draw, self._devices.everywhere)
        if FROZEN in self._names:
            given[FROZEN] = self._frozen
        return given

    @cached_property
    def _frozen(self) -> Any:
        return placed(self._devices, frozen_of(self._task))


def with_key(named: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments with a key made of its words; for use in a compiled step."""
    return {**named, KEY: key_of(named[KEY])} if KEY in named else named
