"""Reports of runs: whole, live, crashed and damaged ones, with everything of a run escaped."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import archipelago.cli.main
from archipelago.cli.options import app
from archipelago.lab.report import written
from archipelago.lab.report.curves import curve_of
from archipelago.lab.report.run_record import read_run
from archipelago.lab.report.run_report import read_runs, report_of
from archipelago.lab.report.written import LARGEST_BYTES, ReportFormat, report_text
from cluster.config.load import parse
from cluster.fleet.event_kinds import RunEvent
from cluster.fleet.metrics_row import metrics_line
from cluster.fleet.status_view import starting_status
from cluster.status import Figures, RunStatus
from cluster.storage.files import json_text, write_json
from cluster.storage.runs import announce, live_as

assert archipelago.cli.main, "it registers the commands"
CONFIG = parse({"task": {"preset": "byte-tiny"}, "islands": [{}]})
NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
MARKUP = "<img src=x onerror=alert(1)></script><b>&\"'"


def status(t: int, islands: int = 2, why: str = "steps") -> RunStatus:
    """Return the status of a run at step t, whose loss falls and whose second island is lost."""
    figures: Any = {**dict.fromkeys(Figures.__annotations__, 0), "goodput": 0.8, "staleness": 1.5,
                    "grace_s": 0.25 * t, "round_s": 2.0, "outer_cosine": 0.5, "outer_rate": 0.7,
                    "trouble": "", "not_durable": "", "damage": "",
                    "tokens_merged": 90 * t}  # fmt: skip
    rows = [
        {"island": f"eu-{n}", "group": "eu", "state": "live" if n != 1 else "lost",
         "incarnation": 1, "life": 1, "steps": t, "tokens_per_s": 1e3, "loss": 5.0 - t / 100,
         "why": why, "contributions": t, "cosine": 0.1, "restarts": 0}
        for n in range(islands)
    ]  # fmt: skip
    made: Any = {
        **starting_status("mine", CONFIG), "t": t, "phase": "running",
        "elapsed_s": t * 1.0, "tokens_trained": 100 * t, "tokens_per_s": 1e3, "alive": islands - 1,
        "islands": rows, "heldout": [(s, 5.5 - s / 100) for s in range(0, t + 1, 10)],
        "refusals": {"stale": t}, "figures": figures,
    }  # fmt: skip
    return made


def run_of(
    folder: Path, *, steps: int = 50, quorum: int = 1, why: str = "steps", islands: int = 2
) -> Path:
    """Write the directory of a run that has ended."""
    folder.mkdir()
    config = parse(
        {"run": {"name": folder.name}, "task": {"preset": "byte-tiny"},
         "sync": {"quorum": quorum}, "islands": [{"group": "eu", "count": islands}]}
    )  # fmt: skip
    (folder / "config.toml").write_text(config.toml())
    looks = [{**status(t, islands, why), "run": folder.name} for t in range(steps)]
    lines = [metrics_line(each, 1000.0 + n) for n, each in enumerate(looks)]  # type: ignore[arg-type]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    event = RunEvent("loss", why, f"eu-1 is lost: {why}", "eu-1", "eu")
    line = json_text(event.seen(looks[-1], 1001.0))  # type: ignore[arg-type]
    (folder / "events.jsonl").write_text(f"{line}\n")
    summary = {
        "run": folder.name, "mode": "decoupled", "heldout_loss": 4.25, "tokens_trained": 5000,
        "tokens_merged": 4000, "tokens_discarded": 500, "tokens_outstanding": 300,
        "tokens_lost": 200, "wall_s": 61.0, "usd": None, "versions": {"jax": "0.10.2"},
    }  # fmt: skip
    write_json(folder / "summary.json", summary)
    return folder


class Text(HTMLParser):
    """The text and the tags of a page, outside scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.tags, self.addresses = "", list[str](), list[str]()
        self._raw = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._raw = tag in ("script", "style")
        self.addresses += [value or "" for key, value in attrs if key in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        self._raw = False

    def handle_data(self, data: str) -> None:
        if not self._raw:
            self.text += data


def page_of(*run_dirs: Path) -> str:
    return report_text(run_dirs, ReportFormat.HTML, NOW)[0]


def test_two_runs_are_side_by_side(tmp_path: Path) -> None:
    first, second = run_of(tmp_path / "first"), run_of(tmp_path / "second", quorum=2)
    report = report_of(read_runs([first, second]), NOW)
    sections = {each.key: each for each in report.sections}
    assert [*sections] == [
        "figures", "loss", "activity", "rounds", "ledger", "events", "differences", "environment",
        "configuration",
    ]  # fmt: skip
    (differences,) = sections["differences"].tables
    assert [*differences.rows] == [["sync.quorum", "1", "2"]]
    figures = {row[0]: row[1:] for row in sections["figures"].tables[0].rows}
    assert figures["held-out loss, nats per token"] == ["4.25", "4.25"]
    assert figures["wall time"] == ["1:01", "1:01"]
    charts = {(chart.title, chart.x_label): chart for chart in sections["loss"].charts}
    by_tokens = charts["Held-out loss", "tokens trained"]
    assert [each.label for each in by_tokens.series] == ["first", "second"]
    assert [*by_tokens.series[0].x] == [0, 1000, 2000, 3000, 4000], "one point per evaluation"
    assert [*by_tokens.series[0].y] == [5.5, 5.4, 5.3, 5.2, 5.1]
    ledger = sections["ledger"].tables[0].rows[0]
    assert ledger[2:] == ["4 k (80.0 %)", "500 (10.0 %)", "300 (6.0 %)", "200 (4.0 %)"]
    shown = Text(page_of(first, second))
    for each in ("sync.quorum", "eu-1 is lost: steps", "0.10.2"):
        assert each in shown.text
    assert not report.problems


def test_page_is_alone_and_small(tmp_path: Path) -> None:
    text = page_of(run_of(tmp_path / "first"))
    shown = Text(text)
    assert len(text.encode()) < LARGEST_BYTES
    assert all(each.startswith(("#", "data:")) for each in shown.addresses), "it loads nothing"
    assert not re.search(r"@import|url\(", text)
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_markup_of_a_run_is_text(tmp_path: Path) -> None:
    first = run_of(tmp_path / "first", why=MARKUP)
    text = page_of(first)
    shown = Text(text)
    assert f"eu-1 is lost: {MARKUP}" in shown.text, "an event"
    assert MARKUP in shown.text.replace(f"lost: {MARKUP}", ""), "the reason of an island"
    assert not {"img", "b"} & {*shown.tags}
    assert text.count("</script>") == 3, "the data end no script"
    markdown, _ = report_text([first], ReportFormat.MARKDOWN, NOW)
    assert "\\<img src=x" in markdown
    assert not re.search(r"(?<!\\)<", markdown)


def test_name_of_a_run_is_text_in_charts_too(tmp_path: Path) -> None:
    name = "</script><img src=x>"
    first = run_of(tmp_path / "first")
    rows = (first / "metrics.jsonl").read_text().replace('"run": "first"', f'"run": "{name}"')
    (first / "metrics.jsonl").write_text(rows)
    (first / "summary.json").unlink()
    text = page_of(first)
    assert read_run(first).name == name
    assert "img" not in Text(text).tags
    data = re.search(r'id="charts">(.*?)</script>', text, re.DOTALL)
    assert data
    assert name in {each["label"] for chart in json.loads(data[1]) for each in chart["series"]}


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("summary.json", None, "summary.json: not there"),
        ("summary.json", '{"heldout', "summary.json: damaged"),
        ("summary.json", "[1]", "summary.json: damaged"),
        ("config.toml", "[run", "config.toml: damaged"),
        ("config.toml", None, "config.toml: not there"),
        ("metrics.jsonl", None, "metrics.jsonl: not there"),
        ("metrics.jsonl", "\x00\x01\nnot json\n{}\n", "metrics.jsonl: 2 damaged lines"),
        ("events.jsonl", "{}\n7\n", "events.jsonl: 1 damaged lines"),
    ],
)
def test_damaged_file_costs_only_its_part(
    tmp_path: Path, file: str, content: str | None, problem: str
) -> None:
    first = run_of(tmp_path / "first")
    if content is None:
        (first / file).unlink()
    else:
        (first / file).write_text(content)
    record = read_run(first)
    assert any(each.startswith(problem) for each in record.problems), record.problems
    shown = Text(page_of(first)).text
    assert problem in shown
    assert "Parts are missing" in shown
    held = record.summary.get("heldout_loss") or record.last.get("heldout_loss")
    assert f"{held:.4g}" in shown, "the rest is there"


