"""Islands and an evaluator that raise errors, on real Ray, do not affect the others."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from cluster.config.load import load
from cluster.config.rule import rule_of
from cluster.storage.folder import Folder
from cluster.storage.layout import load_layout
from cluster.storage.playback import read_tape
from cluster.storage.state_history import relive
from coordinator.protocol import Lost
from tests.live.cli import TINY, Place, finish, place, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

RAISING_TASK = '''
"""Raises in each call of an island once, and in one look of the evaluator: FOLDER has a file for
each time."""
import os
from pathlib import Path

import islands.exchange
from cluster.workers.evaluator import Evaluator
from coordinator.errors import CorruptPayload
from islands.learner import Learner
from islands.task import load_task

FOLDER = Path(__file__).parent / "raised"


RAISED = []


def once(what, after=None):
    """True the first time, once `after` has happened, in a process that has not raised before."""
    if RAISED or (after is not None and not (FOLDER / after).exists()):
        return False
    try:
        os.close(os.open(FOLDER / what, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    RAISED.append(what)
    return True


class Device(Exception):
    """Of a kind that the shard could not even build again from what is sent."""

    def __init__(self, number, words):
        super().__init__(f"device {number}: {words}")


def task(data):
    hand_in, offer, moments = Learner.hand_in, Learner.offer, Learner.moments
    decode, sample = islands.exchange.decoded_of, Evaluator.sample
    loss = Evaluator.loss
    mine = []

    def raising_hand_in(self, life, fragment, known):
        mine[:] = [life.island]
        handed = hand_in(self, life, fragment, known)
        if life.island == "local-1" and handed is not None and once("hand_in"):
            raise Device(3, "INTERNAL: CUDA_ERROR_ECC_UNCORRECTABLE")
        if life.island == "local-2" and handed is not None and once("sent", after="decode"):
            return handed[0], None
        return handed

    def raising_offer(self, life, publication, payload):
        if life.island == "local-1" and once("offer", after="hand_in"):
            raise MemoryError("RESOURCE_EXHAUSTED: out of memory")
        return offer(self, life, publication, payload)

    def raising_moments(self, life):
        if life.island == "local-0" and once("moments"):
            raise StopIteration("no more moments")
        return moments(self, life)

    def raising_decode(wire, payload, size):
        if mine == ["local-2"] and once("decode"):
            raise CorruptPayload("these bytes are no fragment")
        return decode(wire, payload, size)

    def raising_sample(self, flats):
        if once("judge"):
            raise RuntimeError("this loss has a kernel for GPUs only")
        return sample(self, flats)

    def raising_loss(self, flats, *windows):
        if not windows and (FOLDER / "nearly over").exists():
            raise MemoryError("512 windows")
        return loss(self, flats, *windows)

    Learner.hand_in, Learner.offer, Learner.moments = (
        raising_hand_in, raising_offer, raising_moments
    )
    islands.exchange.decoded_of = raising_decode
    Evaluator.sample = raising_sample
    Evaluator.loss = raising_loss
    return load_task("byte-tiny", None, {}, data)
'''
ALL = {"hand_in", "offer", "moments", "decode", "sent", "judge"}
WHYS = {
    "local-0": ["StopIteration in moments: no more moments"],
    "local-1": [
        "Device in hand_in: device 3: INTERNAL: CUDA_ERROR_ECC_UNCORRECTABLE",
        "MemoryError in offer: RESOURCE_EXHAUSTED: out of memory",
    ],
    "local-2": [
        "CorruptPayload in offer: these bytes are no fragment",
        "None (NoneType) instead of a payload",
    ],
}


def looks(here: Place) -> Sequence[Mapping[str, Any]]:
    """Return the statuses that the run has written."""
    return [*map(json.loads, (here.run_dir / "metrics.jsonl").read_text().splitlines())]


def whys(statuses: Sequence[Mapping[str, Any]], island: str, state: str) -> set[str]:
    """Return the reasons for this state of the island in all statuses."""
    islands = [each for status in statuses for each in status["islands"]]
    return {e["why"] for e in islands if (e["island"], e["state"]) == (island, state)}


def logged(here: Place) -> str:
    """Return the logs of the run's processes."""
    files = here.folder.glob("ray/session_*/logs/worker-*.err")
    return "\n".join(file.read_text(errors="replace") for file in files if file.is_file())


