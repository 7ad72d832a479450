"""The user's own gate of contributions, `sync.gate = "module:attribute"`: loaded, tried, called.

A refusal becomes the flaw of a contribution, which the rules refuse as they refuse a broken
payload. The log has the reason, so a replay needs no gate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cluster.config.schema import Config
from coordinator.errors import UserMistake
from coordinator.fragments import Flat, Layout
from coordinator.kernels import frozen
from coordinator.own_merge import MergePiece, merge_pieces
from islands.user_functions import user_function

KEY = "sync.gate"
WANTED = "a function (delta, public, pieces, **options) -> the reason of a refusal, or None"
ARGUMENTS = 3


class PayloadGate(Protocol):
    """A gate: it refuses contributions that must not be merged.

    `sync.gate = "module:attribute"` names it, and `[sync.gate_options]` has further arguments,
    which are passed by keyword. A shard calls it when a contribution arrives, before the checks of
    its norm. An island whose contributions are refused several times in a row is quarantined, as
    with the built-in checks. If islands wait for each adoption, the first refusal does that.

    A gate is a pure function of its arguments. If it raises, the contribution is refused, too.
    """

    def __call__(
        self,
        delta: NDArray[np.float32],
        public: NDArray[np.float32],
        pieces: Sequence[MergePiece],
    ) -> str | None:
        """Return the reason of a refusal, which the log and `status` show; None to accept.

        Args:
            delta: The contribution, decoded, [elements], finite, read-only: new minus old.
            public: The fragment of the global model that is public now, [elements], read-only.
            pieces: The tensors that the elements belong to, in their order.
        """
        ...


@dataclass(frozen=True, slots=True)
class OwnGate:
    """A user's gate with its options."""

    setting: str
    """The beginning of a message: the line of the function, and the key that names it."""
    function: Callable[[Flat, Flat, Sequence[MergePiece]], Any]
    """The function; its errors are `UserMistake` with the user's line."""

    def refusal(self, delta: Flat, public: Flat, pieces: Sequence[MergePiece]) -> str:
        """Return why a contribution is refused; empty if it is not.

        A delta that is not finite is left to the rules, which refuse it.
        """
        if not np.isfinite(delta).all():
            return ""
        try:
            return self.answer(delta, public, pieces)
        except UserMistake as error:
            return str(error)

    def answer(self, delta: Flat, public: Flat, pieces: Sequence[MergePiece]) -> str:
        """Return the answer of the function.

        Errors: `UserMistake` if it raises, or returns neither text nor None.
        """
        found = self.function(frozen(delta), frozen(public), pieces)
        if found is not None and not isinstance(found, str):
            raise UserMistake(
                f"{self.setting} returns a {type(found).__name__}: it must return the reason of a "
                "refusal as text, or None"
            )
        return found or ""


def gate_of(config: Config) -> OwnGate | None:
    """Return the user's gate; None if there is none.

    Errors: `UserMistake` if it cannot be loaded.
    """
    sync = config.sync
    if sync.gate is None:
        return None
    function = user_function(KEY, sync.gate, ARGUMENTS, sync.gate_options, WANTED)
    return OwnGate(function.where, function.call)


def gate_problems(config: Config, layout: Layout | None) -> list[str]:
    """Return why the user's gate cannot be used; empty if it can.

    It is tried on random numbers and on zeros, if the model is known. It may refuse them.
    """
    try:
        gate = gate_of(config)
        if gate is None or layout is None:
            return []
        p = min(range(len(layout.fragments)), key=lambda p: layout.sizes[p])
        pieces, size = merge_pieces(layout.leaves, layout.fragments[p]), layout.sizes[p]
        public, delta = np.random.default_rng(0).standard_normal((2, size), np.float32)
        for each in (1e-3 * delta, np.zeros(size, np.float32)):
            if gate.answer(each, public, pieces) != gate.answer(each.copy(), public, pieces):
                return [f"{gate.setting} is not deterministic: two calls give different answers"]
    except UserMistake as error:
        return [str(error)]
    return []
