"""The compilation of the encoder of deltas on an island's devices."""

from __future__ import annotations

import numpy as np

from coordinator.fragments import Layout
from coordinator.protocol import Fragment
from islands.adopt import FragmentPort
from islands.encoder import OnDevice
from islands.mesh import Devices
from islands.own_wire import AnyWire


def compile_encoder(wire: AnyWire, layout: Layout, devices: Devices, port: FragmentPort) -> None:
    """Compile the encoder of deltas on the devices, for every fragment's size."""
    encode, params = OnDevice(wire), devices.zeros
    for p, size in enumerate(layout.sizes):
        flat, own = port.take(params, Fragment(p)), devices.own(size)
        zeros = np.zeros(own.stop - own.start, np.float32)
        _, left = encode(flat, devices.place_flat(zeros, size), None, 1.0, zeros.size)
        encode(flat, flat, left, 1.0, zeros.size)
