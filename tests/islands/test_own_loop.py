"""A training loop of the user's own on an island, against a scripted coordinator."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coordinator.codec import Wire
from coordinator.errors import UserMistake
from coordinator.protocol import Void
from coordinator.schedule import Schedule
from islands.adopt import AdoptRule, FragmentPort
from islands.foreign_arrays import is_tensor
from islands.inner import Inner, InnerState
from islands.learner import Learner
from islands.loop_inner import LoopInner
from islands.loop_thread import LoopSeat, LoopThread
from islands.mesh import Devices
from islands.own_loop import JoinedIsland, join
from islands.task import Params
from tests.given import habits as a_habits
from tests.islands.test_learner import (
    EVERY,
    F0,
    F1,
    FRAGMENTS,
    ISLAND,
    LAYOUT,
    SPEC,
    TASK,
    WAIT_S,
    Alive,
    Script,
    flats_of,
    init,
    span,
    steps_of,
    until,
)

TOKENS = 7
"""Tokens of each step of these loops; the task itself would count others."""


@pytest.fixture(scope="module")
def inner() -> Inner:
    return Inner(TASK, SPEC)


DEVICES = Devices(TASK)


@cache
def port_of(adopt: AdoptRule) -> FragmentPort:
    """Return a port with compiled functions, which does not depend on the loop."""
    read = LoopInner(DEVICES, LoopThread(lambda: None, "mine:train", TASK.shapes)).read
    return FragmentPort(LAYOUT, adopt, devices=DEVICES, read=read)


class Looping:
    """A learner whose steps are taken by a loop, and the loop's thread."""

    def __init__(self, loop: Callable[[], object], adopt: AdoptRule, script: Script) -> None:
        self.thread = LoopThread(loop, "mine:train", TASK.shapes)
        self.thread.seat = LoopSeat(ISLAND, "g", 1000)
        inner, port = LoopInner(DEVICES, self.thread), port_of(adopt)
        habits = a_habits(ISLAND, "g", Wire.F32, Schedule(EVERY, FRAGMENTS), 2, 1)
        self.learner = Learner(
            TASK, LAYOUT, inner, port, None, lambda: TASK.stream(1), script, habits,
            now_s=time.perf_counter,
        )  # fmt: skip
        self.thread.prepare()
        self.alive = Alive(self.learner, script)
        self.script = script

    def over(self) -> None:
        """End the run of this island."""
        self.learner.leave()
        self.alive.ends()
        self.thread.end(self.learner.params)


