"""Three small trainings in virtual time, with four islands that take turns on the one device.

Data-parallel is compared with islands that merge each fragment every 8 and every 24 steps, with
equal optimizer, seed and data. Each arm runs in a process of its own, all three at the same time.
An arm first measures the time of a step, and then receives the number of steps to train.
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
from archipelago.lab.training.world import TrainingWorld
from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.config.values import Mode
from cluster.workers.evaluator import Evaluator
from coordinator.errors import UserMistake
from coordinator.fragments import Flat
from islands.sources import STDLIB

ISLANDS = 4
"""The number of islands."""
LOOKS = 10
"""The approximate number of evaluations in a training."""
TEXT = "study-text"
FILES, LINES = 16, 20_000
"""The number of generated text files, and the lines in each."""


@dataclass(frozen=True, slots=True)
class StudySize:
    """The size of the study."""

    options: Mapping[str, Any]
    """Options of the model, besides the preset's own."""
    fragments: int
    """The number of fragments in all arms, P."""
    batch_size: int
    """Windows in a step of one island."""
    window: int
    """Tokens in a window."""
    rate: float
    """The learning rate of the inner optimizer."""
    trial_steps: int
    """Steps of the trial that measures the time of a step; a multiple of every H."""
    kind: str
    """The kind of the inner optimizer."""
    source: str
    """A data source; "generated" means lines of sums."""
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
    """Return the configuration of an arm; only H and the mode differ between arms."""
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
    """Write lines of sums into some files, unless they exist, and return their folder."""
    text = folder / TEXT
    for number in range(FILES):
        path = text / f"{number}.txt"
        if not path.exists():
            text.mkdir(parents=True, exist_ok=True)
            lines = (f"{number} times {i} is {number * i}, and so on\n" for i in range(LINES))
            temporary = path.with_name(f".{number}.{time.monotonic_ns()}")
            temporary.write_text("".join(lines))
            temporary.replace(path)
    return text


class TimedCurve(LossCurve):
    """A loss curve that passes each evaluation on as it comes."""

    def __init__(self, config: Config, every: int, tell: Callable[[list[Any]], None]) -> None:
        """Evaluate every `every` steps; `tell` receives all evaluations so far."""
        super().__init__(Evaluator(config), every)
        self._tell = tell

    def look(self, t: int, time_s: float, tokens: int, flats: Sequence[Flat]) -> None:
        """Evaluate the model, and pass the result on."""
        super().look(t, time_s, tokens, flats)
        self._tell([{"t": each.t, "heldout_loss": each.heldout_loss} for each in self.looks])


def train_arm(
    plan: StudySize,
    arm: str,
    folder: Path,
    tell: Callable[[dict[str, object]], None],
    steps_for: Callable[[], int],
) -> None:
    """Train one arm, and pass figures to `tell` as they come.

    `steps_for` is called once, after the trial, and returns the number of steps of all arms. If the
    source of the data cannot be read, the arm is trained on generated text.
    """
    try:
        trial = config_of(plan, arm, plan.trial_steps, folder)
        first_s, _ = _trained(trial, 0, _ignore_looks)
    except UserMistake as error:  # for example, a Python without its sources
        tell({"source_refused": str(error)})
        plan = replace(plan, source="generated")
        trial = config_of(plan, arm, plan.trial_steps, folder)
        first_s, _ = _trained(trial, 0, _ignore_looks)
    again_s, figures = _trained(trial, 0, _ignore_looks)
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
    """Train to the end; return the seconds without evaluations, and the figures."""
    began_s = time.perf_counter()
    curve = TimedCurve(config, every, tell)
    if config.run.mode is Mode.DATA_PARALLEL:
        learned = single.train(config, Timing(), curve)
    else:
        learned = TrainingWorld(config, Timing(), curve).run()
    judged_s = curve.evaluator.judged.spent_s
    return time.perf_counter() - began_s - judged_s, learned.figures


def _ignore_looks(looks: list[Any]) -> None:
    """Ignore the evaluations of a trial."""
