"""Remove the guards of the rules, one at a time, and report which tests notice.

    python tests/mutants.py [--only WORD] [--schedules N]

Each mutant is a patch of one or two lines in a copy of the tree. The tests of the rules and some
simulated schedules run against it until one of them fails. A mutant that survives is a guard that
no test covers, or that guards nothing; the script then exits with 1.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("coordinator", "islands", "cluster", "archipelago", "tests", "pyproject.toml")
SEED, SCHEDULES = 1, 200
TIMEOUT_S = 600
PYTEST = ["-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
TESTS = tuple(
    f"tests/coordinator/test_{name}.py"
    for name in (
        "scenarios", "guards", "gate", "leases", "ledger", "quorum_and_grace", "schedule",
        "validate", "purity", "suspects", "parts", "claims",
    )
)  # fmt: skip
"""Tests of the rules that take milliseconds.

The tests of the arithmetic are left out, and so is the network that Hypothesis plays, because
shrinking takes minutes.
"""
SHELLS = ("tests/shells/test_shells.py",)
"""Random thread schedules with fresh seeds; their bounds on virtual time find lost wake-ups."""
RESTORE = "cluster/syncer/restore.py"
RESTORES = tuple(f"tests/cluster/test_{name}.py" for name in ("comeback", "store", "corruption"))
OF_ROOM = {
    "coordinator/": TESTS,
    RESTORE: RESTORES,
    "cluster/storage/": RESTORES,
    "cluster/syncer/": (*TESTS, "tests/cluster/test_shell.py"),
    "islands/mailbox.py": ("tests/islands/test_mailbox.py", *SHELLS),
    "islands/life_history.py": ("tests/islands/test_mailbox.py", *SHELLS),
    "islands/thread_queues.py": ("tests/islands/test_mailbox.py", *SHELLS),
    "islands/hosts/publication_lanes.py": SHELLS,
    "islands/hosts/lead.py": ("tests/cluster/test_gang.py", *SHELLS),
    "islands/": ("tests/islands/test_learner_state.py",),
    "cluster/shard/": ("tests/cluster/test_shard.py", "tests/cluster/test_fates.py"),
    "cluster/fleet/": (
        "tests/cluster/test_controller.py", "tests/cluster/test_fleet.py",
        "tests/cluster/test_keeper.py", "tests/cluster/test_watchdog.py",
    ),
    "cluster/allreduce/saved_state.py": ("tests/cluster/test_ring_corruption.py",),
    "cluster/allreduce/": (
        "tests/cluster/test_ring.py", "tests/cluster/test_conducting.py",
        "tests/cluster/test_conductor.py",
    ),
    "cluster/tasks.py": ("tests/test_tasks.py",),
}  # fmt: skip
"""The tests for each file, by the beginning of its path."""
UNPLAYED = (
    "cluster/fleet/", "cluster/storage/", "cluster/allreduce/", "cluster/tasks.py", RESTORE,
)  # fmt: skip
"""Files that no schedule runs."""

FUZZ = """
import sys
from archipelago.lab.simulation.fuzz_schedule import Sum, one_schedule
total = Sum()
for number in range(int(sys.argv[1])):
    one_schedule(f"{sys.argv[2]}/{number}", total, shrink=False)
    if total.violations:
        print(f"schedule {number}: {total.failures[0].invariant}")
        sys.exit(1)
"""
"""A script that plays schedules until the first violation."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A patch of one guard. `old` occurs once in the file; `what` names the removed guard."""

    what: str
    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Caught:
    """The test and the schedule that caught a mutant; empty if none did."""

    test: str
    schedule: str


LIVES, ROUNDS, GATE = "coordinator/lives.py", "coordinator/rounds.py", "coordinator/gate.py"
CONTRIBUTIONS, MEMBERSHIP = "coordinator/contributions.py", "coordinator/membership.py"
ROSTER, OUTCOMES = "coordinator/roster.py", "coordinator/merge_outcomes.py"
QUORUM, GRACE, LEASES = "coordinator/quorum.py", "coordinator/grace.py", "coordinator/leases.py"
LEDGER, RECOVERY = "coordinator/ledger.py", "coordinator/recovery.py"
ADVANCE, SHELL = "coordinator/advance.py", "cluster/syncer/shell.py"
EFFECTS = "cluster/syncer/effects.py"
CLAIMS = "coordinator/claims.py"
NORMS, SUSPECTS = "coordinator/norms.py", "coordinator/suspects.py"
DIRECTION = "coordinator/direction_gate.py"
ORDERS, PARTS = "coordinator/orders.py", "coordinator/parts.py"
HISTORY, QUEUES = "islands/life_history.py", "islands/thread_queues.py"
MAILBOX, FOLLOWING, LEAD = (
    "islands/mailbox.py",
    "islands/hosts/publication_lanes.py",
    "islands/hosts/lead.py",
)
LEARNER, LIFE = "islands/learner_state.py", "islands/learner_life.py"
BOUNDARY = "islands/step_boundary.py"
FLEET, RECONCILE_LOOP = "cluster/fleet/keeper.py", "cluster/fleet/reconcile_loop.py"
TAKEOVER = "cluster/fleet/takeover.py"
ISLANDS, REQUESTS = "cluster/fleet/island_table.py", "cluster/fleet/requests.py"
TASKS, CONDUCTING = "cluster/tasks.py", "cluster/allreduce/ring_effects.py"
RING, RECORDS = "cluster/allreduce/ring.py", "cluster/allreduce/records.py"
FRAGMENTS, SEALED = "cluster/storage/fragments.py", "cluster/storage/sealed.py"
PLAYBACK, KEEPING = "cluster/storage/playback.py", "cluster/allreduce/saved_state.py"
SHARD, FATES = "cluster/shard/shard.py", "cluster/shard/fates.py"
VERSIONS, INBOX = "cluster/shard/shard_fragment.py", "cluster/shard/inbox.py"
INJECTION, RECONCILE = "cluster/fleet/fault_injection.py", "cluster/fleet/reconcile.py"

MERGING = "if round_ is None or round_.stage is not Stage.MERGING"
STORING = "if round_ is None or round_.stage is not Stage.STORING"
LATE = " or round_.version != event.version:"

