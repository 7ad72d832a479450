"""A region's corpus that cannot be used is refused before the start, without a text of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.fleet.placement import NODE_ID, Node
from cluster.launch.corpus_check import CorpusAnswer, CorpusSite, check_corpora, corpus_sites
from cluster.workers.region_corpus import corpus_problem
from coordinator.errors import UserMistake
from islands.sources import DataSpec
from islands.task import Task, load_task
from tests.canaries import CANARIES, corpus_with_canaries, leaks

PROBE = """
import json, sys
from pathlib import Path
from cluster.config.load import parse
from cluster.workers.region_corpus import corpus_problem
given, answer = sys.argv[1:]
Path(answer).write_text(corpus_problem(parse(json.loads(given)), ["eu"]))
"""


STEP_PROBE = """
import json, sys
from pathlib import Path
from cluster.config.load import parse
from cluster.launch.step_probe import StepProbe
given, answer = sys.argv[1:]
try:
    found = StepProbe().step_s(parse(json.loads(given)).model_dump_json(), "eu")
except BaseException as error:
    found = f"{type(error).__name__}: {error}"
Path(answer).write_text(str(found))
"""


class Halt(BaseException):
    """An exception of a user's code that is no `Exception`."""


def tables(data: Path | str, logs: Path, **region: Any) -> dict[str, Any]:
    return {
        "task": {"preset": "byte-tiny"},
        "data": {"window": 16, "lease_windows": 16},
        "islands": [{"group": "eu", "region": "eu", "batch_size": 2}, {"group": "us"}],
        "regions": {"eu": {"data": str(data), "logs": str(logs), **region}},
    }


def talkative(data: DataSpec) -> Task:
    """Return a task whose stream prints a sample of the data and raises an error with one."""

    def stream(batch_size: int) -> Any:
        text = next(Path(data.source).iterdir()).read_text()
        print("printed", text, flush=True)
        os.write(2, text.encode())
        raise ValueError(f"cannot parse {text!r}")

    return replace(load_task("byte-tiny", None, {}, data), stream=stream)


def halting(data: DataSpec) -> Task:
    """Raise an error that is no `Exception`, with a sample of the data."""
    raise Halt(next(Path(data.source).iterdir()).read_text())


def leaving(data: DataSpec) -> Task:
    """End the process, with a sample of the data as its last words."""
    raise SystemExit(next(Path(data.source).iterdir()).read_text())


# --- the process on the node ----------------------------------------------------------------------


def probed(tmp: Path, given: dict[str, Any], probe: str = PROBE) -> tuple[str, str]:
    """Return the answer of a process on a node of the region, and what it printed."""
    process = subprocess.run(
        [sys.executable, "-c", probe, json.dumps(given), str(tmp / "answer")],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "ARCHIPELAGO_CACHE": str(tmp / "cache"),
        },
    )
    seen = process.stdout + process.stderr
    assert process.returncode == 0, seen
    return (tmp / "answer").read_text(), seen


def test_corpus_that_can_be_used_has_no_problem(tmp_path: Path) -> None:
    eu = corpus_with_canaries(tmp_path / "eu")
    assert probed(tmp_path, tables(eu, tmp_path / "logs")) == ("", "")


def test_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    answer, seen = probed(tmp_path, tables(tmp_path / "ue", tmp_path / "logs"))
    assert answer.startswith(
        f"regions.eu.data = {str(tmp_path / 'ue')!r}: there is no such file or folder"
    )
    assert seen == ""


def empty(folder: Path) -> None:
    folder.mkdir()


def one_window(folder: Path) -> None:
    folder.mkdir()
    for number in range(2):
        (folder / f"{number}.txt").write_text(CANARIES[number])


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (empty, "is empty: no text file is below it"),
        (one_window, "is too small: 1 training windows of 16 tokens, 16 needed: give more text"),
    ],
)
def test_corpus_without_text_is_refused_by_counts(
    tmp_path: Path, write: Callable[[Path], None], expected: str
) -> None:
    write(tmp_path / "eu")
    answer, seen = probed(tmp_path, tables(tmp_path / "eu", tmp_path / "logs"))
    assert answer.startswith(f"regions.eu.data = {str(tmp_path / 'eu')!r} {expected}")
    assert leaks([answer, seen]) == []


def test_corpus_without_held_out_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "eu.txt").write_text(CANARIES[0] * 50)
    given = tables(tmp_path / "eu.txt", tmp_path / "logs")
    given["data"]["heldout_percent"] = 0.1
    answer, _ = probed(tmp_path, given)
    assert "is too small: 0 held-out windows of 16 tokens, 1 needed" in answer
    assert leaks([answer]) == []


def test_damaged_text_leaves_as_class_and_code(tmp_path: Path) -> None:
    (tmp_path / "eu").mkdir()
    for number in range(3):
        text = json.dumps({"text": CANARIES[0]}) + f"\n{{{CANARIES[1]}\n"
        (tmp_path / "eu" / f"{CANARIES[2]}-{number}.jsonl").write_text(text)
    given = tables(tmp_path / "eu", tmp_path / "logs")
    given["data"]["column"] = "text"
    answer, seen = probed(tmp_path, given)
    assert answer.startswith(
        f"regions.eu.data = {str(tmp_path / 'eu')!r} cannot be used: UserMistake, error code "
    )
    assert answer.endswith(
        "; its text stays in region eu; read it on that node, in "
        f"{tmp_path / 'logs'} (regions.eu.logs)"
    )
    assert leaks([answer, seen]) == []
    assert leaks([tmp_path / "logs"])