Begin = Callable[..., Looping]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Yield a function that starts a learner with a loop; it stands at step 0 without data."""
    started: list[Looping] = []

    def begin(loop: Callable[[], object], adopt: AdoptRule = AdoptRule.OVERWRITE) -> Looping:
        started.append(looping := Looping(loop, adopt, script := Script()))
        script.all_read()
        return looping

    yield begin
    for looping in started:
        looping.alive.close()


class Loop:
    """A loop that changes the parameters as a function does, and keeps what it has seen."""

    def __init__(
        self,
        change: Callable[[JoinedIsland, Params], tuple[Params, Any]],
        first: Callable[[JoinedIsland], Params] = lambda island: island.params,
    ) -> None:
        self._change, self._first = change, first
        self.island: JoinedIsland | None = None
        self.seen: list[Params] = []
        self.left = threading.Event()

    def __call__(self) -> None:
        self.island = island = join()
        params = self._first(island)
        while island.running:
            self.seen.append(params)
            params, loss = self._change(island, params)
            params = island.step(params, TOKENS, loss=loss)
        self.seen.append(params)
        self.left.set()


def added(island: JoinedIsland, params: Params) -> tuple[Params, Any]:
    """Add 1 to all parameters, in new arrays."""
    return jax.tree.map(lambda leaf: leaf + 1, params), 0.5


def added_in_place(island: JoinedIsland, params: Params) -> tuple[Params, Any]:
    """Add 1 to all parameters, in the arrays that they are in."""
    for name in params:
        params[name] += 1
    return params, 0.5


# --- steps ----------------------------------------------------------------------------------------


def test_loop_hands_in_what_our_own_step_would(begin: Begin, inner: Inner) -> None:
    """The loop takes the same steps as the built-in learner, with its own optimizer state."""
    state: list[InnerState] = []

    def trained(island: JoinedIsland, params: Params) -> tuple[Params, Any]:
        now = InnerState(params, state[-1].opt_state) if state else inner.start(params)
        after, measures = inner.step(now, island.batch, island.clock)
        state.append(after)
        return after.params, measures.loss

    looping = begin(Loop(trained))
    looping.script.step(3)
    first, delta = looping.alive.hand_in(F0)
    assert (span((first, delta)), first.tokens) == ((0, 3), 3 * TOKENS)
    looping.script.step(2)
    _, whole = looping.alive.hand_in(F1)
    wanted = [flats_of(steps_of(inner, inner.start(init(0)), range(n)).params) for n in (3, 5)]
    np.testing.assert_array_equal(delta, wanted[0][F0] - flats_of(init(0))[F0])
    np.testing.assert_array_equal(whole, wanted[1][F1] - flats_of(init(0))[F1])
    report, vitals = looping.script.reports[-1]
    assert (report.progress.steps, report.progress.tokens) == (5, 5 * TOKENS)
    assert 0 < vitals.loss < 10


def test_island_describes_the_step(begin: Begin) -> None:
    seen: list[tuple[int, float, int]] = []

    def look(island: JoinedIsland, params: Params) -> tuple[Params, Any]:
        assert (island.name, island.group, island.steps) == (ISLAND, "g", 1000)
        assert join() is island
        number = float(island.batch[0, 0])
        assert island.batch is island.batch
        seen.append((island.clock, number, island.seed))
        assert f"{ISLAND}: clock {island.clock}" in repr(island)
        assert jax.random.key_data(island.key).shape == (2,)
        return params, None

    looping = begin(Loop(look))
    looping.script.step(4)
    assert [each[:2] for each in seen] == [(n, float(n)) for n in range(4)]
    assert len({seed for *_, seed in seen}) == 4
    _, vitals = looping.learner.vitals
    assert math.isnan(vitals.loss), "the loop reports none"


def test_adoption_reaches_the_loop_at_the_next_step(begin: Begin) -> None:
    loop = Loop(added)
    looping = begin(loop)
    looping.script.step(2)
    looping.alive.adopted(F0, version := looping.alive.publish(F0, flats_of(init(1))[F0]))
    _, public = looping.script.public[F0]
    looping.script.step(2)
    got = [flats_of(params) for params in loop.seen]
    begun = [n for n, flats in enumerate(got) if np.array_equal(flats[F0], public)]
    assert begun, "the loop has gone on from the adopted fragment"
    np.testing.assert_array_equal(got[begun[0]][F1], got[begun[0] - 1][F1] + 1)
    said, delta = looping.alive.hand_in(F0)
    assert (said.base, said.id.from_step) == (version, begun[0])
    np.testing.assert_allclose(delta, 4 - begun[0], atol=1e-5)


def test_new_life_goes_on_from_the_public_fragments(begin: Begin) -> None:
    """The loop is not started again: its next step returns the parameters of the new life."""
    loop = Loop(added)
    looping = begin(loop)
    looping.script.step(3)
    first = looping.script.life
    looping.learner.cease(Void(first, "it was silent"))
    looping.script.nothing_more()
    looping.script.all_read()
    looping.script.step(2)
    assert looping.script.life != first
    for now, start in zip(flats_of(loop.seen[3]), flats_of(init(0)), strict=True):
        np.testing.assert_array_equal(now, start)
    assert span(looping.alive.hand_in(F0)) == (0, 2)


def test_run_ends_with_running_false_and_the_last_parameters(begin: Begin) -> None:
    late: list[str] = []
    loop = Loop(added)

    def and_once_more() -> None:
        loop()
        assert loop.island is not None
        for call in (lambda island: island.step(loop.seen[-1], 1), lambda island: island.batch):
            try:
                call(loop.island)
            except UserMistake as error:
                late.append(str(error))
        loop.left.set()

    looping = begin(and_once_more)
    looping.script.step(3)
    loop.left.clear()
    looping.over()
    assert loop.left.wait(WAIT_S)
    assert loop.island is not None
    assert not loop.island.running
    for leaf, start in zip(flats_of(loop.seen[-1]), flats_of(init(0)), strict=True):
        np.testing.assert_allclose(leaf, start + 3, atol=1e-5)
    assert len(loop.seen) == 4
    until(lambda: len(late) == 2)
    assert all("the run is over; loop `while island.running`" in each for each in late)
    assert all(each.startswith("test_own_loop.py:") for each in late)


def test_time_of_a_loop_that_waits_for_its_devices_counts_as_computing(begin: Begin) -> None:
    def slow(island: JoinedIsland, params: Params) -> tuple[Params, Any]:
        until_s = time.perf_counter() + 0.02
        while time.perf_counter() < until_s:
            pass
        return params, 1.0

    looping = begin(Loop(slow))
    looping.script.step(10)
    steps, vitals = looping.learner.vitals
    assert steps == 10
    assert vitals.computing_s > 10 * 0.02
    assert vitals.talking_s < vitals.computing_s


# --- arrays of other libraries --------------------------------------------------------------------


def as_numpy(island: JoinedIsland) -> Params:
    return jax.tree.map(np.array, island.params)


def as_tensors(island: JoinedIsland) -> Params:
    torch = pytest.importorskip("torch")
    return island.load({name: torch.zeros(leaf.shape) for name, leaf in init(0).items()})


@pytest.mark.parametrize("first", [as_numpy, as_tensors])
def test_arrays_that_change_in_place(begin: Begin, first: Callable[..., Params]) -> None:
    """A hand-in is of its step, though the loop continues in the same memory."""
    if first is as_tensors:  # on this thread, which may skip the test
        pytest.importorskip("torch")
    loop = Loop(added_in_place, first)
    looping = begin(loop)
    for number in range(4):
        looping.script.step(2)
        said, delta = looping.alive.hand_in(F0)
        looping.script.step(1)
        assert span((said, delta)) == (max(0, 3 * number - 1), 3 * number + 2)
        np.testing.assert_allclose(delta, 3 if number else 2, atol=1e-5)
    public = flats_of(init(1))[F0]
    looping.alive.adopted(F0, looping.alive.publish(F0, public))
    looping.script.step(1)
    np.testing.assert_allclose(flats_of(loop.seen[-1])[F0], public + 1, atol=1e-5)
    np.testing.assert_allclose(
        flats_of(loop.seen[-1])[F1], flats_of(init(0))[F1] + len(loop.seen), atol=1e-5
    )
    if first is as_tensors:
        assert all(is_tensor(leaf) for leaf in loop.seen[-1].values())
        assert loop.seen[-1]["rest"] is loop.seen[0]["rest"], "overwritten in place"


# --- bad input ------------------------------------------------------------------------------------


def without(island: JoinedIsland, params: Params) -> Params:
    return {name: leaf for name, leaf in params.items() if name != "rest"}


STEPS: dict[str, tuple[Callable[..., object], str]] = {
    "shape": (
        lambda island, params: island.step({**params, "rest": params["rest"][:2]}, 1),
        r"island\.step: rest is float32\[2\], and float32\[3\] in the run",
    ),
    "type": (
        lambda island, params: island.step({**params, "rest": params["rest"].astype("int32")}, 1),
        r"island\.step: rest is int32\[3\], and float32\[3\] in the run",
    ),
    "no array": (
        lambda island, params: island.step({**params, "rest": 1.0}, 1),
        r"island\.step: rest is a float, and float32\[3\] in the run",
    ),
    "lacking": (
        lambda island, params: island.step(without(island, params), 1),
        "island.step: the parameters lack rest$",
    ),
    "other names": (
        lambda island, params: island.step({**without(island, params), "west": 0.0}, 1),
        "the parameters lack rest and the run has no west$",
    ),
    "other container": (
        lambda island, params: island.step(OrderedDict(params), 1),
        "the parameters are a .*OrderedDict.*, and a .* in the run",
    ),
    "tokens of a float": (
        lambda island, params: island.step(params, 3.5),
        r"tokens is '3\.5' \(float\); give the number of tokens that the step trained, a whole",
    ),
    "tokens of an array": (
        lambda island, params: island.step(params, np.ones(3, np.int32)),
        r"tokens is int32\[3\]; give the number",
    ),
    "no tokens": (lambda island, params: island.step(params, 0), "tokens is '0' "),
    "tokens true": (lambda island, params: island.step(params, True), "tokens is 'True' "),
    "loss of an array": (
        lambda island, params: island.step(params, 1, loss=jnp.ones(3)),
        r"loss is float32\[3\]; give one number, the mean",
    ),
    "loss of text": (
        lambda island, params: island.step(params, 1, loss="low"),
        r"loss is 'low' \(str\); give one number",
    ),
    "load": (
        lambda island, params: island.load({"rest": np.zeros(3, np.float32)}),
        "island.load: the parameters lack blocks, embedding$",
    ),
}


@pytest.mark.parametrize("case", STEPS)
def test_bad_step_ends_the_learner_with_the_line_of_the_loop(begin: Begin, case: str) -> None:
    call, message = STEPS[case]

    def wrong(island: JoinedIsland, params: Params) -> tuple[Params, Any]:
        call(island, params)
        raise AssertionError("it was accepted")

    looping = begin(Loop(wrong))
    looping.script.allow(1)
    with pytest.raises(UserMistake, match=message) as found:
        looping.alive.ends()
    assert str(found.value).startswith("test_own_loop.py:")


@pytest.mark.parametrize("kind", [np.int64(7), jnp.int32(7), 7])
def test_whole_numbers_of_any_library_count_tokens(begin: Begin, kind: Any) -> None:
    def train() -> None:
        island = join()
        params = island.params
        while island.running:
            params = island.step(params, kind, loss=np.float32(1.0))

    looping = begin(train)
    looping.script.step(2)
    report, _ = looping.script.reports[-1]
    assert report.progress.tokens == 14
    assert type(report.progress.tokens) is int


def test_first_step_must_go_on_from_the_runs_parameters(begin: Begin) -> None:
    def train() -> None:
        join().step(init(5), 1)

    looping = begin(train)
    looping.script.allow(1)
    with pytest.raises(UserMistake, match=r"begin with island\.params, or with island\.load"):
        looping.alive.ends()


class Spilt(Exception):
    """An error of the user's own."""


