"""The page of extension points: its keys exist, and each example passes the checks of a run."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import archipelago
from archipelago.lab.training.supported import refused
from cluster.config.load import parse
from cluster.fleet.tracking import check_trackers
from cluster.shard.build import outer_of
from cluster.shard.own_code import own_problems
from cluster.workers.assembly import layout_for, optimizer_problems, task_of
from islands.stream_checks import stream_problems

ROOT = Path(__file__).resolve().parents[1]


def points() -> list[Any]:
    """Return the table from which `.ci/reference` writes the page."""
    name = "extension_points_of_ci"
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / "extension_points.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [*module.POINTS]


POINTS = {each.title: each for each in points()}


@pytest.mark.parametrize("title", POINTS)
def test_example_passes_the_checks_of_a_run(title: str) -> None:
    point = POINTS[title]
    file, name = point.example.split(":")
    module = f"archipelago.examples.{file.removesuffix('.py')}"
    assert callable(getattr(importlib.import_module(module), name))
    assert point.protocol is None or point.protocol in archipelago.__all__
    text = point.toml.replace(f'"{file.removesuffix(".py")}:', f'"{module}:')
    assert f"{module}:{name}" in text or (title == "Data source" and f"{module}:" in text)
    tables = {"task": {"preset": "byte-tiny"}, "islands": [{"count": 2, "batch_size": 4}]}
    config = parse(tables | tomllib.loads(text), origin=title)
    for key in point.keys:
        table: Any = config
        for part in key.split("."):
            table = getattr(table, part)
    task = task_of(config)
    layout = layout_for(config, task)
    assert own_problems(config, layout) == []
    assert check_trackers(config) == []
    assert optimizer_problems(config, task) == []
    assert outer_of(config) is not None
    if "task.target" in point.keys:
        stream, heldout = task.stream(4), task.heldout(4)[0]
        assert stream_problems(task, stream, 4, config.data.lease_windows, heldout) == []


def test_each_own_key_of_the_schema_is_on_the_page() -> None:
    """A key that takes module:attribute is an extension point."""
    page = (ROOT / "docs" / "reference" / "extension-points.md").read_text(encoding="utf-8")
    keys = {
        "task.target", "optimizer.target", "optimizer.schedule", "sync.outer.target", "sync.merge",
        "sync.wire_up", "sync.wire_down", "sync.fragmenting", "sync.gate",
        "monitor.track",
    }  # fmt: skip
    assert {key for key in keys if f"`{key}`" not in page} == set()
    named = {key for point in POINTS.values() for key in point.keys}
    assert keys <= named


def test_page_names_the_commands_that_call_each_point() -> None:
    """A replay takes refusals from the log; only a run has trackers or a loop of the user's own."""
    page = (ROOT / "docs" / "reference" / "extension-points.md").read_text(encoding="utf-8")
    rows = {title: re.findall(rf"^\| \[{title}\].*$", page, re.M) for title in POINTS}
    for title, (row,) in rows.items():
        found = {name for name in ("run", "study", "replay") if f"`{name}`" in row}
        wanted = {"run"} if title == "Tracker" else {"run", "study"}
        wanted |= {"replay"} if title in ("Merge rule", "Codec", "Outer optimizer") else set()
        assert found == wanted, title
    assert "`task.loop`) works in a run only" in page
    looping = {"task": {"preset": "byte-tiny", "loop": "a_loop:train"}, "islands": [{}]}
    assert refused(parse(looping))[0].startswith("task.loop: virtual time has no loop")
