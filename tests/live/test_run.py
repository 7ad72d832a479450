"""Real Ray, real processes, real kills: the behaviour of a run under faults."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from cluster.config.load import load
from cluster.config.rule import rule_of
from cluster.storage.folder import Folder
from cluster.storage.layout import load_layout
from cluster.storage.model_file import fingerprint
from cluster.storage.playback import Recording, read_tape
from cluster.storage.state_history import ReplayedEvent, relive
from cluster.storage.tape import checksum
from coordinator.fragments import Layout, take
from coordinator.protocol import (
    Arrived,
    Ask,
    ContributionId,
    Discard,
    Effect,
    Event,
    Finish,
    Fragment,
    Granted,
    Island,
    LeaseGranted,
    Life,
    Lost,
    Merge,
    Merged,
    Publish,
    Refused,
    Release,
    Report,
    ShardBack,
    ShardLost,
    Shift,
    Store,
    Version,
    Void,
    Wake,
)
from coordinator.state import State, initial, validate
from tests.live.cli import FAULTS, TINY, Finished, Place, finish, place, until
from tests.live.replayed_run import replayed

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

VICTIM = Island("local-1")
KEYS = {
    "schema", "run", "seed", "mode", "config_sha256", "source_sha256", "versions", "parameters",
    "devices", "device_hours", "island_hours", "usd",
    "heldout_loss", "sample_heldout_loss", "initial_heldout_loss", "tokens_trained",
    "tokens_merged", "tokens_discarded", "tokens_lost", "tokens_outstanding", "merges",
    "mean_participants", "goodput", "uptime", "failures",
    "goodput_s", "badput_s", "island_seconds", "ideal_step_s", "step_deviation_s", "loss_spikes",
    "faults", "recovery_s", "max_merge_gap_s", "up_bytes_per_token", "down_bytes_per_token",
    "heldout_metrics", "heldout_by_region", "rejected_contributions", "effective_overlap", "wall_s",
    "global_sha256",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Killed:
    """All files of a run in which one island was killed, came back and was asked to stop."""

    finished: Finished
    status: Finished
    run_dir: Path
    layout: Layout
    recording: Recording
    states: list[State]

    @property
    def summary(self) -> dict[str, Any]:
        return self.finished.json

    @property
    def events(self) -> list[tuple[float, Event]]:
        return [(row.now_s, row.event) for row in self.recording.events]

    @property
    def lives(self) -> list[Life]:
        """The lives of the killed island, in order."""
        told = {e.life for _, e in self.events if isinstance(e, Report)}
        return sorted(life for life in told if life.island == VICTIM)

    def when(self, kind: type[Event], life: Life) -> float:
        """Return the time of the first event of this kind about this life."""
        return next(
            now_s
            for now_s, event in self.events
            if isinstance(event, kind) and getattr(event, "life", None) == life
        )


@pytest.fixture(scope="module")
def killed() -> Generator[Killed]:
    with place() as here:
        process = here.start(
            "run", str(TINY), "--json", "--run-dir", str(here.run_dir),
            "--set", "run.steps=1000000", "--set", "islands.0.count=3",
            "--set", "islands.0.step_s=0.1", "--set", "durability.keep_contributions=true",
            "--set", f'faults.plan=[{{at_step=40, kind="kill", island="{VICTIM}"}}]',
        )  # fmt: skip
        until(lambda: takes_part_again(here.last_status) or process.poll() is not None)

        def seen() -> Finished | None:
            """Look until all are live: on a busy machine one may be silent for a moment."""
            told = here.run("status", str(here.run_dir), "--json")
            there = told.code != 0 or told.json["alive"] == 3
            return told if there or process.poll() is not None else None

        status = until(seen)
        assert here.run("stop", str(here.run_dir)).code == 0
        finished = finish(process)
        assert finished.code == 0, finished.err
        layout = load_layout(Folder(here.run_dir))
        rule = rule_of(load(here.run_dir / "config.toml"), layout)
        recording = read_tape(Folder(here.run_dir), layout.fingerprint)
        states = [initial(rule), *(heard.after for heard in relive(rule, recording.events))]
        for state in states:
            validate(rule, state)
        yield Killed(finished, status, here.run_dir, layout, recording, states)


def takes_part_again(status: dict[str, Any]) -> bool:
    """Return whether the victim's second life is in each fragment's last merge."""
    return is_back(status, 2)


def is_back(status: dict[str, Any], life: int) -> bool:
    islands = {each["island"]: each for each in status.get("islands", ())}
    if VICTIM not in islands or islands[VICTIM]["life"] < life:
        return False
    return all(VICTIM in each["participants"] for each in status["fragments"])


def test_summary_is_one_json_object_with_every_figure(killed: Killed) -> None:
    assert set(killed.summary) == KEYS
    assert {key for key, figure in killed.summary.items() if figure is None} == {"usd"}
    assert killed.summary["devices"] == 3
    spent = killed.summary["device_hours"]
    assert 0 < spent <= 3 * killed.summary["wall_s"] / 3600
    assert sum(killed.summary["island_hours"].values()) == pytest.approx(spent)


def test_tokens_add_up_in_the_summary_and_in_every_fragment(killed: Killed) -> None:
    fates = ("merged", "discarded", "lost", "outstanding")
    assert killed.summary["tokens_trained"] == sum(killed.summary[f"tokens_{f}"] for f in fates)
    ledger = killed.states[-1].ledger
    for p, row in enumerate(ledger.rows):
        outstanding = ledger.outstanding(Fragment(p))
        assert outstanding >= 0
        assert ledger.trained == row.merged + row.all_discarded + row.lost + outstanding


def test_no_tokens_are_outstanding_at_the_end(killed: Killed) -> None:
    """Each fragment has merged, or refused with a reason, everything that was trained."""
    assert killed.summary["tokens_outstanding"] == 0
    ledger = killed.states[-1].ledger
    assert [ledger.outstanding(Fragment(p)) for p in range(len(ledger.rows))] == [
        0 for _ in killed.layout.fragments
    ]


def test_killed_island_contributes_again(killed: Killed) -> None:
    assert killed.summary["faults"] == 1
    assert len(killed.summary["recovery_s"]) == 1
    first, second, *_ = killed.lives
    assert second.incarnation > first.incarnation
    assert killed.when(Lost, first) < killed.when(Report, second)
    given = {e.contribution.id.life for _, e in killed.events if isinstance(e, Arrived)}
    assert {first, second} <= given


def test_other_islands_merge_while_one_is_away(killed: Killed) -> None:
    first, second, *_ = killed.lives
    lost_s, back_s = killed.when(Lost, first), killed.when(Report, second)
    between = [e for s, e in killed.events if isinstance(e, Merged) and lost_s < s < back_s]
    assert len(between) > 5
    assert killed.summary["uptime"] > 0.5, "1.0, where nobody else needs the cores"


def test_contributions_of_a_lost_life_are_not_admitted(killed: Killed) -> None:
    dead = killed.lives[0]
    arrived: set[ContributionId] = set()
    for (_, event), after in zip(killed.events, killed.states[1:], strict=True):
        said = event.contribution.id if isinstance(event, Arrived) else None
        if said is not None and said.life == dead and after.members[VICTIM].life == dead:
            arrived.add(said)
        for fragment in after.fragments:
            held = (*fragment.inbox, *(fragment.round.items if fragment.round else ()))
            assert {c.id for c in held if c.id.life == dead} <= arrived


def test_versions_grow_by_one(killed: Killed) -> None:
    for p in range(len(killed.layout.fragments)):
        merged = [e.version for _, e in killed.events if isinstance(e, Merged) and e.fragment == p]
        assert merged == [Version(0, number) for number in range(1, len(merged) + 1)]
        assert len(merged) > 1
    assert sum(isinstance(e, Merged) for _, e in killed.events) == killed.summary["merges"]


def test_saved_model_has_the_fingerprint_of_the_summary(killed: Killed) -> None:
    layout = killed.layout
    tensors = load_file(killed.run_dir / "model.safetensors")
    leaves = [tensors[leaf.path] for leaf in layout.leaves]
    flats = [take(layout, Fragment(p), leaves) for p in range(len(layout.fragments))]
    assert fingerprint(flats) == killed.summary["global_sha256"]


def test_replay_rebuilds_the_run_bit_for_bit(killed: Killed) -> None:
    with place() as here:
        result = here.run("replay", str(killed.run_dir), "--json")
    assert result.code == 0, result.err
    assert result.json["exact"] is True
    assert (result.json["violations"], result.json["violated"]) == (0, None)
    assert result.json["compared"] == {
        "effects": True,
        "state": True,
        "fragments": True,
        "tokens": True,
    }
    assert result.json["global_sha256"] == killed.summary["global_sha256"]


def test_simulator_answers_every_event_alike(killed: Killed) -> None:
    """The simulator's shell calls for each effect what the shell on Ray calls, in that order."""
    orders, parked = 0, set[Life]()
    rule = rule_of(load(killed.run_dir / "config.toml"), killed.layout)
    for row, effects, deeds in replayed(rule, killed.recording.events):
        assert checksum(effects) == row.answer, f"event {row.seq}: {row.event}"
        assert deeds == [deed for effect in effects if (deed := wanted(effect, parked))]
        orders += len(deeds)
    assert orders > 100


