"""The talking thread of a learner: it says what there is to say, one message at a time."""

from __future__ import annotations

from coordinator.errors import Unreachable
from coordinator.protocol import Life
from islands.learner_state import HEARTBEAT_S
from islands.learner_words import Beat, Heard, Say, Unheard, Want
from islands.link import Link
from islands.mailbox import Mailbox


def speak(mail: Mailbox, link: Link, life: Life) -> None:
    """Run until this life is over. A failure is the learner's, since nobody would hear of it any
    more: it is raised where the training thread ends."""
    try:
        _talk(mail, link, life)
    except BaseException as error:  # noqa: BLE001 - raised by `Learner.run`
        with mail.lock:
            mail.mute = error
            mail.lock.notify_all()


def _talk(mail: Mailbox, link: Link, life: Life) -> None:
    while True:
        word = mail.next_to_say(life, HEARTBEAT_S)
        with mail.lock:
            if not mail.is_lived(life):
                return
            vitals = mail.vitals
        try:
            match word:
                case Say(report, adopted):
                    happening = Heard(link.report(report, vitals, adopted))
                case Want(event):
                    happening = Heard(link.lease(event))
                case None:
                    happening = Beat()
        except Unreachable:
            happening = Unheard()
        with mail.lock:
            if mail.is_lived(life):
                mail.happens(happening)
