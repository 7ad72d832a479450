"""Pictures of the planner's results as SVG, each for light and for dark pages.

`picture` is for other modules that draw in the same style. matplotlib is an optional extra and is
imported on the first drawing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from archipelago.lab.planner import bandwidth, fit, objective, plan_choice, settings
from archipelago.lab.planner import published as paper
from archipelago.lab.planner.cluster_model import YEAR_S, Recovery
from archipelago.lab.planner.configurations import Configuration, Lockstep, meetings, play
from archipelago.lab.planner.learner_timeline import Course, elastic, rigid
from archipelago.lab.planner.trace import Trace
from cluster.config.machines import ClusterFile
from coordinator.errors import UserMistake

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = {"light": "#1f2328", "dark": "#e6edf3"}
"""The colours of text, by the mode of the page."""
FAINT = {"light": "#d0d7de", "dark": "#3d444d"}
COLOURS = ("#d55e00", "#e69f00", "#56b4e9", "#0072b2", "#009e73", "#cc79a7", "#999999", "#b8a800")
"""The Okabe-Ito palette, which any colour vision can distinguish, and two more colours."""
LOCKSTEP = Lockstep(24, 24, 2)
MEETING = ((Configuration.DILOCO, 8), (Configuration.STREAMING, 8))
"""The lock-step baselines, which have no row in the paper's table."""
FAILURES, MEETING_S = 6_000, 40_000.0
GBIT_S = np.logspace(-1, 4, 200)
"""The links on the x axis, in Gbit/s."""
LASTS_S, FAILS_S, STEP_S = 240.0, 60.5, 1.0
"""The timeline picture, in seconds: one slice of one of four learners fails at `FAILS_S`."""
TOGETHER_S = 1e-6
"""Bars with a smaller gap, in seconds, are drawn as one."""


def draw_all(folder: Path, cluster: ClusterFile, seed: int) -> list[Path]:
    """Draw each picture twice, for light and dark pages, and return the files.

    Errors: `UserMistake` if matplotlib is not installed.
    """
    fitted = fit.fit(seed, FAILURES).recovery
    curves = _curves(fitted, seed)
    simulator = objective.Simulator(cluster, seed, objective.QUICK)
    works = [w for s in settings.settings(cluster) if not (w := simulator.worth(s)).why]
    made: dict[str, Callable[[Figure], None]] = {
        "goodput": lambda figure: _goodput(figure, curves),
        "bandwidth": _bandwidth,
        "failure": lambda figure: _failure(figure, fitted),
        "plan": lambda figure: _plan(figure, cluster, works),
    }
    folder.mkdir(parents=True, exist_ok=True)
    found: list[Path] = []
    for name, draw in made.items():
        for mode in INK:
            path = folder / f"{name}-{mode}.svg"
            with picture(mode, path) as figure:
                draw(figure)
            found.append(path)
    return found


@contextmanager
def picture(mode: str, path: Path) -> Generator[Figure]:
    """Yield an empty figure in the colours of light or dark pages, and write it as SVG.

    `mode`: a key of `INK`. Errors: `UserMistake` if matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserMistake(
            "pictures need matplotlib, an optional extra: pip install matplotlib"
        ) from error
    colour, faint_colour = INK[mode], FAINT[mode]
    colours = dict.fromkeys(
        ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.titlecolor"), colour
    )
    style: dict[Any, Any] = {
        **colours,
        "axes.edgecolor": faint_colour,
        "grid.color": faint_colour,
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "legend.facecolor": "none",
        "legend.edgecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.linewidth": 0.5,
        "font.size": 9,
        "svg.fonttype": "none",
        "svg.hashsalt": "archipelago",
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        yield figure
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})


Curves = dict[tuple[Configuration, int], list[float]]


def _curves(recovery: Recovery, seed: int) -> Curves:
    """Return goodput in per cent at the paper's cluster sizes, by configuration and learners."""
    found: Curves = {row: [] for row in (*paper.TABLE_1, *MEETING)}
    for chips in paper.CHIPS:
        trace = fit.one_trace(seed + 1, chips, FAILURES, recovery, paper.SLICE_CHIPS, YEAR_S)
        short = trace.window(0.0, min(trace.lasts_s, MEETING_S))
        for row in found:
            played = short if row in MEETING else trace
            outcome = play(*row, played, recovery, STEP_S, LOCKSTEP)
            found[row].append(100 * outcome.goodput)
    return found


def _goodput(figure: Figure, curves: Curves) -> None:
    axes = figure.subplots()
    for (row, goodput), colour in zip(curves.items(), COLOURS, strict=True):
        configuration, learners = row
        label = configuration.value + (f", M = {learners}" if learners > 1 else "")
        line = "--" if row in MEETING else "-"
        axes.plot(paper.CHIPS, goodput, line, color=colour, label=label, linewidth=1.6)
        if row in paper.TABLE_1:
            axes.plot(paper.CHIPS, paper.TABLE_1[row], "o", color=colour, markersize=4)
    axes.set_xscale("log")
    axes.set_xticks(paper.CHIPS, [f"{chips / 1e6:g}M" for chips in paper.CHIPS])
    axes.minorticks_off()
    axes.set(xlabel="chips", ylabel="goodput, %", ylim=(0, 100))
    axes.set_title("Goodput against chips: lines are simulated, points are the paper's")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _bandwidth(figure: Figure) -> None:
    panels: list[Axes] = list(figure.subplots(1, len(bandwidth.PARAMETERS), sharey=True))
    step_s = bandwidth.STEPS_S[1]
    for axes, parameters in zip(panels, bandwidth.PARAMETERS, strict=True):
        for exchange, colour in zip(
            bandwidth.compared_exchanges(8, 24, 24, 2), COLOURS, strict=False
        ):
            busy = [
                100 * bandwidth.utilisation(exchange, parameters, step_s, float(g)) for g in GBIT_S
            ]
            label = f"{exchange.method}, {exchange.wire}"
            axes.plot(GBIT_S, busy, color=colour, label=label, linewidth=1.6)
        axes.set_xscale("log")
        axes.set(xlabel="Gbit/s of an island", title=f"{parameters / 1e9:g}B parameters")
    panels[0].set(ylabel="time computing, %", ylim=(0, 101))
    figure.suptitle(f"Steps of {step_s:g} s, M = 8, H = P = 24, τ = 2")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)


