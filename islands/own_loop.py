"""The island as a training loop of the user's own has it: `join` and the handle that it returns.

>>> def train():
...     island = archipelago.join()
...     params = island.params
...     while island.running:
...         params, loss = update(params, island.batch, rate(island.clock))
...         params = island.step(params, tokens=island.batch.size, loss=loss)
"""

from __future__ import annotations

import math
import operator
import traceback
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any

import jax

from coordinator.errors import UserMistake
from islands import foreign_arrays
from islands.loop_thread import CURRENT, LoopAnswer, LoopOver, LoopThread, LoopTurn
from islands.parameter_tree import ParameterTree
from islands.randomness import key_of
from islands.task import Batch, Params
from islands.user_lines import is_ours

MOST_TOKENS = 2**53
"""The largest count of tokens; above it a float, such as a merge weight, is not exact."""


def join() -> JoinedIsland:
    """Return the island that runs this training loop; call it once, in the loop's own function.

    It waits until the island has joined the run. Do slow preparations before the call: imports,
    compilation, opening of files. The learner joins only when the loop calls this function.

    Raises:
        UserMistake: The caller is not the function of `task.loop` in an island of a run.
    """
    thread = CURRENT.get()
    if thread is None:
        raise UserMistake(
            f"{_caller()}archipelago.join() outside of an island: name the function that calls it "
            "as task.loop, start the run with `archipelago run`, and call it on the loop's thread"
        )
    if (island := _JOINED.get()) is None:
        island = JoinedIsland(thread)
        _JOINED.set(island)
    return island


_KEY = jax.jit(key_of)


class JoinedIsland:
    """An island of a run, for a training loop of the user's own; `archipelago.join` returns it.

    Between two steps, `step` hands in fragments, adopts newer ones, and waits where the run
    requires it. All of its methods belong to the thread of the loop.
    """

    def __init__(self, thread: LoopThread) -> None:
        """Join the run, and wait for the first turn.

        Errors: `UserMistake` if the run is over before that.
        """
        self._thread, self._tree = thread, ParameterTree(thread.shapes)
        if isinstance(turn := thread.join(), LoopOver):
            raise UserMistake("the run of this island is over before its loop has joined")
        self._turn: LoopTurn | LoopOver = turn
        self._params, self._has_begun = turn.params, False

    def __repr__(self) -> str:
        state = f"clock {self.clock}" if self.running else "over"
        return f"<archipelago.JoinedIsland {self.name}: {state}>"

    @property
    def name(self) -> str:
        """The name of the island, such as "local-0"."""
        return self._thread.seat.island

    @property
    def group(self) -> str:
        """The name of the island's group."""
        return self._thread.seat.group

    @property
    def steps(self) -> int:
        """The length of the run in syncer steps (`run.steps`), for the end of a schedule."""
        return self._thread.seat.steps

    @property
    def running(self) -> bool:
        """Whether there is another step to take; False once the run is over for this island."""
        return isinstance(self._turn, LoopTurn)

    @property
    def clock(self) -> int:
        """The clock of the next step, for a schedule of the learning rate.

        It follows the syncer's steps. An island that rejoins has the clock of the others, and all
        islands reach `steps` together.
        """
        return self._now.clock

    @property
    def batch(self) -> Batch:
        """The batch of the next step, from the leases of this island; NumPy arrays.

        It is the same until `step` is called. No other island trains it, unless this one is lost.
        A loop with data of its own ignores it.
        """
        return self._now.batch

    @property
    def key(self) -> jax.Array:
        """The random key of the next step; it differs by island, life and step."""
        return _KEY(self._now.draw)

    @property
    def seed(self) -> int:
        """The random seed of the next step, below 2^63, for libraries without keys."""
        return int.from_bytes(blake2b(self._now.draw.tobytes(), digest_size=8).digest()) >> 1

    @property
    def params(self) -> Params:
        """The parameters to go on with; before the first step as a tree of `jax.Array`."""
        self._has_begun = True
        return self._params

    def load(self, params: Params) -> Params:
        """Return the run's parameters in the place of these, before the first step.

        Args:
            params: Arrays of JAX, NumPy or PyTorch, in the tree of the task's `init`. Tensors of
                PyTorch are overwritten in place. Other arrays only show the kind that is wanted.

        Raises:
            UserMistake: The tree has other leaves or shapes than `init` makes.
        """
        given = self._checked("load", params)
        self._params = self._received(params, given)
        return self.params

    def step(self, params: Params, tokens: int, *, loss: Any = None) -> Params:
        """Give the parameters after a step, and return those to go on with.

        Args:
            params: The parameters after the step: arrays of JAX, NumPy or PyTorch, in the tree of
                the task's `init`. They are read during the call only, and not donated.
            tokens: The number of tokens that the step trained; it weighs the step in merges.
            loss: The mean loss of the step, one number, for the status and the metrics. An array
                of JAX that is still being computed lets the devices run ahead. Without it, the
                call waits for the parameters.

        Returns:
            The same leaves, but for those that the island has replaced between the two steps.
            Tensors of PyTorch are overwritten in place, so that an optimizer of PyTorch may hold
            them. Leaves of NumPy and JAX are new arrays.

        Raises:
            UserMistake: The run is over (`running` is False); the parameters have another tree,
                shape or type than before; or `tokens` or `loss` is not one number.
        """
        given = self._checked("step", params)
        if not self._has_begun:
            raise _mistake(
                "step",
                "the loop has not taken the run's parameters; begin with island.params, or with "
                "island.load(params)",
            )
        if not self.running:
            raise _mistake("step", "the run is over; loop `while island.running`")
        answer = LoopAnswer(params, _tokens(tokens), _loss(loss))
        if loss is None:
            jax.block_until_ready(params)
        self._turn = self._thread.answer(answer)
        self._params = self._received(params, given)
        return self._params

    @property
    def _now(self) -> LoopTurn:
        if isinstance(self._turn, LoopOver):
            raise _mistake("the next step", "the run is over; loop `while island.running`")
        return self._turn

    def _checked(self, method: str, params: Params) -> list[Any]:
        """Return the leaves of the parameters. Errors: `UserMistake` if they do not fit."""
        leaves = jax.tree.leaves(params)
        if problem := self._tree.problem_of(params):
            raise _mistake(method, problem)
        return leaves

    def _received(self, params: Params, given: list[Any]) -> Params:
        """Return the parameters of this turn in place of those that the loop has given."""
        came, structure = jax.tree.leaves(self._turn.params), jax.tree.structure(params)
        if all(new is old for new, old in zip(came, given, strict=True)):
            return params
        kept = (
            old if new is old else foreign_arrays.like(old, new)
            for new, old in zip(came, given, strict=True)
        )
        return jax.tree.unflatten(structure, kept)


