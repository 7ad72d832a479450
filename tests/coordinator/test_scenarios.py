"""The rules reproduce each story in scenarios/ character for character."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.coordinator.scenarios import Story, retold

STORIES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=[path.stem for path in STORIES])
def test_rules_answer_as_the_scenario_expects(path: Path, update_scenarios: bool) -> None:
    written = path.read_text(encoding="utf-8")
    told = retold(written)
    if update_scenarios:
        path.write_text(told, encoding="utf-8")
        written = told
    assert told == written


@pytest.mark.parametrize("path", STORIES, ids=[path.stem for path in STORIES])
def test_story_begins_with_a_comment(path: Path) -> None:
    first, *_ = path.read_text(encoding="utf-8").splitlines()
    assert first.startswith("# ")


def test_there_are_at_least_25_stories() -> None:
    assert len(STORIES) >= 25


def test_unknown_event_is_refused() -> None:
    with pytest.raises(ValueError, match=r"what is dance a\?"):
        list(Story({}).happens("0 dance a"))
