"""Tests of boards, rules and alerts: they use what a run exports, and each alert can fire."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from archipelago.boards.alert_rules import alerts_of, boards_of
from archipelago.boards.panels import RUN, Board, Panel, Query, board_json
from archipelago.boards.recording_rules import RECORDED
from archipelago.boards.settings import BoardSettings, Thresholds, thresholds_of
from archipelago.boards.written import ALERTS_FILE, BOARDS, FOLDER, RULES_FILE, board_files
from cluster.fleet.metrics import METRICS
from coordinator.errors import UserMistake

ROOT = Path(__file__).resolve().parents[2]
FILES = board_files(BoardSettings())
NAME = re.compile(r"(?<![\w:])archipelago_\w+(?![\w:])")
RECORDED_NAME = re.compile(r"\b\w+:archipelago_\w+:\w+")
SELECTED = re.compile(r"(?<![\w:])(archipelago_\w+)\{([^}]*)\}")
GROUPED = re.compile(r"\b(?:by|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
SCRAPED = {"run", "job", "instance", "alertname", "alertstate"}
"""Labels that every series has, or that Prometheus itself adds."""
ALERTS = {alert.name: alert for alert in alerts_of(Thresholds())}


def rules(file: str) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(FILES[file])["groups"] for rule in group["rules"]]


def boards() -> list[Any]:
    return [json.loads(FILES[f"{FOLDER}/{board.file}"]) for board in BOARDS]


def expressions() -> list[str]:
    """Return the expressions of every panel, variable, annotation, recording rule and alert."""
    found: list[str] = []
    for board in boards():
        found += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        found += [each["expr"] for each in board["annotations"]["list"]]
        found += [
            each["query"]["query"]
            for each in board["templating"]["list"]
            if each["type"] == "query"
        ]
    found += [rule["expr"] for file in (RULES_FILE, ALERTS_FILE) for rule in rules(file)]
    return found


def steady(*uids: str) -> list[str]:
    """Return the expressions of panels that a run with an expected loss answers at some time.

    `uids`: of these boards; without one, of all boards. Those that compare may have no answer, and
    a loss may have no metrics, a run no regions, and its evaluator no time for contributions.
    """
    found = [
        target["expr"]
        for board in boards()
        for panel in board["panels"]
        for target in panel["targets"]
        if not uids or board["uid"] in uids
    ]
    optional = re.compile(
        r"[<>] |== [01]|^ALERTS|_loss_metric|_region_heldout|_contribution_effect"
    )
    return [each for each in found if not optional.search(each)]


def asked(expression: str) -> str:
    """Return an expression as a board sends it, without its variables."""
    return expression.replace("$run", "r").replace("$group", ".*")


def wrong_names(expression: str) -> set[str]:
    """Return the metrics of an expression that no run exports, and labels that they do not have."""
    labels = {metric.full_name: {*metric.labels} for metric in METRICS}
    wrong = {name for name in NAME.findall(expression) if name not in labels}
    wrong |= {name for name in RECORDED_NAME.findall(expression) if name not in RECORDED}
    for name, matchers in SELECTED.findall(expression):
        used = set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)"', matchers))
        wrong |= {f"{name}{{{label}}}" for label in used - labels.get(name, set()) - SCRAPED}
    known = set[str]().union(*labels.values()) | SCRAPED
    for names in GROUPED.findall(expression):
        wrong |= {each for each in re.split(r"\s*,\s*", names.strip()) if each} - known
    return wrong


# --- what is written ------------------------------------------------------------------------------


def test_top_level_dashboards_are_what_the_command_writes() -> None:
    """`make boards` writes them."""
    folder = ROOT / "dashboards"
    there = {
        str(path.relative_to(folder)): path.read_text("utf-8")
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert there.keys() == FILES.keys()
    assert [name for name, text in FILES.items() if there[name] != text] == []


def test_each_board_answers_one_question() -> None:
    assert len(BOARDS) == 6
    assert len({board.uid for board in BOARDS}) == len({board.title for board in BOARDS}) == 6
    for board in BOARDS:
        assert board.title.endswith("?")
        assert board.description.endswith(".")
        titles = [panel.title for panel in board.panels]
        assert len(titles) == len({*titles})
        for panel in board.panels:
            assert panel.description.rstrip().endswith("."), panel.title


def test_uids_of_boards_do_not_change() -> None:
    """They are in people's bookmarks, and in links of alerts."""
    assert {board.uid for board in BOARDS} == {
        "archipelago", "archipelago-time", "archipelago-rounds", "archipelago-wire",
        "archipelago-failures", "archipelago-fleet",
    }  # fmt: skip