_JOINED: ContextVar[JoinedIsland | None] = ContextVar("archipelago_island", default=None)


def _tokens(given: Any) -> int:
    """Return a number of tokens. Errors: `UserMistake` if it is none."""
    try:
        tokens = operator.index(given)
    except TypeError:
        tokens = 0
    if isinstance(given, bool) or not 0 < tokens <= MOST_TOKENS:
        raise _mistake(
            "step",
            f"tokens is {_form_of_value(given)}; give the number of tokens that the step trained, "
            "a whole number above 0",
        )
    return tokens


def _loss(given: Any) -> jax.Array | float:
    """Return a loss. Errors: `UserMistake` if it is not one number."""
    if given is None:
        return math.nan
    try:
        if getattr(given, "shape", ()) != ():
            raise TypeError
        if isinstance(given, jax.Array):
            return given
        return float(given.detach() if foreign_arrays.is_tensor(given) else given)
    except (TypeError, ValueError):
        raise _mistake(
            "step",
            f"loss is {_form_of_value(given)}; give one number, the mean over the step's tokens",
        ) from None


def _form_of_value(given: Any) -> str:
    if hasattr(given, "dtype") and getattr(given, "shape", ()) != ():
        return foreign_arrays.form_of(given)
    return f"{str(given)[:40]!r} ({type(given).__name__})"


def _mistake(method: str, problem: str) -> UserMistake:
    """Return an error of the loop, which begins with the line of the user's call."""
    return UserMistake(f"{_caller()}island.{method}: {problem}")


def _caller() -> str:
    """Return the user's line that called this module, as the beginning of a message."""
    frames = [each for each in traceback.extract_stack() if not is_ours(each.filename)]
    if not frames:
        return ""
    file = frames[-1].filename.rpartition("/")[2]
    return f"{file}:{frames[-1].lineno}: "
