"""Pictures are drawn for light and dark pages, and are the same for the same seed."""

from __future__ import annotations

import builtins
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from archipelago.cli.planning import PAPERS
from archipelago.lab.planner import pictures
from coordinator.errors import UserMistake


@pytest.mark.long
def test_draws_all_pictures_for_light_and_dark_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "FAILURES", 300)
    monkeypatch.setattr(pictures, "MEETING_S", 500.0)
    made = pictures.draw_all(tmp_path / "first", PAPERS, 0)
    assert [path.name for path in made] == [
        f"{name}-{mode}.svg"
        for name in ("goodput", "bandwidth", "failure", "plan")
        for mode in ("light", "dark")
    ]
    for path in made:
        words = "".join(ET.parse(path).getroot().itertext())
        assert ("decoupled" in words) or ("learners" in words), path
    light, dark = (path.read_text() for path in made[:2])
    assert pictures.INK["light"] in light
    assert pictures.INK["light"] not in dark
    again = pictures.draw_all(tmp_path / "second", PAPERS, 0)
    assert [path.read_bytes() for path in made] == [path.read_bytes() for path in again]


def test_without_matplotlib_the_error_tells_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return known(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr(pictures, "FAILURES", 50)
    monkeypatch.setattr(pictures, "MEETING_S", 100.0)
    with pytest.raises(UserMistake, match="pip install matplotlib"):
        pictures.draw_all(tmp_path, PAPERS, 0)