def test_boards_have_variables_and_their_panels_do_not_overlap() -> None:
    for board in boards():
        names = [each["name"] for each in board["templating"]["list"]]
        assert names[:2] == ["datasource", "run"]
        text = json.dumps(board["panels"])
        assert ("group" in names) == ("$group" in text)
        assert "$run" in text
        places = [panel["gridPos"] for panel in board["panels"]]
        cells = [
            (x, y)
            for place in places
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(cells) == len({*cells})
        assert max(x for x, _ in cells) < 24
        assert {each["datasource"]["uid"] for each in board["panels"]} == {"${datasource}"}
        assert [each["id"] for each in board["panels"]] == [*range(1, len(places) + 1)]


def test_expressions_use_exactly_the_exported_metrics() -> None:
    wrong = {each: found for each in expressions() if (found := wrong_names(each))}
    assert wrong == {}
    used = {name for each in expressions() for name in NAME.findall(each)}
    assert used == {metric.full_name for metric in METRICS}
    recorded = {name for each in expressions() for name in RECORDED_NAME.findall(each)}
    assert recorded == RECORDED.keys(), "a rule that nothing uses"


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ('archipelago_goodput{run="$run"}', {"archipelago_goodput"}),
        ('archipelago_merges_total{run="$run",island="a"}', {"archipelago_merges_total{island}"}),
        ("sum by (run, isle) (archipelago_island_slow)", {"isle"}),
        ("run:archipelago_merges:rate1m", {"run:archipelago_merges:rate1m"}),
    ],
)
def test_a_wrong_name_in_an_expression_is_noticed(expression: str, wrong: set[str]) -> None:
    assert wrong_names(expression) == wrong


def test_alerts_have_annotations_and_lead_to_pages_and_boards() -> None:
    assert boards_of([*ALERTS.values()], BOARDS) == set()
    for rule in rules(ALERTS_FILE):
        assert rule["labels"]["severity"] in ("critical", "warning")
        notes = rule["annotations"]
        assert notes.keys() == {"summary", "description", "runbook_url", "dashboard_url"}
        page = ROOT / notes["runbook_url"]
        assert f"`{rule['alert']}`" in page.read_text("utf-8")
        board = notes["dashboard_url"].partition("/d/")[2].partition("?")[0]
        assert board in {each.uid for each in BOARDS}


def test_addresses_thresholds_and_names_can_be_changed() -> None:
    settings = BoardSettings(
        docs_url="https://docs.example.org/", grafana_url="https://grafana.example.org",
        namespace="watch", thresholds=thresholds_of(["goodput=0.25"]),
    )  # fmt: skip
    files = board_files(settings)
    alerts = files[ALERTS_FILE]
    assert "https://docs.example.org/howto/alerts/no-quorum/" in alerts
    assert "https://grafana.example.org/d/archipelago-time?var-run={{ $labels.run }}" in alerts
    assert '{window_s="300"} < 0.25' in alerts
    assert "namespace: watch" in files["kubernetes/prometheus-rule.yaml"]


def test_wrong_thresholds_are_refused_all_at_once() -> None:
    with pytest.raises(UserMistake) as found:
        thresholds_of(["godput=1", "goodput=x", "refusals=-1", "loss_rise=0.1"])
    assert str(found.value).splitlines() == [
        "--threshold godput=1: unknown name; did you mean goodput?",
        "--threshold goodput=x: the value must be a number above 0",
        "--threshold refusals=-1: the value must be a number above 0",
    ]


def test_kubernetes_objects_have_the_same_rules_and_boards() -> None:
    rule = yaml.safe_load(FILES["kubernetes/prometheus-rule.yaml"])
    both = [
        group
        for file in (RULES_FILE, ALERTS_FILE)
        for group in yaml.safe_load(FILES[file])["groups"]
    ]
    assert (rule["kind"], rule["spec"]["groups"]) == ("PrometheusRule", both)
    boards_map = yaml.safe_load(FILES["kubernetes/boards-configmap.yaml"])
    assert boards_map["data"] == {board.file: FILES[f"{FOLDER}/{board.file}"] for board in BOARDS}
    monitor = yaml.safe_load(FILES["kubernetes/pod-monitor.yaml"])
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": "archipelago"}]


