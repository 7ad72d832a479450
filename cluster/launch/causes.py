"""The cause behind the reason of an island's state, and what to do about it; pure.

The reasons are those of the rules (`coordinator`), of the syncer's watch over processes, and of the
fleet. `CAUSES` is searched from the first row on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cluster.launch.link_findings import Severity


@dataclass(frozen=True, slots=True)
class IslandCause:
    """The cause of an island's state."""

    kind: str
    """A word for the cause; an island has at most one finding of each."""
    what: str
    """The cause, for people."""
    severity: Severity
    hint: str


SILENT = "silent"
CAUSES: tuple[tuple[re.Pattern[str], IslandCause], ...] = tuple(
    (re.compile(pattern), IslandCause(kind, what, severity, hint))
    for pattern, kind, what, severity, hint in (
        (
            r"not finite", "not finite", "it sends NaN or infinite numbers",
            Severity.PROBLEM,
            "its training diverged, or its device computes wrong: look at its loss and its batch; "
            "lower the learning rate, or take the machine out with `archipelago drain`",
        ),
        (
            r"norm \S+ over|of norm \S+, the limit", "norm", "its contributions are far too large",
            Severity.PROBLEM,
            "its scaling is wrong or its training diverged: compare its data, learning rate and "
            "code with those of the other islands",
        ),
        (
            r"pointed against the others|on trial", "against",
            "its contributions point against those of the others", Severity.PROBLEM,
            "look for wrong data or a flipped sign there; with few islands see "
            "docs/howto/alerts/one-island-weighs-all.md",
        ),
        (
            r"report is not possible|cannot be true|distrusted", "impossible",
            "it reports progress that is impossible", Severity.PROBLEM,
            "see docs/howto/alerts/impossible-words.md",
        ),
        (
            r"its source is|code of .* (differs|has changed)", "source",
            "it runs other code than the run", Severity.PROBLEM,
            "install the same version of Archipelago and of your own code on every node",
        ),
        (
            r"preempted", "preempted", "its machine or process was taken away",
            Severity.NOTE,
            "nothing: it handed in its work and starts again (docs/howto/preemption.md)",
        ),
        (
            r"taken by the queue", "taken", "a run of higher priority has its machines",
            Severity.NOTE,
            "nothing: it comes back when there is room; `archipelago queue` shows all runs",
        ),
        (
            r"no longer wanted", "drained", "a person or a plan drained it, or scaled it down",
            Severity.NOTE, "nothing; `archipelago scale` starts another one",
        ),
        (
            r"\w+ in (train|hand_in|offer|moments|words)\b|broke \d+ times", "exception",
            "an exception of the program ended its process", Severity.PROBLEM,
            "read its newest file in the folder tracebacks of the run",
        ),
        (
            r"its process ended|processes ended", "killed",
            "its process was killed, or its node died", Severity.PROBLEM,
            "look for the out-of-memory killer in the kernel's log, and at the node; "
            "`archipelago doctor --address HOST:6379 RUN` names dead nodes",
        ),
        (
            r"silent for", SILENT, "its process hangs, or its network is cut", Severity.PROBLEM,
            "`archipelago doctor --address HOST:6379 RUN` tells the two apart while it lasts",
        ),
        (
            r"the syncer has restarted", "syncer", "it joins the syncer again, which was restarted",
            Severity.WARNING, "see the finding about the syncer; islands join again by themselves",
        ),
        (
            r"slow, ", "slow", "it is a straggler", Severity.WARNING,
            "look at the machine: other processes, throttling, slow data; the others do not wait "
            "longer than sync.grace",
        ),
        (
            r"^waits for", "waits", "no machine for it is free", Severity.WARNING,
            "free or add machines with these resources and labels, or scale the group down",
        ),
    )
)  # fmt: skip


def cause_of(why: str, state: str, probe: str | None) -> IslandCause | None:
    """Return the cause of an island's state; None if the reason names no trouble.

    `probe`: whether its process answers a call of Ray; None: it was not called.
    """
    for pattern, cause in CAUSES:
        if pattern.search(why):
            return _probed(cause, probe) if cause.kind == SILENT else cause
    return None


def _probed(cause: IslandCause, probe: str | None) -> IslandCause:
    """Return which of the two causes of silence a call of its process shows."""
    match probe:
        case "answers":
            return IslandCause(
                "cut", "its process runs, but its messages do not arrive: its network is cut",
                cause.severity, "check the link of its node, with `archipelago doctor --links`",
            )  # fmt: skip
        case "silent":
            return IslandCause(
                "hang", "its process is there and does not answer: it hangs", cause.severity,
                "look for a stopped process, swapping or a device that hangs; the fleet replaces "
                "it after faults.policy.hang_s",
            )  # fmt: skip
        case _:
            return cause
