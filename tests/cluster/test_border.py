"""The border of a region: each kind of message, forms of errors, and the output of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from cluster.actors.blocking_calls import BlockingCalls
from cluster.actors.fault_injection import Cable
from cluster.actors.island.learner_calls import LearnerCalls
from cluster.actors.learner_link import RayLink
from cluster.config.load import parse
from cluster.config.region_tables import Leaving, RegionConfig
from cluster.failures import Failure, Reason
from cluster.names import Seat
from cluster.workers.border import OPEN, Border, border_of
from coordinator.codec import WithMoments
from coordinator.errors import Malformed
from coordinator.parts import Split
from coordinator.protocol import (
    ContributionId,
    Fragment,
    HandIn,
    Incarnation,
    Island,
    Known,
    Lease,
    LeaseWanted,
    Left,
    Life,
    MomentsTaken,
    Progress,
    Report,
    Version,
    Vitals,
)

SECRET = "a sentence of the corpus"
LIFE, F0 = Life(Island("eu-0"), Incarnation(1)), Fragment(0)
OTHER = Life(Island("us-0"), Incarnation(2))
PROGRESS = Progress(4, 400, Lease(0))
REPORT = Report(LIFE, PROGRESS, 0.5)
FINGERPRINT = "0123abcd"
HANDED = (
    HandIn(ContributionId(LIFE, F0, 0, 4), Version(0, 0), 0, 400, FINGERPRINT, PROGRESS),
    np.ones(3, np.uint16),
)


def made(tmp: Path, *may_leave: str) -> Border:
    """Return the border of a region whose islands are the group `eu`."""
    region: dict[str, Any] = {"data": "/corpus/eu", "logs": str(tmp / "logs")}
    region |= {"may_leave": [*may_leave]} if may_leave else {}
    config = parse({
        "task": {"preset": "byte-tiny"},
        "islands": [{"group": "eu", "region": "eu"}, {"group": "us"}],
        "regions": {"eu": region},
    })  # fmt: skip
    border = border_of(config, config.islands[0], "run-eu-0")
    border.knows(FINGERPRINT)
    return border


@pytest.fixture
def border(tmp_path: Path) -> Border:
    return made(tmp_path)


def kept(border: Border) -> str:
    assert border.log_file is not None
    return border.log_file.read_text()


# --- messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Leaving.REPORT, (REPORT, Vitals(loss=1.5, process=3), ())),
        (Leaving.REPORT, replace(REPORT, moments=MomentsTaken(OTHER, 800))),
        (Leaving.REPORT, LeaseWanted(LIFE)),
        (Leaving.REPORT, Left(LIFE, PROGRESS)),
        (Leaving.DELTA, HANDED),
        (Leaving.DELTA, (HANDED[0], WithMoments(HANDED[1], np.ones(3, np.float32)))),
        (Leaving.DELTA, None),
    ],
)
def test_messages_of_numbers_pass(border: Border, kind: Leaving, message: object) -> None:
    assert border.passes(kind, message) is message


class Number(float):
    """A number with room for a text."""


@dataclass
class Note:
    """A message of the user's own."""

    text: str = SECRET


@pytest.mark.parametrize(
    "foreign",
    [
        SECRET,
        [SECRET],
        np.array([SECRET]),
        np.array([SECRET], object),
        np.frombuffer(SECRET.encode(), "V1"),
        SECRET.encode(),
        {SECRET: 1},
        Number(1.0),
        Note(),
        "eu-0 " + SECRET,
        RuntimeError(SECRET),
    ],
)
def test_nothing_but_numbers_and_names_passes(border: Border, foreign: object) -> None:
    with pytest.raises(Malformed) as refused:
        border.passes(Leaving.DELTA, (HANDED[0], foreign))
    assert SECRET not in str(refused.value)
    assert OPEN.passes(Leaving.DELTA, foreign) is foreign


def test_island_of_another_group_is_no_name(border: Border) -> None:
    with pytest.raises(Malformed):
        border.passes(Leaving.REPORT, LeaseWanted(Life(Island("asia-0"), Incarnation(1))))


