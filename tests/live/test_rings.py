"""Data-parallel training over real Ray equals that in one process, despite deaths."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from cluster.config.load import load
from cluster.config.schema import Config
from cluster.workers.assembly import optimizer_of, task_of
from coordinator.protocol import Lease
from islands.inner import Inner
from tests.live.cli import TINY, finish, last_status, place, until
from tests.live.test_run import KEYS

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

STEPS = 50
FAULT = 'faults.plan=[{{at_step={},kind="{}",island="local-1"}}]'
SETTINGS = (
    "run.steps=50", "islands.local.count=3", "islands.local.step_s=0.1", "sync.wire_up=f32",
    "optimizer.kind=adamw", "optimizer.learning_rate=1e-3", "durability.snapshot_steps=10",
)  # fmt: skip


class Formed(NamedTuple):
    """A ring on the tape: its number of members, first step and first windows."""

    members: int
    step: int
    windows: int


def rings(run_dir: Path) -> list[Formed]:
    """Return all rings in the order in which they formed."""
    lines = (run_dir / "ring.jsonl").read_text().splitlines()
    effects = [effect for line in lines for effect in json.loads(line)[3]]
    return [
        Formed(len(each["members"]), each["held"]["step"], each["held"]["windows"])
        for each in effects
        if each["kind"] == "Form"
    ]


def alone(config: Config, formed: list[Formed]) -> list[np.ndarray]:
    """Train in one process on the same data, with the summed batch of each ring's members."""
    kept = [each for i, each in enumerate(formed) if all(later.step > each.step for later in
            formed[i + 1 :])]  # fmt: skip
    task, size = task_of(config), config.islands[0].batch_size
    inner = Inner(task, optimizer_of(config))
    state = inner.start(task.init(config.run.seed))
    ends = [*(later.step for _, later in pairwise(kept)), config.run.steps]
    for (members, first, windows), end in zip(kept, ends, strict=True):
        stream = task.stream(members * size)
        number, start = divmod(windows, config.data.lease_windows)
        stream.add(Lease(number, start))
        for step in range(first, end):
            while stream.remaining < members * size:
                number += 1
                stream.add(Lease(number))
            state, _ = inner.step(state, stream.next(), step)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state.params)]


def apart(run_dir: Path, wanted: list[np.ndarray]) -> float:
    """Return the largest difference, as a share of the largest value of its tensor."""
    found = load_file(run_dir / "model.safetensors")
    layout = json.loads((run_dir / "layout.json").read_text())["layout"]
    names = [leaf["path"] for leaf in layout["leaves"]]
    return max(
        float(np.max(np.abs(found[name] - leaf)) / np.max(np.abs(leaf)))
        for name, leaf in zip(names, wanted, strict=True)
    )


def command(mode: str, run_dir: Path, *more: str) -> list[str]:
    sets = [word for each in (f"run.mode={mode}", *SETTINGS, *more) for word in ("--set", each)]
    return ["run", str(TINY), *sets, "--run-dir", str(run_dir), "--json"]


def ran(mode: str, run_dir: Path, *more: str) -> dict[str, Any]:
    with place() as here:
        done = here.run(*command(mode, run_dir, *more))
        assert done.code == 0, done.err
        return json.loads(done.out)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("elastic-data-parallel", "kill"),
        pytest.param("elastic-data-parallel", "nan", marks=pytest.mark.long),
        pytest.param("data-parallel", "kill", marks=pytest.mark.long),
        pytest.param("data-parallel", "nan", marks=pytest.mark.long),
    ],
)
def test_ring_with_a_death_matches_one_process_with_the_live_members(
    mode: str, kind: str, tmp_path: Path
) -> None:
    """An elastic ring shrinks for a while, from the survivors' state; others use the snapshot.

    An island whose gradients are not finite dies, and no other island receives them.
    """
    elastic = mode.startswith("elastic")
    at_step = 6 if elastic else 18  # the others need a snapshot from before the fault
    slow = "islands.local.step_s=0.7"  # else the others finish before it is back
    more = ["faults.policy.first_delay_s=0.1"] if kind == "nan" else []
    summary = ran(mode, tmp_path / "run", FAULT.format(at_step, kind), slow, *more)
    assert summary.keys() == KEYS
    assert summary["faults"] == len(summary["recovery_s"]) == 1
    fates = ("merged", "discarded", "lost", "outstanding")
    assert summary["tokens_trained"] == sum(summary[f"tokens_{fate}"] for fate in fates)
    formed = rings(tmp_path / "run")
    print(formed, summary)
    assert [each.members for each in formed] == ([3, 2, 3] if elastic else [3, 3])
    assert formed[1].step >= at_step if elastic else formed[1].step in (10, 20, 30)
    assert summary["tokens_lost"] > 0
    config = load(tmp_path / "run" / "config.toml")
    assert apart(tmp_path / "run", alone(config, formed)) < TOLERANCE


