"""The measures of islands: how far each has come, when it advanced, and what it delivered.

Each function counts one thing in the `Counts` of a run. Times are seconds of the syncer's clock.
"""

from __future__ import annotations

import math

from cluster.syncer import run_time
from cluster.syncer.counts import RECOVERIES_KEPT, SPANS_KEPT, Counts, smoothed
from coordinator.errors import RunFailed
from coordinator.protocol import Adopted, Life, Report, Vitals

STALLED_STEPS = 3.0
"""Usual step times after which a learner without a new step counts as stalled."""
STALLED_FLOOR_S = 1.0
"""The shortest time for each step after which a learner counts as stalled, seconds."""


def reported(counts: Counts, report: Report, now_s: float) -> None:
    """Count a report that was not void: its learner has advanced."""
    watched = counts.watched(report.life.island)
    if watched.life != report.life:
        watched.steps_before += watched.steps
        watched.life, watched.steps, watched.tokens = report.life, 0, 0
        watched.reported_s, watched.tokens_per_s = math.nan, 0.0
    if (steps := report.progress.steps - watched.steps) <= 0:
        return
    advanced(counts, advancing_since(report, steps, watched.reported_s, now_s), now_s)
    if not math.isnan(watched.reported_s) and now_s > watched.reported_s:
        rate = (report.progress.tokens - watched.tokens) / (now_s - watched.reported_s)
        watched.tokens_per_s = smoothed(watched.tokens_per_s or rate, rate)
    watched.steps, watched.tokens = report.progress.steps, report.progress.tokens
    watched.reported_s = now_s


def heard(counts: Counts, life: Life, vitals: Vitals, now_s: float) -> None:
    """Record the vitals of a report that was not void; `now_s`: NaN if the time is not known."""
    watched = counts.watched(life.island)
    same = vitals.process == watched.vitals.process if vitals.process else False
    if not (same or watched.vital_life == life):
        watched.computing_before_s += watched.vitals.computing_s
        watched.spikes_before += watched.vitals.loss_spikes
    watched.vital_life, watched.vitals = life, vitals
    watched.time.reported(vitals, now_s)


def delivered(counts: Counts, life: Life, now_s: float) -> None:
    """Count a contribution of this life that was admitted.

    If it is the island's first one since an injected fault, the time to recovery is counted too.
    """
    watched = counts.watched(life.island)
    watched.contributions += 1
    watched.failed = ""
    if watched.fault_s is not None and life != watched.fault_life:
        counts.recovery_s.append(now_s - watched.fault_s)
        del counts.recovery_s[:-RECOVERIES_KEPT]
        watched.fault_s = watched.fault_life = None


def granted(counts: Counts, life: Life) -> None:
    """Count a life that was admitted: nothing that was refused or handed in before holds for it."""
    watched = counts.watched(life.island)
    watched.lives, watched.refused = watched.lives + 1, ""
    watched.rejected, watched.handed_in = False, {}


def adopted(counts: Counts, event: Adopted) -> None:
    """Count the steps since the learner handed the fragment in, if it did."""
    handed_in = counts.watched(event.life.island).handed_in.pop(event.fragment, None)
    if handed_in is not None:
        counts.adoptions += 1
        counts.steps_to_adoption += event.progress.steps - handed_in


def advancing_since(report: Report, steps: int, before_s: float, now_s: float) -> float:
    """Return since when a learner that reports `steps` more steps has advanced.

    `before_s`: its last report, NaN if there was none. The time is limited to `STALLED_STEPS` usual
    steps, or `STALLED_FLOOR_S` if that is longer, for each of the new steps.
    """
    usual_s = max(STALLED_FLOOR_S, STALLED_STEPS * report.step_s) * steps
    since_s = now_s - report.step_s if math.isnan(before_s) else before_s
    return max(since_s, now_s - usual_s)


def advanced(counts: Counts, start_s: float, stop_s: float) -> None:
    """Add a span in which some learner advanced all the time."""
    if math.isnan(counts.first_s):
        counts.first_s = start_s
    spans = counts.up_spans
    while spans and spans[-1][1] >= start_s:
        start_s = min(start_s, spans.pop()[0])
    spans.append((max(start_s, counts.first_s), stop_s))
    if len(spans) > SPANS_KEPT and math.isnan(counts.stopping_s):
        start_s, stop_s = spans.pop(0)
        counts.up_before_s += stop_s - start_s


def owned(counts: Counts, owner: int, now_s: float) -> None:
    """Note the owner that the run has from `now_s` on.

    A new owner holds no devices yet, and starts other processes: no island is refused any more.
    """
    if owner != counts.owner:
        if counts.owner > 0:
            run_time.held(counts, {}, max(now_s, counts.held_since_s))
            counts.paused_since_s = now_s
        counts.owner, counts.owner_is_new = owner, True
        admit_all(counts)


def resumed(counts: Counts, now_s: float) -> None:
    """Count a restart of the syncer.

    The time since the last event under another owner is a pause, and no time of the run.

    The last refusal and the change of the owner have the same time, so that a replay may count the
    refusal last. The first restart under an owner clears it. Later ones keep the refusals, because
    those islands do not ask again.
    """
    if counts.owner_is_new:
        counts.owner_is_new = False
        admit_all(counts)
    if not math.isnan(counts.paused_since_s):
        _pause(counts, max(0.0, now_s - counts.paused_since_s))
        counts.paused_since_s = math.nan


def happened(counts: Counts, now_s: float) -> None:
    """Note that the run continues: the time from here on is no pause.

    A replay may count an event after a change of the owner that has the same time.
    """
    if now_s > counts.paused_since_s:
        counts.paused_since_s = math.nan


def _pause(counts: Counts, seconds: float) -> None:
    """Move the times from which durations are counted, as if the pause had not been."""
    counts.paused_s += seconds
    counts.first_s += seconds
    counts.merged_s += seconds
    counts.stopping_s += seconds
    for watched in counts.islands.values():
        if watched.fault_s is not None:
            watched.fault_s += seconds


def admit_all(counts: Counts) -> None:
    """Remove the refusals of all islands."""
    for watched in counts.islands.values():
        watched.refused, watched.rejected = "", False


def hopeless(counts: Counts) -> RunFailed | None:
    """Return why the run should end: every island that has devices was refused for good."""
    held = [counts.islands[island] for island in sorted(counts.holding)]
    if held and all(each.rejected for each in held):
        reasons = dict.fromkeys(each.refused for each in held)
        return RunFailed("every island was refused for good: " + "; ".join(reasons))
    return None