@pytest.mark.parametrize("kind", [Leaving.DELTA, Leaving.REPORT])
def test_kind_that_may_not_leave_is_refused(tmp_path: Path, kind: Leaving) -> None:
    """A configuration without these kinds is refused, but the border does not rely on that."""
    others = tuple(each for each in Leaving if each is not kind)
    strict = Border("eu", RegionConfig(data="/eu", may_leave=others), "eu", tmp_path / "log")
    with pytest.raises(Malformed, match=f'"{kind}" may not leave region eu'):
        strict.passes(kind, REPORT)


# --- errors ---------------------------------------------------------------------------------------


def raised_with(text: str, kind: type[BaseException] = ValueError) -> BaseException:
    try:
        raise kind(text)
    except kind as error:
        return error


def test_error_leaves_as_its_class_and_a_code(border: Border) -> None:
    failure, words = border.failure(Reason.HAND_IN, raised_with(SECRET))
    code = failure.why.split()[3].rstrip(";")
    assert failure == Failure(
        Reason.HAND_IN,
        f"ValueError, error code {code}; its text stays in region eu (hand_in)",
    )
    assert words == failure.why + "\n"
    assert f"error code {code}\n" in kept(border)
    assert f"ValueError: {SECRET}" in kept(border)
    assert "in raised_with" in kept(border)


def test_code_says_nothing_about_the_text(border: Border) -> None:
    """A digest of the text could be looked up."""
    whys = {border.failure(Reason.TRAIN, raised_with(SECRET))[0].why for _ in range(3)}
    assert len(whys) == 3


def test_region_whose_errors_may_leave_sends_the_text(tmp_path: Path) -> None:
    open_border = made(tmp_path, "delta", "report", "errors")
    failure, words = open_border.failure(Reason.TRAIN, raised_with(SECRET))
    assert SECRET in failure.why
    assert "in raised_with" in words
    assert open_border.log_file is None
    assert open_border.text(f"its learner broke: {SECRET}").endswith(SECRET)


def test_name_of_a_class_that_is_in_no_module_stays(border: Border) -> None:
    """`type(text, ...)` makes a class of any name."""
    drawn = cast("type[Exception]", type(SECRET.replace(" ", "_"), (Exception,), {}))
    failure, _ = border.failure(Reason.TRAIN, raised_with("", drawn))
    assert failure.why.startswith("Exception, error code ")


def test_malformed_message_keeps_its_reason(border: Border) -> None:
    failure, _ = border.failure(Reason.HAND_IN, raised_with("text", Malformed))
    assert failure.reason is Reason.SENT


def test_error_without_a_string_leaves_its_class(border: Border) -> None:
    class Unshowable(Exception):
        def __str__(self) -> str:
            raise ValueError(SECRET)

    failure, words = border.failure(Reason.TRAIN, raised_with("", Unshowable))
    assert SECRET not in failure.why + words


def test_end_of_a_life_leaves_without_the_error_behind_it(border: Border) -> None:
    assert SECRET not in border.text(f"its learner broke: {SECRET}")
    assert SECRET in kept(border)
    said = "its learner has ended this life"
    assert border.text(said) == said


def test_failure_to_fetch_a_version_leaves_without_text(border: Border) -> None:
    found = border.stripped(Failure(Reason.OFFER, f"RuntimeError in offer: {SECRET}", ends=False))
    assert (found.reason, found.ends) == (Reason.OFFER, False)
    assert SECRET not in found.why
    assert SECRET in kept(border)
    assert OPEN.stripped(Failure(Reason.OFFER, SECRET)).why == SECRET


def test_text_is_not_sent_if_the_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file in place of the folder")
    failure, words = made(tmp_path).failure(Reason.TRAIN, raised_with(SECRET))
    assert SECRET not in failure.why + words


# --- the calls of an island -----------------------------------------------------------------------


def calls(border: Border, handed: object = HANDED) -> LearnerCalls:
    learner = SimpleNamespace(hand_in=lambda *_: handed, moments=lambda _: None)
    return LearnerCalls(lambda: cast("Any", learner), border)


def test_contribution_with_a_text_is_refused(border: Border) -> None:
    known = Known((0, 1))
    assert calls(border).hand_in(LIFE, F0, known).answer == HANDED
    with pytest.raises(Malformed) as refused:
        calls(border, (HANDED[0], [SECRET])).hand_in(LIFE, F0, known)
    assert SECRET not in str(refused.value)


