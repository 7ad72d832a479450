"""The tables of runs: figures side by side, ledger, islands, failures, links, events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from archipelago.lab.report.contents import (
    MISSING,
    ReportTable,
    amount_text,
    duration_text,
    figure_text,
)
from archipelago.lab.report.run_record import RunRecord

EVENTS_SHOWN = 300
"""The most events of a run that a report shows: its last ones."""
LONGEST = 500
"""The most characters of a reason; the files of the run have all."""
FATES = ("merged", "discarded", "outstanding", "lost")
"""The fates of a token; they add up to the tokens trained."""
Getter = Callable[[RunRecord], str]
"""The text of a figure of a run."""


def _figure(name: str) -> Getter:
    return lambda record: figure_text(record.figure(name))


def _share(name: str) -> Getter:
    def text(record: RunRecord) -> str:
        value = record.figure(name)
        return f"{100 * value:.1f} %" if isinstance(value, int | float) else MISSING

    return text


def _wall(record: RunRecord) -> str:
    return duration_text(record.summary.get("wall_s") or record.last.get("elapsed_s"))


def _recovery(record: RunRecord) -> str:
    found = record.summary.get("recovery_s")
    return ", ".join(f"{each:.1f} s" for each in found) if found else MISSING


def _by_region(record: RunRecord) -> str:
    found: Mapping[str, float | None] = record.figure("heldout_by_region") or {}
    return ", ".join(f"{name} {figure_text(loss)}" for name, loss in found.items()) or MISSING


FIGURES: Mapping[str, Getter] = {
    "state": lambda record: record.state,
    "mode": lambda r: str(r.summary.get("mode") or r.config.get("run", {}).get("mode", MISSING)),
    "held-out loss, nats per token": _figure("heldout_loss"),
    "held-out loss by region": _by_region,
    "expected, at the last evaluation": _figure("expected_loss"),
    "loss spikes": _figure("loss_spikes"),
    "held-out loss of the initial model": _figure("initial_heldout_loss"),
    "syncer step t": lambda r: (
        f"{figure_text(r.last.get('t'))} of {figure_text(r.last.get('steps'))}"
    ),
    "tokens trained": _figure("tokens_trained"),
    "merges": _figure("merges"),
    "participants of a merge, mean": _figure("mean_participants"),
    "goodput": _share("goodput"),
    "uptime": _share("uptime"),
    "faults injected": _figure("faults"),
    "back after a fault": _recovery,
    "longest time between merges, s": _figure("max_merge_gap_s"),
    "contributions refused": _figure("rejected_contributions"),
    "bytes up per token": _figure("up_bytes_per_token"),
    "bytes down per token": _figure("down_bytes_per_token"),
    "overlap, inner steps": _figure("effective_overlap"),
    "wall time": _wall,
    "device-hours": _figure("device_hours"),
    "cost, USD": _figure("usd"),
}
"""The figures of the first table, in order."""
ENVIRONMENT = ("seed", "parameters", "devices", "config_sha256", "source_sha256", "global_sha256")
"""The figures that identify a run."""


def figures_table(records: Sequence[RunRecord]) -> ReportTable:
    """Return the main figures, a column for each run; a figure that no run has is left out."""
    rows = [[title, *map(get, records)] for title, get in FIGURES.items()]
    return ReportTable(
        "Figures", ["", *names(records)], [row for row in rows if {*row[1:]} != {MISSING}]
    )


def environment_table(records: Sequence[RunRecord]) -> ReportTable:
    """Return what identifies each run: seed, size, digests, versions."""
    versions: dict[str, None] = {}
    for record in records:
        versions |= dict.fromkeys(record.summary.get("versions") or {})
    rows = [[key, *(figure_text(r.summary.get(key)) for r in records)] for key in ENVIRONMENT]
    rows += [
        [name, *(str((r.summary.get("versions") or {}).get(name, MISSING)) for r in records)]
        for name in versions
    ]
    return ReportTable("Environment", ["", *names(records)], rows, numeric=False)


def ledger_table(records: Sequence[RunRecord]) -> ReportTable:
    """Return the fate of all trained tokens, a row for each run."""
    rows: list[list[str]] = []
    for record in records:
        trained = record.figure("tokens_trained")
        row = [record.name, amount_text(_number(trained))]
        for fate in FATES:
            tokens = _fate(record, fate)
            share = f" ({100 * tokens / trained:.1f} %)" if tokens is not None and trained else ""
            row.append(f"{amount_text(tokens)}{share}")
        rows.append(row)
    return ReportTable("Ledger of tokens", ["run", "trained", *FATES], rows)


def _fate(record: RunRecord, fate: str) -> float | None:
    """Return the tokens of a fate; without a summary, those that are left are outstanding."""
    found = _number(record.figure(f"tokens_{fate}"))
    if found is not None or fate != "outstanding":
        return found
    others = [_number(record.figure(f"tokens_{each}")) for each in FATES if each != fate]
    trained = _number(record.figure("tokens_trained"))
    known = [each for each in others if each is not None]
    return None if trained is None or len(known) < len(others) else trained - sum(known)


def reasons_table(records: Sequence[RunRecord]) -> ReportTable | None:
    """Return refusals, failures and failed evaluations by reason; None if there are none."""
    kinds = {
        "refused": "refusals",
        "failure": "failures",
        "evaluation without a result": "unjudged",
    }
    rows: list[list[str]] = []
    for title, key in kinds.items():
        found: list[Mapping[str, Any]] = [r.last.get(key) or {} for r in records]
        rows += [
            [f"{title}: {reason}", *(figure_text(each.get(reason, 0)) for each in found)]
            for reason in dict.fromkeys(reason for each in found for reason in each)
        ]
    return ReportTable("By reason", ["", *names(records)], rows) if rows else None


def islands_table(record: RunRecord) -> ReportTable | None:
    """Return the islands of a run at its last look; None if there are none."""
    rows = [
        [
            str(each.get("island")),
            str(each.get("state")),
            figure_text(each.get("steps")),
            amount_text(_number(each.get("tokens_per_s"))),
            figure_text(each.get("loss")),
            figure_text(each.get("contributions")),
            figure_text(each.get("restarts")),
            figure_text(each.get("cosine")),
            figure_text(each.get("contribution_effect")),
            str(each.get("why") or "")[:LONGEST],
        ]
        for each in record.last.get("islands") or ()
    ]
    head = [
        "island", "state", "steps", "tokens/s", "loss", "contributions", "restarts", "cosine",
        "effect on the loss", "reason",
    ]  # fmt: skip
    return ReportTable(f"Islands of {record.name}", head, rows) if rows else None


def _link_state(link: Mapping[str, Any]) -> str:
    """Return the trouble of a link in one word, or "well"."""
    troubles = {"down": "down", "slow": "slow", "lagging": "late"}
    return next((word for key, word in troubles.items() if link.get(key)), "well")


def links_table(record: RunRecord) -> ReportTable | None:
    """Return the links of a run at its last look; None if it has sent nothing."""
    rows = [
        [
            f"{each.get('link')} {each.get('direction')}",
            amount_text(_number(each.get("bytes")), "B"),
            figure_text(each.get("transfers")),
            figure_text(each.get("late")),
            amount_text(_number(each.get("bits_s")), "bit/s"),
            _link_state(each),
        ]
        for each in record.last.get("links") or ()
    ]
    head = ["link", "bytes", "transfers", "late", "rate", "state"]
    return ReportTable(f"Links of {record.name}", head, rows) if rows else None


def events_table(record: RunRecord) -> ReportTable | None:
    """Return the last events of a run, oldest first; None if there are none."""
    shown = record.events[-EVENTS_SHOWN:]
    rows = [
        [
            duration_text(_number(each.get("elapsed_s"))),
            figure_text(each.get("t")),
            str(each.get("kind")),
            str(each.get("text"))[:LONGEST],
        ]
        for each in shown
    ]
    if not rows:
        return None
    caption = f"Events of {record.name}"
    if len(record.events) > len(shown):
        caption += f" (the last {len(shown)} of {len(record.events):,})"
    return ReportTable(caption, ["time", "t", "kind", "event"], rows, numeric=False)


def names(records: Sequence[RunRecord]) -> list[str]:
    """Return the titles of the columns of runs."""
    return [record.name for record in records]


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)