def wanted(effect: Effect, parked: set[Life]) -> tuple[object, ...]:
    """Return the call that an effect needs; empty if the effect is an answer.

    A learner that is asked for the last time is parked first, and collected only after its answer.
    """
    match effect:
        case Ask(life, _, last=True):
            if life in parked:
                return ()
            parked.add(life)
            return "park", life
        case Granted():
            return "watch", effect.life
        case Ask():
            return "collect", effect.life, effect.fragment
        case Release():
            return "park", effect.life
        case Void():
            return "cease", effect
        case Merge() | Store() | Publish() | Discard():
            return type(effect).__name__.lower(), effect
        case Refused() | LeaseGranted() | Shift() | Wake() | Finish():
            return ()


def test_status_works_from_another_terminal(killed: Killed) -> None:
    """The command `stop` was called from there as well."""
    assert killed.status.code == 0, killed.status.err
    status = killed.status.json
    assert {"run", "t", "islands", "fragments", "participants", "alive"} <= set(status)
    assert [island["state"] for island in status["islands"]] == ["live"] * 3
    assert status["alive"] == 3
    assert status["t"] > 40


# --- the end of a run --------------------------------------------------------------------


def begin(here: Place, *more: str) -> subprocess.Popen[str]:
    """Start a long run, which ends only when it is asked to.

    Its islands are idle for most of each step, so that processes start quickly beside it.
    """
    return here.start(
        "run", str(TINY), "--json", "--run-dir", str(here.run_dir),
        "--set", "run.steps=1000000", "--set", "islands.0.step_s=0.1", *more,
    )  # fmt: skip


