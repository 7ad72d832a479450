"""Requests to many learners through one shard, in few calls.

A round asks all learners at once, and one call of Ray costs both ends more than a millisecond. So
all requests of one turn of the event loop are sent in one call. Answers that arrive together are
returned together, and the call is repeated for the learners that are still missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence

from cluster.failures import Failure
from cluster.tasks import Tasks
from coordinator.protocol import Contribution, Fragment, Life

Handed = Contribution | Failure | str | None
"""The outcome of a request to one learner.

- a contribution that the shard has collected;
- a `Failure` of the island;
- a string: why the contribution was lost, without any fault of the island;
- None: the learner has nothing to hand in.
"""
HandInAnswers = Sequence[tuple[Life, Handed]]
"""The outcomes for some of the lives that were asked."""

GATHER_S = 0.25e-3
"""Seconds that an answer waits for other answers, for each learner that is still missing."""
LONGEST_GATHER_S = 0.05
"""The longest such wait in seconds: the deadline of the round is running."""


class Asker:
    """The syncer's side: it joins the requests of one turn of the event loop in one call."""

    def __init__(
        self, call: Callable[[Fragment, Sequence[Life]], Awaitable[HandInAnswers]]
    ) -> None:
        """`call` asks the shard, which answers for at least one of these lives."""
        self._call = call
        self._asking: dict[Fragment, dict[Life, asyncio.Future[Handed]]] = {}
        self._calls = Tasks()

    async def collect(self, life: Life, fragment: Fragment) -> Handed:
        """Ask one learner for its contribution to a fragment.

        Errors: the errors of the call.
        """
        if fragment not in self._asking:
            self._asking[fragment] = {}
            self._calls.spawn(self._ask(fragment))  # runs after all requests of this turn
        requests = self._asking[fragment]
        if life not in requests:
            requests[life] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(requests[life])

    async def _ask(self, fragment: Fragment) -> None:
        futures = self._asking.pop(fragment)
        try:
            while futures:
                for life, answer in await self._call(fragment, [*futures]):
                    futures.pop(life).set_result(answer)
        except Exception as error:  # noqa: BLE001 - raised where each answer is awaited
            for future in futures.values():
                future.set_exception(error)


class Gatherer:
    """The shard's side: a repeated request for the same hand-in joins the one in flight."""

    def __init__(self) -> None:
        self._asked: dict[tuple[Life, Fragment], asyncio.Task[Handed]] = {}
        self._tasks = Tasks()

    async def gather(
        self,
        fragment: Fragment,
        lives: Sequence[Life],
        ask: Callable[[Life], Coroutine[None, None, Handed]],
    ) -> HandInAnswers:
        """Wait for the first answer and a moment longer, and return all answers that are there."""
        for life in lives:
            if (life, fragment) not in self._asked:
                self._asked[life, fragment] = self._tasks.spawn(ask(life))
        requests = {life: self._asked[life, fragment] for life in lives}
        await asyncio.wait(requests.values(), return_when=asyncio.FIRST_COMPLETED)
        if missing := sum(not task.done() for task in requests.values()):
            await asyncio.sleep(min(LONGEST_GATHER_S, GATHER_S * missing))
        answered = {life: task for life, task in requests.items() if task.done()}
        for life, task in answered.items():
            if self._asked.get((life, fragment)) is task:
                del self._asked[life, fragment]
        return [(life, _result_of(task)) for life, task in answered.items()]

    def forget(self) -> None:
        """Cancel all pending requests, because the syncer that made them is gone."""
        for task in self._asked.values():
            task.cancel()
        self._asked.clear()


def _result_of(task: asyncio.Task[Handed]) -> Handed:
    return "not asked any more" if task.cancelled() else task.result()
