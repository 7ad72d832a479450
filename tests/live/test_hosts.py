"""An island of two hosts beside one of a single host, with an evaluator of two hosts.

One host dies, another hangs, and the other islands continue.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from cluster.config.load import load
from cluster.config.rule import rule_of
from cluster.storage.folder import Folder
from cluster.storage.layout import load_layout
from cluster.storage.playback import Recording, read_tape
from cluster.storage.state_history import relive
from cluster.workers.evaluator import Evaluator
from coordinator.codec import Wire
from coordinator.fragments import take
from coordinator.protocol import Arrived, Event, Fragment, Lost, Merged
from coordinator.state import initial, validate
from tests.given import first_of
from tests.live.cli import Finished, Place, finish, islands, place, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]
GANG, SOLO = "gang-0", "solo-0"
BOTH = {GANG, SOLO}
EVERY = 4
CONFIG = """
[run]
steps = 1000000
[task]
preset = "byte-tiny"
[data]
window = 32
[sync]
every = 4
fragments = 2
moments = "mean"
[[islands]]
group = "gang"
hosts = 2
batch_size = 4
step_s = 0.2
[[islands]]
group = "solo"
batch_size = 4
step_s = 0.2
[monitor]
evaluate_every_s = 2.0
[monitor.evaluator]
hosts = 2
"""


def others(here: Place, kind: str = "HostActor") -> list[int]:
    """Return the processes of hosts other than the first, of an island or of the evaluator."""
    return [pid for pid, command in here.left_running().items() if f"ray::{kind}" in command]


def judged(here: Place) -> int:
    """Return the syncer step of the last evaluation; -1 if there is none."""
    return max((t for t, _ in here.last_status.get("heldout", ())), default=-1)


def another_look(here: Place, victim: int, before: int) -> bool:
    """Return whether the evaluator has evaluated again, with a new host in the victim's place."""
    return judged(here) > before and others(here, "EvaluatorHost") not in ([], [victim])


def life_of(here: Place, island: str) -> int:
    return {name: life for name, _, life, _ in islands(here.last_status)}.get(island, 0)


def takes_part(here: Place, life: int) -> bool:
    """Return whether the gang, in this life or a later one, is in each fragment's last merge.

    The solo island must also have a life.
    """
    fragments, there = here.last_status.get("fragments", ()), life_of(here, SOLO) > 0
    return (
        there and life_of(here, GANG) >= life and all(GANG in f["participants"] for f in fragments)
    )


@dataclass(frozen=True, slots=True)
class Played:
    """The files of a run in which hosts of the gang were killed or stopped."""

    finished: Finished
    run_dir: Path
    recording: Recording
    deaths: int
    """Hosts of the gang that were killed or stopped."""

    @property
    def events(self) -> list[tuple[float, Event]]:
        return [(row.now_s, row.event) for row in self.recording.events]


HARMS = (signal.SIGKILL, signal.SIGSTOP)
"""The signals that one host of the gang's first life gets, and of its second."""


@pytest.fixture(scope="module", params=first_of([HARMS[:1], HARMS]), ids=["kill", "kill-stop"])
def played(request: pytest.FixtureRequest) -> Generator[Played]:
    harms: tuple[signal.Signals, ...] = request.param
    with place() as here:
        config = here.folder / "hosts.toml"
        config.write_text(CONFIG)
        process = here.start("run", str(config), "--json", "--run-dir", str(here.run_dir))
        for life, harm in enumerate(harms, 1):
            until(lambda life=life: takes_part(here, life) or process.poll() is not None)
            assert process.poll() is None, process.communicate()[1]
            (victim,) = others(here)
            os.kill(victim, harm)
            until(lambda life=life: life_of(here, GANG) > life or process.poll() is not None)
            assert victim not in others(here), "it has ended with its island"
        until(lambda: takes_part(here, 1 + len(harms)) or process.poll() is not None)
        assert len(others(here)) == 1
        until(lambda: judged(here) > 0 or process.poll() is not None)
        (victim,) = others(here, "EvaluatorHost")
        os.kill(victim, signal.SIGKILL)
        before = judged(here)
        until(lambda: another_look(here, victim, before) or process.poll() is not None)
        (another,) = others(here, "EvaluatorHost")
        assert another != victim, "they began anew"
        assert here.run("stop", str(here.run_dir)).code == 0
        finished = finish(process)
        assert finished.code == 0, finished.err
        layout = load_layout(Folder(here.run_dir))
        recording = read_tape(Folder(here.run_dir), layout.fingerprint)
        yield Played(finished, here.run_dir, recording, deaths=len(harms))


