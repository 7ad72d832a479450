"""A learner's state and words are values, and every carrier treats them the same way."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import archipelago.lab.bench.stub_learner as stub
import archipelago.lab.virtual.learner as simulated
from archipelago.lab.bench.stub_learner import LightLearner
from archipelago.lab.simulation.plan import draw
from archipelago.lab.simulation.world import SimWorld
from coordinator.protocol import (
    Answer,
    Fragment,
    Granted,
    Lease,
    LeaseGranted,
    Life,
    MomentsTaken,
    Version,
    Void,
)
from coordinator.schedule import Schedule
from islands.learner_life import LearnerState, begun
from islands.learner_messages import (
    Adopt,
    Asked,
    Beat,
    Ceased,
    End,
    Fed,
    HandOver,
    Happening,
    Heard,
    Keep,
    LetGo,
    Offered,
    Parked,
    Ready,
    Rested,
    Say,
    Settled,
    Step,
    Stepped,
    Take,
    Terms,
    Unheard,
    Want,
    Word,
)
from islands.learner_state import happen
from islands.mailbox import Mailbox
from islands.thread_tasks import Offer
from tests.coordinator.given import life

F0, F1 = Fragment(0), Fragment(1)
LIFE = life("a")
FINE = Heard(Answer(0, 0, stopping=False))


class Told:
    """A life that receives happenings and keeps the words that follow."""

    def __init__(
        self,
        *,
        overlap: int = 2,
        carries: bool = False,
        ahead: int = 100,
        until: int | None = None,
    ) -> None:
        terms = Terms(Schedule(4, 2), overlap, carries, carries, 1, 8, until)
        granted = Granted(LIFE, 0, (Version(0, 0),) * 2, (Lease(0),), ())
        self.ahead = ahead
        self.state = begun(terms, granted, [Version(0, 0)] * 2, Lease(0), ahead)

    def __call__(self, *happenings: Happening) -> list[Word]:
        found: list[Word] = []
        for each in happenings:
            self.state, words = happen(self.state, each)
            found += words
        return found

    def step(self) -> list[Word]:
        """End a step, so that the next one could begin."""
        self.ahead -= 1
        return self(Stepped(10, Lease(0, 1), self.ahead), Rested(0.5))


def kinds(words: list[Word]) -> list[type[Word]]:
    return [type(word) for word in words]


def test_hands_over_at_the_end_of_a_step_before_adopting() -> None:
    told = Told()
    assert kinds(told(Ready(100))) == [Step]
    assert told(Asked(F0), Asked(F0), Offered(F0, Version(0, 1))) == []
    words = told.step()
    assert kinds(words) == [HandOver, Adopt, Say, Step]
    (handed,) = [word for word in words if isinstance(word, HandOver)]
    assert handed.contribution is not None
    assert (handed.contribution.from_step, handed.contribution.to_step, handed.tokens) == (0, 1, 10)
    assert told.state.tracks[F0].base == Version(0, 1)


def test_hand_in_waits_for_a_step_unless_the_learner_is_parked() -> None:
    told = Told()
    told(Ready(100))
    told.step()
    assert kinds(told(Asked(F1))) == [], "a step is under way"
    assert kinds(told.step()) == [HandOver, Step]
    told(Parked())
    assert kinds(told(Stepped(10, Lease(0, 3), 97))) == []
    words = told(Asked(F1), Asked(F1))
    assert [word.contribution is None for word in words if isinstance(word, HandOver)] == [
        False,
        True,
    ]


def test_second_request_is_answered_after_another_step() -> None:
    told = Told()
    told(Ready(100), Asked(F0))
    assert kinds(told(Stepped(10, Lease(0, 1), 99))) == [HandOver]
    assert told(Asked(F0)) == [], "there is nothing new, and there will be"
    assert HandOver not in kinds(told(Rested(0.5)))
    assert HandOver in kinds(told.step())


def test_adopts_only_the_newest_version() -> None:
    told = Told()
    told(Ready(100))
    told(Offered(F0, Version(0, 2)), Offered(F0, Version(0, 3)), Offered(F0, Version(0, 1)))
    adopted = [word for word in told.step() if isinstance(word, Adopt)]
    assert adopted == [Adopt(F0, Version(0, 3))]


def test_hand_in_not_yet_merged_stays_in_place_beside_a_version() -> None:
    told = Told(carries=True)
    told(Ready(100), Asked(F0), Asked(F1))
    late, other = (word.contribution for word in told.step() if isinstance(word, HandOver))
    assert late is not None
    assert other is not None
    told(Offered(F0, Version(0, 1)))
    assert Adopt(F0, Version(0, 1), (late,)) in told.step(), "its round was over without it"
    told(Asked(F0))
    (next_one,) = (word.contribution for word in told.step() if isinstance(word, HandOver))
    assert next_one is not None
    assert (next_one.from_step, next_one.to_step) == (1, 3), "it counts from the hand-in still"
    told(Settled((late, late)), Offered(F0, Version(0, 2)), Offered(F1, Version(0, 1)))
    adopted = [word for word in told.step() if isinstance(word, Adopt)]
    assert adopted == [
        Adopt(F0, Version(0, 2), (next_one,)),
        Adopt(F1, Version(0, 1), (other,)),
    ]
    told(Settled((next_one, other)), Offered(F0, Version(0, 3)), Offered(F1, Version(0, 2)))
    adopted = [word for word in told.step() if isinstance(word, Adopt)]
    assert adopted == [Adopt(F0, Version(0, 3)), Adopt(F1, Version(0, 2))]


def test_request_tells_which_hand_ins_still_wait() -> None:
    told = Told(carries=True)
    told(Ready(100), Asked(F0))
    told.step()
    told(Asked(F0))
    told.step()
    first, second = told.state.tracks[F0].waiting
    told(Asked(F0))
    assert told.state.tracks[F0].waiting == (first, second)
    told(Asked(F0, (second,)))
    assert told.state.tracks[F0].waiting == (second,), "the first one is merged, or lost"
    told(Asked(F1, ()))
    assert told.state.tracks[F0].waiting == (second,), "that is of another fragment"


def test_overwriting_keeps_no_hand_in_in_place() -> None:
    told = Told(carries=False)
    told(Ready(100), Asked(F0))
    told.step()
    told(Offered(F0, Version(0, 1)))
    assert Adopt(F0, Version(0, 1), ()) in told.step()


def test_sends_one_message_at_a_time_and_joins_later_ones() -> None:
    told = Told()
    assert kinds(told(Ready(100))) == [Step]
    assert kinds(told.step()) == [Say, Step], "its first step is news"
    for _ in range(3):
        assert Say not in kinds(told.step()), "the first is on its way"
    (say,) = [word for word in told(FINE) if isinstance(word, Say)]
    assert say.report.progress.steps == 4, "clocks have passed due points since"


def test_unheard_message_is_retried_at_the_next_heartbeat() -> None:
    told = Told()
    told(Ready(100), Offered(F0, Version(0, 1)))
    (say,) = [word for word in told.step() if isinstance(word, Say)]
    assert [each.version for each in say.adopted] == [Version(0, 1)]
    assert told(Unheard()) == []
    assert Say not in kinds(told.step())
    (again,) = told(Beat())
    assert isinstance(again, Say)
    assert again.adopted == say.adopted
    assert told(Beat()) == [], "it is on its way"


def test_moments_of_a_donor_are_reported_until_a_report_is_answered() -> None:
    told, taken = Told(), MomentsTaken(life("b"), 4096)
    told.state = replace(told.state, taken=taken)
    told(Ready(100))
    (first,) = [word for word in told.step() if isinstance(word, Say)]
    assert first.report.moments == taken
    told(Unheard())
    (again,) = told(Beat())
    assert isinstance(again, Say)
    assert again.report.moments == taken
    words = told(FINE) + [word for _ in range(4) for word in told.step()]
    later = next(word for word in words if isinstance(word, Say))
    assert later.report.moments is None


def test_asks_for_data_after_a_report() -> None:
    told = Told(ahead=1)
    assert kinds(told(Ready(1))) == [Say, Step], "a lease ahead is what it likes to have"
    assert kinds(told(FINE)) == [Want]
    assert kinds(told(Heard(LeaseGranted(LIFE, Lease(1))))) == [Take]
    assert kinds(told(Fed(8))) == []
    assert kinds(told(Stepped(10, Lease(0, 8), 8), Rested(0.5))) == [Say, Step]


def test_does_not_step_without_data() -> None:
    told = Told(ahead=0)
    assert kinds(told(Ready(0))) == [Say]
    assert kinds(told(FINE)) == [Want]
    told(Heard(LeaseGranted(LIFE, Lease(1))))
    assert kinds(told(Fed(8))) == [Step]


def test_at_the_end_of_the_run_stops_stepping_and_answers_requests() -> None:
    told = Told()
    told(Ready(100))
    words = told.step()
    told(Stepped(10, Lease(0, 2), 98), Heard(Answer(9, 0, stopping=True)))
    assert Step in kinds(words)
    assert Step not in kinds(told(Rested(0.5)))
    answers = [
        word.contribution for word in told(Asked(F0), Asked(F0)) if isinstance(word, HandOver)
    ]
    assert [said is None for said in answers] == [False, True]


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("ends", [LetGo(), Ceased(Void(LIFE, "over", distrusted=True))])
def test_life_ends_once_and_between_two_steps(ends: Happening, busy: bool) -> None:
    told = Told()
    if busy:
        told(Ready(100))
        assert told(ends) == []
        words = told(Stepped(10, Lease(0, 1), 99), Rested(0.5))
    else:
        words = told(ends)
    assert [word for word in words if isinstance(word, End)] == [End(isinstance(ends, Ceased))]
    assert told(Asked(F0), Offered(F1, Version(0, 1)), Parked(), LetGo()) == []


def test_lock_step_waits_for_newer_versions_of_due_fragments() -> None:
    told = Told(overlap=0)
    told(Ready(100))
    told.step()
    assert Step not in kinds(told.step()), "fragment 1 is due at clock 2"
    assert kinds(told(Asked(F1))) == [HandOver]
    words = told(Offered(F1, Version(0, 1)))
    assert words[:1] == [Adopt(F1, Version(0, 1))]
    assert Step(held=True) in words


@pytest.mark.parametrize("asked", [False, True])
def test_lock_step_does_not_wait_for_a_version_already_adopted(asked: bool) -> None:
    """The adoption may have overwritten the steps to hand in; waiting would block forever."""
    told = Told(overlap=0)
    told(Ready(100))
    told.step()
    if asked:
        told(Asked(F1))
    told(Offered(F1, Version(0, 1)))
    assert Step(held=False) in told.step()


def test_lock_step_stops_waiting_after_a_clock_shift() -> None:
    """The syncer's clock has passed the learner, so the awaited round may be over without it."""
    told = Told(overlap=0)
    told(Ready(100))
    told.step()
    told(FINE)
    assert Step not in kinds(told.step())
    assert Step(held=True) in told(Heard(Answer(5, 3, stopping=False)))


