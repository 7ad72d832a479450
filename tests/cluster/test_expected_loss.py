"""Tests of the loss that was expected: its sources, its band, and what a run shows of it."""

from __future__ import annotations

import json
import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from archipelago.cli.main import main
from archipelago.lab.report.run_record import read_run
from archipelago.lab.report.run_report import report_of
from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.fleet.expected_loss import ExpectedByLaw, ExpectedCurve, ExpectedPoint, judged
from cluster.fleet.expected_source import check_expected, expectation_of
from cluster.fleet.loss_course import LossCourse
from cluster.fleet.metrics import METRICS
from cluster.fleet.metrics_row import metrics_line
from cluster.fleet.page_feed import PageFeed
from cluster.fleet.run_events import events_between
from cluster.fleet.status_board import StatusBoard
from cluster.status import RunStatus
from cluster.storage.metrics_log import LOOKS
from coordinator.errors import UserMistake
from tests.cluster.test_progress import a_status
from tests.given import LEAST, sums
from tests.system_calls import SystemCalls

NOW = datetime(2026, 4, 5, tzinfo=UTC)


def config_of(**monitor: Any) -> Config:
    return parse({"task": {"preset": "byte-tiny"}, "islands": [{}], "monitor": monitor})


def curve_file(folder: Path, text: str) -> str:
    path = folder / "curve.csv"
    path.write_text(text)
    return str(path)


def at(t: int, tokens: int, *heldout: tuple[int, float]) -> RunStatus:
    status: RunStatus = a_status()
    status["t"], status["tokens_trained"] = t, tokens
    status["heldout"], status["elapsed_s"] = [*heldout], float(t)
    return status


# --- the expectation ------------------------------------------------------------------------------


def test_curve_is_linear_in_the_logarithm_of_tokens_and_ends_with_its_points() -> None:
    curve = ExpectedCurve((ExpectedPoint(100, 4.0, 3.0, 5.0), ExpectedPoint(10_000, 2.0, 1.0, 2.5)))
    assert curve.at(1000) == pytest.approx((3.0, 2.0, 3.75))
    assert curve.at(100) == (4.0, 3.0, 5.0)
    assert curve.at(10_000) == (2.0, 1.0, 2.5)
    assert curve.at(99) is curve.at(10_001) is None


def test_law_is_the_published_one_and_begins_with_a_token_for_each_parameter() -> None:
    law = expectation_of(config_of(expected="law", expected_band=0.1), 1_000_000)
    assert isinstance(law, ExpectedByLaw)
    assert law.at(999_999) is None
    expected = law.at(20_000_000)
    assert expected is not None
    # arXiv:2203.15556, equation 10
    by_hand = 1.69 + 406.4 / 1e6**0.34 + 410.7 / 2e7**0.28
    assert expected == pytest.approx((by_hand, 0.9 * by_hand, 1.1 * by_hand))


def test_law_of_the_users_own_is_used() -> None:
    own = {"e": 1.0, "a": 0.0, "alpha": 1.0, "b": 100.0, "beta": 1.0}
    law = expectation_of(config_of(expected="law", law=own), 10)
    assert law is not None
    expected = law.at(100)
    assert expected is not None
    assert expected.loss == pytest.approx(2.0)


def test_file_gives_the_band_or_the_configuration_does(tmp_path: Path) -> None:
    path = curve_file(tmp_path, "\ufefftokens, loss\n100, 4.0\n1000, 3.0\n")
    plain = expectation_of(config_of(expected=path, expected_band=0.5), 1)
    assert plain is not None
    assert plain.at(100) == (4.0, 2.0, 6.0)
    path = curve_file(
        tmp_path, "loss,high,tokens,low,note\n4.0,4.5,100,3.0,x\n3.0,3.1,1000,2.0,y\n"
    )
    banded = expectation_of(config_of(expected=path), 1)
    assert banded is not None
    assert banded.at(1000) == (3.0, 2.0, 3.1)


