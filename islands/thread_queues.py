"""The queues of a learner's threads: requests, offers, and the tasks of each thread."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future

from coordinator.protocol import Fragment
from islands.exchange import FragmentSnapshot
from islands.learner_messages import Adopt, HandOver, Say, Want, Words
from islands.thread_tasks import Adoption, HandInTask, Offer, Todo


class ThreadQueues:
    """The pending work with its data; only the mailbox uses it, under its lock.

    `todo`: tasks of the training thread. `to_say`: messages of the talking thread. `offers`: the
    newest version of each fragment, until it is adopted.
    """

    def __init__(self) -> None:
        self.todo = deque[Todo]()
        self.to_say = deque[Say | Want]()
        self.offers: dict[Fragment, Offer] = {}
        self._asked: dict[Fragment, Future[FragmentSnapshot | None]] = {}  # not decided yet
        self._owed: list[Future[FragmentSnapshot | None]] = []  # decided, not answered yet

    def follow(self, words: Words) -> None:
        """Queue what follows from a happening."""
        for word in words:
            match word:
                case Say() | Want():
                    self.to_say.append(word)
                case HandOver(p):  # a later request is for what is trained after this
                    if (request := self._asked.pop(p, None)) is not None:
                        self._owed.append(request)
                    self.todo.append(HandInTask(word, request))
                case Adopt(p):
                    self.todo.append(Adoption(word, self.offers.pop(p)))
                case _:
                    self.todo.append(word)

    def is_asked(self, p: Fragment) -> bool:
        """Return whether this fragment is asked for and the answer is not decided yet."""
        return p in self._asked

    def ask(self, p: Fragment) -> Future[FragmentSnapshot | None]:
        """Return the future that all callers for this fragment share until it is decided."""
        return self._asked.setdefault(p, Future())

    def answer(self, handing: HandInTask, snapshot: FragmentSnapshot | None) -> None:
        """Give the snapshot to the callers that asked for it."""
        if handing.asked is not None:
            self._owed.remove(handing.asked)
            handing.asked.set_result(snapshot)

    def end(self) -> None:
        """Release all waiting callers, and drop all work of this life."""
        for future in (*self._asked.values(), *self._owed):
            future.set_result(None)
        for queue in (self._asked, self._owed, self.offers, self.todo, self.to_say):
            queue.clear()