def test_lock_step_with_overlap_adopts_exactly_at_the_overlap_step() -> None:
    """Fragment 1 is due at clock 2 and fragment 0 at clock 4; the overlap is 1 step."""
    told = Told(overlap=1, until=100)
    told(Ready(100))
    told.step()
    words = told.step()
    (keep,) = [word for word in words if isinstance(word, Keep)]
    taken = keep.hand_over
    assert taken.contribution is not None
    assert (taken.fragment, taken.contribution.from_step, taken.contribution.to_step) == (F1, 0, 2)
    assert Step(held=False) in words, "the learner does not wait yet"
    words = told.step()
    assert Step(held=False) not in words
    assert Adopt not in kinds(words), "at clock 3 it waits"
    assert told(Asked(F1)) == [taken], "as it was when it was due"
    words = told(Offered(F1, Version(0, 1)))
    assert words[:1] == [Adopt(F1, Version(0, 1))]
    assert Step(held=True) in words


def test_lock_step_with_overlap_holds_an_early_version_for_its_step() -> None:
    told = Told(overlap=2, until=100)
    told(Ready(100))
    told.step()
    told.step()
    told(Asked(F1), Offered(F1, Version(0, 1)))
    assert Adopt not in kinds(told.step()), "clock 3"
    words = told.step()
    assert Adopt(F1, Version(0, 1)) in words, "clock 4"
    (keep,) = [word for word in words if isinstance(word, Keep)]
    assert keep.hand_over.fragment == F0
    assert told.state.tracks[F1].base == Version(0, 1)
    assert told.state.tracks[F1].from_step == 4, "what was trained meanwhile is overwritten"


