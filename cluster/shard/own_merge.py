"""The user's own merge rule, `sync.merge = "module:attribute"`: loaded and tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cluster.config.schema import Config
from cluster.config.values import MERGE_RULES
from coordinator.errors import UserMistake
from coordinator.fragments import Layout, Piece
from coordinator.merge import MergeRule
from coordinator.own_merge import MergePiece, OwnMerge, merge_pieces
from islands.user_functions import user_function

KEY = "sync.merge"
WANTED = "a function (deltas, weights, pieces, **options) -> float32 array of one delta"
MOMENTUM = "momentum"
"""The parameter of a rule that uses the momentum of the outer optimizer."""
TRIED = 1 << 18
"""The most elements on which a rule is tried before the start: some milliseconds of work."""
WEIGHTS = (np.ones(1, "f4"), np.array([0.5, 0.375, 0.125], "f4"))
"""The weights of the trials: one contribution, as a quorum of one allows, and three."""
ARGUMENTS = 3


def rule_of_merge(config: Config) -> MergeRule | OwnMerge:
    """Return the merge rule of a run.

    Errors: `UserMistake` if it is the user's own, and cannot be loaded, or uses the momentum of an
    outer optimizer that is the user's own.
    """
    sync = config.sync
    if sync.merge in MERGE_RULES:
        return MergeRule(sync.merge)
    function = user_function(
        KEY, sync.merge, ARGUMENTS, sync.merge_options, WANTED, optional=[MOMENTUM]
    )
    with_momentum = MOMENTUM in function.takes
    if with_momentum and sync.outer.target is not None:
        raise UserMistake(
            f"{function.where} uses the outer momentum, which sync.outer.target = "
            f'"{sync.outer.target}" has none of: remove that key, or the parameter "{MOMENTUM}"'
        )
    return OwnMerge(function.where, function.call, with_momentum)


def merge_problems(config: Config, layout: Layout | None) -> list[str]:
    """Return why the user's own merge rule cannot merge this model; empty if it can.

    `layout`: None if the model is not known; the rule is then loaded and not tried.
    """
    try:
        rule = rule_of_merge(config)
        if isinstance(rule, MergeRule) or layout is None:
            return []
        return [f"{rule.setting} {problem}" for problem in _of_trial(rule, layout)]
    except UserMistake as error:
        return [str(error)]


def _of_trial(rule: OwnMerge, layout: Layout) -> Iterator[str]:
    """Yield what is wrong with the results for random contributions, and for some of zeros."""
    pieces, rng = _tried(layout), np.random.default_rng(0)
    size = pieces[-1].elements.stop
    for weights in WEIGHTS:
        deltas = rng.standard_normal((len(weights), size), np.float32)
        momentum = rng.standard_normal(size, np.float32)
        rows, shares = deltas.copy(), weights.copy()
        result = rule.of(rows, shares, pieces, momentum).copy()
        again = rule.of(_elsewhere(deltas), weights.copy(), pieces, momentum)
        count = f"{len(weights)} contribution{'s' if len(weights) > 1 else ''}"
        if not (np.array_equal(rows, deltas) and np.array_equal(shares, weights)):
            yield "changes the contributions or weights that it is given: work on a copy"
            return
        if not np.isfinite(result).all():
            yield f"returns what is not finite for {count} of normal random numbers"
            return
        if (differing := int(np.sum(result.view(np.uint32) != again.view(np.uint32)))) > 0:
            yield (
                f"is not deterministic: {differing} of {size} elements differ between two calls "
                f"with the same {count}; it must keep no state, draw no random numbers and sum "
                "without BLAS: (weights[:, None] * deltas).sum(axis=0), not weights @ deltas"
            )
            return
    zeros = np.zeros((len(WEIGHTS[-1]), size), np.float32)
    still = np.zeros(size, np.float32)
    if not np.isfinite(rule.of(zeros, WEIGHTS[-1].copy(), pieces, still)).all():
        yield "returns what is not finite for contributions of zeros, as an idle layer has them"


def _elsewhere(deltas: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a copy at an address that is no multiple of a vector's, which may change sums."""
    room = np.empty(deltas.size + 1, np.float32)[1:].reshape(deltas.shape)
    room[:] = deltas
    return room


def _tried(layout: Layout) -> Sequence[MergePiece]:
    """Return the pieces of the smallest fragment, cut after `TRIED` elements."""
    fragments = [pieces for p, pieces in enumerate(layout.fragments) if p != layout.state_fragment]
    kept, room = list[Piece](), TRIED
    for piece in min(fragments, key=lambda pieces: sum(piece.size for piece in pieces)):
        row = piece.size // piece.shape[0] if piece.shape else 1
        rows = min(piece.shape[0] if piece.shape else 1, max(room // max(row, 1), not kept))
        if not rows:
            break
        kept.append(
            replace(piece, stop=piece.start + rows, shape=(rows, *piece.shape[1:]))
            if piece.shape
            else piece
        )
        room -= rows * row
    return merge_pieces(layout.leaves, kept)
