"""A real cluster of several raylets: submit, watch with Prometheus, scale, drain, kill, stop.

The tests are one long story, because a cluster starts slowly: each depends on the ones before. Only
those with the mark `long` may be left out, and can run alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster.config.load import load
from cluster.config.rule import rule_of
from cluster.storage.folder import Folder
from cluster.storage.layout import load_layout
from cluster.storage.playback import read_tape
from coordinator.advance import advance
from coordinator.protocol import Fragment
from coordinator.state import initial, validate
from tests.archipelago.test_boards import expressions, steady
from tests.live.cli import (
    ROOT,
    TINY,
    Finished,
    Place,
    finish,
    last_status,
    place,
    until,
)
from tests.live.prometheus import Prometheus, free_port, prometheus_of

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

RUN = "story"
RULES = sum(
    (ROOT / "dashboards" / name).read_text().count("expr:") for name in ("rules.yml", "alerts.yml")
)
TOKEN = "a-token-of-this-test-only-0123456789"
SLOWLY = ("--set", "run.steps=1000000", "--set", "islands.0.step_s=0.1")
WITHIN_S = 90.0
EVALUATIONS = 10
"""Evaluations before and during the scalings that the loss curve has at least."""
MOST_RISE = 1.1
"""The largest held-out loss during twenty scalings, over the largest of one island before them."""
ROUNDING = 1
"""The tolerance in tokens: a status has means over fragments, rounded so that they add up."""


@dataclass(frozen=True, slots=True)
class Raylets:
    """The cluster, its run's directory, and the measured figures."""

    here: Place
    address: str
    jobs: str
    figures: dict[str, float]

    @property
    def environment(self) -> dict[str, str]:
        mine = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "HOME": str(self.here.folder)}
        return {**self.here.environment, **mine}

    @property
    def run_dir(self) -> Path:
        return self.here.folder / "archipelago" / "runs" / RUN

    def run(self, *arguments: str, **env: str) -> Finished:
        return finish(
            subprocess.Popen(
                [sys.executable, "-m", "archipelago", *arguments],
                cwd=ROOT,
                env=self.environment | env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )

    def ray(self, *arguments: str) -> str:
        """Run Ray's own job command, and return its output."""
        done = subprocess.run(
            [str(Path(sys.executable).with_name("ray")), "job", *arguments, "--address", self.jobs],
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout + done.stderr

    def ask(self, command: str, *arguments: str) -> Finished:
        return self.run(command, RUN, *arguments, "--address", self.address)

    def status(self) -> dict[str, Any]:
        """Return the status from a new process, as a user asks for it."""
        finished = self.ask("status", "--json")
        return finished.json if finished.code == 0 else {}

    def states(self) -> dict[str, str]:
        return {each["island"]: each["state"] for each in self.last.get("islands", ())}

    @property
    def last(self) -> dict[str, Any]:
        """The last status that the run wrote, which is much cheaper to poll."""
        return last_status(self.run_dir)

    def contributions(self) -> dict[str, int]:
        return {each["island"]: each["contributions"] for each in self.last.get("islands", ())}

    def until_contributing(self, *islands: str) -> None:
        """Wait until these islands, and no others, contribute."""
        until(
            lambda: (
                self.states() == dict.fromkeys(islands, "live")
                and all(self.contributions()[island] > 0 for island in islands)
            ),
            WITHIN_S,
        )


@pytest.fixture(scope="module")
def raylets() -> Generator[Raylets]:
    with up() as (cluster, _):
        yield cluster


@contextmanager
def up(**env: str) -> Generator[tuple[Raylets, subprocess.Popen[str]]]:
    """Yield the cluster, and the process that holds it."""
    with place() as here:
        port = free_port()
        mine = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, **env}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # its `python` is this one
        process = subprocess.Popen(
            [
                sys.executable, str(Path(__file__).with_name("raylets.py")),
                str(port), str(free_port()),
            ],
            env={**here.environment, **mine, "PATH": path, "HOME": str(here.folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        try:
            yield Raylets(here, told["address"], f"http://127.0.0.1:{port}", {}), process
        finally:
            process.communicate()
            assert process.returncode == 0


@pytest.fixture(scope="module")
def prometheus(raylets: Raylets) -> Generator[Prometheus]:
    """Run Debian's Prometheus, which finds the run by the folder of targets."""
    with prometheus_of(raylets.here.folder, run=RUN) as running:
        yield running


# --- before any run ----------------------------------------------------------------------


def test_wrong_token_gives_one_clear_message(raylets: Raylets) -> None:
    wrong = {"RAY_AUTH_TOKEN": "another-token-0123456789-0123456789"}
    refused = raylets.run("submit", str(TINY), "--address", raylets.jobs, **wrong)
    assert refused.code == 2
    assert "does RAY_AUTH_TOKEN hold its token" in refused.err
    assert "Traceback" not in refused.err


def test_unreachable_head_gives_one_clear_message(raylets: Raylets) -> None:
    refused = raylets.run("submit", str(TINY), "--address", f"http://127.0.0.1:{free_port()}")
    assert refused.code == 2
    assert "cannot be used" in refused.err
    assert "Traceback" not in refused.err


def test_refuses_islands_that_can_never_be_placed(raylets: Raylets) -> None:
    wish = ("--set", "run.name=huge", "--set", "islands.0.resources={CPU=64.0}")
    refused = raylets.run("submit", str(TINY), "--address", raylets.jobs, *wish)
    assert refused.code == 2
    said = refused.out + refused.err
    assert "2 islands, each of 64 CPU, can never be placed: there is room for 0" in said
    assert "2 CPU, region=us" in said


def test_unknown_run_gives_one_clear_message(raylets: Raylets) -> None:
    refused = raylets.run("scale", "nobody", "local=2", "--address", raylets.address)
    assert (refused.code, refused.out) == (2, "")
    assert "no run named nobody is live in the cluster" in refused.err


# --- the story ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def story(raylets: Raylets, prometheus: Prometheus) -> Raylets:
    """Submit a run whose client exits at once, and wait for its contributions."""
    began_s = time.monotonic()
    expected = raylets.here.folder / "expected.csv"
    expected.write_text("tokens,loss,low,high\n1,5.5,0.1,99\n1000000000000,1.0,0.1,99\n")
    submitted = raylets.run(
        "submit", str(TINY), "--address", raylets.jobs, "--no-wait", "--json", *SLOWLY,
        "--set", f"run.name={RUN}", "--set", f"monitor.expected={expected}",
    )  # fmt: skip
    assert submitted.code == 0, submitted.err
    assert submitted.json == {"run": RUN, "address": raylets.jobs}
    raylets.until_contributing("local-0", "local-1")
    raylets.figures["submit_to_contributions_s"] = time.monotonic() - began_s
    return raylets


def test_run_is_visible_in_status_prometheus_and_ray(
    story: Raylets, prometheus: Prometheus
) -> None:
    began_s = time.monotonic()
    status = story.status()
    story.figures["status_s"] = time.monotonic() - began_s
    assert (status["run"], status["alive"], status["wanted"]) == (RUN, 2, 2)
    until(lambda: prometheus.number("archipelago_islands_alive") == 2, WITHIN_S)
    assert RUN in story.ray("list")
    until(lambda: ", 2 alive" in story.ray("logs", RUN), WITHIN_S)


def test_refuses_a_name_in_use(story: Raylets) -> None:
    refused = story.run(
        "submit", str(TINY), "--address", story.jobs, "--set", f"run.name={RUN}", "--no-wait"
    )
    assert refused.code == 2
    assert f"has a job named {RUN} already" in refused.err


@pytest.mark.parametrize(
    ("command", "argument", "why"),
    [
        ("scale", "local=0", "sync.quorum is 1"),
        ("scale", "local=1000", "room for 12 at most"),
        ("scale", "mars=2", "no group 'mars'; it has local"),
        ("scale", "local", "that is not GROUP=N"),
        ("drain", "local-9", "no island 'local-9'; it has local-0, local-1"),
    ],
)
def test_impossible_commands_are_refused_without_effect(
    story: Raylets, command: str, argument: str, why: str
) -> None:
    refused = story.ask(command, argument)
    assert (refused.code, refused.out) == (2, "")
    assert why in refused.err
    assert story.last["wanted"] == 2


def test_new_islands_contribute_after_scaling_up(story: Raylets, prometheus: Prometheus) -> None:
    steps = story.last["t"]
    assert story.ask("scale", "local=4").code == 0
    began_s = time.monotonic()
    story.until_contributing("local-0", "local-1", "local-2", "local-3")
    story.figures["scale_up_s"] = time.monotonic() - began_s
    assert story.last["t"] > steps, "the others went on"
    until(lambda: prometheus.number("archipelago_islands_alive") == 4, WITHIN_S)
    assert story.status()["alive"] == 4


def test_killed_island_returns(story: Raylets, prometheus: Prometheus) -> None:
    def restarts() -> int:
        return sum(each["restarts"] for each in story.last["islands"])

    before = restarts()
    os.kill(processes(story, "Island")[0], signal.SIGKILL)
    began_s = time.monotonic()
    until(lambda: restarts() > before, WITHIN_S)
    story.until_contributing("local-0", "local-1", "local-2", "local-3")
    story.figures["killed_to_live_s"] = time.monotonic() - began_s
    counted = "sum(archipelago_island_restarts_total)"
    until(lambda: prometheus.number(counted) == restarts(), WITHIN_S)
    assert prometheus.number("archipelago_faults_total") == 0, "it was no fault of a plan"


def test_killed_fleet_restarts_and_resumes_its_run(story: Raylets) -> None:
    (pid,) = processes(story, "Fleet")
    merges = story.last["merges"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: story.last["merges"] > merges + 20, WITHIN_S)
    story.until_contributing("local-0", "local-1", "local-2", "local-3")


@pytest.mark.long
def test_killed_fleet_without_its_memory_finds_its_islands_by_name(story: Raylets) -> None:
    """Only Ray's tables of actors and placement groups are left of what the fleet has started."""
    (pid,) = processes(story, "Fleet")
    lives = {each["island"]: each["life"] for each in story.last["islands"]}
    actors, groups = held(story)
    (story.run_dir / "fleet.json").write_text("{")
    os.kill(pid, signal.SIGKILL)
    until(
        lambda: any("fleet.json was damaged" in a for a in story.last.get("alerts", ())), WITHIN_S
    )
    merges = story.last["merges"]
    until(lambda: story.last["merges"] > merges + 20, WITHIN_S)
    assert {each["island"]: each["life"] for each in story.last["islands"]} == lives
    now, groups_now = held(story)
    assert (sorted(now), groups_now) == (sorted(actors), groups), "nothing was started twice"
    assert (story.run_dir / "fleet.json.damaged").read_text() == "{"
    story.until_contributing("local-0", "local-1", "local-2", "local-3")


@pytest.mark.long
def test_islands_of_a_dead_node_move_to_other_nodes(story: Raylets) -> None:
    """`archipelago chaos` sends SIGKILL to a raylet and its processes, from another terminal."""
    lives = {each["island"]: each["life"] for each in story.last["islands"]}
    plan = story.here.folder / "plan.toml"
    for island in sorted(lives):
        plan.write_text(f'[[faults]]\nafter_s = 0.0\nkind = "node"\nisland = "{island}"\n')
        (struck,) = story.ask("chaos", "--plan", str(plan), "--json").json["faults"]
        if struck["refused"] is None:
            break
        assert "is on the node of the fleet" in struck["refused"]
    else:
        raise AssertionError("all islands are on the fleet's node")
    began_s, merges = time.monotonic(), story.last["merges"]

    def back() -> bool:
        now = {each["island"]: each["life"] for each in story.last["islands"]}
        return now[island] > lives[island]

    until(back, WITHIN_S)
    assert story.last["merges"] > merges, "the others went on"
    story.until_contributing(*sorted(lives))
    story.figures["node_back_s"] = time.monotonic() - began_s


def test_drained_island_hands_in_and_leaves(story: Raylets, prometheus: Prometheus) -> None:
    lost = story.last["figures"]["tokens_lost"]
    assert story.ask("drain", "local-1").code == 0
    story.until_contributing("local-0", "local-2", "local-3")
    assert abs(story.last["figures"]["tokens_lost"] - lost) <= ROUNDING
    until(lambda: prometheus.number("archipelago_islands_wanted") == 3, WITHIN_S)


def test_scaling_down_to_one_island_loses_no_tokens(story: Raylets, prometheus: Prometheus) -> None:
    lost = story.last["figures"]["tokens_lost"]
    assert story.ask("scale", "local=1").code == 0
    story.until_contributing("local-0")
    assert abs(story.last["figures"]["tokens_lost"] - lost) <= ROUNDING
    until(lambda: prometheus.number("archipelago_islands_alive") == 1, WITHIN_S)
    until(lambda: len(processes(story, "Island")) == 1)


@pytest.mark.long
def test_twenty_scalings_in_a_row_leave_nothing_behind(story: Raylets) -> None:
    """One island has a higher loss than three at a constant rate: its loss is the measure."""
    alone = len(losses(story))
    until(lambda: len(losses(story)) >= alone + 2 * EVALUATIONS)
    before = len(losses(story))
    level = max(losses(story)[before - EVALUATIONS :])  # it rises for some seconds after the others
    for number in range(20):
        assert story.ask("scale", f"local={(3, 1)[number % 2]}").code == 0
        if number % 6 == 0:  # the other ones come before the islands of the one before have joined
            story.until_contributing("local-0", "local-1", "local-2")
    story.until_contributing("local-0")
    until(lambda: len(losses(story)) >= before + EVALUATIONS)
    curve = losses(story)[before:]
    story.figures["largest_rise_over_scalings"] = rise = max(curve) / level
    print(f"largest loss over twenty scalings: {rise:.3f} of the largest of one island before")
    assert rise <= MOST_RISE, curve
    assert min(curve) < level, "three islands learn more than one"
    until(lambda: len(processes(story, "Island")) == 1, WITHIN_S)
    actors, groups = held(story)
    core = ["evaluator", "fleet", "queue", "shard-0", "syncer"]
    assert sorted(actors) == sorted([*core, "island local-0"])
    assert groups == 1


def test_island_of_a_former_name_contributes_after_scaling_up(story: Raylets) -> None:
    before = story.contributions()["local-0"]
    assert story.ask("scale", "local=2").code == 0

    def takes_part() -> bool:
        return all("local-1" in each["participants"] for each in story.last["fragments"])

    until(takes_part, WITHIN_S)
    story.until_contributing("local-0", "local-1")
    assert story.contributions()["local-0"] > before
    assert story.ask("scale", "local=1").code == 0
    story.until_contributing("local-0")


def test_dashboard_and_alert_queries_have_answers(story: Raylets, prometheus: Prometheus) -> None:
    """The queries need an answer at some time only: a last, lone island has no direction."""
    queries = [e for e in expressions() if not e.startswith("label_values")]
    assert len(steady()) > 60
    assert [e for e in steady() if not prometheus.ask(f"last_over_time(({e})[15m:5s])")] == []
    for expression in queries:
        prometheus.ask(expression)  # raises if it is not understood
    with urllib.request.urlopen(f"{prometheus.url}/api/v1/rules", timeout=10) as answer:
        groups = json.load(answer)["data"]["groups"]
    assert [rule["health"] for group in groups for rule in group["rules"]] == ["ok"] * RULES


def test_stop_by_ray_ends_the_run_gracefully(story: Raylets) -> None:
    """Ray's own `stop` ends the run gracefully."""
    began_s = time.monotonic()
    story.ray("stop", RUN)
    until((story.run_dir / "summary.json").exists, WITHIN_S)
    story.figures["stop_s"] = time.monotonic() - began_s
    summary = json.loads((story.run_dir / "summary.json").read_text())
    fates = ("merged", "discarded", "lost", "outstanding")
    assert summary["tokens_trained"] == sum(summary[f"tokens_{fate}"] for fate in fates)
    assert summary["uptime"] > 0.5, "the last island alone, beside nine that start and go"
    assert (story.run_dir / "model.safetensors").exists()
    assert (story.run_dir / "state.json").exists()
    ours = ("Fleet", "Syncer", "Shard", "Island", "Evaluator")
    until(lambda: not processes(story, *ours), WITHIN_S)
    assert not list((story.here.folder / ".archipelago" / "targets").glob("*.json"))
    print({key: round(value, 2) for key, value in story.figures.items()})


def test_ledger_balances_in_every_fragment(story: Raylets) -> None:
    layout = load_layout(Folder(story.run_dir))
    rule = rule_of(load(story.run_dir / "config.toml"), layout)
    state = initial(rule)
    for _, now_s, event, _ in read_tape(Folder(story.run_dir), layout.fingerprint).events:
        state = advance(rule, state, event, now_s)[0]
        validate(rule, state)
    for p, row in enumerate(state.ledger.rows):
        outstanding = state.ledger.outstanding(Fragment(p))
        assert state.ledger.trained == row.merged + row.all_discarded + row.lost + outstanding


def test_no_actor_or_placement_group_is_left(story: Raylets) -> None:
    """The queue of the cluster ends some seconds after the last run."""
    until(lambda: held(story) == ([], 0))


def losses(story: Raylets) -> list[float]:
    """Return the held-out losses of all evaluations so far."""
    rows = (story.run_dir / "metrics.jsonl").read_text().splitlines()[:-1]
    found = {row["heldout_t"]: row["heldout_loss"] for row in map(json.loads, rows)}
    return [loss for loss in found.values() if loss is not None]


def processes(story: Raylets, *kinds: str) -> list[int]:
    """Return the ids of the processes of these kinds of actors."""
    return [
        pid
        for pid, command in story.here.left_running().items()
        if any(f"ray::{kind}Actor" in command for kind in kinds)
    ]


def held(story: Raylets) -> tuple[list[str], int]:
    """Return the names of the run's actors and the number of placement groups, from Ray's lists."""
    script = (
        "import json, ray\n"
        "from ray.util import placement_group_table\n"
        "from ray.util.state import list_actors\n"
        f"ray.init({story.address!r}, log_to_driver=False)\n"
        "alive = [a.name for a in list_actors(limit=1000) if a.state != 'DEAD']\n"
        "groups = [g for g in placement_group_table().values() if g['state'] != 'REMOVED']\n"
        "print(json.dumps([alive, len(groups)]))\n"
    )
    alive, groups = json.loads(told(story, script).stdout.splitlines()[-1])
    return [name for name in alive if not name.startswith("_ray_internal")], groups


def told(story: Raylets, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script that asks Ray, and return its output."""
    return subprocess.run(
        [sys.executable, "-c", script],
        env=story.environment,
        capture_output=True,
        text=True,
        check=True,
    )