def test_lock_step_adopts_each_version_before_the_next_due_point() -> None:
    """The overlap is the longest possible; with one more step nothing would ever be adopted."""
    every = 4
    told = Told(overlap=every - 1, until=100)
    told(Ready(100))
    adopted = list[tuple[Fragment, int]]()
    for round_ in range(1, 6):
        for p, due in ((F1, 2), (F0, 4)):
            while told.state.clock < (round_ - 1) * every + due:
                words = told.step()
                adopted += [(w.fragment, w.version.number) for w in words if isinstance(w, Adopt)]
            told(Asked(p), Offered(p, Version(0, round_)))
    assert adopted == [(p, n) for n in range(1, 5) for p in (F1, F0)]
    for overlap in (every, every + 1):
        with pytest.raises(ValueError, match=f"{overlap} steps of flight, and due every {every}"):
            Told(overlap=overlap, until=100)


@pytest.mark.parametrize(
    ("steps", "t", "clock"),
    [(3, 30, 26), (30, 3, 7), (26, 30, 26), (25, 30, 26), (33, 30, 33), (35, 30, 34)],
)
def test_rate_clock_stays_within_H_of_the_syncers_clock(steps: int, t: int, clock: int) -> None:
    """H is 4.

    A slow island's rate falls with the others', and a fast island's schedule does not end before
    theirs. Until the learner receives more, it assumes that t moves by one a step.
    """
    told = Told()
    told(Ready(100))
    for _ in range(steps):
        told.step()
    told(Heard(Answer(t, 0, stopping=False)))
    assert told.state.rate_clock == clock
    told.step()
    assert told.state.rate_clock == clock + 1