def live_run(here: Place, *more: str) -> subprocess.Popen[str]:
    """Start a run, and wait until it merges."""
    process = begin(here, *more)
    until(lambda: here.merges > 8 or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process


@pytest.mark.long
def test_ctrl_c_hands_in_saves_and_writes_a_summary() -> None:
    with place() as here:
        process = live_run(here)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the foreground group
        finished = finish(process)
        assert finished.code == 130, finished.err
        assert "Traceback" not in finished.err
        assert finished.json["merges"] > 8
        assert finished.json == json.loads((here.run_dir / "summary.json").read_text())
        assert (here.run_dir / "model.safetensors").exists()


@pytest.mark.long
def test_repeated_ctrl_c_ends_the_run_at_once() -> None:
    """This holds also during the start, when no learner can hand in yet."""
    with place() as here:
        process = begin(here)
        until((here.run_dir / "live.json").exists)

        def pressed() -> bool:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            return process.poll() is not None

        until(pressed)
        finished = finish(process)
        assert finished.code == 130, finished.err
        assert "Traceback" not in finished.err
        assert not (here.run_dir / "summary.json").exists(), "it waited for nobody"


BROKEN_TASK = """
from dataclasses import replace
from islands.task import load_task

def task(data):
    good = load_task("byte-tiny", None, {}, data)

    def stream(batch_size):
        reader, steps = good.stream(batch_size), iter(range(5))
        read = reader.next

        def next_batch():
            if next(steps, None) is None:
                raise ZeroDivisionError("the user made this, at step 5")
            return read()

        reader.next = next_batch
        return reader

    return replace(good, stream=stream)
"""


@pytest.mark.long
def test_failing_task_ends_the_run_with_its_traceback() -> None:
    """The run ends after three lives of each island.

    A fault of the machine might pass, and while only one island is set aside, the other continues.
    """
    with place() as here:
        (here.folder / "broken.py").write_text(BROKEN_TASK)
        config = here.folder / "broken.toml"
        mine = TINY.read_text().replace('preset = "byte-tiny"', 'target = "broken:task"')
        config.write_text(mine.replace("every = 8", "every = 100"))  # it breaks before that
        steps = ("--set", "run.steps=1000")
        finished = here.run("run", str(config), "--run-dir", str(here.run_dir), *steps)
        assert finished.code == 1
        assert "broke 3 times without a contribution" in finished.err
        assert "ZeroDivisionError: the user made this, at step 5" in finished.err
        assert "in next_batch" in finished.err
        assert not (here.run_dir / "live.json").exists()


@pytest.mark.long
def test_planned_drain_below_the_quorum_has_no_effect() -> None:
    plan = f'faults.plan=[{{at_step=5, kind="drain", island="{VICTIM}"}}]'
    with place() as here:
        finished = here.run(
            "run", str(TINY), "--json", "--run-dir", str(here.run_dir),
            "--set", "run.steps=400", "--set", "sync.quorum=2", "--set", plan,
        )  # fmt: skip
        there = {each["island"] for each in here.last_status.get("islands", ())}
    assert finished.code == 0, finished.err
    assert finished.json["faults"] == 1
    assert there == {"local-0", VICTIM}, "to the end, which with a quorum of 2 needs both"
    assert finished.json["mean_participants"] == 2.0


def test_killed_syncer_and_shard_return_without_losing_a_version() -> None:
    """The shard is one of two, with the smallest wire, and an island is killed too.

    The figures of the summary are those of the whole run.
    """
    with place() as here:
        plan = f'faults.plan=[{{at_step=5, kind="kill", island="{VICTIM}"}}]'
        two = ("sync.shards=2", 'sync.wire_up="int4"', 'sync.wire_down="int4"')
        process = live_run(here, *(word for each in (plan, *two) for word in ("--set", each)))
        assert len(pids(here, "ShardActor")) == 2
        returns: dict[str, Callable[[], object]] = {
            "SyncerActor": lambda: tapes(here) == 2,
            "ShardActor": lambda: any(isinstance(e.event, ShardBack) for e in heard(here)),
            "EvaluatorActor": lambda: len(pids(here, "EvaluatorActor")) == 1,
        }
        for victim, there_again in returns.items():
            os.kill(pids(here, victim)[-1], signal.SIGKILL)
            until(there_again)
            before = here.merges
            until(lambda before=before: here.merges > before + 5)
        until(lambda: takes_part_again(here.last_status))
        os.killpg(process.pid, signal.SIGINT)
        finished = finish(process)
        assert finished.code == 130, finished.err
        assert finished.json["faults"] == len(finished.json["recovery_s"]) == 1
        assert 0 < finished.json["goodput"] < 1, "of the whole run, also of the time before"
        assert 0 < finished.json["uptime"] <= 1
        assert tapes(here) == 2, "a shard's death ends no life of the syncer"
        told = heard(here)
        for each in told:
            for old, new in zip(each.before.fragments, each.after.fragments, strict=True):
                assert new.version >= old.version
            if isinstance(each.event, ShardLost):
                assert len(each.event.fragments) == len(each.after.fragments) / 2, "one of two"
                assert each.after.members == each.before.members, "nor of a learner"
                for p in {*range(len(each.after.fragments))} - {*each.event.fragments}:
                    assert each.after.fragments[p] == each.before.fragments[p]
        assert told[-1].after.generation == 1


@pytest.mark.long
def test_shard_that_dies_while_idle_is_back_when_it_is_needed() -> None:
    """Without a round for hours, a joining island would wait for its model forever."""
    with place() as here:
        process = begin(here, "--set", "sync.every=100000")
        until(lambda: all_live(here, 2) or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        (pid,) = pids(here, "ShardActor")
        os.kill(pid, signal.SIGKILL)
        until(lambda: any(isinstance(each.event, ShardBack) for each in heard(here)))
        assert all_live(here, 2, life=1)
        os.killpg(process.pid, signal.SIGINT)
        finished = finish(process)
        assert finished.code == 130, finished.err
        fragments = len(here.last_status["fragments"])
        assert finished.json["merges"] == fragments, "one last round of each fragment"


def test_run_killed_as_a_whole_resumes_where_it_was() -> None:
    """The run resumes in a new Ray, accounts for every token, and repeats no planned fault."""
    with place() as here:
        plan = f'faults.plan=[{{at_step=1, kind="scale", island="{VICTIM}", factor=1.0}}]'
        often = ("--set", "monitor.evaluate_every_s=1", "--set", plan)
        process = live_run(here, *often)
        until(lambda: all_live(here, 2) or process.poll() is not None)  # one may have no life yet
        until(lambda: here.last_status["faults"] == 1 and len(here.last_status["heldout"]) > 2)
        for number in here.left_running():
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        assert finish(process).code == -signal.SIGKILL
        before = here.last_status
        process = begin(here, "--resume", *often)
        until(lambda: all_live(here, 2, life=2) or process.poll() is not None)
        until(lambda: here.merges > before["merges"] + 8 or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        os.killpg(process.pid, signal.SIGINT)
        finished = finish(process)
        assert finished.code == 130, finished.err
        after, summary = here.last_status, finished.json
        assert after["t"] > before["t"]
        known = len(before["heldout"])
        assert after["heldout"][:known] == before["heldout"], "one curve"
        assert min(loss for _, loss in after["heldout"][known:]) < before["heldout"][0][1]
        assert summary["faults"] == 1
        assert 0 < summary["tokens_lost"] < summary["tokens_trained"]
        fates = ("merged", "discarded", "lost", "outstanding")
        assert summary["tokens_trained"] == sum(summary[f"tokens_{fate}"] for fate in fates)
        again = here.run("replay", str(here.run_dir), "--json").json
        assert again["compared"] == {"effects": True, "state": True, "tokens": True}
        over = here.run("run", str(TINY), "--run-dir", str(here.run_dir), "--resume")
        assert over.code == 2
        assert "has ended" in over.err


@pytest.mark.long
def test_unwritable_disk_does_not_stop_the_run() -> None:
    """The run reports the error, and writes everything when there is room again.

    The errors are real ones of the kernel: a limit on file sizes is set for both processes from
    outside.
    """
    with place() as here:
        process = live_run(here)
        numbers = [*pids(here, "SyncerActor"), *pids(here, "ShardActor")]
        before = {n: resource.prlimit(n, resource.RLIMIT_FSIZE) for n in numbers}
        for number, (_, hard) in before.items():
            resource.prlimit(number, resource.RLIMIT_FSIZE, (4096, hard))

        def troubles() -> str:
            return here.last_status["figures"]["not_durable"]

        both = re.compile(r"(?=.*tape: File too large)(?=.*fragment \d[^:;]*: File too large)")
        until(lambda: both.match(troubles()))
        merges = here.merges
        until(lambda: here.merges > merges + 8 or process.poll() is not None)
        for number, limits in before.items():
            resource.prlimit(number, resource.RLIMIT_FSIZE, limits)
        until(lambda: troubles() == "" or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)
        finished = finish(process)
        assert finished.code == 130, finished.err
        assert re.search(r"not durable: .*File too large", finished.err)
        assert "durable again" in finished.err
        again = here.run("replay", str(here.run_dir), "--json").json
        assert again["exact"]
        assert again["violated"] is None
        assert again["merges"] == finished.json["merges"]


CHAOS = """
[[faults]]
after_s = 0.0
kind = "kill"
island = "nobody-7"
[[faults]]
after_s = 0.5
kind = "stop"
island = "evaluator"
for_s = 1.0
"""


@pytest.mark.long
def test_run_survives_faults_of_every_kind_without_violations() -> None:
    """The faults come from the plan that the simulator plays too, and from another terminal.

    See tests/lab/test_simulation_config.py. An island that hangs is left out, and may return.
    """
    planned = len(load(FAULTS).faults.plan)
    with place() as here:
        process = here.start(
            "run", str(FAULTS), "--json", "--run-dir", str(here.run_dir),
            "--set", "run.steps=1000000",
        )  # fmt: skip

        def state(of: Island) -> str:
            islands = here.last_status.get("islands", ())
            return next((each["state"] for each in islands if each["island"] == of), "")

        until(lambda: here.last_status.get("faults") == planned or process.poll() is not None)
        until(lambda: state(VICTIM) == "lost" or process.poll() is not None)
        merges = here.merges
        until(lambda: here.merges > merges + 3 or process.poll() is not None)
        plan = here.folder / "plan.toml"
        plan.write_text(CHAOS)
        chaos = here.run("chaos", str(here.run_dir), "--plan", str(plan), "--json")
        assert chaos.code == 0, chaos.err
        refused, done = chaos.json["faults"]
        assert 'the kill of "nobody-7" names no island' in refused["refused"]
        assert (done["kind"], done["refused"]) == ("stop", None)
        until(lambda: state(VICTIM) == "live" or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)
        finished = finish(process)
        assert finished.code == 130, finished.err
        assert finished.json["faults"] == planned + 1
        said = finished.err
        assert f"{VICTIM} is lost: silent for" in said, said
        assert "local-2 has left" in said, said
        assert "numbers that are not finite" in said, said
        assert "the limit is" in said, said
        assert "not durable: fragments: File too large" in said, said
        assert tapes(here) == 2, "a shard's death ends no life of the syncer"
        assert any(isinstance(each.event, ShardBack) for each in heard(here))
        again = here.run("replay", str(here.run_dir), "--json")
        assert again.code == 0, again.out
        assert again.json["exact"]
        assert again.json["violated"] is None


@pytest.mark.long
def test_warm_spare_takes_over_a_killed_island() -> None:
    """The replaced island's next process becomes the spare."""
    with place() as here:
        process = live_run(here, "--set", "islands.0.spares=1")
        plan = here.folder / "plan.toml"
        plan.write_text(f'[[faults]]\nafter_s = 0.0\nkind = "kill"\nisland = "{VICTIM}"\n')
        for life, (victim, spare) in {2: ("local+0", "local-1"), 3: ("local-1", "local+0")}.items():
            until(lambda: here.last_status["spares"] == 1 and all_live(here, 2))
            assert here.run("chaos", str(here.run_dir), "--plan", str(plan)).code == 0
            until(lambda life=life: is_back(here.last_status, life) or process.poll() is not None)
            kept = json.loads((here.run_dir / "fleet.json").read_text())
            assert kept["held"][VICTIM] == victim
            assert kept["spares"] == {spare: "local"}
        os.killpg(process.pid, signal.SIGINT)
        finished = finish(process)
        assert finished.code == 130, finished.err
        assert finished.json["faults"] == len(finished.json["recovery_s"]) == 2


@pytest.mark.long
def test_spare_takes_over_a_hanging_island_whose_process_becomes_a_spare() -> None:
    """The hanging process becomes a spare when it continues, since the island has moved."""
    with place() as here:
        process = live_run(here, "--set", "islands.0.spares=1")
        until(lambda: here.last_status["spares"] == 1 and all_live(here, 2))
        plan = here.folder / "plan.toml"
        plan.write_text(
            f'[[faults]]\nafter_s = 0.0\nkind = "stop"\nisland = "{VICTIM}"\nfor_s = 20.0\n'
        )
        assert here.run("chaos", str(here.run_dir), "--plan", str(plan)).code == 0
        until(lambda: is_back(here.last_status, 2) or process.poll() is not None)
        until(lambda: here.last_status["spares"] == 1 or process.poll() is not None)
        until(lambda: is_back(here.last_status, 2) or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)
        finished = finish(process)
        assert finished.code == 130, finished.err
        said = "".join(
            log.read_text() for log in here.folder.glob("ray/session_latest/logs/worker-*.err")
        )
        assert f"a spare is {VICTIM} now; {VICTIM} is a spare" in said


@pytest.mark.long
def test_hanging_island_is_replaced_if_that_is_the_policy() -> None:
    """The hanging process is killed, since it does not receive messages."""
    with place() as here:
        process = live_run(here, "--set", "faults.policy.hang_s=1.0")
        hung = pids(here, "IslandActor")[0]
        os.kill(hung, signal.SIGSTOP)
        until(lambda: hung not in here.left_running() or process.poll() is not None)
        until(lambda: 2 in lives(here, "live") or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)
        finished = finish(process)
        assert finished.code == 130, finished.err
        assert "is lost: silent for" in finished.err
        assert "is back as life 2" in finished.err


def states(here: Place) -> list[str]:
    return [each["state"] for each in here.last_status.get("islands", ())]


def heard(here: Place) -> list[ReplayedEvent]:
    """Return all events of the syncer, with the states before and after."""
    depot = Folder(here.run_dir)
    layout = load_layout(depot)
    rule = rule_of(load(here.run_dir / "config.toml"), layout)
    told = [*relive(rule, read_tape(depot, layout.fingerprint).events)]
    for each in told:
        validate(rule, each.after)
    return told


def tapes(here: Place) -> int:
    """Return the number of tapes: one for each generation of the syncer."""
    return len(list(here.run_dir.glob("tape-*.arrow")))


def lives(here: Place, state: str) -> list[int]:
    """Return the incarnations of the islands in this state."""
    islands = here.last_status.get("islands", ())
    return [each["life"] for each in islands if each["state"] == state]


def all_live(here: Place, count: int, *, life: int = 1) -> bool:
    """Return whether exactly `count` islands exist, all live and in this life or a later one."""
    islands = here.last_status.get("islands", ())
    return [each["state"] == "live" and each["life"] >= life for each in islands] == [True] * count


def pids(here: Place, actor: str) -> list[int]:
    running = here.left_running().items()
    return [number for number, command in running if command.startswith(f"ray::{actor}")]