def test_own_task_that_shows_its_data_shows_them_in_the_region_only(tmp_path: Path) -> None:
    given = tables(corpus_with_canaries(tmp_path / "eu"), tmp_path / "logs")
    given["task"] = {"target": f"{__name__}:talkative"}
    answer, seen = probed(tmp_path, given)
    assert "cannot be used: ValueError, error code " in answer
    assert (leaks([answer, seen]), seen) == ([], "")
    (log,) = (tmp_path / "logs").iterdir()
    assert "cannot parse" in (kept := log.read_text())
    assert "printed canary" in kept


@pytest.mark.parametrize("task", ["halting", "leaving"])
@pytest.mark.parametrize("probe", [PROBE, STEP_PROBE], ids=["corpus", "step"])
def test_no_exception_of_a_probe_leaves_the_region(tmp_path: Path, probe: str, task: str) -> None:
    given = tables(corpus_with_canaries(tmp_path / "eu"), tmp_path / "logs")
    given["task"] = {"target": f"{__name__}:{task}"}
    answer, seen = probed(tmp_path, given, probe)
    assert ", error code " in answer
    assert (leaks([answer, seen]), seen) == ([], "")
    assert leaks([tmp_path / "logs"]), "the text is in the region"


def test_region_whose_errors_may_leave_shows_the_whole_text(tmp_path: Path) -> None:
    given = tables(
        corpus_with_canaries(tmp_path / "eu"),
        tmp_path / "logs",
        may_leave=["delta", "report", "errors"],
    )
    given["task"] = {"target": f"{__name__}:talkative"}
    answer = corpus_problem(parse(given), ["eu"])
    assert "task byte-tiny: stream raises ValueError: cannot parse 'canary" in answer
    assert answer.startswith(f"{__file__}:")


# --- the nodes ------------------------------------------------------------------------------------


def node(name: str, **labels: str) -> Node:
    return Node(name, {"CPU": 2.0}, {NODE_ID: f"id-{name}", **labels})


NODES = [node("10.0.0.1"), node("10.0.0.2", region="us"), node("10.0.0.3", region="eu")]


def of_regions(*groups: dict[str, Any], regions: Sequence[str] = ("eu",)) -> Config:
    return parse({
        "task": {"preset": "byte-tiny"},
        "islands": [{"group": f"g{number}", **each} for number, each in enumerate(groups)],
        "regions": {name: {"data": f"/corpus/{name}"} for name in regions},
    })  # fmt: skip


def places(config: Config, nodes: Sequence[Node] = NODES) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(site.region, site.node.name, site.groups) for site in corpus_sites(config, nodes)]


def test_corpora_are_read_on_nodes_with_the_labels_of_the_groups() -> None:
    eu = {"region": "eu", "label_selector": {"region": "eu"}}
    us = {"region": "us", "label_selector": {"region": "us"}}
    config = of_regions(eu, us, eu, {}, regions=("eu", "us"))
    assert places(config) == [("eu", "10.0.0.3", ("g0", "g2")), ("us", "10.0.0.2", ("g1",))]


def test_group_without_labels_is_checked_on_a_node_of_its_region_or_on_this_one() -> None:
    config = of_regions({"region": "eu"}, {"region": "us"})
    assert places(config) == [("eu", "10.0.0.3", ("g0",))]
    assert places(config, NODES[:1]) == [("eu", "10.0.0.1", ("g0",))]


def test_groups_of_a_region_on_different_nodes_are_checked_on_each() -> None:
    groups = [{"region": "eu", "label_selector": {"disk": each}} for each in ("a", "b")]
    nodes = [node("10.0.0.4", disk="b"), node("10.0.0.5", disk="a")]
    assert places(of_regions(*groups), nodes) == [
        ("eu", "10.0.0.5", ("g0",)),
        ("eu", "10.0.0.4", ("g1",)),
    ]


def test_group_that_waits_for_its_nodes_is_not_checked() -> None:
    waits = {"region": "eu", "label_selector": {"region": "asia"}, "opportunistic": True}
    assert places(of_regions(waits, {})) == []


class Answers:
    """The answers of the nodes, by their addresses."""

    def __init__(self, **answers: CorpusAnswer) -> None:
        self.answers, self.asked = answers, list[str]()

    def __call__(
        self, config: Config, sites: Sequence[CorpusSite], check: Callable[[], None]
    ) -> list[CorpusAnswer]:
        check()
        self.asked += [site.region for site in sites]
        return [self.answers.get(site.region, CorpusAnswer()) for site in sites]


TWO = of_regions({"region": "eu"}, {"region": "us"}, regions=("eu", "us"))


def test_run_is_refused_with_a_line_for_each_region() -> None:
    lines, checks = list[str](), list[None]()
    answers = Answers(eu=CorpusAnswer("it is empty"), us=CorpusAnswer("it is too small"))
    with pytest.raises(UserMistake) as refused:
        check_corpora(TWO, NODES, lines.append, lambda: checks.append(None), answers)
    assert str(refused.value).splitlines() == [
        "on node 10.0.0.3, where islands of region eu will be: it is empty",
        "on node 10.0.0.2, where islands of region us will be: it is too small",
    ]
    assert (lines, len(checks)) == ([], 1)


def test_corpus_that_could_not_be_checked_gets_a_line() -> None:
    lines, answers = list[str](), Answers(us=CorpusAnswer(unchecked="ActorDiedError"))
    check_corpora(TWO, NODES, lines.append, lambda: None, answers)
    assert lines == [
        "regions.us.data was not read on node 10.0.0.2, where islands of region us will be: "
        "ActorDiedError"
    ]


def test_run_without_regions_asks_no_node() -> None:
    answers = Answers()
    config = of_regions({"region": "eu"}, regions=())
    check_corpora(config, NODES, lambda _: None, lambda: None, answers)
    assert answers.asked == []
