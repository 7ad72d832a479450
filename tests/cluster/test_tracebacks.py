"""Tests of an island's exceptions: class, message and line are shown, the traceback is kept."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path

from ray.exceptions import RayTaskError
from rich.console import Console

from archipelago.cli.tables import summary_table
from cluster.failures import Reason, class_and_message, raised
from cluster.fleet.tracebacks import FOLDER, KEPT, Tracebacks, keep_traceback
from cluster.names import Seat
from tests.system_calls import SystemCalls


def broken() -> Exception:
    try:
        raise KeyError("f6")
    except KeyError as error:
        return error


def test_failure_names_the_exception_and_its_place() -> None:
    found = raised(Reason.TRAIN, broken()).why
    assert re.fullmatch(r"KeyError in train: 'f6' \(cluster/test_tracebacks.py:\d+\)", found), found
    assert class_and_message(broken()).startswith("KeyError: 'f6' (cluster/test_tracebacks.py:")
    assert class_and_message(OSError("full")) == "OSError: full", "it was never raised"


def test_exception_of_another_process_is_named_by_its_class() -> None:
    error = RayTaskError("f", "Traceback ...", ValueError("theirs"))
    assert raised(Reason.OFFER, error).why == "ValueError in offer: theirs"


def test_newest_tracebacks_of_each_seat_are_kept(tmp_path: Path) -> None:
    for number in range(1, KEPT + 4):
        assert keep_traceback(tmp_path, Seat("a"), f"broke {number}") == f"{FOLDER}/a-{number}.txt"
    assert keep_traceback(tmp_path, Seat("a-b"), "another seat") == f"{FOLDER}/a-b-1.txt"
    names = {path.name for path in (tmp_path / FOLDER).iterdir()}
    assert names == {"a-b-1.txt", *(f"a-{number}.txt" for number in range(4, KEPT + 4))}
    assert (tmp_path / FOLDER / f"a-{KEPT + 3}.txt").read_text() == f"broke {KEPT + 3}"


def test_unwritable_run_directory_costs_only_the_file(tmp_path: Path) -> None:
    assert keep_traceback(tmp_path / "gone", Seat("a"), "words") == ""


def test_run_directory_that_hangs_costs_only_the_files(tmp_path: Path) -> None:
    """The fleet answers on 16 threads: each traceback once held one of them for good."""
    tracebacks = Tracebacks(tmp_path, limit_s=0.05)
    with SystemCalls(tmp_path) as disk, ThreadPoolExecutor(16) as threads:
        disk.answers.clear()
        names = [*threads.map(lambda n: tracebacks.keep(Seat(f"eu-{n}"), "words"), range(40))]
        assert names == [""] * 40
        disk.answers.set()
        while not (name := tracebacks.keep(Seat("eu-0"), "later")):
            pass  # the call that was given up ends
    assert (tmp_path / name).read_text() == "later"


def test_summary_counts_exceptions_apart_from_faults() -> None:
    def shown(**more: object) -> str:
        console = Console(file=StringIO(), width=120)
        console.print(summary_table({"faults": 0, **more}))
        assert isinstance(console.file, StringIO)
        return " ".join(console.file.getvalue().split())

    assert "failures 3 2 in train, 1 in offer" in shown(failures={"train": 2, "offer": 1})
    assert "failures" not in shown(failures={})
    assert "failures" not in shown(), "of a run before there was the figure"