def test_error_of_the_loop_is_raised_by_the_learner_at_its_line(begin: Begin) -> None:
    def spills(island: JoinedIsland, params: Params) -> tuple[Params, Any]:
        if island.clock == 2:
            raise Spilt("milk")
        return params, 1.0

    looping = begin(Loop(spills))
    looping.script.allow(3)
    with pytest.raises(Spilt, match="milk") as found:
        looping.alive.ends()
    assert found.traceback[-1].name == "spills"


@pytest.mark.parametrize("steps", [0, 2])
def test_loop_that_returns_early_is_an_error(begin: Begin, steps: int) -> None:
    def train() -> None:
        island = join()
        params = island.params
        for _ in range(steps):
            params = island.step(params, 1)

    looping = begin(train)
    looping.script.allow(3)
    with pytest.raises(UserMistake, match=f"mine:train returned after {steps} steps, and the run"):
        looping.alive.ends()


def test_loop_that_never_joins_is_an_error() -> None:
    def wrong() -> None:
        raise Spilt("tea")

    for loop, error in ((wrong, Spilt), (lambda: None, UserMistake)):
        thread = LoopThread(loop, "mine:train", TASK.shapes)
        with pytest.raises(error, match=r"tea|returned without a call of archipelago\.join"):
            thread.prepare()


def test_join_outside_of_an_island_is_refused() -> None:
    with pytest.raises(UserMistake, match="outside of an island: name the function") as found:
        join()
    assert str(found.value).startswith("test_own_loop.py:")
