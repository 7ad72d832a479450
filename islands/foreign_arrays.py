"""Arrays of NumPy and PyTorch beside those of JAX, for training loops of the user's own.

PyTorch is never imported here: a tensor can only exist if its user has imported it. CPU tensors are
shared through DLPack, without a copy.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding
from numpy.typing import NDArray

ForeignArray = Any
"""A `jax.Array`, a NumPy array, or a `torch.Tensor`."""
_GPU = ("cuda", "gpu")
"""The names of the platform of NVIDIA's devices in PyTorch and in JAX."""


def is_tensor(leaf: object) -> bool:
    """Return whether this is a tensor of PyTorch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(leaf, torch.Tensor)


def dtype_of(leaf: ForeignArray) -> str:
    """Return the name of an array's type, such as "float32"; empty if it is no array."""
    return str(getattr(leaf, "dtype", "")).removeprefix("torch.")


def form_of(leaf: ForeignArray) -> str:
    """Return an array's type and shape as text, such as "float32[4,3]"."""
    if not (dtype := dtype_of(leaf)):
        return f"a {type(leaf).__name__}"
    return f"{dtype}[{','.join(map(str, leaf.shape))}]"


def placed_on(leaf: ForeignArray, where: Sharding) -> jax.Array:
    """Return an array on JAX's devices; it may share the memory of `leaf`.

    The caller must not use it any more once `leaf` is changed in place.
    """
    if is_tensor(leaf):
        tensor, platform = leaf.detach().contiguous(), next(iter(where.device_set)).platform
        if tensor.device.type != "cpu" and not (tensor.device.type in _GPU and platform in _GPU):
            tensor = tensor.cpu()
        leaf = jax.dlpack.from_dlpack(tensor)
    return jax.device_put(leaf, where)


def like(given: ForeignArray, leaf: jax.Array) -> ForeignArray:
    """Return the values of `leaf` in the library of `given`; a tensor is overwritten in place."""
    if is_tensor(given):
        given.detach().copy_(tensor_of(leaf))
        return given
    return np.array(leaf) if isinstance(given, np.ndarray) else leaf


def tensor_of(leaf: jax.Array | NDArray[Any]) -> Any:
    """Return an array as a tensor, which may share its memory; PyTorch must be imported."""
    torch: Any = sys.modules["torch"]
    if isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) == 1:
        return torch.from_dlpack(leaf)
    return torch.from_numpy(np.array(leaf))


def on_host(leaf: ForeignArray) -> NDArray[Any]:
    """Return an array as one of NumPy."""
    return np.asarray(leaf.detach().cpu() if is_tensor(leaf) else leaf)
