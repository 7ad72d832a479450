"""A study as SVG: curves of the best point of each arm, and all gaps with their intervals.

matplotlib is an optional extra and is imported on the first drawing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archipelago.lab.study.result import Line, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#b8a800")
"""The Okabe-Ito palette, which any colour vision can distinguish, and two more colours."""
INCHES = (7.0, 4.2)
LINE_INCHES = 0.28
"""The height of each line of the gaps, in inches."""
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "archipelago",  # makes the file reproducible
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def drawn(result: Result, folder: Path) -> list[Path]:
    """Draw the curves and the gaps, and return the files.

    The list is empty without matplotlib (the extra `lab`).
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        return []
    files = list[Path]()
    with mpl.rc_context(SETTINGS):
        for name, lines, draw, height in (
            ("curves", [each for each in result.lines if each.best and each.curve], _curves, None),
            ("gaps", [each for each in result.lines if _has_gap(each)], _gaps, LINE_INCHES),
        ):
            if not lines:
                continue
            size = INCHES if height is None else (INCHES[0], 1.2 + height * len(lines))
            figure = Figure(figsize=size, layout="constrained")
            draw(figure.subplots(), lines)
            path = folder / f"{name}.svg"
            figure.savefig(path, format="svg", metadata={"Date": None})
            files.append(path)
    return files


def _has_gap(line: Line) -> bool:
    return line.gap is not None and math.isfinite(line.gap.value)


def _curves(axes: Axes, lines: Sequence[Line]) -> None:
    for number, line in enumerate(lines):
        tokens = [evaluation.tokens for evaluation in line.curve]
        losses = [evaluation.heldout_loss for evaluation in line.curve]
        axes.plot(tokens, losses, color=COLOURS[number % len(COLOURS)], label=line.row.label)
    axes.set_xlabel("tokens trained")
    axes.set_ylabel("held-out loss, nats per token")
    axes.set_yscale("log")
    axes.legend(frameon=False)


def _gaps(axes: Axes, lines: Sequence[Line]) -> None:
    """Draw the gaps; an unknown interval is left out."""
    for height, line in enumerate(reversed(lines)):
        assert line.gap is not None
        colour = COLOURS[0] if line.best else COLOURS[6]
        if math.isfinite(line.gap.low) and math.isfinite(line.gap.high):
            axes.plot([line.gap.low, line.gap.high], [height, height], color=colour, linewidth=2)
        axes.plot([line.gap.value], [height], "o", color=colour)
    axes.axvline(0, color="#999999", linewidth=0.8)
    axes.set_yticks(range(len(lines)), [line.row.label for line in reversed(lines)])
    axes.set_xlabel("above its opponent, per cent, pairs by seed")