MUTANTS = (
    # threads of a learner
    Mutant(
        "waiting threads are not woken by an event",
        MAILBOX,
        "            if words:\n                self._lock.notify_all()\n",
        "",
    ),
    Mutant(
        "waiting threads are not woken at the end of a life",
        HISTORY,
        "self._ended, self._why = life.incarnation, why\n            self._lock.notify_all()\n",
        "self._ended, self._why = life.incarnation, why\n",
    ),
    Mutant(
        "a life ends and its questions stay",
        QUEUES,
        "(*self._asked.values(), *self._owed)",
        "(*self._asked.values(),)",
    ),
    Mutant(
        "an adoption takes whatever was offered last",
        MAILBOX,
        "not is_news(self._now, p, version)",
        "False",
    ),
    Mutant(
        "waiting publications of a fragment are forgotten",
        FOLLOWING,
        "(news := self._waiting.pop(p, None)) is None",
        "(news := None) is None",
    ),
    Mutant(
        "a fragment is followed for ever",
        FOLLOWING,
        "                self._busy.discard(p)\n            return news",
        "                pass\n            return news",
    ),
    Mutant(
        "a host's word of the life before counts",
        LEAD,
        "if life != self._life:",
        "if False:",
    ),
    # parts of islands of several hosts
    Mutant("parts of two boundaries are one", PARTS, "if part.facts != first.facts:", "if False:"),
    Mutant("a part may be missing", PARTS, "return None if end == size", "return None if end"),
    # messages of which lives are accepted
    Mutant("messages of a dead incarnation count", MEMBERSHIP, "member.life == life and ", ""),
    Mutant(
        "messages of a finished life count",
        MEMBERSHIP,
        "member if member and member.life == life and member.status in SPEAKING else None",
        "member if member and member.life == life else None",
    ),
    Mutant(
        "joining when the run ends",
        LIVES,
        "    if state.phase is not Phase.RUNNING:\n        return state, (Refused",
        "    if False:\n        return state, (Refused",
    ),
    Mutant(
        "joining with another layout",
        LIVES,
        "if event.fingerprint != rule.fingerprint:",
        "if False:",
    ),
    Mutant(
        "two lives of one island",
        LIVES,
        '        state = lose(rule, state, former.life, "a new life of the island has joined")',
        "        pass",
    ),
    Mutant(
        "incarnations do not grow",
        LIVES,
        "next_incarnation=Incarnation(life.incarnation + 1)",
        "next_incarnation=state.next_incarnation",
    ),
    Mutant("a newcomer starts at clock 0", LIVES, "offset=state.t,", "offset=0,"),
    Mutant(
        "live before the first step",
        LIVES,
        "member.status is Status.JOINING and event.progress.steps > 0:",
        "member.status is Status.JOINING:",
    ),
    Mutant(
        "older words count",
        LIVES,
        "ahead = progress.steps > member.progress.steps",
        "ahead = True",
    ),
    Mutant(
        "a drain of an unknown island",
        LIVES,
        "if member is None or member.status not in {Status.JOINING, Status.LIVE}:",
        "if member is None:",
    ),
    Mutant("silence is never noticed", LIVES, "if now_s >= at_s]", "if now_s >= at_s + 1e9]"),
    Mutant(
        "silence is noticed at once",
        MEMBERSHIP,
        "return max(floor, SILENCE_STEPS * member.step_s)",
        "return 0.5",
    ),
    Mutant(
        "a learner that hangs is alive while it talks",
        LIVES,
        "return rule.overlap > 0 and state.phase is Phase.RUNNING",
        "return False",
    ),
    Mutant(
        "the dead are waited for",
        LIVES,
        "        if fragment.asked.get(life.island) == life:\n            requests = {i",
        "        if False:\n            requests = {i",
    ),
    # claims of islands
    Mutant(
        "every counter is believed",
        CLAIMS,
        "    if not rule.bounded:\n        return None\n    if (why := _beyond",
        "    if True:\n        return None\n    if (why := _beyond",
    ),
    Mutant(
        "more steps than the leases hold",
        CLAIMS,
        "if needed <= reached <= member.granted:",
        "if True:",
    ),
    Mutant(
        "a lease that it does not hold",
        CLAIMS,
        "if consumed is None and progress.steps > member.vouched:",
        "if False:",
    ),
    Mutant(
        "steps that take no time",
        CLAIMS,
        "if steps > 0 and needed_s > (credit_s := _credit_s(member, now_s)):",
        "if (credit_s := _credit_s(member, now_s)) is None:",
    ),
    Mutant(
        "tokens without windows",
        CLAIMS,
        "    return None if tokens <= limit else f",
        "    return None if True else f",
    ),
    Mutant(
        "a claim of tokens raises the limit of the next one",
        CLAIMS,
        "    elif rule.edition >= 4:\n",
        "    elif rule.edition >= 5:\n",
    ),
    Mutant(
        "one word ends the run",
        CLAIMS,
        "rule.bounded and at_end and progress",
        "False and at_end and progress",
    ),
    Mutant(
        "data without end",
        CLAIMS,
        "if unread >= MOST_UNREAD + step_leases:",
        "if False:",
    ),
    Mutant("one claim has all of a merge", ORDERS, "    if capped:\n", "    if False:\n"),
    Mutant("an island is held to its own norms", NORMS, "if sample.island in others]", "if False]"),
    Mutant(
        "the slower one of two keeps pace",
        GRACE,
        "statistics.median_low(step_s) if lower",
        "statistics.median(step_s) if lower",
    ),
    Mutant(
        "the momentum is not asked",
        DIRECTION,
        "cosine < limit and confirmed(",
        "cosine < limit or confirmed(",
    ),
    # the clock
    Mutant(
        "t falls when the fastest leave",
        LIVES,
        "if clock is None or clock >= state.t:",
        "if True:",
    ),
    Mutant("t is the fastest clock", ROSTER, "members.clocks[-k]", "members.clocks[-1]"),
    Mutant(
        "all that speak have a clock",
        ROSTER,
        "return member.clock if member is not None and member.status is Status.LIVE else None",
        "return member.clock if member is not None and member.status in SPEAKING else None",
    ),
    Mutant("t passes T", ROUNDS, "t = min(clock, rule.steps)", "t = clock"),
    Mutant(
        "things become due at the end",
        ROUNDS,
        "if clock is None or clock <= state.t or state.phase is not Phase.RUNNING:",
        "if clock is None or clock <= state.t:",
    ),
    # rounds
    Mutant(
        "a round is opened over another",
        ROUNDS,
        "if fragment.due and fragment.round is None and not fragment.away:",
        "if fragment.due and not fragment.away:",
    ),
    Mutant(
        "due again, but nobody is asked again",
        ROUNDS,
        "replace(_call_again(state.fragments[p]), due=True)",
        "replace(state.fragments[p], due=True)",
    ),
    Mutant(
        "a stop counts twice",
        ROUNDS,
        "return _end(state, why, now_s) if state.phase is Phase.RUNNING else state",
        "return _end(state, why, now_s)",
    ),
    Mutant(
        "asked twice in a round",
        ROUNDS,
        "lives = state.members.living - round_.called",
        "lives = state.members.living",
    ),
    Mutant(
        "asked while it owes an answer",
        ROUNDS,
        "if life.island not in requests:",
        "if True:",
    ),
    Mutant(
        "latecomers are not asked",
        ROUNDS,
        "if state.members.living <= round_.called:",
        "if state.members.living <= round_.called or round_.called:",
    ),
    Mutant("under the quorum", QUORUM, "if len(arrived) < min_quorum:", "if not arrived:"),
    Mutant("the quorum is all that counts", QUORUM, "if not expected:", "if True:"),
    Mutant("the grace does not end", QUORUM, "if now_s >= deadline_s:", "if False:"),
    Mutant("no grace", QUORUM, "if now_s >= deadline_s:", "if True:"),
    Mutant(
        "a round without anybody is not given up",
        QUORUM,
        "if stopping and not expected:",
        "if False:",
    ),
    Mutant(
        "given up while the run goes on",
        QUORUM,
        "if stopping and not expected:",
        "if not expected:",
    ),
    Mutant(
        "merged although stale by now",
        ROUNDS,
        "if c.base.number < _oldest(rule, fragment)]",
        "if False]",
    ),
    Mutant(
        "merged in any order",
        ROUNDS,
        "if c not in stale), key=sorting_key)",
        "if c not in stale), key=lambda c: c.norm)",
    ),
    Mutant(
        "weights are tokens",
        ORDERS,
        "c.tokens * (c.tokens / c.steps)",
        "c.tokens",
    ),
    Mutant(
        "merged twice by the shard's word",
        OUTCOMES,
        MERGING + LATE,
        "if round_ is None or round_.version != event.version:",
    ),
    Mutant(
        "an old merge is taken for this one",
        OUTCOMES,
        MERGING + LATE,
        "if round_ is None or round_.stage is not Stage.MERGING:",
    ),
    Mutant(
        "public before it is stored",
        OUTCOMES,
        STORING + LATE,
        "if round_ is None or round_.version != event.version:",
    ),
    Mutant(
        "an old version is taken for this one",
        OUTCOMES,
        STORING + LATE,
        "if round_ is None or round_.stage is not Stage.STORING:",
    ),
    Mutant(
        "those that drain are told nothing",
        OUTCOMES,
        "for m in in_order(state.members) if m.status in SPEAKING),",
        "for m in in_order(state.members) if m.status in SPEAKING - {'draining'}),",
    ),
    Mutant(
        "the end leaves rounds open",
        ROUNDS,
        "if state.phase is not Phase.STOPPING or any(f.round or f.due for f in state.fragments):",
        "if state.phase is not Phase.STOPPING:",
    ),
    Mutant(
        "the run ends with no last round",
        ROUNDS,
        "fragments = tuple(replace(fragment, due=True) for fragment in state.fragments)",
        "fragments = state.fragments",
    ),
    Mutant(
        "a last round like any other",
        ROUNDS,
        "last = state.phase is Phase.STOPPING",
        "last = False",
    ),
    Mutant(
        "the last merge goes through the outer optimizer",
        ORDERS,
        "last=round_.last,",
        "last=False,",
    ),
    Mutant(
        "a learner asked in the last round steps on",
        ROUNDS,
        "Ask(life, p, round_.last)",
        "Ask(life, p)",
    ),
    Mutant(
        "the last round keeps to the usual grace",
        ROUNDS,
        "return over_s if since_s is None else max(graced_s, over_s)",
        "return over_s if since_s is None else graced_s",
    ),
    Mutant(
        "the end waits for ever under the quorum",
        QUORUM,
        "if stopping and now_s >= deadline_s:",
        "if False:",
    ),
    Mutant(
        "a round before the last one waits for ever under the quorum",
        ROUNDS,
        "if state.ending_s is None or not (round_.last or since_s is None):",
        "if state.ending_s is None or not round_.last:",
    ),
    Mutant(
        "the last window is for one fragment",
        GRACE,
        "return boundary_s + fragments * pace.quorum_s",
        "return boundary_s + pace.quorum_s",
    ),
    Mutant(
        "a late island does not count at the end",
        ROUNDS,
        "    if not round_.last:\n        return round_.arrived",
        "    if True:\n        return round_.arrived",
    ),
    Mutant(
        "the end does not wait for those that drain",
        ROUNDS,
        "expected |= _leaving(state) - round_.arrived",
        "pass",
    ),
    Mutant(
        "the end does not see that one has left",
        ROUNDS,
        "unchanged = unchanged and state.members is before.members",
        "pass",
    ),
    # contributions
    Mutant(
        "a fragment goes back to its first version",
        FRAGMENTS,
        "retained = files[-self._keep :]",
        "retained = files",
    ),
    Mutant(
        "a restore deletes later versions",
        FRAGMENTS,
        "self._depot.move(each.name, each.name + ORPHAN)",
        "self._depot.remove(each.name)",
    ),
    Mutant(
        "a file under the name of another is taken",
        SEALED,
        "if identity.get(key, value) != value:",
        "if False:",
    ),
    Mutant(
        "a tape that is short makes a snapshot void",
        PLAYBACK,
        'self._damage.append(f"{name} ends before event {self._start}")',
        "raise Damaged(name) from None",
    ),
    Mutant(
        "a run without its tape starts again at zero",
        RESTORE,
        "if not generations(depot) and not _has_begun(depot, stored):",
        "if not generations(depot):",
    ),
    Mutant(
        "skipped versions are not reported",
        RESTORE,
        "damage=joined(comeback.damage, passed_over(stored, wanted, found)))",
        "damage=comeback.damage)",
    ),
    Mutant(
        "the state of a ring is believed",
        KEEPING,
        "if {*OURS} & metadata.keys():",
        "if False:",
    ),
    Mutant(
        "one damaged name switches the checksum of a ring's state off",
        KEEPING,
        "if {*OURS} & metadata.keys():",
        'if "sha256" in metadata:',
    ),
    Mutant(
        "a damaged state of a ring ends the run",
        KEEPING,
        "            damaged.append(str(error))\n    if damaged:",
        "            raise\n    if damaged:",
    ),
    Mutant(
        "said twice, freed",
        CONTRIBUTIONS,
        "        return state, ()  # a repeated message; its bytes are needed",
        "        pass",
    ),
    Mutant(
        "a lost hand-in blocks waiting learners",
        CONTRIBUTIONS,
        "if rule.overlap > 0 or not (event.lost and was_asked and waits):",
        "if True:",
    ),
    Mutant(
        "a hand-in accounted for already blocks waiting learners",
        CONTRIBUTIONS,
        "if rule.edition < 2 or rule.overlap > 0 or not (has_no_more",
        "if True or not (has_no_more",
    ),
    Mutant(
        "an old duplicate ends a waiting learner",
        CONTRIBUTIONS,
        "has_no_more = was_asked and not is_old",
        "has_no_more = was_asked",
    ),
    Mutant(
        "one loud island of three opens the gate for another",
        CONTRIBUTIONS,
        "own=life.island if rule.edition >= 2 else None,",
        "own=None,",
    ),
    Mutant(
        "whoever had nothing to hand in is over",
        EFFECTS,
        'self._syncer.feed(Missing(ask.life, ask.fragment, "nothing to hand in"))',
        'self._syncer.feed(Missing(ask.life, ask.fragment, "nothing to hand in", lost=True))',
    ),
    Mutant(
        "accounted for twice",
        CONTRIBUTIONS,
        "if ledger.overlaps(accounts, life, p, (c.id.from_step, c.id.to_step)):",
        "if False:",
    ),
    Mutant(
        "an impossible one passes for a repetition",
        CONTRIBUTIONS,
        "if not gate.well_formed(c):",
        "if False:",
    ),
    Mutant(
        "counters are believed",
        CONTRIBUTIONS,
        "if not gate.plausible(c, uncovered=ledger.uncovered(accounts, life, p)):",
        "if False:",
    ),
    Mutant(
        "any interval will do",
        GATE,
        "0 <= c.since_step <= c.id.from_step < c.id.to_step == c.progress.steps",
        "c.id.from_step < c.id.to_step",
    ),
    Mutant(
        "more tokens than were trained",
        GATE,
        "return well_formed(contribution) and contribution.tokens <= uncovered",
        "return well_formed(contribution)",
    ),
    Mutant("no tokens, and weight 0", GATE, "0 < c.tokens <=", "c.tokens <="),
    Mutant("another layout is merged", GATE, "if c.fingerprint != fingerprint:", "if False:"),
    Mutant("a base from nowhere", GATE, "if c.base > current:", "if False:"),
    Mutant(
        "stale ones are admitted",
        GATE,
        "c.base.number) > max_staleness:",
        "c.base.number) > max_staleness + 99:",
    ),
    Mutant("NaN is admitted", GATE, "if not math.isfinite(c.norm):", "if False:"),
    Mutant(
        "outliers are admitted",
        GATE,
        "if (most := most_of(norms, c.spans_steps)) < c.norm:",
        "if (most := most_of(Norms(), c.spans_steps)) < c.norm:",
    ),
    Mutant(
        "old norms count as much as new ones",
        NORMS,
        "if counts[sample.island] <= KEPT_OF_EACH:",
        "if counts[sample.island] <= KEPT:",
    ),
    Mutant(
        "no strict limit begins",
        CONTRIBUTIONS,
        "member = replace(member, strict=STRICT_FOR)",
        "member = replace(member, strict=0)",
    ),
    Mutant(
        "the strict limit is the usual one",
        CONTRIBUTIONS,
        "norms.STRICT_FACTOR if member.strict",
        "norms.OUTLIER_FACTOR if member.strict",
    ),
    Mutant(
        "the strict limit ends with a life",
        LIVES,
        "strict=0 if former is None else former.strict,",
        "strict=0,",
    ),
    Mutant(
        "a contribution ends the back-off under the strict limit",
        CONTRIBUTIONS,
        "quarantines = member.quarantines if strict else 0",
        "quarantines = 0",
    ),
    Mutant(
        "an outlier among two",
        NORMS,
        "if len(known) < NEEDED:\n        if",
        "if len(known) < 2:\n        if",
    ),
    Mutant(
        "norms grow with the steps alone", NORMS, "for power in (1.0, 0.5):", "for power in (1.0,):"
    ),
    Mutant(
        "forgotten norms set no bound",
        NORMS,
        "return Norms((), known[len(known) // 2])",
        "return Norms()",
    ),
    Mutant(
        "the last bound stands for ever",
        NORMS,
        "return Norms(recent, None if known else norms.former)",
        "return Norms((), norms.former) if norms.former else Norms(recent)",
    ),
    Mutant("another wire is merged", GATE, "if c.flaw:", "if False:"),
    Mutant(
        "no island is quarantined",
        CONTRIBUTIONS,
        "if rule.overlap > 0 and member.refusals < REFUSALS_UNTIL_QUARANTINE:",
        "if True:",
    ),
    Mutant(
        "quarantined at the first refusal",
        CONTRIBUTIONS,
        "if rule.overlap > 0 and member.refusals < REFUSALS_UNTIL_QUARANTINE:",
        "if False:",
    ),
    Mutant(
        "refusals are never forgotten",
        CONTRIBUTIONS,
        "refusals=0,\n        quarantines=quarantines,",
        "quarantines=quarantines,",
    ),
    Mutant(
        "the barred are let in",
        LIVES,
        "if former is not None and now_s < former.barred_s:",
        "if False:",
    ),
    Mutant("barred at once", MEMBERSHIP, "if quarantines < 2:", "if quarantines < 1:"),
    Mutant(
        "barred as long each time",
        MEMBERSHIP,
        "return BARRED_S * 2 ** min(quarantines - 2, BARRED_DOUBLINGS)",
        "return BARRED_S",
    ),
    Mutant(
        "barred for ever",
        MEMBERSHIP,
        "min(quarantines - 2, BARRED_DOUBLINGS)",
        "(quarantines - 2)",
    ),
    Mutant(
        "barred although it has contributed",
        CONTRIBUTIONS,
        "quarantines=quarantines,\n",
        "\n",
    ),
    Mutant(
        "a new life has no past",
        LIVES,
        "quarantines=0 if former is None else former.quarantines,",
        "quarantines=0,",
    ),
    Mutant(
        "barred by another clock",
        RECOVERY,
        "state = with_member(state, replace(member, barred_s=0.0))",
        "pass",
    ),
    Mutant(
        "moments of who was in quarantine",
        LIVES,
        "if m.refusals == m.quarantines == 0]",
        "if m.refusals == 0]",
    ),
    Mutant(
        "being late is a fault",
        CONTRIBUTIONS,
        "if refusal.fate is not Fate.GATE:",
        "if False:",
    ),
    Mutant(
        "norms of a new regime are never believed",
        CONTRIBUTIONS,
        "if 2 * len(outliers & voters & live(members).keys()) > len(voters):",
        "if False:",
    ),
    Mutant(
        "one outlier and all norms are forgotten",
        CONTRIBUTIONS,
        "if 2 * len(outliers & voters & live(members).keys()) > len(voters):",
        "if True:",
    ),
    Mutant(
        "quarantined islands have no vote on the usual norm",
        CONTRIBUTIONS,
        "return speaks or (member.status is not Status.LEFT and now_s - member.heard_s <= VOTE_S)",
        "return speaks",
    ),
    Mutant(
        "a quarantined outlier counts, live islands decide",
        CONTRIBUTIONS,
        "if 2 * len(outliers & voters & live(members).keys()) > len(voters):",
        "if len(outliers) > max(1, len(live(members)) // 2):",
    ),
    # unsound merges
    Mutant(
        "an unsound version is stored",
        ADVANCE,
        "return merge_outcomes.unsound(rule, state, event, now_s)",
        "return merge_outcomes.merged(rule, state, Merged(event.fragment, event.version))",
    ),
    Mutant(
        "steps may be of any length",
        ORDERS,
        "else norms.limit(fragment.moves,",
        "else norms.limit(norms.NONE,",
    ),
    Mutant(
        "the quietest one is dropped",
        OUTCOMES,
        "loudest = max(round_.items",
        "loudest = min(round_.items",
    ),
    Mutant(
        "spoiled contributions stay",
        OUTCOMES,
        "dropped = spoiled or (loudest,)",
        "dropped = (loudest,)",
    ),
    Mutant(
        "a version that was undone is merged again",
        OUTCOMES,
        "fragment = replace(fragment, void=fragment.void + 1)",
        "fragment = replace(fragment, void=fragment.void)",
    ),
    Mutant(
        "merged again under the quorum",
        OUTCOMES,
        "if len({c.id.life.island for c in items}) >= rule.min_quorum:",
        "if items:",
    ),
    Mutant(
        "a dropped island is not asked again",
        OUTCOMES,
        "called=frozenset(life for life in round_.called if life in inbox_lives or life in owing),",
        "called=round_.called,",
    ),
    Mutant(
        "steps that have changed for everyone are never believed",
        OUTCOMES,
        "moves = norms.forget(fragment.moves) if math.isfinite(norm) else fragment.moves",
        "moves = fragment.moves",
    ),
    # suspects by direction
    Mutant(
        "one merge is enough", SUSPECTS, "member.against + 1 if low else 0", "RUN if low else 0"
    ),
    Mutant(
        "merges need not be in a row",
        SUSPECTS,
        "against=member.against + 1 if low else 0)",
        "against=member.against + low)",
    ),
    Mutant(
        "no island ever points against the others",
        SUSPECTS,
        "if low and member.against >= needed and",
        "if False and",
    ),
    Mutant("three are enough to judge", SUSPECTS, "(len(living) >= LIVE or sure) and", "True and"),
    Mutant("regions do not matter", SUSPECTS, "one_region and enough", "enough"),
    Mutant("it is quarantined though needed", SUSPECTS, "and trusted >= rule.min_quorum", ""),
    Mutant("a trial ends at once", SUSPECTS, "trial=RUN if low else member.trial - 1)", "trial=0)"),
    Mutant(
        "a trial begins anew for nothing",
        SUSPECTS,
        "trial=RUN if low else",
        "trial=RUN if True else",
    ),
    Mutant(
        "no island is on trial",
        SUSPECTS,
        "replace(member, trial=RUN, ",
        "replace(member, trial=0, ",
    ),
    Mutant(
        "a trial goes by a life that is over",
        SUSPECTS,
        "for c, cosine in pairs if",
        "for c, cosine in reversed(list(pairs)) if",
    ),
    Mutant(
        "a contribution on trial is merged",
        ROUNDS,
        "trial = tuple(c for c in waiting if state.members[c.id.life.island].trial)",
        "trial = ()",
    ),
    Mutant(
        "a new life ends the trial",
        LIVES,
        "trial=0 if former is None else former.trial,",
        "trial=0,",
    ),
    Mutant(
        "a contribution on trial counts for the quorum",
        CONTRIBUTIONS,
        "if member.trial:  # it will be measured",
        "if False:  # it will be measured",
    ),
    Mutant(
        "any cosine below the others is low", DIRECTION, "-DEVIATIONS / math.sqrt(measured)", "1.0"
    ),
    Mutant(
        "the others' spread does not matter", DIRECTION, "median - DEVIATIONS * spread)", "1.0)"
    ),
    Mutant(
        "an answer of a life before counts",
        CONTRIBUTIONS,
        "if fragment.asked.get(life.island) != life:",
        "if life.island not in fragment.asked:",
    ),
    Mutant(
        "overwritten twice",
        CONTRIBUTIONS,
        "if ledger.overlaps(state.ledger, event.life, event.fragment, span):",
        "if False:",
    ),
    Mutant(
        "more is overwritten than there is",
        CONTRIBUTIONS,
        "min(event.tokens, open_tokens) if span[0] < span[1] else 0",
        "event.tokens",
    ),
    # the ledger, the leases
    Mutant("fewer tokens than before", LEDGER, "if tokens <= account.tokens:", "if False:"),
    Mutant(
        "lost work is forgotten",
        LEDGER,
        "replace(row, lost=row.lost + account.tokens - covered)",
        "row",
    ),
    Mutant(
        "data that was merged goes back",
        LEASES,
        "if covered is not None and covered.number in numbers:",
        "if False:",
    ),
    Mutant(
        "data of the dead is kept by them",
        LIVES,
        "    state = with_pool(state, member.region, pool)\n    state = replace(state, ledger",
        "    state = replace(state, ledger",
    ),
    Mutant(
        "the cursor goes back",
        LEASES,
        "return max(covered, read, key=lambda lease: (numbers.index(lease.number), lease.start))",
        "return read",
    ),
    Mutant(
        "data goes back to another region",
        LIVES,
        "pool = leases.pool_of(state.leases, member.region)\n    pool = leases.give_back",
        "pool = leases.pool_of(state.leases, None)\n    pool = leases.give_back",
    ),
    Mutant(
        "data from another region",
        LIVES,
        "leases.grant(leases.pool_of(state.leases, event.region))",
        "leases.grant(leases.pool_of(state.leases, None))",
    ),
    Mutant("a lease is granted twice", LEASES, "fresh=pool.fresh + 1", "fresh=pool.fresh"),
    Mutant(
        "a returned lease is not taken from the pool",
        LEASES,
        "return replace(pool, returned=pool.returned[1:]), pool.returned[0]",
        "return pool, pool.returned[0]",
    ),
    # grace, alarms, the syncer's return
    Mutant(
        "the way down takes no time",
        "coordinator/grace.py",
        "(self.quorum_s, self.sync_s, self.down_s)",
        "(self.quorum_s, self.sync_s)",
    ),
    Mutant(
        "the downlink of an island that keeps no pace counts",
        LIVES,
        "if life in in_pace]",
        "if life]",
    ),
    Mutant(
        "grace longer than a step",
        GRACE,
        "return min(step, max(0.0, SHARE_OF_SLACK * slack))",
        "return SHARE_OF_SLACK * slack + 2 * step",
    ),
    Mutant(
        "no overlap follows",
        GRACE,
        "if follows:",
        "if False:",
    ),
    Mutant(
        "no alarm for a silence",
        ADVANCE,
        "silence_s = lives.next_silence_s(rule, state)",
        "silence_s = math.inf",
    ),
    Mutant(
        "the end of a grace window goes unnoticed",
        ROUNDS,
        "and now_s < deadline_s(rule, state, round_)",
        "and now_s >= 0",
    ),
    Mutant(
        "an island that joins a round late is not asked",
        ROUNDS,
        "and state.members.living is before.members.living",
        "and now_s >= 0",
    ),
    Mutant(
        "no alarm for a grace window",
        ADVANCE,
        "min(silence_s, *deadlines, math.inf)",
        "silence_s",
    ),
    Mutant(
        "lives outlive the syncer",
        RECOVERY,
        'state = lives.lose(rule, state, member.life, "the syncer has restarted")',
        "pass",
    ),
    Mutant(
        "an undone merge stays in the ledger",
        RECOVERY,
        "accounts = ledger.unmerge(accounts, contribution)",
        "pass",
    ),
    Mutant(
        "a void round is not due again",
        RECOVERY,
        "due=fragment.due or round_ is not None,",
        "due=fragment.due,",
    ),
    Mutant(
        "why the run ends is forgotten",
        RECOVERY,
        'f"resumed as generation {event.generation}" if running else state.why',
        'f"resumed as generation {event.generation}"',
    ),
    Mutant(
        "the inbox outlives the shard",
        RECOVERY,
        "contributions = (*fragment.inbox, *items, *trial)",
        "contributions = (*items, *trial)",
    ),
    Mutant("rounds open without their shard", ROUNDS, " and not fragment.away:", ":"),
    Mutant(
        "a contribution of a dead shard is admitted",
        CONTRIBUTIONS,
        "    if fragment.away:\n",
        "    if False:\n",
    ),
    Mutant(
        "numbers of void versions are used again",
        RECOVERY,
        "void=fragment.void + (round_ is not None and round_.stage is not Stage.OPEN),",
        "void=fragment.void,",
    ),
    Mutant(
        "learners do not hear what died with a shard",
        RECOVERY,
        "discards += tuple(Discard(c, Fate.LOST, why) for c in contributions)",
        "pass",
    ),
    Mutant(
        "a shard that is back stays away",
        RECOVERY,
        "replace(state.fragments[p], away=False))\n    return state",
        "state.fragments[p])\n    return state",
    ),
    Mutant(
        "a shard that was away is so in the next generation",
        RECOVERY,
        "version=version, away=False, void=0)",
        "version=version, void=0)",
    ),
    # the shell
    Mutant(
        "promises are not flushed",
        SHELL,
        "if isinstance(event, ORDERS) or any(isinstance(effect, PROMISES) for effect in effects):",
        "if False:",
    ),
    Mutant(
        "public before it is merged",
        EFFECTS,
        "if (event := await self._ports.merge(order)) is not None:",
        "if event := __import__('coordinator').protocol.Merged(order.fragment, order.version):",
    ),
    Mutant(
        "public before it is stored, by the shell",
        EFFECTS,
        "if (outcome := await self._ports.store(order)) is None:",
        "if (outcome := True) is None:",
    ),
    # --- the state of a learner
    Mutant(
        "a hand-in does not wait for a step",
        BOUNDARY,
        "if state.stepping and track.from_step >= state.progress.steps:",
        "if False:",
    ),
    Mutant("an older offer is adopted", LEARNER, "if not is_news(state, p, version):", "if False:"),
    Mutant(
        "parameters change in the middle of a step",
        LEARNER,
        'then its end serves them."""\n    if state.busy:',
        'then its end serves them."""\n    if False:',
    ),
    Mutant(
        "in lock-step a late version is waited past",
        LEARNER,
        "for p, base in due_bases if state.tracks[p].base == base)",
        "for p, base in due_bases)",
    ),
    Mutant(
        "in lock-step a shift changes nothing",
        LEARNER,
        "awaiting=() if shifted else state.awaiting,",
        "awaiting=state.awaiting,",
    ),
    Mutant(
        "two messages at a time", LEARNER, "if state.flight or state.quiet or not (", "if not ("
    ),
    Mutant(
        "unanswered adoptions are forgotten",
        LEARNER,
        "messages = state.reporting + state.adoptions  #",
        "messages = state.adoptions  #",
    ),
    Mutant(
        "it steps without data",
        LEARNER,
        "if not (state.rested and enough):",
        "if not state.rested:",
    ),
    Mutant(
        "due points are told by heartbeat only",
        LEARNER,
        "has_report = state.has_report or _is_news(state)",
        "has_report = state.has_report",
    ),
    Mutant(
        "data is never wanted",
        LEARNER,
        "needs_data=short and state.stepping and not state.fetching",
        "needs_data=False",
    ),
    Mutant(
        "it steps on although the run ends",
        LEARNER,
        "stepping=state.stepping and not answer.stopping",
        "stepping=state.stepping",
    ),
    Mutant(
        "a learner waits for a version that it has adopted",
        BOUNDARY,
        "awaiting = tuple(other for other in state.awaiting if other[0] != p)",
        "awaiting = state.awaiting",
    ),
    Mutant(
        "a slow island keeps the full learning rate",
        LIFE,
        "max(-most, min(self.past_t, most))",
        "min(self.past_t, most)",
    ),
    Mutant(
        "a fast island ends its schedule before the others",
        LIFE,
        "max(-most, min(self.past_t, most))",
        "max(-most, self.past_t)",
    ),
    Mutant(
        "in lock-step the learning rate depends on the answers received",
        LIFE,
        "if self.terms.until is not None:\n            return self.clock",
        "if False:\n            return self.clock",
    ),
    Mutant(
        "a late hand-in is discarded at the learner",
        BOUNDARY,
        "waiting = (*track.waiting, contribution)",
        "waiting = track.waiting",
    ),
    Mutant(
        "a lost contribution is kept in place forever",
        LEARNER,
        "if held is not None:",
        "if False:",
    ),
    Mutant(
        "a merged contribution is kept in place again",
        BOUNDARY,
        "if contribution in track.waiting:",
        "if False:",
    ),
    Mutant("a life never ends", LEARNER, "if not state.goes_on:", "if False:"),
    # --- the fleet
    Mutant(
        "a spare takes over an island that only starts",
        ISLANDS,
        "restarted = self.holding.incarnation if self.starts > 1 else self.holding.restarted",
        "restarted = self.holding.incarnation",
    ),
    Mutant(
        "failures are never forgiven",
        ISLANDS,
        "it.holding = replace(it.holding, failures=0, breakages=0)",
        "pass",
    ),
    Mutant(
        "devices are not given back",
        ISLANDS,
        "                place.give_back()\n",
        "                pass\n",
    ),
    Mutant(
        "failures are not counted", ISLANDS, "breakages=it.holding.breakages + 1", "breakages=0"
    ),
    Mutant("fewer than the quorum may be left", REQUESTS, "if len(islands) < quorum:", "if False:"),
    Mutant(
        "a run that ends is scaled", REQUESTS, "if self._now.stopping is not None:", "if False:"
    ),
    Mutant(
        "the syncer is told to stop again and again",
        RECONCILE_LOOP,
        "if stopping is not None and not self._told_to_stop:",
        "if stopping is not None:",
    ),
    Mutant(
        "found devices are not taken over",
        TAKEOVER,
        'self._islands.find(kept["held"], kept["spares"], time.monotonic())',
        "pass",
    ),
    Mutant("processes are left", FLEET, "            self._islands.free_all,\n", ""),
    Mutant(
        "islands that were not looked for are left",
        FLEET,
        "            self._takeover.find_unsought,\n",
        "",
    ),
    Mutant(
        "a depot that does not answer ends a running run",
        "cluster/fleet/depot_reads.py",
        "if not self.endless and time.monotonic() > end_s:",
        "if time.monotonic() > end_s:",
    ),
    Mutant(
        "a file that cannot be removed keeps all processes",
        "cluster/fleet/clean_up.py",
        "        except Exception:\n            log.exception(",
        "        except ValueError:\n            log.exception(",
    ),
    Mutant(
        "a run goes on without its quorum",
        RECONCILE_LOOP,
        "if aside and len(wanted.desired) - len(aside) < self._config.sync.quorum:",
        "if False:",
    ),
    Mutant(
        "restarts of what hangs have no end",
        "cluster/fleet/watchdog.py",
        "if it.vital and it.restarts > self.most:",
        "if False:",
    ),
    Mutant(
        "time in which the fleet stood still counts",
        "cluster/fleet/watchdog.py",
        "min(now_s - self._looked_s, self.hang_s / OFTEN)",
        "now_s - self._looked_s",
    ),
    Mutant(
        "a model that was saved elsewhere does not end the run",
        "cluster/fleet/shutdown.py",
        "            self._waits = self._results\n",
        "            pass\n",
    ),
    Mutant(
        "one defect ends the run",
        "cluster/fleet/error_budget.py",
        "if self._row >= MOST:",
        "if True:",
    ),
    Mutant(
        "a fault of the plan happens twice",
        INJECTION,
        "            self._plan.struck(number)\n",
        "",
    ),
    Mutant("a fault is not counted", INJECTION, "self._core.count_fault(harm.island)", "pass"),
    Mutant(
        "an island is started before it is placed",
        RECONCILE,
        "case Hold.WAITING if not wanted:",
        "case Hold.WAITING if False:",
    ),
    # --- the state of a shard
    Mutant("an outdated syncer is obeyed", SHARD, "if generation < self.generation:", "if False:"),
    Mutant(
        "a later generation is not remembered", SHARD, "self.generation = generation\n", "pass\n"
    ),
    Mutant(
        "a shard merges over a staged version",
        VERSIONS,
        "if self.staged is not None or order.version <= self.version:",
        "if False:",
    ),
    Mutant(
        "an unsound version is staged",
        VERSIONS,
        "if not norm <= order.limit or not math.isfinite(norm):",
        "if False:",
    ),
    Mutant(
        "an unsound merge leaves its step",
        VERSIONS,
        "                undo()\n",
        "                pass\n",
    ),
    Mutant(
        "a shard goes back to a version before",
        VERSIONS,
        "stored = self.stored == self.version",
        "stored = self.stored is not None",
    ),
    Mutant(
        "merged bytes are held",
        VERSIONS,
        "            inbox.drop(item.contribution.reference)\n",
        "            pass\n",
    ),
    Mutant(
        "hand-ins outlive a recovery",
        INBOX,
        "if held.fragment not in fragments}",
        "}",
    ),
    Mutant(
        "a merge that died unpublished stays in the master",
        VERSIONS,
        "return self.version == version and self.staged is None",
        "return self.version == version",
    ),
    Mutant(
        "stored versions that were never published stay",
        SHARD,
        "            self._files.forget_after(p, version)\n",
        "            pass\n",
    ),
    Mutant(
        "a version is published twice",
        VERSIONS,
        "if self.version == order.version:",
        "if False:",
    ),
    Mutant(
        "whatever is staged is published",
        VERSIONS,
        "if version != order.version or difference is None or order.previous != self.version:",
        "if difference is None:",
    ),
    Mutant(
        "whatever is staged is stored",
        VERSIONS,
        "if self.staged is None or self.staged[0] != version:",
        "if False:",
    ),
    Mutant(
        "a contribution from a former version is not rebased",
        VERSIONS,
        "if self._retention.anchor is Anchor.BASE or contribution.base == self.version:",
        "if True:",
    ),
    Mutant(
        "a learner is not sent its held contributions",
        FATES,
        "            known.held.append(contribution)\n",
        "            pass\n",
    ),
    Mutant(
        "a learner is sent lost contributions as held",
        FATES,
        "            known.held.clear()\n",
        "            pass\n",
    ),
    Mutant(
        "a learner is not sent its merged contributions",
        FATES,
        "                known.merged.append(contribution)\n",
        "                pass\n",
    ),
    # rings, and tasks
    Mutant(
        "a failed task is not reported",
        TASKS,
        "            self._failed(error)\n",
        "            ...\n",
    ),
    Mutant(
        "a dead thread is not reported", TASKS, "loop.call_soon_threadsafe(failed, error)", "..."
    ),
    Mutant(
        "a ring with no meeting point turns",
        "cluster/allreduce/meeting_point.py",
        "            if attempt == MEETINGS:\n                raise\n",
        "            if attempt == MEETINGS:\n                return None\n",
    ),
    Mutant(
        "a ring that broke is told its places",
        CONDUCTING,
        "self._run.ring.broken is not None",
        "False",
    ),
    Mutant(
        "islands go before the end is durable",
        CONDUCTING,
        "        await self._records.final.wait()\n",
        "",
    ),
    Mutant(
        "a lost final state is the result",
        CONDUCTING,
        "run.feed(FinalStateLost(wanted, found))",
        "run.feed(Ended(wanted))",
    ),
    Mutant(
        "a life of before is not watched",
        "cluster/allreduce/shell.py",
        "            self._lives.watch_over(life)\n            self._places",
        "            self._places",
    ),
    Mutant(
        "an unreachable island never returns",
        CONDUCTING,
        "        self._places.forget(lost.life)\n",
        "        self._places.answer(lost.life, None)\n        self._places.forget(lost.life)\n",
    ),
    Mutant("a snapshot without a memory is no restart", RECORDS, " or snapshot.held > START", ""),
)


