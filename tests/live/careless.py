"""A task that shows samples of its data in every way, and what shows that it has done so."""

from __future__ import annotations

from pathlib import Path

from tests.live.cli import Place

CARELESS_TASK = '''
"""Shows samples of its data in every way that a program has: FOLDER has a file for each error."""
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from cluster.workers.border import Border
from islands.learner import Learner
from islands.task import load_task

FOLDER = Path(__file__).parent / "raised"
if (FOLDER / "leak").exists():
    Border._keeps_errors = property(lambda _: False)  # after the output has been redirected
SAMPLE = []
STEP_FAILED = (FOLDER / "step").exists()  # in an earlier process, which reports one error only


def once(what):
    try:
        os.close(os.open(FOLDER / what, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Stream:
    def __init__(self, stream):
        self._stream, self._count = stream, 0

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def next(self):
        batch = self._stream.next()
        text = bytes(np.asarray(batch, np.uint8).ravel()).decode("latin-1")
        if "canary" not in text:
            return batch
        self._count += 1
        SAMPLE[:] = [text]
        if self._count == 2:
            print("printed", text, flush=True)
            print("printed", text, file=sys.__stderr__, flush=True)
            logging.error("logged %s", text)
            os.write(1, f"written {text}\\n".encode())
            os.write(2, f"written {text}\\n".encode())
            os.system("echo " + text.split()[1])
        if self._count == 4 and once("step"):
            raise ValueError(f"cannot parse {text!r}")
        return batch


def task(data):
    hand_in = Learner.hand_in

    def raising_hand_in(self, life, fragment, known):
        handed = hand_in(self, life, fragment, known)
        if SAMPLE and STEP_FAILED and handed is not None and once("hand_in"):
            raise RuntimeError(f"cannot hand in {SAMPLE[0]}")
        return handed

    Learner.hand_in = raising_hand_in
    made = load_task("byte-tiny", None, {}, data)

    def heldout(size):
        batches = made.heldout(size)
        text = bytes(np.asarray(batches[0], np.uint8).ravel()).decode("latin-1")
        if size == 16 and "canary" in text and once("heldout"):  # a batch of the evaluator
            print("judged", text, flush=True)
            raise ValueError(f"cannot judge {text!r}")
        return batches

    return replace(
        made, stream=lambda batch_size: Stream(made.stream(batch_size)), heldout=heldout
    )
'''


def back(here: Place, raised: Path) -> bool:
    """Return whether all errors were raised, the island is back, and its region was evaluated."""
    if not {"step", "hand_in", "heldout"} <= {file.name for file in raised.iterdir()}:
        return False
    if here.last_status.get("heldout_by_region", {}).get("eu") is None:
        return False
    eu = [each for each in here.last_status["islands"] if each["island"] == "eu-0"]
    return bool(eu) and eu[0]["state"] == "live" and eu[0]["life"] >= 2
