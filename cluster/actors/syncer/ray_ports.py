"""The syncer's access to shards (for arrays) and islands (for messages), over Ray."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ray.exceptions import RayActorError, RayError, RayTaskError

from cluster.actors.bring_up import LONGEST_S
from cluster.actors.call_errors import cause_of, failure_of
from cluster.actors.directory import AGAIN_S, Directory
from cluster.failures import Answered, Reason, in_short, origin_of
from cluster.names import Seat, island_actor, seat_of
from cluster.shard.fates import Fates
from cluster.storage.open_depot import PATIENCE_S
from cluster.syncer.collect import Asker, Handed, HandInAnswers
from cluster.syncer.ports import Ports
from cluster.syncer.shard_liveness import Attendance, Away
from cluster.tasks import Tasks
from coordinator.errors import NoModel
from coordinator.protocol import (
    Discard,
    Fragment,
    Island,
    Life,
    Merge,
    Merged,
    Progress,
    Publish,
    Store,
    Unsound,
    Version,
    Void,
)

Wanted = Mapping[Fragment, Version]
"""The version that each of these fragments has to have."""


class RayPorts(Ports):
    """The syncer's access to shards (for arrays) and islands (for messages).

    A version may be merged as soon as the previous one is stored, but must not be staged before
    that is public. The locks here enforce this, since an asynchronous actor of Ray does not keep
    calls in order.
    """

    def __init__(self, namespace: str, holder: Mapping[Fragment, str]) -> None:
        self._actors, self._holder = Directory(namespace), holder
        self._shards = Attendance(set(holder.values()), (RayActorError, NoModel))
        self._asker = Asker(self._ask)
        self._turns = {p: asyncio.Lock() for p in holder}
        self._durable: dict[Fragment, bool | str] = {}  # by the last merge's answer
        self._fates = Fates()  # a shard that comes back needs these
        self._tasks = Tasks()
        self.seats: dict[Island, Seat] = {}  # of islands that have joined

    async def shard_dies(self, name: str) -> None:
        """Return when the shard is dead, even if no call is pending: joining learners need it."""

        async def watch() -> None:
            shard = await self._actors.find(name)
            await shard.watch.remote()

        await self._shards.until_dead(name, watch)
        for p in (p for p, holder in self._holder.items() if holder == name):
            self._turns[p] = asyncio.Lock()

    async def have_back(
        self,
        name: str,
        targets: Wanted,
        generation: int,
        waits: Callable[[str], None] = logging.warning,
        look_s: float = LONGEST_S,
    ) -> Wanted:
        """Have this shard go back to these versions, once Ray has restarted it; return what it has.

        No other call is made to it until `is_back`. A shard whose storage does not answer is asked
        again without a limit, after pauses that grow to `LONGEST_S`; `waits` receives the reason.
        An answer that does not come is waited for without a limit, too, and `waits` receives that
        every `look_s` seconds.

        Errors: `RayActorError` if it does not come back within `PATIENCE_S`.
        """
        end_s, pause_s = time.monotonic() + PATIENCE_S, AGAIN_S
        while True:
            self._actors.forget(name)
            deaths, merged = self._shards.deaths(name), self._fates.merged(targets.keys())
            try:
                shard = await self._actors.find(name)
                asked_s = time.monotonic()
                answer = self._tasks.spawn(_recovered(shard, targets, generation, deaths, merged))
                try:
                    while not (await asyncio.wait({answer}, timeout=look_s))[0]:
                        silent_s = time.monotonic() - asked_s
                        waits(
                            f"{name} has not answered for {silent_s:.0f} s: it still reads its "
                            "versions, or its storage hangs; only its fragments wait"
                        )
                        end_s = time.monotonic() + PATIENCE_S
                    return answer.result()
                finally:
                    answer.cancel()
            except RayActorError:
                if time.monotonic() > end_s:
                    raise
                pause_s = AGAIN_S
            except OSError as error:  # only its own fragments wait
                waits(f"{name} cannot read its versions yet: {cause_of(error)}")
                pause_s = min(2 * pause_s, LONGEST_S)
                end_s = time.monotonic() + pause_s + PATIENCE_S
            await asyncio.sleep(pause_s)

    def is_back(self, name: str) -> None:
        """Allow calls to this shard again."""
        self._shards.is_back(name)

    async def _order(self, p: Fragment, method: str, *arguments: object) -> Any:
        """Call the shard that holds a fragment.

        Errors: `Away` if it is dead, or dies meanwhile.
        """
        name = self._holder[p]

        async def order() -> Any:
            shard = await self._actors.find(name)
            return await getattr(shard, method).remote(*arguments)

        return await self._shards.ask(name, order)

    def _seat(self, life: Life) -> Seat:
        return self.seats.get(life.island, seat_of(life.island))

    async def watch(self, life: Life) -> str:
        """Return the reason when the life is over, as its island or Ray reports it."""
        try:
            island = await self._actors.reach(island_actor(self._seat(life)))
            return await island.watch.remote(life)
        except RayTaskError as error:
            return in_short(f"it cannot be watched: {origin_of(error)!r}")
        except RayError as error:
            return f"its process ended ({type(error).__name__})"

    async def collect(self, life: Life, fragment: Fragment) -> Handed:
        """Have the shard ask the learner; return a message if the shard dies meanwhile."""
        await self._shards.until_back(self._holder[fragment])
        try:
            return await self._asker.collect(life, fragment)
        except Away as why:
            return f"{why}: {life} will be asked again"

    async def _ask(self, fragment: Fragment, lives: Sequence[Life]) -> HandInAnswers:
        seats = {life: self._seat(life) for life in lives}
        return await self._order(fragment, "collect", fragment, seats)

    async def merge(self, order: Merge) -> Merged | Unsound | None:
        """Have the shard merge and store; return None if it is dead."""
        try:
            async with self._turns[order.fragment]:
                event, durable = await self._order(order.fragment, "merge", order)
        except Away:
            return None
        self._durable[order.fragment] = durable
        return event

    async def store(self, order: Store) -> bool | str:
        """Return whether the merge made its version durable, according to its answer.

        This needs no further call: a fragment has one version under way at a time.
        """
        return self._durable.pop(order.fragment)

    async def publish(self, order: Publish) -> Answered:
        """Have the shard publish; if it is dead, the answer is empty."""
        self._fates.published(order.merged)
        seats = [*map(self._seat, order.to)]
        with suppress(Away):
            async with self._turns[order.fragment]:
                return await self._order(order.fragment, "publish", order, seats)
        return Answered()

    async def discard(self, order: Discard) -> None:
        """Have the shard free a contribution, and order its learner to take the residual back."""
        with suppress(Away):
            await self._order(order.contribution.id.fragment, "discard", order)
        if order.returns_residual:
            await self._tell(order.contribution.id.life, "refused", order.contribution.id)

    async def cease(self, order: Void) -> None:
        """Notify a learner that its life is over."""
        await self._tell(order.life, "cease", order)

    async def park(self, life: Life) -> None:
        """Order a learner to stop stepping, and to continue to hand in."""
        await self._tell(life, "park", life)

    async def leave(self, life: Life) -> Progress | None:
        """Order a learner to end its life for good; return its progress, None if it died before."""
        return await self._tell(life, "leave")

    async def _tell(self, life: Life, method: str, *arguments: object) -> Any:
        """Send a message to a learner; only log a failure: a dead learner does not need it."""
        try:
            island = await self._actors.find(island_actor(self._seat(life)))
            return await getattr(island, method).remote(*arguments)
        except RayError as error:
            logging.warning(
                "%s did not receive %r: %s", life, method, failure_of(Reason.WORDS, error)
            )
            return None

    async def break_down(self, life: Life, why: str) -> None:
        """Order the process that had this life to end and restart; a no-op if there is none."""
        await self._tell(life, "break_down", life, why)

    def life_at(self, seat: Seat, lives: Iterable[Life]) -> Life | None:
        """Return which of these lives runs in this seat; None for a spare."""
        return next((life for life in lives if self._seat(life) == seat), None)


async def _recovered(shard: Any, *arguments: object) -> Wanted:
    """Return the answer of a shard that goes back to stored versions."""
    return await shard.recover.remote(*arguments)