def test_lock_step_rate_follows_the_learners_own_clock() -> None:
    """The answers and their times do not matter, so that the bits are reproducible."""
    told = Told(until=100)
    told(Ready(100))
    told.step()
    told(Heard(Answer(50, 7, stopping=False)))
    assert told.state.rate_clock == told.state.clock == 8


@pytest.mark.parametrize("overlap", [0, 1])
def test_lock_step_waits_at_the_end_of_the_run(overlap: int) -> None:
    told = Told(overlap=overlap, until=1)
    told(Ready(100))
    words = told.step()
    assert kinds(words) == [Say], "and reports it"
    words = told(Heard(Answer(1, 0, stopping=True)), Asked(F0), Asked(F1))
    assert [word.fragment for word in words if isinstance(word, HandOver)] == [F0, F1]


@pytest.mark.parametrize("quick", [False, True])
def test_version_due_at_the_last_step_is_adopted_before_handing_in(quick: bool) -> None:
    """The order of the version and the last request must not matter."""
    told = Told(overlap=2, until=4)
    told(Ready(100))
    said = [told.step() for _ in range(2)]  # F1 is due at 2, and kept
    (keep,) = [word for words in said for word in words if isinstance(word, Keep)]
    assert told(Asked(F1)) == [keep.hand_over] or keep.hand_over in told.step()
    while told.state.clock < 4:
        told.step()
    comes, asked = Offered(F1, Version(0, 1)), Asked(F1)
    words = told(Parked(), *((comes, asked) if quick else (asked, comes)))
    served = [word for word in words if isinstance(word, Adopt | HandOver)]
    adopt, hand_over = served
    assert adopt == Adopt(F1, Version(0, 1))
    assert isinstance(hand_over, HandOver)
    assert hand_over.contribution is None, "there is nothing since"


