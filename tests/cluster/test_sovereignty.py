"""Data of a region that stay there: canaries in a corpus are found in nothing that a run leaves.

The learners, the rules, the shard, the tape and the island's process are the real ones, in one
program. The search must be able to fail, so each test runs again with one deliberate leak.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, cast

import jax
import numpy as np
import pytest

from archipelago.cli.main import main
from archipelago.lab.checks.audit import audit
from archipelago.lab.checks.audit_result import TrafficKind
from cluster.actors.island.learner_calls import LearnerCalls
from cluster.config.load import load
from cluster.config.rule import rule_of
from cluster.config.schema import Config
from cluster.failures import Failure, Reason, raised
from cluster.fleet.tracebacks import keep_traceback
from cluster.names import Seat
from cluster.shard.arrays import fresh
from cluster.shard.build import shard_of
from cluster.storage.contributions import ContributionStore
from cluster.storage.files import write, write_json
from cluster.storage.folder import Folder
from cluster.storage.fragments import FragmentStore
from cluster.storage.layout import save_layout
from cluster.storage.snapshots import Snapshot, save_snapshot
from cluster.storage.tape import Tape
from cluster.syncer.journal import Notes
from cluster.syncer.measures import Measures
from cluster.syncer.resume_point import rules_sha256
from cluster.workers.assembly import layout_for, task_of
from cluster.workers.border import Border
from cluster.workers.island_process import IslandProcess
from coordinator.errors import Rejected
from coordinator.fragments import take
from coordinator.protocol import (
    Contribution,
    Fragment,
    Granted,
    Island,
    Join,
    Life,
    Merge,
    Merged,
    Refused,
    Unsound,
)
from coordinator.state import initial
from islands.learner import Learner
from islands.stream_like import Batch
from islands.task import Task, load_task
from tests.canaries import corpus_with_canaries, leaks, public_corpus
from tests.cluster.inprocess import LocalCluster, LocalLink

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # the end of an island's process is the end of a thread here
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]
WAIT_S = 600.0
STEPS = 40
FAULTY_BATCH = 9
"""The batch of the region `eu` that raises an error, once."""
CONFIG = """
[run]
steps = {steps}
[task]
target = "tests.cluster.test_sovereignty:careless"
[data]
source = "{public}"
window = 16
lease_windows = 16
[sync]
every = 4
fragments = 2
grace = 0.0
max_staleness = 100
[durability]
keep_contributions = true
[[islands]]
group = "eu"
region = "eu"
batch_size = 2
step_s = 0.03
[[islands]]
group = "us"
batch_size = 2
step_s = 0.03
[regions.eu]
data = "{eu}"
logs = "{logs}"
"""
RAISED, STARTING = threading.Event(), threading.Lock()


class Careless:
    """A stream of the user's own whose error shows a sample of the data, as many do."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._count = stream, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def next(self) -> Batch:
        batch: Any = self._stream.next()
        self._count += 1
        text = bytes(np.asarray(batch, np.uint8).ravel()).decode("latin-1")
        if "canary" in text and self._count == FAULTY_BATCH and not RAISED.is_set():
            RAISED.set()
            raise ValueError(f"cannot parse the sample {text!r}")
        return batch


def careless(data: Any) -> Task:
    """Return the task of a preset with a careless stream."""
    task = load_task("byte-tiny", None, {}, data)
    return replace(task, stream=lambda batch_size: cast("Any", Careless(task.stream(batch_size))))


