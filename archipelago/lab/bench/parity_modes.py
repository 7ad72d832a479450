"""The benchmark `archipelago bench parity --lock-step`: all modes, virtual time, equal tokens."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from archipelago.lab.bench import baseline
from archipelago.lab.bench.stats import DEMO_ISLANDS
from archipelago.lab.study import training_jobs as work
from archipelago.lab.study.cells import Cell, CellFiles, CellResult
from archipelago.lab.study.grid import StudyRow
from archipelago.lab.study.paired_statistics import CONFIDENCE, METHOD, gaps_percent, mean
from archipelago.lab.study.plan import planned
from cluster.config.values import Mode
from coordinator.errors import RunFailed

ISLANDS = (Mode.DECOUPLED, Mode.DILOCO, Mode.STREAMING)
"""The modes that are compared with data-parallel training, Decoupled DiLoCo first."""


def compared(
    *,
    preset: str,
    steps: int,
    seeds: int,
    overrides: Sequence[str],
    say: Callable[[str], None],
) -> dict[str, object]:
    """Return the held-out loss of every mode, and its gap to that of data-parallel training.

    For each seed the islands of each mode train for `steps` syncer steps. Data-parallel trains for
    as many steps of their summed batch as the decoupled islands trained tokens, at the rate and
    momentum of its own sweep (`archipelago.lab.bench.baseline`). The figures are means over seeds,
    with intervals of paired differences.
    """
    modes = {mode.value: {"run.mode": mode.value} for mode in ISLANDS}
    rows = _rows(preset, steps, seeds, overrides, modes)
    with TemporaryDirectory(prefix="archipelago-parity-") as folder:
        files, made = CellFiles(Path(folder)), dict[str, CellResult]()

        def done(key: str, each: CellResult) -> None:
            made[key] = each
            if each.failed:
                raise RunFailed(f"{files.config_path(key).read_text()}\n{each.failed}")

        jobs = os.cpu_count() or 1
        work.make(files, {cell.key: cell for row in rows for cell in row.cells}, jobs, done)
        (decoupled_row,) = (row for row in rows if row.arm == Mode.DECOUPLED)
        rivals, tuned, setting = list[Cell](), True, baseline.RateAndMomentum(0, 0)
        for cell in decoupled_row.cells:
            best, swept = baseline.opponent(cell.config, baseline.read())
            batch = sum(group.count * group.batch_size for group in cell.config.islands)
            windows = made[cell.key].figure("tokens_trained") / cell.config.data.window
            tuned, setting = tuned and swept, baseline.setting_of(best)
            rival = {"run.mode": Mode.DATA_PARALLEL.value, "run.steps": round(windows / batch)}
            rival |= {f"optimizer.{name}": value for name, value in asdict(setting).items()}
            arm = {Mode.DATA_PARALLEL.value: rival}
            (row,) = _rows(preset, steps, [cell.seed], overrides, arm)
            rivals += row.cells
        if not tuned:
            say("no sweep of data-parallel was made for this: it has the islands' own rate")
        work.make(files, {cell.key: cell for cell in rivals}, jobs, done)
    rival_losses = [made[cell.key].figure("heldout_loss") for cell in rivals]
    result: dict[str, object] = {
        "steps": steps,
        "samples": seeds,
        "interval": METHOD,
        "coverage": CONFIDENCE,
        "baseline_tuned": tuned,
        "baseline_learning_rate": setting.learning_rate,
        "baseline_momentum": setting.momentum,
        **mean(rival_losses).as_json("data_parallel_loss"),
    }
    for row in rows:
        losses = [made[cell.key].figure("heldout_loss") for cell in row.cells]
        gaps = gaps_percent(losses, rival_losses)
        for cell, loss, gap in zip(row.cells, losses, gaps, strict=True):
            say(f"seed {cell.seed}: {row.arm} {loss:.4f}, {gap:+.2f} % over data-parallel")
        name = "gap_percent" if row.arm == Mode.DECOUPLED else f"{row.arm}_gap_percent"
        result |= mean(losses).as_json(f"{row.arm}_loss") | mean(gaps).as_json(name)
    return result | _more(decoupled_row, made)


def _rows(
    preset: str,
    steps: int,
    seeds: int | list[int],
    overrides: Sequence[str],
    arms: Mapping[str, Mapping[str, object]],
) -> Sequence[StudyRow]:
    """Return a row for each arm, with a cell for each seed; `arms` has the settings of each."""
    tables = {
        "study": {"seeds": seeds},
        "run": {"steps": steps},
        "task": {"preset": preset},
        "islands": [{"group": "local", "count": DEMO_ISLANDS, "resources": {"CPU": 0.4}}],
        "arms": [{"name": name, "set": dict(given)} for name, given in arms.items()],
    }
    return planned(tables, origin="bench", name="parity", overrides=overrides).rows


def _more(free: StudyRow, made: Mapping[str, CellResult]) -> dict[str, object]:
    """Return the bytes per token and the effective overlap of the decoupled islands."""
    names = ("up_bytes_per_token", "down_bytes_per_token", "effective_overlap")
    cells = [made[cell.key] for cell in free.cells]
    return {name: mean([each.figure(name) for each in cells]).value for name in names}