def test_lock_step_adopts_after_a_clock_shift() -> None:
    told = Told(overlap=2, until=100)
    told(Ready(100))
    told.step()
    told(FINE)
    told.step()
    told(Offered(F1, Version(0, 1)))
    told(Heard(Answer(10, 8, stopping=False)))
    words = told.step()
    assert Adopt(F1, Version(0, 1)) in words
    (said,) = [each for each in told.state.adoptions + told.state.reporting if each.fragment == F1]
    assert said.from_step == 0, "the kept copy was never requested: it is overwritten"


# --- the carriers of the state ---------------------------------------------------------------

SEED = random.randrange(2**32)
Recorded = tuple[LearnerState, list[tuple[Happening, tuple[Word, ...]]]]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """Return lives of simulated runs with faults: first state, happenings, and resulting words."""
    lives: dict[tuple[int, Life], Recorded] = {}
    number = 0

    def records(state: LearnerState, happening: Happening) -> tuple[LearnerState, Any]:
        _, told = lives.setdefault((number, state.life), (state, []))
        at = len(told)
        after, words = happen(state, happening)
        told.insert(at, (happening, words))
        return after, words

    monkeypatch.setattr(simulated, "happen", records)
    for number in range(6):
        print(f"seed {SEED}/{number}")
        SimWorld(draw(f"{SEED}/{number}")).run()
    assert len(lives) > 6
    assert sum(len(told) for _, told in lives.values()) > 200
    return [*lives.values()]


def test_mailbox_threads_match_the_simulated_carrier(recorded: list[Recorded]) -> None:
    for state, told in recorded:
        mail = Mailbox(time.monotonic)
        mail.begin(state, None)  # type: ignore[arg-type]
        for happening, words in told:
            match happening:
                case Offered(p, version):
                    mail.offered(state.life, p, version, Offer(None, None, None))  # type: ignore[arg-type]
                case _:
                    mail.happens(happening)
            to_say = [word for word in words if isinstance(word, Say | Want)]
            to_do = [word for word in words if not isinstance(word, Say | Want)]
            said = [mail.next_to_say(state.life, 0.0) for _ in (*to_say, "and nothing more")]
            done = [mail.next_to_do(0.0, lambda: None) for _ in to_do]
            assert [each and each.word for each in said] == [*to_say, None]
            assert [getattr(each, "word", each) for each in done] == to_do


def test_bench_tasks_match_the_simulated_carrier(
    recorded: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pages:
        """A data stream with as many windows as were recorded."""

        remaining = 0

        def add(self, lease: Lease) -> None:
            pass

    class Asks(dict[Fragment, asyncio.Future[None]]):
        """A table in which every hand-over was asked for."""

        def pop(self, key: Fragment, *_: object) -> asyncio.Future[None]:
            return asyncio.get_running_loop().create_future()

    heard: list[tuple[Happening, tuple[Word, ...]]] = []

    def records(state: LearnerState, happening: Happening) -> tuple[LearnerState, Any]:
        at = len(heard)
        after, words = happen(state, happening)
        heard.insert(at, (happening, words))
        return after, words

    async def carries() -> None:
        for state, told in recorded:
            link: Any = None
            learner: Any = LightLearner(state.life.island, link, link, link, time.monotonic)
            learner.now, learner._pages = state, Pages()
            learner._asks = Asks()
            learner._material = SimpleNamespace(handed_in=lambda word: None)
            heard.clear()
            fed = iter([each.ahead_windows for each, _ in told if isinstance(each, Fed)])
            for happening, words in told:
                if isinstance(happening, Fed):
                    continue  # the learner reports it itself when it takes the lease
                if any(isinstance(word, Take) for word in words):
                    learner._pages.remaining = next(fed)
                learner._happens(happening)
            assert heard == told

    monkeypatch.setattr(stub, "happen", records)
    asyncio.run(carries())