class Site(LocalCluster):
    """An in-process cluster that leaves the files of a run.

    Contributions come through `LearnerCalls`, as in an island's actor.
    """

    def __init__(self, run_dir: Path, config: Config) -> None:
        self.run_dir, self.config = run_dir, config
        task = task_of(config)
        self.layout = layout_for(config, task)
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(task.init(0))]
        flats = [take(self.layout, Fragment(p), leaves) for p in range(config.sync.fragments)]
        arrays = fresh(flats)
        save_layout(Folder(run_dir), self.layout)
        self.store_files = FragmentStore(Folder(run_dir), self.layout, keep=2)
        for p, each in arrays.items():
            self.store_files.save(p, each, first=True)
        self.log = Tape(Folder(run_dir), 0, self.layout.fingerprint)
        rule = rule_of(config, self.layout)
        groups = {Island("eu-0"): "eu", Island("us-0"): "us"}
        self.measures = Measures(
            "run", groups, self.layout.sizes, config.sync.wire_down, now_s=time.monotonic()
        )
        super().__init__(
            rule,
            initial(rule),
            shard_of(config, self.layout, arrays),
            self.measures,
            now_s=time.monotonic,
            tape=self.log,
        )
        self.notes = Notes(Folder(run_dir), self.measures, time.monotonic)
        self.calls = dict[Island, LearnerCalls]()

    async def collect(self, life: Life, fragment: Fragment) -> Contribution | str | None:
        loop, calls = asyncio.get_running_loop(), self.calls[life.island]
        known = self._fates.known(life, fragment)
        prepared = await loop.run_in_executor(self._hands, calls.hand_in, life, fragment, known)
        if prepared.answer is None:
            return None
        there = await loop.run_in_executor(self._arithmetic, self.shard.receive, *prepared.answer)
        self._fates.arrived(there.id)
        return there

    async def merge(self, order: Merge) -> Merged | Unsound:
        for item in order.items:
            payload = self.shard.inbox.payload(item.contribution.reference)
            ContributionStore(Folder(self.run_dir)).save(
                item.contribution.id, payload, self.layout.fingerprint
            )
        return await super().merge(order)

    def broke(self, life: Life, failure: Failure) -> None:
        """Report a failure to the syncer and the measures, and write a row while it is known."""
        self.syncer.broke(life, failure)
        self.notes.failed(life, failure)
        self.look()

    def look(self) -> None:
        """Write a row of metrics, as a fleet does twice a second."""
        rule, now_s = rule_of(self.config, self.layout), time.monotonic()
        status = self.measures.status(rule, self.syncer.state, now_s)
        with (self.run_dir / "metrics.jsonl").open("a") as rows:
            rows.write(json.dumps(status) + "\n")

    def close(self) -> None:
        """Write status, metrics, a snapshot and the summary, and close the tape."""
        syncer, now_s = self.syncer, time.monotonic()
        self.look()
        self.log.sync()
        rules = rules_sha256(rule_of(self.config, self.layout))
        memory, length = self.measures.memory(), self.notes.length
        kept = Snapshot(syncer.state, self.log.seq, now_s, memory, length, rules, self.log.place)
        save_snapshot(Folder(self.run_dir), kept, self.layout.fingerprint)
        write_json(self.run_dir / "summary.json", self.measures.summary(syncer.state, now_s))
        self.notes.close()
        self.log.close()


class Ended(SystemExit):
    """The end of an island's process."""


def ends() -> NoReturn:
    """End the thread in place of the process."""
    raise Ended(1)


class Leaky(Border):
    """A border with one deliberate leak: errors leave with their texts."""

    def failure(self, reason: Reason, error: BaseException) -> tuple[Failure, str]:
        """Return the failure and the traceback as they are."""
        return raised(reason, error), "".join(traceback.format_exception(error))


@dataclass
class Process:
    """An island's process, started again whenever it ends; it has the methods of a learner."""

    site: Site
    island: Island
    border: Border
    together: threading.Barrier

    def __post_init__(self) -> None:
        self.process: IslandProcess | None = None
        self.ended = threading.Event()
        self.site.calls[self.island] = LearnerCalls(lambda: self.learner, self.border)

    @property
    def learner(self) -> Learner | None:
        return None if self.process is None else self.process.learner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.learner, name)

    def leave(self) -> Any:
        return None if (learner := self.learner) is None else learner.leave()

    def offer(self, *offered: Any) -> None:
        """Ignore an offer while no process is there, as `LearnerCalls.offer` does."""
        if (learner := self.learner) is not None:
            learner.offer(*offered)

    def run(self) -> None:
        """Run processes until the run is over."""
        config = self.site.config
        group = config.group(self.island.rpartition("-")[0])
        until_s = time.monotonic() + WAIT_S
        while not self.site.syncer.finished.is_set() and time.monotonic() < until_s:
            self.ended.clear()
            with STARTING:
                others = {*threading.enumerate()}
                self.process = IslandProcess(
                    config,
                    group,
                    lambda: self,
                    lambda: Joining(self),
                    border=self.border,
                    exits=ends,
                )
                started = {*threading.enumerate()} - others
                thread = next(each for each in started if each.name == "train")
            while not self.ended.wait(0.05) and not self.site.syncer.finished.is_set():
                assert time.monotonic() < until_s, "the run makes no progress"
            while self.site.syncer.finished.is_set() and thread.is_alive():
                self.leave()  # it may have been starting when the run ended
                thread.join(0.1)

    def starting(self) -> float:
        return 0.0

    def role(self, *, warm: bool) -> Island | None:
        return self.island

    def broke(self, failure: Failure | None, words: str) -> None:
        if self.site.syncer.finished.is_set():
            return
        keep_traceback(self.site.run_dir, Seat(self.island), words)
        life = self.site.syncer.state.members[self.island].life
        if failure is not None:
            self.site.on_loop(lambda: self.site.broke(life, failure))
        self.ended.set()


