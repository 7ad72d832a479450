"""Three small trainings in virtual time: four islands in turn on the one device.

Data-parallel beside islands that merge each fragment every 8 and every 24 steps, with the same
optimizer, seed and data. Each arm runs in a process of its own, all three at once. An arm first
finds out how long a step takes here, and trains as many steps as it is told then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from archipelago.lab.bench.accelerator_figures import ARMS, BASE
from archipelago.lab.training import data_parallel as single
from archipelago.lab.training.loss_curve import LossCurve
from archipelago.lab.training.timing import Timing
from archipelago.lab.training.world import VirtualWorld
from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.config.values import Mode
from cluster.workers.evaluator import Evaluator
from coordinator.errors import UserMistake
from coordinator.fragments import Flat
from islands.sources import STDLIB

ISLANDS = 4
LOOKS = 10
TEXT = "study-text"
FILES, LINES = 16, 20_000


@dataclass(frozen=True, slots=True)
class StudySize:
    """How large the study is."""

    options: Mapping[str, Any]
    """Of the model, beside the preset's own."""
    fragments: int
    """P, of all arms."""
    batch_size: int
    window: int
    rate: float
    trial_steps: int
    """Steps of the trial that finds out how long a step takes; a multiple of every H."""
    kind: str
    source: str
    """A data source; "generated": lines of sums."""
    heldout_percent: float = 5.0


FULL = StudySize(
    options={"width": 512, "layers": 16, "heads": 8, "hidden": 1376, "compute_dtype": "bfloat16"},
    fragments=8,
    batch_size=8,
    window=256,
    rate=8e-3,
    trial_steps=24,
    kind="muon",
    source=STDLIB,
)
QUICK = StudySize(
    options={"width": 16, "layers": 1, "heads": 1, "hidden": 32},
    fragments=4,
    batch_size=2,
    window=16,
    rate=6e-3,
    trial_steps=24,
    kind="adamw",
    source="generated",
)


def config_of(plan: StudySize, arm: str, steps: int, folder: Path) -> Config:
    """Return the configuration of an arm, of which nothing but H and the mode differs."""
    source = plan.source
    if source == "generated":
        source = str(generated(folder))
    tables: dict[str, Any] = {
        "run": {"steps": steps, "seed": 0},
        "task": {"preset": "byte-1m", "options": dict(plan.options)},
        "data": {
            "source": source,
            "window": plan.window,
            "heldout_percent": plan.heldout_percent,
        },
        "optimizer": {"kind": plan.kind, "learning_rate": plan.rate, "floor_fraction": 0.01},
        "sync": {
            "every": ARMS[arm],
            "fragments": plan.fragments,
            "overlap": 1,
            "quorum": ISLANDS,
            "wire_up": "int4",
            "wire_down": "int4",
            "outer": {"learning_rate": "auto", "momentum": 0.7},
        },
        "islands": [
            {
                "group": "local",
                "count": ISLANDS,
                "batch_size": plan.batch_size,
                "encode": "device",
            }
        ],
    }
    if arm == BASE:
        tables["run"]["mode"] = Mode.DATA_PARALLEL.value
        del tables["sync"], tables["islands"][0]["encode"]
    return parse(tables, origin="bench accelerator")


def generated(folder: Path) -> Path:
    """Write lines of sums into some files, unless they are there; return their folder."""
    text = folder / TEXT
    for number in range(FILES):
        path = text / f"{number}.txt"
        if not path.exists():
            text.mkdir(parents=True, exist_ok=True)
            lines = (f"{number} times {i} is {number * i}, and so on\n" for i in range(LINES))
            aside = path.with_name(f".{number}.{time.monotonic_ns()}")
            aside.write_text("".join(lines))
            aside.replace(path)
    return text


class TimedCurve(LossCurve):
    """A curve whose looks are told as they come."""

    def __init__(self, config: Config, every: int, tell: Callable[[list[Any]], None]) -> None:
        """`tell` hears all looks so far."""
        super().__init__(Evaluator(config), every)
        self._tell = tell

    def look(self, t: int, time_s: float, tokens: int, flats: Sequence[Flat]) -> None:
        """Judge the model, and tell."""
        super().look(t, time_s, tokens, flats)
        self._tell([{"t": each.t, "heldout_loss": each.heldout_loss} for each in self.looks])


def train_arm(
    plan: StudySize,
    arm: str,
    folder: Path,
    tell: Callable[[dict[str, object]], None],
    steps_for: Callable[[], int],
) -> None:
    """Train one arm; `tell` hears figures as they come.

    `steps_for`: asked once, after the trial, for the number of steps of all arms.
    """
    try:
        trial = config_of(plan, arm, plan.trial_steps, folder)
        first_s, _ = _trained(trial, 0, _nobody)
    except UserMistake as error:  # a Python without its sources, for one
        tell({"source_refused": str(error)})
        plan = replace(plan, source="generated")
        trial = config_of(plan, arm, plan.trial_steps, folder)
        first_s, _ = _trained(trial, 0, _nobody)
    again_s, figures = _trained(trial, 0, _nobody)
    s_per_step = again_s / plan.trial_steps
    compile_s = max(0.0, first_s - again_s)
    tell(
        {
            "source": plan.source,
            "s_per_step": s_per_step,
            "compile_s": compile_s,
            "initial_heldout_loss": figures["initial_heldout_loss"],
        }
    )
    steps = steps_for()
    config = config_of(plan, arm, steps, folder)
    every = max(1, steps // LOOKS)
    took_s, figures = _trained(config, every, lambda looks: tell({"curve": looks}))
    tell(
        {
            "steps": steps,
            "took_s": took_s,
            "heldout_loss": figures["heldout_loss"],
            "tokens_trained": figures["tokens_trained"],
            "merges": figures["merges"],
            "up_bytes_per_token": figures["up_bytes_per_token"],
        }
    )


def _trained(
    config: Config, every: int, tell: Callable[[list[Any]], None]
) -> tuple[float, Mapping[str, Any]]:
    """Train to the end; return the seconds that it took, without judging, and the figures."""
    began_s = time.perf_counter()
    curve = TimedCurve(config, every, tell)
    if config.run.mode is Mode.DATA_PARALLEL:
        learned = single.train(config, Timing(), curve)
    else:
        learned = VirtualWorld(config, Timing(), curve).run()
    judged_s = curve.evaluator.judged.spent_s
    return time.perf_counter() - began_s - judged_s, learned.figures


def _nobody(looks: list[Any]) -> None:
    """Hear nothing: a trial is not looked at."""