def test_moments_stay_if_they_may_not_leave(tmp_path: Path) -> None:
    asked: list[Life] = []

    def moments(life: Life) -> None:
        asked.append(life)

    learner = cast("Any", SimpleNamespace(moments=moments))
    strict = made(tmp_path, "delta", "report")
    assert LearnerCalls(lambda: learner, strict).moments(LIFE, Split()) is None
    assert not asked, "not even copied"
    assert LearnerCalls(lambda: learner, made(tmp_path)).moments(LIFE, Split()) is None
    assert asked == [LIFE]


def test_names_of_metrics_do_not_leave(tmp_path: Path) -> None:
    vitals = Vitals(1.5, metrics=((SECRET, 2.0),))
    strict = made(tmp_path, "delta", "moments", "report", "errors")
    assert strict.passes(Leaving.REPORT, strict.vitals(vitals)) == Vitals(1.5)
    with pytest.raises(Malformed):
        strict.passes(Leaving.REPORT, vitals)
    assert OPEN.vitals(vitals) == vitals


def test_link_refuses_a_text_before_it_asks_ray(border: Border) -> None:
    link = RayLink("nowhere", Cable(), Seat("eu-0"), {F0: "s"}, relievable=False, border=border)
    for call in (
        lambda: link.report(REPORT, Vitals(loss=cast("Any", SECRET)), []),
        lambda: link.left(Left(LIFE, cast("Any", SECRET))),
        lambda: link.lease(LeaseWanted(Life(cast("Any", SECRET), Incarnation(1)))),
    ):
        with pytest.raises(Malformed):
            call()


@pytest.mark.parametrize("stays", [True, False])
def test_words_of_a_cloud_do_not_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, stays: bool
) -> None:
    may_leave = ["delta", "moments", "report", *([] if stays else ["errors"])]
    link = RayLink(
        "nowhere", Cable(), Seat("eu-0"), {F0: "s"}, relievable=False,
        border=made(tmp_path, *may_leave),
    )  # fmt: skip
    sent: list[object] = []
    monkeypatch.setattr(BlockingCalls, "insist", lambda calls, *words: sent.extend(words))
    link.notice(f"preempted: {SECRET}", 30.0, whole_node=False)
    assert any(isinstance(each, str) and each.startswith("preempted") for each in sent)
    assert (SECRET in str(sent)) is not stays


# --- output ---------------------------------------------------------------------------------------

TALKATIVE = """
import os, sys, logging
from pathlib import Path
from cluster.config.load import parse
from cluster.workers.border import border_of
config = parse({
    "task": {"preset": "byte-tiny"},
    "islands": [{"group": "eu", "region": "eu"}],
    "regions": {
        "eu": {"data": "/corpus", "logs": sys.argv[1], "may_leave": sys.argv[2].split(",")}
    },
})
early = sys.stderr
border_of(config, config.islands[0], "run-eu-0").keep_output()
logging.basicConfig(stream=sys.stderr)
print("printed by Python")
print("printed by an older stream", file=early, flush=True)
logging.error("logged")
os.write(1, b"written to the descriptor 1\\n")
os.write(2, b"written to the descriptor 2\\n")
os.system("echo printed by a child")
raise RuntimeError("raised at the end")
"""


@pytest.mark.parametrize("stays", [True, False])
def test_output_of_a_process_stays_in_its_file(tmp_path: Path, *, stays: bool) -> None:
    may_leave = "delta,report" if stays else "delta,report,errors"
    process = subprocess.run(
        [sys.executable, "-c", TALKATIVE, str(tmp_path / "logs"), may_leave],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    seen = process.stdout + process.stderr
    expected = (
        "printed by Python",
        "printed by an older stream",
        "logged",
        "written to the descriptor 1",
        "written to the descriptor 2",
        "printed by a child",
        "raised at the end",
    )
    if stays:
        assert seen == ""
        (file,) = (tmp_path / "logs").iterdir()
        seen = file.read_text()
    assert [each for each in expected if each not in seen] == []


def test_output_is_lost_if_its_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file in place of the folder")
    process = subprocess.run(
        [sys.executable, "-c", TALKATIVE, str(tmp_path / "logs"), "delta,report"],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (process.returncode, process.stdout, process.stderr) == (1, b"", b"")
