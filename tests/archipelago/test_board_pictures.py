"""Boards are drawn from the answers of a real Prometheus, which has the samples of a file."""

from __future__ import annotations

import io
import json
import math
import subprocess
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from archipelago.boards.panels import COLUMNS, board_json
from archipelago.boards.pictures import (
    BAD,
    COLOURS,
    COLUMN_INCHES,
    DPI,
    GOOD,
    HEAD_INCHES,
    ROW_INCHES,
    draw_board,
    value_text,
)
from archipelago.boards.prometheus_answers import Answers, Series, chosen_run
from archipelago.boards.run_board import RUN_BOARD
from archipelago.cli.main import main
from coordinator.errors import UserMistake
from tests.live.cli import until
from tests.live.prometheus import free_port

pytestmark = [pytest.mark.needs("prometheus", "promtool"), pytest.mark.slow]

LASTS_S, EVERY_S = 600, 5
SAMPLED = {
    'archipelago_heldout_loss_nats{run="r"}': lambda s: 5.0 - s / 200,
    'archipelago_syncer_step{run="r"}': lambda s: s,
    'archipelago_syncer_steps_wanted{run="r"}': lambda s: 1000,
    'archipelago_islands_alive{run="r"}': lambda s: 2,
    'archipelago_islands_wanted{run="r"}': lambda s: 2,
    'archipelago_alerts{run="r"}': lambda s: 3,
    'archipelago_island_loss_nats{run="r",group="g",island="a"}': lambda s: 4.0,
    'archipelago_island_loss_nats{run="r",group="g",island="b"}': lambda s: 2.0,
    'archipelago_tokens_trained_total{run="r"}': lambda s: 100 * s,
    'archipelago_build_info{run="r",version="9.8.7"}': lambda s: 1,
    'archipelago_build_info{run="other",version="9.8.7"}': lambda s: 1,
}
"""The value of each series, by the seconds since the first sample."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Generator[Answers]:
    """Yield a real Prometheus with these samples of the last ten minutes."""
    folder, end_s = tmp_path_factory.mktemp("prometheus"), int(time.time())
    lines = [
        f"{series} {value(s)} {end_s - LASTS_S + s}"
        for series, value in SAMPLED.items()
        for s in range(0, LASTS_S + 1, EVERY_S)
    ]
    samples = folder / "samples.txt"
    samples.write_text("\n".join([*lines, "# EOF\n"]))
    (folder / "none.yml").write_text("{}\n")
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", samples, folder / "data"]
    subprocess.run(command, check=True, capture_output=True)
    port = free_port()
    process = subprocess.Popen(
        [
            "prometheus", f"--config.file={folder / 'none.yml'}",
            f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: ready(url))
        yield Answers(url, "r", end_s - LASTS_S, end_s)
    finally:
        process.terminate()
        process.wait(20)


def ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
            return True
    except OSError:
        return False


def part(png: bytes, title: str) -> np.ndarray:
    """Return the pixels of one panel of the board, with the shape (height, width, 3)."""
    (place,) = [
        each["gridPos"] for each in board_json(RUN_BOARD)["panels"] if each["title"] == title
    ]
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    x, w = (place[each] * COLUMN_INCHES * DPI for each in "xw")
    y, h = place["y"] * ROW_INCHES * DPI + HEAD_INCHES * DPI, place["h"] * ROW_INCHES * DPI
    assert pixels.shape[1] == math.floor(COLUMNS * COLUMN_INCHES * DPI)
    return pixels[int(y) : int(y + h), int(x) : int(x + w)].astype(int)


def rows_of(pixels: np.ndarray, colour: str) -> np.ndarray:
    """Return the rows and columns of the pixels of about this colour, with the shape (n, 2)."""
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return np.argwhere(np.abs(pixels - wanted).max(axis=2) < 40)


def test_panels_show_what_prometheus_has(answers: Answers) -> None:
    png, empty = draw_board(RUN_BOARD, answers)
    # everything that has samples is drawn, and the rest has the words "no data"
    assert {*empty} == {
        "Since the last merge", "Goodput", "State of the islands", "Soundness of model and files",
        "Loss spikes", "Metrics of the training loss",
    }  # fmt: skip
    assert len(png) < 150_000
    curve = part(png, "Held-out loss and expected loss")
    found = rows_of(curve, COLOURS[0])
    in_plot = found[found[:, 0] < 0.7 * curve.shape[0]]  # below is the legend
    left, right = in_plot[in_plot[:, 1].argmin()], in_plot[in_plot[:, 1].argmax()]
    assert right[1] - left[1] > 0.6 * curve.shape[1], "the curve covers the span"
    assert right[0] - left[0] > 0.3 * curve.shape[0], "the loss falls"
    islands = part(png, "Training loss of each island")
    upper, lower = (rows_of(islands, colour)[:, 0] for colour in COLOURS[:2])
    assert upper.min() < lower.min() - 20, "4 nats are above 2 nats"
    assert len(rows_of(part(png, "Alerts of the fleet"), BAD)) > 20
    assert len(rows_of(part(png, "Islands alive, of those wanted"), GOOD)) > 20


def test_picture_of_another_run_has_none_of_its_curves(answers: Answers) -> None:
    other = Answers(answers.url, "other", answers.from_s, answers.to_s)
    png, empty = draw_board(RUN_BOARD, other)
    assert [each.title for each in RUN_BOARD.panels if each.title not in empty] == ["Versions"]
    assert len(rows_of(part(png, "Held-out loss and expected loss"), COLOURS[0])) == 0


def test_series_have_the_names_of_their_legend(answers: Answers) -> None:
    expression = 'archipelago_island_loss_nats{run="$run",group=~"$group"}'
    found = answers.curves(expression)
    assert [each.name("{{ island }} of {{group}}") for each in found] == ["a of g", "b of g"]
    assert [each.points[-1][1] for each in found] == [4.0, 2.0]
    (rate,) = answers.curves('rate(archipelago_tokens_trained_total{run="$run"}[1m])')
    assert rate.points[-1][1] == pytest.approx(100, rel=0.01)
    assert Series({}, ()).name("held-out") == "held-out"


def test_values_are_shown_with_their_unit() -> None:
    assert value_text(0.5, "percentunit") == "50 %"
    assert value_text(2_500_000.0, "bps") == "2.5 Mbit/s"
    assert value_text(3.14159, "short") == "3.142"


def test_wrong_run_and_expression_are_refused(answers: Answers) -> None:
    with pytest.raises(UserMistake, match="name one with --run; it knows other, r"):
        chosen_run(answers.url, None)
    with pytest.raises(UserMistake, match="does not know the run x; it knows other, r"):
        chosen_run(answers.url, "x")
    assert chosen_run(answers.url, "r") == "r"
    with pytest.raises(UserMistake, match=r"refuses sum by \(run: .*parse error"):
        answers.curves("sum by (run")
    nowhere = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(UserMistake, match=r"no Prometheus answers at .* --prometheus-url"):
        chosen_run(nowhere, "r")


def test_command_draws_all_boards(
    answers: Answers, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = ["dashboards", "--pictures", str(tmp_path), "--prometheus-url", answers.url]
    with pytest.raises(SystemExit) as end:
        main([*command, "--run", "r", "--last", str(LASTS_S), "--json"])
    assert end.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert told["run"] == "r"
    assert len(told["files"]) == 6
    assert all(Path(each).read_bytes().startswith(b"\x89PNG") for each in told["files"])
    assert "Goodput" in told["without_data"][str(tmp_path / "archipelago.png")]
    with pytest.raises(SystemExit) as end:
        main(["dashboards", "--out", str(tmp_path), "--run", "r"])
    assert end.value.code == 2
    assert "give --pictures" in capsys.readouterr().err
