"""Tests of the two copies of the layout: a run continues as long as one of them is whole."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.storage.folder import Folder
from cluster.storage.format import Damaged
from cluster.storage.layout import (
    COPY,
    LAYOUT,
    check_layout,
    has_layout,
    load_layout,
    mended_layout,
    same_layout,
    save_layout,
)
from coordinator.errors import UserMistake
from tests.cluster.played import LAYOUT as THE_LAYOUT

SEED = random.randrange(1 << 32)


def truncated(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: random.Random(SEED).randrange(len(content))])


def flipped(file: Path) -> None:
    """Change a digit of a number, so that the file is still JSON."""
    content = file.read_text()
    digits = [at for at, letter in enumerate(content) if letter in "0123456789abcdef"]
    at = random.Random(SEED).choice(digits)
    file.write_text(content[:at] + ("1" if content[at] != "1" else "2") + content[at + 1 :])


def of_another_kind(file: Path) -> None:
    file.write_text("[]")


HARMS = [truncated, flipped, of_another_kind, Path.unlink]


@pytest.mark.parametrize("name", [LAYOUT, COPY])
@pytest.mark.parametrize("harm", HARMS)
def test_either_copy_is_enough_and_mends_the_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, harm: Callable[[Path], None]
) -> None:
    depot = Folder(tmp_path)
    save_layout(depot, THE_LAYOUT)
    content = (tmp_path / name).read_bytes()
    harm(tmp_path / name)
    assert has_layout(depot), SEED
    assert same_layout(depot, THE_LAYOUT), SEED
    wrong = check_layout(depot)
    if (name, harm) == (COPY, Path.unlink):
        assert wrong == [], "a run of an older version has no copy"
    else:
        assert len(wrong) == 1, SEED
        assert wrong[0].startswith(f"{name} in {tmp_path} "), SEED
    with caplog.at_level(logging.WARNING):
        assert mended_layout(depot) == THE_LAYOUT
    assert f"{name} in {tmp_path} was damaged or missing, and is written again" in caplog.text
    assert (tmp_path / name).read_bytes() == content
    assert check_layout(depot) == []
    caplog.clear()
    assert load_layout(depot) == mended_layout(depot) == THE_LAYOUT
    assert caplog.text == ""


@pytest.mark.parametrize("harm", HARMS[:-1])
def test_error_names_both_files_if_both_are_damaged(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    depot = Folder(tmp_path)
    save_layout(depot, THE_LAYOUT)
    harm(tmp_path / LAYOUT)
    harm(tmp_path / COPY)
    for call in (load_layout, mended_layout, lambda depot: same_layout(depot, THE_LAYOUT)):
        with pytest.raises(Damaged, match=rf"^{LAYOUT} in .*; {COPY} in "):
            call(depot)
    assert [each.partition(" ")[0] for each in check_layout(depot)] == [LAYOUT, COPY]


def test_damaged_layout_of_a_run_without_a_copy_is_refused(tmp_path: Path) -> None:
    depot = Folder(tmp_path)
    with pytest.raises(UserMistake, match="not the directory of a run that was begun"):
        load_layout(depot)
    assert not has_layout(depot)
    save_layout(depot, THE_LAYOUT)
    (tmp_path / COPY).unlink()
    truncated(tmp_path / LAYOUT)
    with pytest.raises(Damaged, match=rf"^{LAYOUT} in .* cannot be read: [^;]*$"):
        load_layout(depot)


@pytest.mark.parametrize("name", [LAYOUT, COPY])
def test_storage_that_fails_is_no_damage(tmp_path: Path, name: str) -> None:
    """A disk that is away for a minute must not make the run read or write another file."""
    depot = Folder(tmp_path)
    save_layout(depot, THE_LAYOUT)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(IsADirectoryError):
        mended_layout(depot)
    if name == LAYOUT:
        with pytest.raises(IsADirectoryError):
            load_layout(depot)
    assert (tmp_path / name).is_dir()
