"""Configurations as tables: the differences between runs, and all values of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from archipelago.lab.report.contents import MISSING, ReportTable
from archipelago.lab.report.run_record import RunRecord
from cluster.storage.files import json_text

OWN = ("run.name", "run.dir")
"""Keys that differ between any two runs, and are no difference."""


def flat_config(config: Mapping[str, Any]) -> dict[str, str]:
    """Return each value by its path, in the notation of `--set`, such as `islands.0.count`."""
    return dict(_flat(config, ""))


def _flat(value: object, path: str) -> Iterator[tuple[str, str]]:
    match value:
        case Mapping():
            for key, inner in value.items():
                yield from _flat(inner, f"{path}.{key}" if path else str(key))
        case list() if value and all(isinstance(each, Mapping) for each in value):
            for number, each in enumerate(value):
                yield from _flat(each, f"{path}.{number}")
        case _:
            yield path, _text(value)


def _text(value: object) -> str:
    """Return a value as JSON; a value that JSON does not have, such as a date, as it is."""
    try:
        return json_text(value)
    except TypeError:
        return str(value)


def differences_table(records: Sequence[RunRecord]) -> ReportTable | None:
    """Return the values in which the runs differ; None for one run, or if there are none."""
    configs = [flat_config(record.config) for record in records]
    rows = [
        [key, *values]
        for key in dict.fromkeys(key for each in configs for key in each)
        if key not in OWN and len({*(values := [each.get(key, MISSING) for each in configs])}) > 1
    ]
    if len(records) < 2 or not rows:
        return None
    head = ["key", *(record.name for record in records)]
    return ReportTable("Keys with different values", head, rows, numeric=False)


def config_table(record: RunRecord) -> ReportTable | None:
    """Return all values of a run's configuration; None if it cannot be read."""
    rows = [[key, value] for key, value in flat_config(record.config).items()]
    if not rows:
        return None
    return ReportTable(f"Configuration of {record.name}", ["key", "value"], rows, numeric=False)
