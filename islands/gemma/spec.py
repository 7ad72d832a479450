"""The shape of a Gemma model: its sizes, its pattern of layers, and which features it has.

Gemma 3 and Gemma 4 (`GemmaSpec.generation`) differ in these conventions:

    RMSNorm         3 multiplies by 1 + weight, 4 by the weight
    attention       3 scales by query_scalar ** -0.5, 4 by 1, and 4 norms the values without a scale
    layer scalars   4 multiplies the output of each layer by a constant that is never trained
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

from islands.model import COMPUTE_DTYPES

LOCAL, GLOBAL = "local", "global"
"""The kinds of layers: attention to a sliding window, or to all earlier positions."""
KINDS = {"L": LOCAL, "G": GLOBAL}
"""The letters of `GemmaSpec.pattern`."""
OWN, SHARED = "layers", "shared"
"""The sections of layers: with keys and values of their own, or with those of earlier layers."""


class Heads(NamedTuple):
    """The attention heads of one kind of layer."""

    queries: int
    """Query heads."""
    keys: int
    """Key and value heads; each serves queries / keys query heads."""
    size: int
    """Elements of each head."""


class Section(NamedTuple):
    """A run of layers whose parameters are stacked, one stack for each kind of layer."""

    name: str
    """`OWN` or `SHARED`, the beginning of the paths of its leaves."""
    first: int
    """Number of its first layer in the model."""
    kinds: tuple[str, ...]
    """Kind of each layer, in order."""
    period: int
    """Layers after which the kinds repeat; one turn of a scan computes so many."""

    @property
    def turns(self) -> int:
        """Number of whole periods."""
        return len(self.kinds) // self.period

    @property
    def rest(self) -> tuple[str, ...]:
        """Kinds of the layers after the last whole period."""
        return self.kinds[self.turns * self.period :]

    def row(self, layer: int) -> int:
        """Return the row of a layer of this section in the stack of its kind."""
        return self.kinds[:layer].count(self.kinds[layer])


@dataclass(frozen=True, slots=True)
class GemmaSpec:
    """The shape of a Gemma model."""

    generation: int = 3
    """Conventions of Gemma 3 or of Gemma 4."""
    vocabulary: int = 256
    """Number of distinct tokens."""
    width: int = 64
    """Elements of the residual stream."""
    layers: int = 6
    """Number of layers."""
    hidden: int = 192
    """Hidden units of each dense MLP."""
    heads: int = 4
    """Query heads in each layer."""
    kv_heads: int = 2
    """Key and value heads in each local layer."""
    head_size: int = 16
    """Elements of each head in a local layer."""
    global_kv_heads: int = 0
    """Key and value heads in each global layer; 0: `kv_heads`."""
    global_head_size: int = 0
    """Elements of each head in a global layer; 0: `head_size`."""
    pattern: str = "LLLLLG"
    """Kinds of the layers, L (local) and G (global), repeated and cut to the number of layers."""
    window: int = 64
    """Positions that a local layer attends to, its own included."""
    query_scalar: float = 0.0
    """Attention scores are multiplied by query_scalar ** -0.5; 0: the head size, in Gemma 4: 1."""
    local_rope_base: float = 10_000.0
    """Longest wavelength of the rotary positions in local layers, in tokens over 2 pi."""
    global_rope_base: float = 1_000_000.0
    """Longest wavelength of the rotary positions in global layers, in tokens over 2 pi."""
    global_rope_scale: float = 1.0
    """Divisor of the positions in global layers."""
    global_rope_share: float = 1.0
    """Share of the pairs of each global head that are rotated; the others keep their values."""
    keys_are_values: bool = False
    """Whether the values of global layers are the projected keys, without a norm or a rotation."""
    shared_kv_layers: int = 0
    """Number of last layers that use the keys and values of the last earlier one of their kind."""
    wide_shared: bool = False
    """Whether the MLPs of those layers have twice the hidden units."""
    per_layer_size: int = 0
    """Elements of the embedding that each layer adds for each token; 0: none."""
    experts: int = 0
    """Experts in each layer, beside its dense MLP; 0: none."""
    experts_used: int = 0
    """Experts that compute each token."""
    expert_hidden: int = 0
    """Hidden units of each expert."""
    balance_weight: float = 0.001
    """Weight of the load-balance loss of the router."""
    softcap: float = 0.0
    """Bound of the logits, as cap * tanh(logits / cap); 0: none."""
    norm_epsilon: float = 1e-6
    """Added to the mean square in each RMSNorm."""
    compute_dtype: str = "float32"
    """Type of the computations: "float32", or "bfloat16" on accelerators."""
    remat: bool = False
    """Whether the backward pass computes the activations of each period of layers again."""
    logit_parts: int = 1
    """Parts of each window whose logits are computed one at a time, and again for the gradient."""
    layer_scalars: tuple[float, ...] = ()
    """Constant factor of each layer's output, never trained, of Gemma 4; empty: all are one."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each layer."""
        letters = (self.pattern * self.layers)[: self.layers]
        return tuple(KINDS[letter] for letter in letters)

    @property
    def sections(self) -> tuple[Section, ...]:
        """The sections of the layers, in order."""
        own = self.layers - self.shared_kv_layers
        parts = [(OWN, 0, self.kinds[:own]), (SHARED, own, self.kinds[own:])]
        return tuple(Section(name, first, k, _period(k)) for name, first, k in parts if k)

    def heads_of(self, kind: str) -> Heads:
        """Return the heads of a kind of layer."""
        if kind == LOCAL:
            return Heads(self.heads, self.kv_heads, self.head_size)
        size, keys = self.global_head_size, self.global_kv_heads
        return Heads(self.heads, keys or self.kv_heads, size or self.head_size)

    def hidden_of(self, section: str) -> int:
        """Return the hidden units of the dense MLPs of a section."""
        return self.hidden * (2 if self.wide_shared and section == SHARED else 1)

    def has_values(self, kind: str) -> bool:
        """Return whether layers of this kind project values apart from their keys."""
        return not (self.keys_are_values and kind == GLOBAL)

    @property
    def score_scale(self) -> float:
        """The factor of the attention scores."""
        usual = 1.0 if self.generation == 4 else float(self.head_size)
        return (self.query_scalar or usual) ** -0.5

    def rotated_pairs(self, kind: str) -> int:
        """Return how many pairs of each head are rotated, the first ones."""
        size = self.heads_of(kind).size
        return size // 2 if kind == LOCAL else int(self.global_rope_share * size // 2)

    def problems(self) -> list[str]:
        """Return why this shape cannot be built; empty if it can."""
        return [*self._sizes()] or [*self._relations()]

    def _sizes(self) -> Iterator[str]:
        positive = ("vocabulary", "width", "layers", "hidden", "heads", "kv_heads", "head_size",
                    "window", "logit_parts", "local_rope_base", "global_rope_base",
                    "global_rope_scale", "norm_epsilon")  # fmt: skip
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str | tuple):
                continue
            if not math.isfinite(value):
                yield f"{field.name} = {value}: must be finite"
            elif field.name in positive and (value < 1 if isinstance(value, int) else value <= 0):
                yield f"{field.name} = {value}: must be {_bound(value)}"
            elif value < 0:
                yield f"{field.name} = {value}: must not be negative"
        if self.generation not in (3, 4):
            yield f"generation = {self.generation}: 3 or 4"
        if self.layer_scalars and len(self.layer_scalars) != self.layers:
            yield f"layer_scalars has {len(self.layer_scalars)} numbers for {self.layers} layers"
        if not all(map(math.isfinite, self.layer_scalars)):
            yield f"layer_scalars = {self.layer_scalars}: must be finite"
        if not self.pattern or {*self.pattern} - {*KINDS}:
            yield f"pattern = {self.pattern!r}: letters L (local) and G (global), such as 'LLLLLG'"
        if self.compute_dtype not in COMPUTE_DTYPES:
            yield f"compute_dtype = {self.compute_dtype!r}: {' or '.join(COMPUTE_DTYPES)}"

    def _relations(self) -> Iterator[str]:
        for kind in dict.fromkeys(self.kinds):
            heads, name = self.heads_of(kind), "" if kind == LOCAL else "global_"
            if heads.queries % heads.keys:
                yield (
                    f"heads = {self.heads}: must be a multiple of the {heads.keys} key heads of "
                    f"{kind} layers ({name}kv_heads)"
                )
            if heads.size % 2:
                yield f"{name}head_size = {heads.size}: must be even"
        if not 0 < self.global_rope_share <= 1:
            yield f"global_rope_share = {self.global_rope_share}: must be over 0, and 1 at most"
        yield from self._of_sharing()
        yield from self._of_experts()
        if self.generation == 3:
            yield from self._beyond_gemma_3()
        elif self.kinds[-1] != GLOBAL:
            yield (
                f"pattern = {self.pattern!r}: the last of {self.layers} layers is local, and Gemma "
                "4 ends with a global one; change the pattern or the number of layers"
            )

    def _of_sharing(self) -> Iterator[str]:
        own = self.layers - self.shared_kv_layers
        if own < 1:
            yield f"shared_kv_layers = {self.shared_kv_layers}: less than layers = {self.layers}"
        elif lost := {*self.kinds[own:]} - {*self.kinds[:own]}:
            yield (
                f"shared_kv_layers = {self.shared_kv_layers}: no {' or '.join(lost)} layer comes "
                "before them, whose keys and values they could use"
            )
        if self.wide_shared and not self.shared_kv_layers:
            yield "wide_shared: shared_kv_layers = 0, so no layer is wide"

    def _of_experts(self) -> Iterator[str]:
        if not self.experts:
            if self.experts_used or self.expert_hidden:
                yield "experts = 0: set it, or leave experts_used and expert_hidden out"
            return
        if not 1 <= self.experts_used <= self.experts:
            yield f"experts_used = {self.experts_used}: from 1 to experts = {self.experts}"
        if self.expert_hidden < 1:
            yield f"expert_hidden = {self.expert_hidden}: must be at least 1"

    def _beyond_gemma_3(self) -> Iterator[str]:
        usual = GemmaSpec()
        for name in (
            "global_kv_heads", "global_head_size", "global_rope_share", "keys_are_values",
            "shared_kv_layers", "wide_shared", "per_layer_size", "experts", "layer_scalars",
        ):  # fmt: skip
            if (value := getattr(self, name)) != getattr(usual, name):
                yield f"{name} = {value}: Gemma 3 has no such feature; set generation = 4"


def _bound(value: float) -> str:
    return "at least 1" if isinstance(value, int) else "over 0"


def _period(kinds: tuple[str, ...]) -> int:
    """Return the smallest number of layers after which the kinds repeat."""
    lengths = range(1, len(kinds) + 1)
    return next(n for n in lengths if kinds[n:] == kinds[: len(kinds) - n])
