"""A run of the Python API before its start, and the parts that need no Ray."""

from __future__ import annotations

import os
import signal
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import archipelago as ap
from archipelago.child_process import child_environment
from archipelago.launching import draft_of
from archipelago.owned_run import new_dir
from archipelago.run_handle import metrics_rows
from archipelago.travelling_task import settings_of

SOUND: dict[str, Any] = {"task": {"preset": "byte-tiny"}, "islands": [{"group": "local"}]}


def test_wrong_configuration_is_refused_before_the_start() -> None:
    with pytest.raises(ap.UserMistake, match=r"sync\.every"):
        ap.Run(SOUND, {"sync.every": 0})
    with pytest.raises(ap.UserMistake, match="from_stored is an option of resume"):
        ap.Run(SOUND, from_stored=True)
    with pytest.raises(ap.UserMistake, match="from_step is an option of resume"):
        ap.Run(SOUND, from_step=4)


def test_bucket_is_refused_as_a_place_to_write_to() -> None:
    with pytest.raises(ap.UserMistake, match="run_dir: s3://bucket/run is not on this machine"):
        ap.Run(SOUND, run_dir="s3://bucket/run")
    with pytest.raises(ap.UserMistake, match="run_dir: s3://bucket/run is not on this machine"):
        ap.run(SOUND, run_dir="s3://bucket/run")
    with pytest.raises(ap.UserMistake, match="save: s3://bucket/model is not on this machine"):
        ap.Run(SOUND).save("s3://bucket/model")


def test_state_that_was_not_kept_is_refused_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    run = ap.Run(SOUND, run_dir=tmp_path, resume=True, from_step=4)
    with pytest.raises(ap.UserMistake, match=r"keeps no state of t 4; none is kept"):
        run.start()


def test_methods_ask_for_a_start() -> None:
    run = ap.Run(SOUND)
    assert (run.live, run.run_dir) == (False, None)
    assert run.callback_counts == {"dropped": 0, "failed": 0}
    for method in (run.status, run.wait, run.stop, run.metrics, run.result, run.output):
        with pytest.raises(ap.UserMistake, match=r"call start\(\) first"):
            method()
    with run:  # nothing was started, so there is nothing to wait for
        pass


def test_scale_names_a_group() -> None:
    with pytest.raises(ap.UserMistake, match="name a group"):
        ap.Run(SOUND).scale()


@pytest.mark.parametrize("count", [-1, True, 1.5, "3", None])
def test_number_of_islands_is_a_whole_number_of_at_least_zero(count: Any) -> None:
    with pytest.raises(ap.UserMistake, match=r"scale: local = .* a whole number of islands"):
        ap.Run(SOUND).scale(local=count)


def test_overrides_take_paths_and_numbers_of_numpy_and_refuse_none(tmp_path: Path) -> None:
    values = {
        "run.dir": tmp_path,
        "run.steps": np.int64(7),
        "optimizer.learning_rate": np.float32(0.5),
        "optimizer.weight_decay": np.float64(0.25),
        "sync.outer": {"momentum": np.float64(0.5)},
    }
    draft, _ = draft_of(SOUND, values, None)
    config = draft.accepted()
    assert (config.run.dir, config.run.steps) == (str(tmp_path), 7)
    assert (config.optimizer.learning_rate, config.optimizer.weight_decay) == (0.5, 0.25)
    assert config.sync.outer.momentum == 0.5
    with pytest.raises(ap.UserMistake, match=r"run\.name = None: give a value of TOML"):
        ap.Run(SOUND, {"run.name": None})


def test_directory_in_use_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ap.UserMistake, match="is not empty"):
        ap.Run(SOUND, run_dir=tmp_path).start()


def test_runs_of_one_second_have_directories_of_their_own(tmp_path: Path) -> None:
    config = ap.parse_config({**SOUND, "run": {"dir": str(tmp_path)}})
    now = datetime(2026, 4, 5, 6, 7, 8, tzinfo=UTC)
    made = [new_dir(config, Path("mine.toml"), None, now) for _ in range(3)]
    first = tmp_path / "mine-20260405-060708"
    assert made == [first, Path(f"{first}-2"), Path(f"{first}-3")]
    assert all(each.is_dir() for each in made)


def test_run_folder_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to(tmp_path / "away" / "further")
    config = ap.parse_config({**SOUND, "run": {"dir": str(tmp_path / "runs")}})
    with pytest.raises(ap.UserMistake, match="runs"):
        new_dir(config, Path("mine.toml"), None, datetime.now(UTC))


def test_rows_of_metrics_are_flat_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert [*metrics_rows(path)] == []
    path.write_text('{"t": 1, "figures": {"quorum": 2}, "islands": [{"island": "a"}]}\n{"t": ')
    assert [*metrics_rows(path)] == [{"t": 1, "figures.quorum": 2, "islands": [{"island": "a"}]}]


def test_damaged_rows_of_metrics_are_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"t": 1}\n{"t": 2, "fi\n[3]\n{"t": 4}\n')
    assert [*metrics_rows(path)] == [{"t": 1}, {"t": 4}]
    assert [each.getMessage() for each in caplog.records] == [
        f"{path}: line {number} is damaged, and is left out" for number in (2, 3)
    ]


def test_child_imports_what_this_process_imports(tmp_path: Path) -> None:
    sys.path.insert(0, str(tmp_path))
    try:
        environment = child_environment()
    finally:
        sys.path.remove(str(tmp_path))
    paths = environment["PYTHONPATH"].split(os.pathsep)
    assert paths[0] == str(tmp_path)
    assert not [path for path in paths if path.endswith("site-packages")]
    assert environment["JAX_PLATFORMS"] == os.environ.get("JAX_PLATFORMS", "cpu")


@pytest.mark.parametrize("kind", ["folder of the environment", "archive"])
def test_child_imports_from_everywhere_but_the_libraries(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "archive":
        place = tmp_path / "modules.zip"
        place.touch()
    else:  # as in a container whose /usr/src/app is below the prefix /usr
        place = Path(sys.prefix).resolve() / "bin"
    monkeypatch.syspath_prepend(str(place))
    assert child_environment()["PYTHONPATH"].split(os.pathsep)[0] == str(place)


def test_connected_run_is_found_from_another_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "runs" / "first"
    run_dir.mkdir(parents=True)
    (run_dir / "config.toml").touch()
    (run_dir / "metrics.jsonl").write_text('{"t": 1}\n')
    monkeypatch.chdir(tmp_path)
    run = ap.connect("first")
    monkeypatch.chdir("/")
    assert (run.run_dir, len(run.metrics())) == (run_dir, 1)


def test_refusal_of_a_task_comes_from_the_constructor() -> None:
    def unpicklable(data: ap.DataSpec) -> ap.Task:
        return stream_of(data)

    stream_of: Any = (each for each in ())
    with pytest.raises(
        ap.UserMistake,
        match=r"variable stream_of \(generator\) cannot be pickled: cannot pickle 'generator'",
    ):
        ap.Run(SOUND, task=unpicklable)
    with pytest.raises(ap.UserMistake, match="generator"):
        settings_of(unpicklable)


def test_interrupt_while_a_block_waits_stops_the_run_and_waits_for_its_end(tmp_path: Path) -> None:
    run = ap.Run(SOUND, run_dir=tmp_path / "run")
    interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), run:  # noqa: PT012
        run.start()
        interrupt.start()
    assert not run.live
    with pytest.raises(ap.RunFailed, match="it was stopped before it began"):
        run.result()