@pytest.mark.long
def test_ring_matches_one_process_with_the_summed_batch(tmp_path: Path) -> None:
    summary = ran("data-parallel", tmp_path / "run")
    config, formed = load(tmp_path / "run" / "config.toml"), rings(tmp_path / "run")
    assert formed == [Formed(3, 0, 0)]
    assert summary["tokens_lost"] == 0
    assert (summary["merges"], summary["mean_participants"]) == (STEPS, 3.0)
    found = apart(tmp_path / "run", alone(config, formed))
    print(f"apart by {found:.1e}")
    assert found < TOLERANCE
    other = apart(tmp_path / "run", alone(config, [Formed(2, 0, 0)]))
    assert other > 100 * TOLERANCE, "with fewer it would be another model"


@pytest.mark.long
def test_ring_weighs_its_members_by_their_answer_tokens(tmp_path: Path) -> None:
    """Each member has one window, with none, few or many tokens of answers."""
    talks = [
        {
            "messages": [
                {"role": "user", "content": "How tall? " * (1 + number % 7)},
                {"role": "assistant", "content": "Three metres. " * (1 + number % 5)},
            ]
        }
        for number in range(400)
    ]
    file, tokens = tmp_path / "talks.jsonl", str(tmp_path / "tokens")
    file.write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    with place() as here:
        done = here.run("data", "tokenize", str(file), tokens, "--chat")
        assert done.code == 0, done.err
    ran("data-parallel", tmp_path / "run", f"data.source={tokens}", "islands.local.batch_size=1")
    config, formed = load(tmp_path / "run" / "config.toml"), rings(tmp_path / "run")
    assert formed == [Formed(3, 0, 0)]
    found = apart(tmp_path / "run", alone(config, formed))
    print(f"apart by {found:.1e}")
    assert found < TOLERANCE


@pytest.mark.long
def test_ring_killed_as_a_whole_continues_from_its_snapshot(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with place() as here:
        process = here.start(*command("data-parallel", run_dir))
        until(lambda: last_status(run_dir).get("t", 0) >= 12 or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        for number in here.left_running():
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        assert finish(process).code == -signal.SIGKILL
        done = here.run(*command("data-parallel", run_dir), "--resume")
        assert done.code == 0, done.err
        over = here.run(*command("data-parallel", run_dir), "--resume")
        assert over.code == 2
        assert "has ended" in over.err
    summary, config, formed = done.json, load(run_dir / "config.toml"), rings(run_dir)
    print(formed, summary)
    assert (formed[0], formed[-1].members) == (Formed(3, 0, 0), 3)
    assert formed[-1].step in (10, 20, 30, 40)
    assert summary["merges"] == STEPS
    assert summary["tokens_trained"] == summary["tokens_merged"] + summary["tokens_lost"]
    assert apart(run_dir, alone(config, formed)) < TOLERANCE


TOLERANCE = 2e-4
"""The f32 rounding error, 6e-8 of each number, grows with 50 steps of training."""


def test_diloco_merges_the_whole_model_of_all_islands(tmp_path: Path) -> None:
    settings = ("run.mode=diloco", "run.steps=40", "sync.every=10", "sync.wire_up=int4")
    with place() as here:
        sets = [word for each in settings for word in ("--set", each)]
        done = here.run("run", str(TINY), *sets, "--run-dir", str(tmp_path / "run"), "--json")
    assert done.code == 0, done.err
    assert done.json["merges"] == 4
    assert done.json["mean_participants"] == 2.0
    assert done.json["tokens_merged"] == done.json["tokens_trained"]
    assert done.json["heldout_loss"] < done.json["initial_heldout_loss"]
