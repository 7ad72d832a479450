"""The mailbox of a learner: words leave it with their data, and only it takes its lock."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import numpy as np
import pytest

from coordinator.codec import Wire
from coordinator.protocol import (
    Fragment,
    Granted,
    Incarnation,
    Island,
    Lease,
    Life,
    Version,
    Void,
)
from coordinator.schedule import Schedule
from islands import donations, learner, life_history, life_setup, mailbox, trainer
from islands import message_thread as talker
from islands.adopt import AdoptRule
from islands.learner_life import begun
from islands.learner_messages import Adopt, Ceased, End, HandOver, Ready, Step, Stepped
from islands.mailbox import Mailbox
from islands.thread_tasks import Adoption, Ends, HandInTask, Offer, Todo
from tests.given import habits

LIFE = Life(Island("a"), Incarnation(1))
F0, F1 = Fragment(0), Fragment(1)
V0, V1, V2, V3 = (Version(0, number) for number in range(4))
NO_ENDS: Any = None
"""Placeholders for links that send nothing."""


@pytest.fixture
def mail() -> Mailbox:
    """Return the mailbox of a learner at its first boundary, without data."""
    terms = habits(LIFE.island, "g", Wire.F32, Schedule(4, 2), 2, 1).terms(AdoptRule.OVERWRITE, 1)
    state = begun(terms, Granted(LIFE, 0, (V0, V0), ()), [V0, V0], Lease(0), 0)
    mail = Mailbox(lambda: 0.0)
    mail.begin(state, Ends(NO_ENDS, NO_ENDS), Ready(0))
    return mail


def offer(number: int) -> Offer:
    """Return an offer whose arrays hold their version."""
    arrays: Any = np.full(1, number, np.float32)
    return Offer(arrays, arrays, None)


def todo(mail: Mailbox) -> Todo | None:
    return mail.next_to_do(0.0, lambda: None)


def adopted(mail: Mailbox) -> tuple[Fragment, Version, Offer]:
    word = todo(mail)
    assert isinstance(word, Adoption)
    return word.word.fragment, word.word.version, word.offer


def test_adoption_keeps_its_own_arrays_despite_later_offers(mail: Mailbox) -> None:
    first, second, third = offer(1), offer(2), offer(3)
    mail.offered(LIFE, F0, V1, first)
    mail.offered(LIFE, F0, V2, second)  # before the first one is served
    assert adopted(mail) == (F0, V1, first)
    mail.offered(LIFE, F0, V3, third)
    assert adopted(mail) == (F0, V2, second)
    assert adopted(mail) == (F0, V3, third)


def test_adopts_the_newest_version_between_two_boundaries(mail: Mailbox) -> None:
    mail.happens(Ready(9))
    assert isinstance(todo(mail), Step)
    newest = offer(3)
    mail.offered(LIFE, F0, V1, offer(1))
    mail.offered(LIFE, F0, V3, newest)
    mail.offered(LIFE, F0, V2, offer(2))  # late and outdated
    mail.happens(Stepped(1, Lease(0), 8))
    assert adopted(mail) == (F0, V3, newest)


def test_drops_an_outdated_version(mail: Mailbox) -> None:
    mail.offered(LIFE, F0, V0, offer(0))
    mail.offered(Life(LIFE.island, Incarnation(2)), F0, V1, offer(1))
    assert todo(mail) is None


def test_hand_in_leaves_with_the_future_of_its_request(mail: Mailbox) -> None:
    mail.happens(Ready(9))
    todo(mail)
    one, same, other = (mail.asks(LIFE, p, None) for p in (F0, F0, F1))
    assert one is same
    mail.happens(Stepped(1, Lease(0), 8))
    handings = [todo(mail), todo(mail)]
    late = mail.asks(LIFE, F0, None)
    assert late is not one
    assert [each.asked for each in handings if isinstance(each, HandInTask)] == [one, other]


def test_all_waiters_are_answered_when_the_life_ends_mid_hand_in(mail: Mailbox) -> None:
    mail.happens(Ready(9))
    todo(mail)
    decided = mail.asks(LIFE, F0, None)
    mail.happens(Stepped(1, Lease(0), 8))
    assert isinstance(todo(mail), HandInTask)  # the training thread breaks before it has answered
    undecided = mail.asks(LIFE, F0, None)
    moments = mail.donations.ask(LIFE)
    assert decided is not None
    assert undecided is not None
    assert moments is not None
    mail.end("its learner broke")
    assert decided.result(0) is undecided.result(0) is moments.given.result(0) is None
    assert mail.history.outlive(LIFE) == "its learner broke"


def test_ceased_life_ends_and_sends_nothing_more(mail: Mailbox) -> None:
    mail.happens(Ceased(Void(LIFE, "over")), Life(LIFE.island, Incarnation(2)))
    assert todo(mail) is None
    mail.happens(Ceased(Void(LIFE, "over")), LIFE)
    assert todo(mail) == End(distrusted=False)
    mail.end()
    assert mail.next_to_say(LIFE, 0.0) is None
    assert mail.asks(LIFE, F0, None) is None


# --- the locking rule ------------------------------------------------------------------------


def test_words_that_refer_to_data_leave_with_it() -> None:
    """`Adopt` and `HandOver` name arrays and a future by a key, so they leave with these."""
    assert not {Adopt, HandOver} & {*get_args(Todo)}
    assert "Todo" in inspect.signature(Mailbox.next_to_do).return_annotation


def test_only_the_mailbox_takes_its_lock_and_uses_its_fields() -> None:
    """Each method is therefore one critical section, and no key goes from one to the next."""
    mail = Mailbox(lambda: 0.0)
    for guarded in (mail, mail.history, mail.donations):
        public = [name for name in vars(guarded) if not name.startswith("_")]
        assert public == [], guarded
    for module in (learner, life_setup, talker, trainer):
        tree = ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8"))
        names = {each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute)}
        assert not names & {"Lock", "RLock", "Condition", "lock"}, module
        owners = ("mail", "history", "donations")
        touched = {
            each.attr
            for each in ast.walk(tree)
            if isinstance(each, ast.Attribute)
            and any(owner in ast.unparse(each.value).split(".")[-1] for owner in owners)
        }
        assert not {name for name in touched if name.startswith("_")}, module


@pytest.mark.parametrize(
    ("module", "name"),
    [(mailbox, "Mailbox"), (life_history, "LifeHistory"), (donations, "Donations")],
)
def test_each_mailbox_method_is_one_critical_section(module: ModuleType, name: str) -> None:
    tree = ast.parse(inspect.getsource(module))
    (body,) = (each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == name)
    for method in body.body:
        if isinstance(method, ast.FunctionDef):
            sections = [each for each in ast.walk(method) if isinstance(each, ast.With)]
            assert len(sections) <= 1, method.name