def main() -> int:
    """Print a table of the mutants and what caught them; return 1 if any survived."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="mutants whose name or file has this word")
    parser.add_argument("--schedules", type=int, default=SCHEDULES)
    parser.add_argument(
        "--first", action="store_true", help="play schedules only for mutants that no test catches"
    )
    arguments = parser.parse_args()
    chosen = [m for m in MUTANTS if arguments.only in m.what or arguments.only in m.file]
    missed = 0
    for mutant in chosen:
        began_s = time.monotonic()
        caught = try_out(mutant, arguments.schedules, first=arguments.first)
        missed += not (caught.test or caught.schedule)
        print(
            f"{mutant.what:<42} | {mutant.file.rpartition('/')[2]:<16} | {caught.test or '-':<60} "
            f"| {caught.schedule or '-':<42} | {time.monotonic() - began_s:.0f} s",
            flush=True,
        )
    print(f"{len(chosen)} mutants: {len(chosen) - missed} caught, {missed} not caught")
    return 1 if missed else 0


def try_out(mutant: Mutant, schedules: int = SCHEDULES, *, first: bool = False) -> Caught:
    """Return what catches this mutant: tests of the rules, simulated schedules.

    With `first`, schedules are played only if no test catches it.
    """
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder)
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, tree / name)
        patch(tree / mutant.file, mutant)
        tests = next(each for start, each in OF_ROOM.items() if mutant.file.startswith(start))
        test = first_line(tree, [*PYTEST, *tests])
        played = not mutant.file.startswith(UNPLAYED) and not (first and test)
        schedule = first_line(tree, ["-c", FUZZ, str(schedules), str(SEED)]) if played else ""
    return Caught(test, schedule)


def patch(path: Path, mutant: Mutant) -> None:
    text = path.read_text(encoding="utf-8")
    if (times := text.count(mutant.old)) != 1:
        raise SystemExit(f"{mutant.what!r}: its line occurs {times} times in {mutant.file}")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")


def first_line(tree: Path, command: list[str]) -> str:
    """Run Python in the copied tree; return the first failure, or an empty string."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "it never ended"
    if done.returncode == 0:
        return ""
    said = [
        line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR", "sch"))
    ]
    last = (done.stderr.strip() or "it broke").splitlines()[-1]
    return (said[0] if said else last).removeprefix("FAILED tests/coordinator/")[:60]


if __name__ == "__main__":
    sys.exit(main())