class Joining(LocalLink):
    """A link that waits in its first join until both islands do."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.site)
        self._process = process

    def join(self, event: Join) -> Granted | Refused:
        if self._process.site.syncer.finished.is_set():  # it was still starting
            raise Rejected("the run is over")
        granted = super().join(event)
        if not RAISED.is_set():
            self._process.together.wait(WAIT_S)
        return granted


def bordered(kind: type[Border], config: Config, logs: Path, island: Island) -> Border:
    """Return the border of an island's process."""
    group = config.group(island[:2])
    return kind(group.region or "", config.region_of(group), group.group, logs / f"{island}.log")


Trained = Callable[[type[Border]], tuple[Path, Path]]


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trained:
    """Return a function that trains a run, and returns its directory and the region's logs."""
    RAISED.clear()

    monkeypatch.setenv("ARCHIPELAGO_CACHE", str(tmp_path / "cache"))

    def train(kind: type[Border]) -> tuple[Path, Path]:
        run_dir, logs = tmp_path / "run", tmp_path / "logs"
        eu = corpus_with_canaries(tmp_path / "eu")
        public = public_corpus(tmp_path / "public")
        run_dir.mkdir()
        text = CONFIG.format(steps=STEPS, public=public, eu=eu, logs=logs)
        write(run_dir / "config.toml", text.encode())
        config = load(run_dir / "config.toml")
        site, together = Site(run_dir, config), threading.Barrier(2)
        processes = {
            island: Process(site, island, bordered(kind, config, logs, island), together)
            for island in config.island_names
        }
        site.run(cast("Any", processes))
        site.close()
        return run_dir, logs

    return train


def test_canaries_of_a_region_are_in_nothing_that_the_run_leaves(trained: Trained) -> None:
    run_dir, logs = trained(Border)
    assert RAISED.is_set(), "the error that shows a sample has happened"
    assert leaks([run_dir]) == []
    (log,) = logs.iterdir()
    assert leaks([log]), "the text is kept in the region"
    assert log.stat().st_mode & 0o077 == 0
    code = next(line.split()[-1] for line in log.read_text().splitlines() if "error code" in line)
    words = (run_dir / "tracebacks" / "eu-0-1.txt").read_text()
    assert words == (f"ValueError, error code {code}; its text stays in region eu (train)\n")
    found = {each.region: each for each in audit(run_dir).regions}
    assert found["eu"].up[TrafficKind.DELTA].messages >= 2
    assert found["eu"].up[TrafficKind.ERROR_CODE].messages == 1
    assert found["eu"].violations == []


@pytest.mark.long
def test_search_finds_a_sample_in_the_text_of_an_error(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    """A build with this leak fails the test above: each kind of file shows the sample."""
    run_dir, _ = trained(Leaky)
    assert RAISED.is_set()
    found = leaks([run_dir])
    for place in ("tracebacks/eu-0-1.txt", "tape-0.arrow", "metrics.jsonl", "(Arrow)"):
        assert any(place in each for each in found), (place, found)
    region = audit(run_dir).regions[1]
    assert (region.region, region.violations) == ("eu", ["errors"])
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(run_dir)])
    assert ended.value.code == 1
    assert "NOT ALLOWED: errors left the region" in capsys.readouterr().out