def test_earlier_run_gives_its_evaluations_at_their_tokens(tmp_path: Path) -> None:
    run_dir = tmp_path / "earlier"
    run_dir.mkdir()
    (run_dir / "config.toml").write_text("")
    looks = [at(0, 0), at(1, 90, (0, 5.0)), at(2, 100, (0, 5.0)), at(9, 1000, (0, 5.0), (8, 3.0)),
             at(5, 500, (0, 5.0)), at(9, 1000, (8, 3.0))]  # fmt: skip
    lines = [metrics_line(each, 1.0) for each in looks]
    (run_dir / LOOKS).write_text("\n".join([lines[0], "{torn", *lines[1:]]) + "\n")
    curve = expectation_of(config_of(expected=str(run_dir), expected_band=0.1), 1)
    assert isinstance(curve, ExpectedCurve)
    assert [(each.tokens, each.loss) for each in curve.points] == [(90, 5.0), (1000, 3.0)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it has no row below its header"),
        ("tokens,loss\n", "it has no row below its header"),
        ("step,loss\n1,2\n", "it has no column tokens; its columns are: loss, step"),
        ("a;b\n1;2\n", "it has no column tokens and no loss"),
        ("tokens,loss,low\n1,2,1\n", "it has the column low alone"),
        ("tokens,loss\n100,4\n100,3\n", "line 3: tokens = 100 after 100; they must grow"),
        ("tokens,loss\n100,4\n90,3\n", "line 3: tokens = 90 after 100"),
        ("tokens,loss\n0,4\n", "line 2: tokens = 0 is not above 0"),
        ("tokens,loss\n100,nan\n", "line 2: loss = 'nan' is not a finite number"),
        ("tokens,loss\n100,inf\n", "line 2: loss = 'inf'"),
        ("tokens,loss\n100\n", "line 2: loss = None"),
        ("tokens,loss\nx,y\n", "line 2: tokens = 'x', loss = 'y'"),
        ("tokens,loss,low,high\n100,4,4.5,5\n", "line 2: loss 4 is not between 4.5 and 5"),
        ("tokens,loss\n" + "1,x\n" * 9, "and 4 more"),
    ],
)
def test_bad_file_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = curve_file(tmp_path, text)
    (problem,) = check_expected(config_of(expected=path), 256)
    assert said in problem
    assert problem.startswith(f"monitor.expected: {path}: ")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "curve.csv").write_bytes(b"tokens,loss\n\xff\xfe,1\n")
    (problem,) = check_expected(config_of(expected=str(tmp_path / "curve.csv")), 256)
    assert "is not a CSV file" in problem


def test_unknown_run_and_a_run_without_evaluations_are_refused(tmp_path: Path) -> None:
    (problem,) = check_expected(config_of(expected="no-such-run"), 256)
    assert '"no-such-run" is no file and no run' in problem
    (tmp_path / "config.toml").write_text("")
    (tmp_path / LOOKS).write_text(metrics_line(at(1, 90, (0, 5.0)), 1.0) + "\n")
    (problem,) = check_expected(config_of(expected=str(tmp_path)), 256)
    assert "has 1 held-out losses, and a curve needs 2" in problem


def test_published_law_is_refused_for_another_vocabulary() -> None:
    (problem,) = check_expected(config_of(expected="law"), 256)
    assert "this task has 256; write the five numbers" in problem
    assert check_expected(config_of(expected="law"), 32_000) == []
    assert check_expected(config_of(expected="law", law={}), 256) == []
    (problem,) = check_expected(config_of(law={}), 256)
    assert 'monitor.law is used by monitor.expected = "law" alone' in problem


def test_check_of_a_run_reports_the_file_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = LEAST.replace("SOURCE", str(sums(tmp_path / "text"))) + "[[islands]]\nbatch_size = 2\n"
    (tmp_path / "run.toml").write_text(text)
    path = curve_file(tmp_path, "tokens,loss\n100,4\n90,nan\n")
    with pytest.raises(SystemExit) as ended:
        main(["run", str(tmp_path / "run.toml"), "--check", "--set", f"monitor.expected={path}"])
    assert ended.value.code == 2
    assert "line 3: loss = 'nan' is not a finite number" in capsys.readouterr().err


# --- a run beside it ------------------------------------------------------------------------------