def test_panel_without_room_begins_a_new_row() -> None:
    panel = Panel("A", "B.", [Query(f"archipelago_alerts{RUN}")], kind="stat")
    panels = [replace(panel, title=str(number)) for number in range(7)]
    chart = replace(panel, title="chart", kind="timeseries")
    made = board_json(Board("u", "why?", "All.", [*panels, chart]))
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in made["panels"]]
    assert places == [(0, 0), (4, 0), (8, 0), (12, 0), (16, 0), (20, 0), (0, 4), (0, 8)]


# --- with promtool --------------------------------------------------------------------------------


def promtool(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.fixture
def written(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.needs("promtool")
def test_promtool_accepts_rules_and_configuration(written: Path) -> None:
    checked = promtool("check", "rules", RULES_FILE, ALERTS_FILE, cwd=written)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"SUCCESS: {len(ALERTS)} rules found" in checked.stdout
    checked = promtool("check", "config", "prometheus.yml", cwd=written)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.needs("promtool")
def test_promtool_accepts_every_expression_of_the_boards(tmp_path: Path) -> None:
    queries = [asked(each) for each in expressions() if not each.startswith("label_values")]
    listed = [{"record": f"each:{number}", "expr": each} for number, each in enumerate(queries)]
    group: Any = {"groups": [{"name": "all", "rules": listed}]}
    (tmp_path / "all.yml").write_text(yaml.safe_dump(group))
    checked = promtool("check", "rules", "all.yml", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    group["groups"][0]["rules"][0]["expr"] = "sum by (run (up)"
    (tmp_path / "all.yml").write_text(yaml.safe_dump(group))
    assert promtool("check", "rules", "all.yml", cwd=tmp_path).returncode != 0


ISLAND = 'run="r",group="g",island="i"'
LINK = 'run="r",link="eu",direction="up"'
WELL: Mapping[str, str] = {
    'up{job="archipelago",instance="here:1"}': "1x100",
    'archipelago_islands_alive{run="r"}': "4x100",
    'archipelago_quorum{run="r"}': "2x100",
    'archipelago_merge_age_seconds{run="r"}': "1x100",
    'archipelago_round_seconds{run="r"}': "2x100",
    'archipelago_merges_total{run="r"}': "0+1x100",
    'archipelago_model_sound{run="r"}': "1x100",
    'archipelago_unsound_merges_total{run="r"}': "0x100",
    'archipelago_heldout_loss_nats{run="r"}': "4-0.004x100",
    'archipelago_loss_inside_band{run="r"}': "1x100",
    'archipelago_evaluation_failures_total{run="r",reason="raised"}': "0x100",
    'archipelago_rolling_goodput_ratio{run="r",window_s="300"}': "0.9x100",
    'archipelago_not_durable{run="r"}': "0x100",
    'archipelago_restore_damage{run="r"}': "0x100",
    'archipelago_alerts{run="r"}': "0x100",
    f'archipelago_island_state{{{ISLAND},state="live"}}': "1x100",
    f'archipelago_island_state{{{ISLAND},state="lost"}}': "0x100",
    f"archipelago_island_slow{{{ISLAND}}}": "0x100",
    f"archipelago_island_contributions_total{{{ISLAND}}}": "0+1x100",
    f"archipelago_island_harmful_contributions{{{ISLAND}}}": "2x100",
    'archipelago_refusals_total{run="r",reason="gate"}': "0x100",
    'archipelago_distrusted_lives_total{run="r"}': "0x100",
    'archipelago_largest_share_ratio{run="r"}': "1.1x100",
    f"archipelago_link_slow{{{LINK}}}": "0x100",
    f"archipelago_link_down{{{LINK}}}": "0x100",
    f"archipelago_link_late_transfers_total{{{LINK}}}": "0x100",
    f"archipelago_link_transfers_total{{{LINK}}}": "0+1x100",
}
"""The series of a run that is well, a sample every minute for 100 minutes."""
ILL: Mapping[str, tuple[str, str]] = {
    "ArchipelagoDown": ("up", "0x100"),
    "ArchipelagoNoQuorum": ("archipelago_islands_alive", "1x100"),
    "ArchipelagoNoMerges": ("archipelago_merge_age_seconds", "101x100"),
    "ArchipelagoModelUnsound": ("archipelago_model_sound", "0x100"),
    "ArchipelagoNotLearning": ("archipelago_heldout_loss_nats", "3x50 3.2x50"),
    "ArchipelagoLossOutOfBand": ("archipelago_loss_inside_band", "0x100"),
    "ArchipelagoEvaluatorFailing": ("archipelago_evaluation_failures_total", "0+1x100"),
    "ArchipelagoGoodputLow": ("archipelago_rolling_goodput_ratio", "0.4x100"),
    "ArchipelagoNotDurable": ("archipelago_not_durable", "1x100"),
    "ArchipelagoRestoreDamage": ("archipelago_restore_damage", "1x100"),
    "ArchipelagoNeedsSomebody": ("archipelago_alerts", "1x100"),
    "ArchipelagoIslandAway": (f'archipelago_island_state{{{ISLAND},state="lost"}}', "1x100"),
    "ArchipelagoIslandSlow": ("archipelago_island_slow", "1x100"),
    "ArchipelagoContributionsAgeing": ("archipelago_island_contributions_total", "7x100"),
    "ArchipelagoContributionsHarmful": ("archipelago_island_harmful_contributions", "3x100"),
    "ArchipelagoRefusals": ("archipelago_refusals_total", "0+2x100"),
    "ArchipelagoImpossibleWords": ("archipelago_distrusted_lives_total", "0+1x100"),
    "ArchipelagoOneIslandWeighsAll": ("archipelago_largest_share_ratio", "4.0x100"),
    "ArchipelagoLinkSlow": ("archipelago_link_slow", "1x100"),
    "ArchipelagoLinkDown": ("archipelago_link_down", "1x100"),
    "ArchipelagoTransfersLate": ("archipelago_link_late_transfers_total", "0+1x100"),
}
"""The one series of a run in trouble that differs, and its values, by the alert that follows."""


def scenarios() -> Iterator[tuple[str | None, dict[str, str]]]:
    """Yield the series of each scenario, and the alert that fires in it."""
    yield None, {**WELL}
    for alert, (series, values) in ILL.items():
        (changed,) = [each for each in WELL if each == series or each.startswith(f"{series}{{")]
        yield alert, {**WELL, changed: values}
    age = 'archipelago_merge_age_seconds{run="r"}'
    early = {key: each for key, each in WELL.items() if "round_seconds" not in key}
    yield None, {**early, age: "1000x100"}  # no round has closed yet
    yield "ArchipelagoNoMerges", {**early, age: "1801x100"}


def unit_tests(*only: str) -> str:
    """Return the tests of scenarios for promtool: the alerts that fire after 90 minutes.

    `only`: the scenarios of these alerts; without one, all.
    """
    tests: list[dict[str, Any]] = []
    for alert, series in scenarios():
        if only and alert not in only:
            continue
        expected = [] if alert is None else [{"labels": f'{{alertname="{alert}"}}', "value": 1}]
        tests.append(
            {
                "name": alert or "well",
                "interval": "1m",
                "input_series": [{"series": key, "values": each} for key, each in series.items()],
                "promql_expr_test": [
                    {
                        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": "90m",
                        "exp_samples": expected,
                    }
                ],
            }
        )
    files = [RULES_FILE, ALERTS_FILE]
    return yaml.safe_dump({"rule_files": files, "evaluation_interval": "1m", "tests": tests})


def test_every_alert_has_a_scenario() -> None:
    assert [*ILL] == [*ALERTS]


@pytest.mark.timeout(600)  # promtool opens a database for each scenario
@pytest.mark.needs("promtool")
def test_each_alert_fires_once_in_its_scenario_and_none_in_a_run_that_is_well(
    written: Path,
) -> None:
    (written / "tests.yml").write_text(unit_tests())
    done = promtool("test", "rules", "tests.yml", cwd=written)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.needs("promtool")
def test_an_alert_that_can_never_fire_is_noticed(written: Path) -> None:
    (written / "tests.yml").write_text(unit_tests("ArchipelagoLinkDown"))
    assert promtool("test", "rules", "tests.yml", cwd=written).returncode == 0
    text = FILES[ALERTS_FILE]
    never = text.replace("archipelago_link_down == 1", "archipelago_link_down == 2")
    assert never != text
    (written / ALERTS_FILE).write_text(never)
    done = promtool("test", "rules", "tests.yml", cwd=written)
    assert done.returncode != 0
    assert "ArchipelagoLinkDown" in done.stdout + done.stderr
