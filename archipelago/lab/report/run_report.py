"""The report of one run, or of several side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from archipelago.lab.report import config_tables, curves, run_tables
from archipelago.lab.report.contents import ReportContents, ReportSection, ReportTable
from archipelago.lab.report.run_record import RunRecord, read_run
from cluster.config.values import Mode


def read_runs(run_dirs: Sequence[Path]) -> list[RunRecord]:
    """Return the records of runs; runs of the same name get their directories as names."""
    records = [read_run(each) for each in run_dirs]
    count = Counter(record.name for record in records)
    return [
        replace(record, name=str(record.run_dir)) if count[record.name] > 1 else record
        for record in records
    ]


def report_of(
    records: Sequence[RunRecord], now: datetime, points: int = curves.POINTS
) -> ReportContents:
    """Return the report of runs. `points`: the most points of a curve."""
    names = ", ".join(record.name for record in records)
    problems = [f"{r.name}: {problem}" for r in records for problem in r.problems]
    sections = [
        ReportSection("figures", "Figures", tables=[run_tables.figures_table(records)]),
        ReportSection("loss", "Loss", charts=curves.loss_charts(records, points)),
        ReportSection(
            "activity", "Islands and throughput",
            charts=curves.activity_charts(records, points),
            tables=_present(map(run_tables.islands_table, records)),
        ),
        ReportSection(
            "rounds", "Rounds, staleness and directions",
            charts=curves.round_charts(records, points),
            tables=_present([run_tables.reasons_table(records)]),
            note=_lockstep_note(records),
        ),
        ReportSection(
            "ledger", "Tokens and bytes",
            tables=[
                run_tables.ledger_table(records),
                *_present(map(run_tables.links_table, records)),
            ],
        ),
        ReportSection(
            "events", "Events and faults", tables=_present(map(run_tables.events_table, records))
        ),
        ReportSection(
            "differences", "Differences of the configurations",
            tables=_present([config_tables.differences_table(records)]),
        ),
        ReportSection(
            "environment", "Environment", tables=[run_tables.environment_table(records)]
        ),
        ReportSection(
            "configuration", "Configuration",
            tables=_present(map(config_tables.config_table, records)), long=True,
        ),
    ]  # fmt: skip
    made = f"{now:%Y-%m-%d %H:%M %Z}".strip()
    kept = [each for each in sections if each.charts or each.tables]
    return ReportContents(f"Report of {names}", made, problems, kept)


def _lockstep_note(records: Sequence[RunRecord]) -> str:
    modes = {str(record.summary.get("mode")) for record in records}
    if modes & {Mode.DATA_PARALLEL.value, Mode.ELASTIC.value}:
        return "Data-parallel runs have no rounds, staleness or directions."
    return ""


def _present(tables: Iterable[ReportTable | None]) -> list[ReportTable]:
    return [table for table in tables if table is not None]