def course_of(tmp_path: Path) -> LossCourse:
    path = curve_file(tmp_path, "tokens,loss,low,high\n100,4.0,3.8,4.2\n10000,2.0,1.8,2.2\n")
    course = LossCourse(config_of(expected=path), tmp_path)
    course.begin(1)
    return course


LOOKS_OF_A_RUN = [
    at(1, 10, (0, 5.5)),  # before the curve
    at(2, 100, (0, 5.5), (2, 4.1)),
    at(3, 1000, (2, 4.1), (3, 3.6)),  # above
    at(4, 1500, (2, 4.1), (3, 3.6)),  # no new evaluation
    at(5, 10_000, (3, 3.6), (5, 2.1)),
    at(6, 10_000, (5, 2.1), (6, math.nan)),
]


def test_each_evaluation_is_compared_once_at_its_tokens(tmp_path: Path) -> None:
    course = course_of(tmp_path)
    seen = [course.judged(each).get("expected") for each in LOOKS_OF_A_RUN]
    assert seen[0] is None
    assert [each and each["inside"] for each in seen[1:]] == [True, False, False, True, False]
    assert seen[2] == seen[3]
    assert seen[2] is not None
    assert (seen[2]["t"], seen[2]["tokens"], seen[2]["loss"]) == (3, 1000, pytest.approx(3.0))
    assert seen[5] is not None
    assert seen[5]["heldout_loss"] is None, "a loss that is not finite is outside"


def test_leaving_and_returning_are_one_event_each_with_the_numbers(tmp_path: Path) -> None:
    course, before = course_of(tmp_path), None
    found: list[str] = []
    for look in map(course.judged, LOOKS_OF_A_RUN):
        found += [each.text for each in events_between(before, look) if each.kind == "band"]
        before = look
    assert found == [
        "the loss left its band: held-out loss 3.6000 after 1,000 tokens, expected 3.0000 "
        "(2.8000 to 3.2000)",
        "the loss is inside its band again: held-out loss 2.1000 after 10,000 tokens, expected "
        "2.0000 (1.8000 to 2.2000)",
        "the loss left its band: held-out loss not finite after 10,000 tokens, expected 2.0000 "
        "(1.8000 to 2.2000)",
    ]


def test_fleet_that_restarts_does_not_compare_an_evaluation_again(tmp_path: Path) -> None:
    course = course_of(tmp_path)
    outside = course.judged(LOOKS_OF_A_RUN[2])
    (tmp_path / LOOKS).write_text(metrics_line(outside, 1.0) + "\n")
    later = LossCourse(config_of(expected=str(tmp_path / "curve.csv")), tmp_path)
    later.begin(1)
    again = later.judged(at(4, 9000, (2, 4.1), (3, 3.6)))
    assert again.get("expected") == outside.get("expected") is not None


def test_run_that_went_back_is_compared_from_there(tmp_path: Path) -> None:
    """The band was once kept until the run passed its last evaluation a second time."""
    course = course_of(tmp_path)
    outside = course.judged(at(9, 1000, (2, 4.1), (8, 3.6)))
    (tmp_path / LOOKS).write_text(metrics_line(outside, 1.0) + "\n")
    later = LossCourse(config_of(expected=str(tmp_path / "curve.csv")), tmp_path)
    later.begin(1)
    looks = [later.judged(each) for each in (
        at(1, 50), at(3, 100, (2, 4.1)), at(6, 1000, (2, 4.1), (5, 3.1)),
    )]  # fmt: skip
    bands = [each.text for each in events_between(outside, looks[0]) if each.kind == "band"]
    assert bands == [
        "the loss is not compared at present: no expected loss is known after 50 tokens"
    ]
    back = [each.get("expected") for each in looks]
    assert back[0] is None
    assert [each and (each["t"], each["inside"]) for each in back[1:]] == [(2, True), (5, True)]


def test_source_that_is_gone_is_an_alert_and_no_end(tmp_path: Path) -> None:
    config = config_of(expected=str(tmp_path / "gone.csv"))
    board = StatusBoard(tmp_path, config)
    board.course.begin(1)
    assert "gone.csv" in str(board.course.trouble)
    board.publish(LOOKS_OF_A_RUN[1])
    assert "expected" not in board.status()
    with pytest.raises(UserMistake):
        expectation_of(config, 1)


