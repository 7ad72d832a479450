"""The tables that `simulate` and `plan` print about simulated clusters of chips."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from archipelago.cli.formatting import GAP, amount
from archipelago.lab.planner import anchors
from archipelago.lab.planner import published as paper
from archipelago.lab.planner.anchors import PublishedFigure
from archipelago.lab.planner.bandwidth import UTILISATIONS, NeededLink
from archipelago.lab.planner.compare import ComparedConfiguration
from archipelago.lab.planner.configurations import Configuration
from archipelago.lab.planner.layer_agreement import ComparedWindow
from archipelago.lab.planner.plan import TrainingPlan, figures, interruptions_per_day
from archipelago.lab.planner.table1 import Table1, Table1Cell
from cluster.config.machines import ClusterFile


def show_table1(made: Table1, console: Console) -> None:
    """Print table 1: each cell as simulated, published and in closed form; then its constants."""
    console.print("goodput in per cent: ours ± 95 % interval, (paper's, closed form's); uptime")
    table = _grid("configuration", *(f"{amount(chips)} chips" for chips in paper.CHIPS))
    rows: dict[tuple[Configuration, int], list[Table1Cell]] = {}
    for cell in made.cells:
        rows.setdefault((cell.configuration, cell.learners), []).append(cell)
    for (configuration, learners), cells in rows.items():
        table.add_row(f"{configuration}, M = {learners}", *map(_goodput, cells))
        table.add_row("", *(f"uptime {cell.uptime:.2f}" for cell in cells), style="dim")
    console.print(table)
    decoupled, configurations = (Configuration.DECOUPLED,), tuple(Configuration)
    worst = max(made.cells, key=lambda cell: abs(cell.difference))
    console.print(
        f"mean difference to the paper: {made.mean_difference(*decoupled):.2f} points over the "
        f"decoupled cells (closed form {made.closed_difference(*decoupled):.2f}), "
        f"{made.mean_difference(*configurations):.2f} over all "
        f"({made.closed_difference(*configurations):.2f}); largest {worst.difference:+.1f} "
        f"({worst.configuration}, M = {worst.learners}, {amount(worst.chips)} chips)"
    )
    recovery = made.fitted.recovery
    console.print(
        f"fitted on the rows of M = 1: shrink {recovery.shrink_s:.1f} s, "
        f"grow {recovery.grow_s:.1f} s, restart {recovery.restart_s:.1f} s; by reference: "
        f"return {recovery.return_s:g} s (log-normal, sigma {recovery.spread:g}), "
        f"slices of {paper.SLICE_CHIPS}, a chip interrupted once a year, steps of 1 s"
    )
    for profile in made.profiles:
        squares = ", ".join(f"{name}: {value:.1f}" for name, value in profile.rows)
        console.print(
            f"profile of {profile.constant} (squared points left): {squares}; inside 95 %: "
            f"{', '.join(profile.inside)}"
        )
    console.print("goodput under other assumptions, the constants as they are:")
    table = _grid("MTBI", "slice", "return", "", *(amount(chips) for chips in paper.CHIPS))
    for each in made.sensitivity:
        table.add_row(
            f"{each.mtbi_years:g} years",
            f"{each.slice_chips}",
            f"{each.return_s:g} s",
            f"{each.configuration}, M = {each.learners}",
            *(f"{goodput:.1f}" for goodput in each.goodput),
        )
    console.print(table)


def _goodput(cell: Table1Cell) -> str:
    return f"{cell.goodput:.1f} ±{cell.interval:.2f} ({cell.paper}, {cell.closed_form:.0f})"


def show_windows(windows: Sequence[ComparedWindow], rounds_each: int, console: Console) -> None:
    """Print how closely both layers of the planner agree."""
    gaps = [window.difference for window in windows]
    console.print(
        f"the rules were played in {len(windows)} windows of {rounds_each} rounds, "
        f"{sum(window.events for window in windows):,} events: goodput of the rounds layer less "
        f"that of the chips layer is {sum(gaps) / len(gaps):+.3f} points on average, "
        f"{min(gaps):+.3f} to {max(gaps):+.3f} in a window; of the tokens "
        f"{min(window.merged for window in windows):.1f} to "
        f"{max(window.merged for window in windows):.1f} % were merged when a window ended"
    )


def show_bandwidth(
    rows: Sequence[NeededLink], found: Sequence[PublishedFigure], console: Console
) -> None:
    """Print the links that each method needs, and published figures next to ours."""
    console.print(
        f"Gbit/s that an island needs, each way, to compute for so much of the time "
        f"(M = {anchors.ISLANDS}, H = {anchors.H}, P = {anchors.P}, τ = {anchors.TAU})"
    )
    table = _grid("parameters", "step", "method", *(f"{u} %" for u in UTILISATIONS))
    each = len(UTILISATIONS)
    for start in range(0, len(rows), each):
        row = rows[start]
        table.add_row(
            amount(row.parameters),
            f"{row.step_s:g} s",
            f"{row.method}, {row.wire}",
            *(f"{r.gbit_s:.3g}" for r in rows[start : start + each]),
        )
    console.print(table)
    console.print("figures that nothing was fitted on:")
    for anchor in found:
        verdict = "fits" if anchor.fits else "does not fit"
        console.print(
            f"{anchor.figure}: {anchor.ours:.3g} {anchor.unit}, published "
            f"{anchor.paper:.3g}, {verdict}. {anchor.assumptions}"
            f"{f'. Chosen: {anchor.chosen}' if anchor.chosen else ''}"
        )


def show_compared(rows: Sequence[ComparedConfiguration], console: Console) -> None:
    """Print goodput and uptime of each configuration."""
    table = _grid("configuration", "learners", "goodput, %", "uptime, %")
    for row in rows:
        uptime = "-" if row.uptime != row.uptime else f"{row.uptime:.2f}"
        goodput = f"{row.goodput:.2f} ±{row.interval:.2f}"
        table.add_row(row.configuration, f"{row.learners}", goodput, uptime)
    console.print(table)


PLANNED = (
    ("learners, M", "learners", "{}"),
    ("by group", "learners_by_group", "{}"),
    ("quorum, K", "quorum", "{}"),
    ("fragments, P", "fragments", "{}"),
    ("interval, H", "every", "{}"),
    ("overlap, τ", "overlap", "{}"),
    ("wire", "wire", "{}"),
    ("moments", "moments", "{}"),
    ("spares of a group", "spares", "{}"),
    ("nodes of the syncer", "shards", "{}"),
    ("GB on each", "shard_memory_gb", "{:.0f}"),
    ("versions stored, every", "store_every", "{}"),
    ("goodput, %", "goodput", "{:.2f}"),
    ("uptime, %", "uptime", "{:.2f}"),
    ("merged, % of tokens", "merged", "{:.2f}"),
    ("tokens a second", "tokens_per_s", "{:,.0f}"),
    ("tokens to the loss", "tokens", "{:.3g}"),
    ("Gbit/s of an island", "gbit_s_per_island", "{:.3g}"),
    ("egress, GB", "egress_gb", "{:,.0f}"),
    ("egress, USD", "egress_usd", "{:,.0f}"),
    ("hours", "hours", "{:,.1f}"),
    ("USD", "usd", "{:,.0f}"),
)
"""The rows of a plan: label, key in the figures, format."""


def show_plan(made: TrainingPlan, cluster: ClusterFile, console: Console) -> None:
    """Print the best setting beside the runner-up, the reasons, and the TOML tables to paste."""
    best = made.best
    setting, moving = best.setting, best.moving
    wanted = cluster.objective.minimise
    console.print(
        f"{cluster.chips:,} chips, {interruptions_per_day(cluster):.1f} interruptions a "
        f"day, steps of {made.step_s:.3g} s; least {wanted} to a loss of {made.target_loss:.4f}"
    )
    table = _grid("", "chosen", "runner-up")
    columns = [figures(each) for each in (best, made.runner_up) if each is not None]
    for name, key, form in PLANNED:
        table.add_row(name, *(form.format(each[key]) for each in columns))
    console.print(table)
    shards = f", shards in {', '.join(moving.shard_regions)}" if moving.spread else ""
    console.print(
        f"the syncer is in {moving.syncer}{shards}; M = {setting.total}, {made.tried} settings"
    )
    for reason in made.reasons:
        console.print(f"- {reason}")
    for replay in made.replays:
        console.print(
            f"- played with the rules, M = {replay.learners}, H = {replay.every}, {replay.wire}: "
            f"{replay.events:,} events, {replay.failures} failures, goodput "
            f"{replay.rounds_goodput:.2f} % (chips layer {replay.chips_goodput:.2f} %)"
        )
    for change in made.changes:
        outcome = (
            "the same"
            if change.same
            else f"M = {change.learners}, H = {change.every}, {change.wire}"
        )
        console.print(f"- if {change.given}: {outcome}")
    console.print()
    console.print(made.toml, markup=False, highlight=False)


def _grid(*names: str) -> Table:
    table = Table.grid(padding=(0, GAP, 0, 0))
    table.add_row(*names, style="bold")
    return table