def all_back(here: Place, raised: Path) -> bool:
    """Return whether all errors were raised and every island contributes again."""
    status = here.last_status
    if {file.name for file in raised.iterdir()} != ALL or status["alive"] != len(WHYS):
        return False
    last = [set(fragment["participants"]) for fragment in status["fragments"]]
    return set.union(*last) == {*WHYS} and len(status["heldout"]) > 0


@pytest.mark.long
def test_errors_of_an_island_or_the_evaluator_do_not_end_the_run() -> None:
    with place() as here:
        (raised := here.folder / "raised").mkdir()
        (here.folder / "raising.py").write_text(RAISING_TASK)
        config = here.folder / "raising.toml"
        config.write_text(
            TINY.read_text().replace('preset = "byte-tiny"', 'target = "raising:task"')
        )
        process = here.start(
            "run", str(config), "--json", "--run-dir", str(here.run_dir),
            "--set", "run.steps=1000000", "--set", "islands.0.count=3",
            "--set", "islands.0.speed=0.3", "--set", "monitor.refresh_s=0.1",
            "--set", "monitor.evaluate_every_s=1",
        )  # fmt: skip
        until(lambda: process.poll() is not None or all_back(here, raised))
        assert process.poll() is None, process.communicate()
        status = here.run("status", str(here.run_dir), "--json")
        (raised / "nearly over").touch()
        assert here.run("stop", str(here.run_dir)).code == 0
        finished = finish(process)
        assert finished.code == 0, finished.err
        assert finished.json == json.loads((here.run_dir / "summary.json").read_text())
        assert (here.run_dir / "model.safetensors").exists()
        assert finished.json["heldout_loss"] is None
        assert finished.json["initial_heldout_loss"] == pytest.approx(5.545, rel=0.01)
        assert "archipelago: there is no heldout_loss: its evaluation raised" in finished.err

        assert status.json["failures"] == {"hand_in": 1, "offer": 2, "moments": 1, "sent": 1}
        assert finished.json["failures"] == status.json["failures"]
        assert status.json["unjudged"] == {"raised": 1}
        seen, log = looks(here), logged(here)
        for island, expected in WHYS.items():
            for why in expected:
                # If its next process joins first, the reason follows "its process is another one".
                said = [each for each in whys(seen, island, "lost") if why in each]
                assert said, whys(seen, island, "lost")
                if "None (NoneType)" not in why:  # which the syncer reports
                    named = r" \(\S+\.py:\d+\); traceback in (tracebacks/\S+)"
                    (name,) = {each[1] for text in said if (each := re.search(named, text))}
                    assert why.split()[0] in (here.run_dir / name).read_text()
                lost = [x for x in finished.err.splitlines() if f"island {island} is lost: " in x]
                assert any(why in each for each in lost), lost
        for line in ("in raising_hand_in", "in raising_offer", "in raising_moments",
                     "in raising_decode", "in raising_sample"):  # fmt: skip
            assert line in log, "the traceback"

        layout = load_layout(Folder(here.run_dir))
        rule = rule_of(load(here.run_dir / "config.toml"), layout)
        rows = read_tape(Folder(here.run_dir), layout.fingerprint).events
        told = [*relive(rule, rows)]
        lost = {e.event.why: e for e in told if isinstance(e.event, Lost)}
        for why in chain(*WHYS.values()):
            merges = next(each for said, each in lost.items() if why in said).after.merges
            assert any(e.after.merges > merges for e in told), "the others go on"
        gaps = [seen[i + 1]["merges"] - seen[i]["merges"] for i in range(len(seen) - 1)]
        assert sum(gap > 0 for gap in gaps) > 20