def test_files_that_hang_cost_the_comparison_and_not_the_fleet(tmp_path: Path) -> None:
    """A pipe without a writer stands for a file on storage that hangs."""
    (tmp_path / "source").mkdir()
    path = curve_file(tmp_path / "source", "tokens,loss\n100,4.0\n10000,2.0\n")
    os.mkfifo(tmp_path / LOOKS)
    course = LossCourse(config_of(expected=path), tmp_path, limit_s=0.2)
    course.begin(1)
    assert course.trouble is None
    assert course.judged(LOOKS_OF_A_RUN[1]).get("expected") is not None
    with (tmp_path / LOOKS).open("wb"):
        pass  # the call that was given up ends
    course = LossCourse(config_of(expected=path), tmp_path, limit_s=0.2)
    with SystemCalls(tmp_path / "source") as disk:
        disk.answers.clear()
        (tmp_path / LOOKS).unlink()
        course.begin(1)
        disk.answers.set()
    assert "the storage has not answered since" in str(course.trouble)
    assert course.judged(LOOKS_OF_A_RUN[1]).get("expected") is None


def test_run_without_expectation_shows_none(tmp_path: Path) -> None:
    board = StatusBoard(tmp_path, config_of())
    board.course.begin(1)
    board.publish(LOOKS_OF_A_RUN[2])
    assert "expected" not in board.status()
    assert board.course.trouble is None
    samples = {each.name: [*each.read(board.status())] for each in METRICS}
    assert samples["expected_loss_nats"] == samples["loss_inside_band"] == []


def test_metrics_page_and_report_show_the_band(tmp_path: Path) -> None:
    course, feed = course_of(tmp_path), PageFeed()
    looks = [course.judged(each) for each in LOOKS_OF_A_RUN[:5]]
    samples = {each.name: [*each.read(looks[2])] for each in METRICS}
    assert samples["expected_loss_nats"] == [((), pytest.approx(3.0))]
    assert samples["expected_loss_low_nats"] == [((), pytest.approx(2.8))]
    assert samples["expected_loss_high_nats"] == [((), pytest.approx(3.2))]
    assert samples["loss_inside_band"] == [((), 0.0)]
    for look in looks:
        feed.see(look)
    assert feed.content()["loss"] == [
        [3, 1000, 3.0, 3.6, pytest.approx(3.0), pytest.approx(2.8), pytest.approx(3.2)],
        [5, 10_000, 5.0, 2.1, 2.0, 1.8, 2.2],
    ]
    (tmp_path / LOOKS).write_text("".join(metrics_line(each, 1.0) + "\n" for each in looks))
    row = json.loads((tmp_path / LOOKS).read_text().splitlines()[2])
    assert (row["expected_loss"], row["expected_high"]) == (pytest.approx(3.0), pytest.approx(3.2))
    chart = next(
        each
        for section in report_of([read_run(tmp_path)], NOW).sections
        for each in section.charts
        if each.title == "Held-out loss"
    )
    named = {each.label.rpartition(", ")[2]: [*each.y] for each in chart.series if each.reference}
    assert named.keys() == {"expected", "low", "high"}
    assert named["high"][-1] == 2.2


def test_spikes_of_an_island_are_an_event() -> None:
    before, after = a_status(), a_status()
    before["islands"][0]["loss_spikes"], after["islands"][0]["loss_spikes"] = 1, 3
    (spike,) = events_between(before, after)
    assert (spike.kind, spike.island) == ("spike", "local-0")
    assert "2 more loss spikes" in spike.text


def test_judgement_includes_the_edges_of_the_band() -> None:
    curve = ExpectedCurve((ExpectedPoint(100, 4.0, 3.0, 5.0),))
    for loss, inside in ((3.0, True), (5.0, True), (math.nextafter(5.0, 6.0), False)):
        found = judged(curve, 1, 100, loss)
        assert found is not None
        assert found["inside"] is inside
    assert judged(curve, 1, 0, 4.0) is None