def test_torn_last_row_is_no_problem(tmp_path: Path) -> None:
    first = run_of(tmp_path / "first")
    with (first / "metrics.jsonl").open("a") as file:
        file.write('{"run": "fi')
    record = read_run(first)
    assert (len(record.rows), record.problems) == (50, [])


def test_run_has_ended_once_its_summary_is_written(tmp_path: Path) -> None:
    """The process of its fleet remains for some seconds, and `live.json` with it."""
    first = run_of(tmp_path / "first")
    announce(first, live_as(first, "a-namespace", "127.0.0.1:6379", "disabled"))
    assert read_run(first).state == "ended"
    (first / "summary.json").unlink()
    assert read_run(first).state == "live"


def test_run_is_live_until_its_final_evaluation_is_done(tmp_path: Path) -> None:
    first = run_of(tmp_path / "first")
    summary = json.loads((first / "summary.json").read_text())
    (first / "summary.json").write_text(json.dumps({**summary, "heldout_loss": None}))
    assert read_run(first).state == "ended", "an evaluation that failed, of a run that is over"
    announce(first, live_as(first, "a-namespace", "127.0.0.1:6379", "disabled"))
    assert read_run(first).state == "live"


@pytest.mark.parametrize("mode", ["decoupled", "data-parallel"])
def test_run_of_an_earlier_version_has_a_report(mode: str) -> None:
    record = read_run(Path("tests/stored") / mode)
    assert record.state == "not ended"
    report = report_of([record], NOW)
    assert {"figures", "activity", "ledger"} <= {each.key for each in report.sections}
    assert "the run has not ended" in Text(page_of(Path("tests/stored") / mode)).text