def _failure(figure: Figure, recovery: Recovery) -> None:
    """Draw four learners of four slices: the second one loses a slice, which comes back."""
    victim, learners, each = 1, 4, 4
    failures_s = np.array([FAILS_S])
    sound_since, slice_of = np.array([-math.inf]), np.array([victim * each])
    cluster_trace = Trace(
        learners * each, LASTS_S, failures_s, failures_s + recovery.return_s, sound_since, slice_of
    )
    parts = [
        elastic(cluster_trace.of_learner(m, learners), recovery, STEP_S) for m in range(learners)
    ]
    elastic_timeline = elastic(cluster_trace, recovery, STEP_S)
    rigid_timeline = rigid(cluster_trace, recovery.restart_s, STEP_S)
    spells = {
        "not-elastic": [list(zip(rigid_timeline.from_s, rigid_timeline.to_s, strict=True))]
        * learners,
        "elastic": [list(zip(elastic_timeline.from_s, elastic_timeline.to_s, strict=True))]
        * learners,
        "diloco, H = 24": _met(parts, Lockstep(24, 1, 0)),
        "streaming, τ = 2": _met(parts, LOCKSTEP),
        "decoupled": [list(zip(part.from_s, part.to_s, strict=True)) for part in parts],
    }
    panels: list[Axes] = list(figure.subplots(len(spells), 1, sharex=True))
    for axes, (name, rows) in zip(panels, spells.items(), strict=True):
        for m, row in enumerate(rows):
            bars = [(float(start), float(stop - start)) for start, stop in row]
            axes.broken_barh(bars, (m + 0.1, 0.8), color=COLOURS[4 if m != victim else 3])
        axes.axvline(FAILS_S, color=COLOURS[0], linewidth=1.2)
        axes.axvline(FAILS_S + recovery.return_s, color=COLOURS[0], linewidth=1.2, linestyle=":")
        axes.set(yticks=[], ylim=(learners, 0), xlim=(0, LASTS_S))
        axes.set_ylabel(name, rotation=0, horizontalalignment="right", verticalalignment="center")
        axes.grid(visible=False)
    panels[-1].set_xlabel("seconds; bars are computing")
    figure.suptitle("A slice of one of four learners fails (line) and is back (dots)")


def _met(parts: list[Course], lockstep: Lockstep) -> list[list[tuple[float, float]]]:
    """Return the intervals in which learners that wait for each other compute."""
    rows: list[list[tuple[float, float]]] = [[] for _ in parts]
    for held_s, reached_s in meetings(parts, STEP_S, lockstep):
        for row, part, start, stop in zip(rows, parts, held_s, reached_s, strict=True):
            for a, b in zip(part.from_s, part.from_s + part.useful_s, strict=True):
                if a < stop and start < b:
                    begins, ends = max(start, float(a)), min(stop, float(b))
                    if row and begins - row[-1][1] < TOGETHER_S:
                        begins = row.pop()[0]
                    row.append((begins, ends))
        if max(reached_s) >= LASTS_S or math.isinf(max(reached_s)):
            return rows
    raise AssertionError("meetings have no end")


def _plan(figure: Figure, cluster: ClusterFile, works: list[objective.Worth]) -> None:
    """Draw the objective for each number of learners, with the best setting of each."""
    best = plan_choice.chosen(works)
    least: dict[int, objective.Worth] = {}
    for worth in sorted(works, key=lambda w: -w.objective):
        least[worth.setting.total] = worth
    totals = sorted(least)
    axes = figure.subplots()
    values = [least[m].objective for m in totals]
    unit = "hours" if cluster.objective.minimise == "time" else "USD"
    axes.plot(totals, values, "o-", color=COLOURS[3], label=f"{unit} to the loss")
    axes.plot([best.setting.total], [best.objective], "D", color=COLOURS[0], label="chosen")
    axes.set_xscale("log", base=2)
    axes.set_xticks(totals, [f"{m}" for m in totals])
    axes.minorticks_off()
    axes.set(xlabel="learners, M", ylabel=f"{unit} to the loss")
    other = axes.twinx()
    goodput = [100 * least[m].goodput for m in totals]
    other.plot(totals, goodput, "--", color=COLOURS[4], label="goodput, %")
    other.set_ylabel("goodput, %")
    other.grid(visible=False)
    axes.set_title(
        f"{cluster.chips:,} chips: M = {best.setting.total}, H = {best.setting.every}, "
        f"{best.setting.wire}"
    )
    figure.legend(loc="outside lower center", ncols=3)
