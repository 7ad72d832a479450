"""The talking thread of a learner: it sends one message at a time to the syncer."""

from __future__ import annotations

from coordinator.errors import Unreachable
from coordinator.protocol import Life
from islands.learner_messages import Beat, Happening, Heard, Say, Unheard, Want
from islands.learner_state import HEARTBEAT_S
from islands.link import Link
from islands.mailbox import Mailbox
from islands.thread_tasks import Outgoing


def speak(mail: Mailbox, link: Link, life: Life) -> None:
    """Send messages until this life is over.

    An exception here would go unnoticed, so it is raised where the training thread ends.
    """
    try:
        while (outgoing := mail.next_to_say(life, HEARTBEAT_S)) is not None:
            mail.happens(_answer_to(link, outgoing), life)
    except BaseException as error:  # noqa: BLE001 - raised by `Learner.run`
        mail.history.fail(error)


def _answer_to(link: Link, outgoing: Outgoing) -> Happening:
    """Send the message to the syncer; return the happening that follows."""
    try:
        match outgoing.word:
            case Say(report, adopted):
                return Heard(link.report(report, outgoing.vitals, adopted))
            case Want(event):
                return Heard(link.lease(event))
            case None:
                return Beat()
    except Unreachable:
        return Unheard()