@pytest.mark.long
def test_large_runs_fit_into_two_megabytes(tmp_path: Path) -> None:
    runs = [run_of(tmp_path / f"run-{n}", steps=900, islands=2) for n in range(6)]
    assert len(page_of(*runs).encode()) < LARGEST_BYTES
    many = run_of(tmp_path / "many", steps=60, islands=200, why="x" * 900)
    assert len(page_of(many).encode()) < LARGEST_BYTES


def test_curve_has_increasing_x_and_both_ends() -> None:
    pairs = [(float(x), float(x)) for x in range(1000)]
    curve = curve_of("a", [*pairs, (500.0, 7.0), (999.0, 5.0)], 100, 0)
    assert curve is not None
    assert (len(curve.x), curve.x[0], curve.x[-1], curve.y[-1]) == (100, 0.0, 999.0, 5.0)
    assert [*curve.x] == sorted(curve.x)
    assert curve_of("a", [(1.0, 2.0), (2.0, None)], 100, 0) is None


def test_curve_with_few_known_values_keeps_them_and_its_gaps() -> None:
    known = {401.0: 3.0, 403.0: 2.0, 700.0: 1.0}
    curve = curve_of("a", [(float(x), known.get(float(x))) for x in range(1000)], 50, 0)
    assert curve is not None
    assert [*zip(curve.x, curve.y, strict=True)] == [
        (401.0, 3.0), (402.0, None), (403.0, 2.0), (404.0, None), (700.0, 1.0)
    ]  # fmt: skip


# --- the command ----------------------------------------------------------------------------------


def test_command_writes_a_report_and_names_it(tmp_path: Path) -> None:
    first, second = run_of(tmp_path / "first"), run_of(tmp_path / "second")
    done = CliRunner().invoke(app, ["report", str(first)])
    assert done.exit_code == 0
    assert done.stdout.endswith(f"the report is in {first / 'report.html'}\n")
    out = tmp_path / "new" / "both.html"
    done = CliRunner().invoke(app, ["report", str(first), str(second), "-o", str(out), "--json"])
    found = json.loads(done.stdout)
    assert (found["file"], found["format"]) == (str(out), "html")
    assert [each["state"] for each in found["runs"]] == ["ended", "ended"]
    assert "<title>Report of first, second</title>" in out.read_text()
    done = CliRunner().invoke(app, ["report", str(first), "--format", "md"])
    assert done.stdout.startswith("# Report of first\n")


def test_command_names_every_directory_that_is_no_run(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(tmp_path), str(tmp_path / "nothing")])
    said = str(done.exception)
    assert f"{tmp_path} is not a run directory" in said
    assert f"no run '{tmp_path}/nothing'" in said
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--format", "pdf"])
    assert str(done.exception) == "--format pdf: not known; there are html and md"


def test_report_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    first = run_of(tmp_path / "first")
    (tmp_path / "file").touch()
    done = CliRunner().invoke(app, ["report", str(first), "-o", str(tmp_path / "file" / "x.html")])
    assert "cannot be written" in str(done.exception)
    assert written.LARGEST_BYTES == 2_000_000