def test_ledger_balances(played: Played) -> None:
    summary: dict[str, Any] = json.loads(played.finished.out)
    fates = ("merged", "discarded", "lost", "outstanding")
    assert summary["tokens_trained"] == sum(summary[f"tokens_{fate}"] for fate in fates)
    assert summary["tokens_outstanding"] == 0
    assert summary["heldout_loss"] < summary["initial_heldout_loss"] - 0.5


def test_evaluation_by_two_hosts_matches_the_saved_model(played: Played) -> None:
    judge = Evaluator(load(played.run_dir / "config.toml"))
    tensors = load_file(played.run_dir / "model.safetensors")
    leaves = [tensors[leaf.path] for leaf in judge.layout.leaves]
    flats = [take(judge.layout, Fragment(p), leaves) for p in range(2)]
    summary: dict[str, Any] = json.loads(played.finished.out)
    assert summary["heldout_loss"] == pytest.approx(judge.loss(flats), rel=1e-5)
    assert summary["initial_heldout_loss"] == pytest.approx(judge.initial_loss, rel=1e-5)


def test_every_state_of_the_syncer_is_valid(played: Played) -> None:
    layout = load_layout(Folder(played.run_dir))
    rule = rule_of(load(played.run_dir / "config.toml"), layout)
    for state in (initial(rule), *(heard.after for heard in relive(rule, played.recording.events))):
        validate(rule, state)


def test_gang_ends_as_a_whole_while_the_other_island_merges(played: Played) -> None:
    lost = [(s, e.life) for s, e in played.events if isinstance(e, Lost)]
    assert {life.island for _, life in lost} == {GANG}
    assert len(lost) >= played.deaths
    for lost_s, life in lost:
        back_s = next(
            (
                s
                for s, e in played.events
                if s > lost_s and isinstance(e, Arrived) and e.contribution.id.life.island == GANG
            ),
            None,
        )
        if back_s is not None:
            merged = [e for s, e in played.events if isinstance(e, Merged) and lost_s < s < back_s]
            assert len(merged) > 3, f"after {life}"


def test_gang_hands_in_whole_fragments_in_each_life(played: Played) -> None:
    layout = load_layout(Folder(played.run_dir))
    arrived = [e.contribution for _, e in played.events if isinstance(e, Arrived)]
    mine = [each for each in arrived if each.id.life.island == GANG]
    assert len({each.id.life for each in mine}) > played.deaths
    for each in mine:
        size = layout.sizes[each.id.fragment]
        moments = Wire.INT8.bytes_of(size)
        assert each.bytes == Wire.BF16.bytes_of(size) + moments, "moments beside each"
        assert each.moments_norm is not None
        assert not each.flaw


def logged(here: Place) -> str:
    """Return the logs of the run's processes."""
    files = here.folder.glob("ray/session_latest/logs/worker-*.err")
    return "\n".join(file.read_text(errors="replace") for file in files)


def both_merge(here: Place, after: int) -> bool:
    """Return whether both islands are in each fragment's last merge, well after step `after`."""
    fragments = here.last_status.get("fragments", ())
    return here.last_status.get("t", 0) > after + EVERY and all(
        set(fragment["participants"]) == BOTH for fragment in fragments
    )


def another_life(here: Place, lives: dict[str, int]) -> list[str]:
    """Return the islands that are in a later life than these."""
    return [island for island, life in lives.items() if life_of(here, island) > life]


@pytest.mark.long
def test_moments_go_from_a_gang_to_an_island_of_one_host_and_back() -> None:
    with place() as here:
        config = here.folder / "own.toml"
        config.write_text(CONFIG.replace('moments = "mean"\n', "").partition("[monitor")[0])
        process = here.start("run", str(config), "--json", "--run-dir", str(here.run_dir))
        until(lambda: both_merge(here, 0) or process.poll() is not None)
        killed: set[str] = set()
        for victim in others(here, "IslandActor"):
            before, said = {island: life_of(here, island) for island in BOTH}, logged(here)
            os.kill(victim, signal.SIGKILL)
            until(lambda before=before: another_life(here, before) or process.poll() is not None)
            t = here.last_status["t"]
            until(lambda t=t: both_merge(here, t) or process.poll() is not None)
            assert process.poll() is None, process.communicate()[1]
            (dead,) = another_life(here, before)
            (donor,) = before.keys() - {dead}
            line = f"moments of {donor}#"
            assert logged(here).count(line) == said.count(line) + 1, "its first steps are as good"
            killed.add(dead)
        assert killed == BOTH
        assert here.run("stop", str(here.run_dir)).code == 0
        assert finish(process).code == 0
