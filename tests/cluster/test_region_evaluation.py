"""The evaluators of regions: their schedule, failures that harm nothing else, and their border."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    OutOfDiskError,
)

from archipelago.cli.formatting import by_region
from archipelago.cli.status_lines import line
from archipelago.manifest.memory_sizes import island_bytes
from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.failures import Unjudged
from cluster.fleet.evaluation import DEATHS, HUNG_S, Evaluating, Pending
from cluster.fleet.metrics_row import last_status
from cluster.fleet.outcome import Outcome
from cluster.fleet.region_evaluation import (
    SHARE,
    SILENT_S,
    TROUBLE_AFTER,
    RegionEvaluations,
)
from cluster.fleet.status_view import starting_status
from cluster.fleet.tracking import Trackers
from cluster.names import region_evaluator
from cluster.view import View
from cluster.workers.border import Border, border_of
from cluster.workers.contribution_effect import SampledContribution
from cluster.workers.evaluator import Evaluator
from cluster.workers.evaluator_answers import ContributionEffect, Judged, RegionLoss
from cluster.workers.region_judge import RegionJudge
from coordinator.fragments import Flat, Leaf, cut
from coordinator.protocol import Fragment, Island, Version
from islands.task import Task, load_task
from tests.canaries import CANARIES, corpus_with_canaries, leaks, public_corpus
from tests.cluster.test_controller import FINISHED, FakeCluster, config_of, fleet_of, seen
from tests.cluster.test_evaluation import remotely
from tests.cluster.test_trackers import OWN, Kept

EVERY_S = 10.0
VERSIONS = [Version(0, 7)]
FOREVER = (math.inf, None)


class RegionsClock:
    """Virtual time, in which the evaluators of all regions answer."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.evaluators: dict[str, FakeRegionEvaluator] = {}
        self.waits: list[float] = []
        self.first: Any = None  # the first answer of each evaluator, if it is not a loss

    def start(self, region: str) -> Evaluating:
        """Start an evaluator, once for each region."""
        assert region not in self.evaluators, "started once; Ray restarts it"
        self.evaluators[region] = FakeRegionEvaluator(self, region)
        return self.evaluators[region]


class FakeRegionEvaluator(Evaluating):
    """An evaluator whose `sample` gives an error, an answer, or an answer after a delay."""

    def __init__(self, clock: RegionsClock, region: str) -> None:
        self.clock, self.region = clock, region
        self.sampled: list[Any] = [clock.first or RegionLoss(4, 2.0 + len(clock.evaluators))]
        self.last: list[Any] = [RegionLoss(0, 1.0)]
        self.asked: list[tuple[str, float]] = []
        self.judged: Callable[[], Judged] = lambda: Judged(0, 0.0)
        self.restarts = 0

    def ask(self, method: str, *arguments: object) -> Pending:
        if method == "judged":
            return lambda _: self.judged()
        answers = {"sample": self.sampled, "loss": self.last}[method]
        self.asked.append((method, self.clock.now_s))
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        began_s = self.clock.now_s

        def pending(wait_s: float) -> Any:
            self.clock.waits.append(wait_s)
            if isinstance(answer, BaseException):
                raise answer.with_traceback(None)
            if type(answer) is tuple:
                if self.clock.now_s - began_s < answer[0]:
                    self.clock.now_s += wait_s
                    raise GetTimeoutError
                return answer[1]
            return answer

        return pending

    def restart(self) -> None:
        self.restarts += 1


@pytest.fixture
def clock() -> RegionsClock:
    return RegionsClock()


@pytest.fixture
def regions(clock: RegionsClock) -> RegionEvaluations:
    return RegionEvaluations(("eu", "us"), clock.start, EVERY_S, lambda: clock.now_s)


def looks(clock: RegionsClock, regions: RegionEvaluations, for_s: float, *live: str) -> None:
    """Look twice a second for this long; no look may wait."""
    until_s = clock.now_s + for_s
    while clock.now_s < until_s:
        clock.now_s += 0.5
        before_s = clock.now_s
        regions.look({*live})
        assert clock.now_s == before_s, "the keeper waits for no region"
    assert not any(clock.waits)


# --- the schedule ---------------------------------------------------------------------------------


def test_each_region_has_its_own_loss_one_after_the_other(
    clock: RegionsClock, regions: RegionEvaluations
) -> None:
    assert regions.losses == {"eu": None, "us": None}
    looks(clock, regions, EVERY_S - 1, "eu", "us")
    assert not clock.evaluators, "nothing is started before the first evaluation is due"
    looks(clock, regions, 3.0, "eu", "us")
    eu, us = (clock.evaluators[name] for name in ("eu", "us"))
    assert regions.losses == {"eu": eu.sampled[0].loss, "us": us.sampled[0].loss}
    assert regions.losses["eu"] != regions.losses["us"]
    assert regions.steps == {"eu": 4, "us": 4}
    looks(clock, regions, 3 * EVERY_S, "eu", "us")
    assert len(eu.asked) == len(us.asked) == 4, "at the period of the main evaluator"
    assert not {s for _, s in eu.asked} & {s for _, s in us.asked}


def test_one_region_is_evaluated_at_a_time(clock: RegionsClock, regions: RegionEvaluations) -> None:
    looks(clock, regions, EVERY_S, "eu")
    clock.evaluators["eu"].sampled = [(60.0, RegionLoss(9, 1.5))]
    looks(clock, regions, EVERY_S + 1, "eu")
    began_s = clock.evaluators["eu"].asked[-1][1]
    looks(clock, regions, 58.0, "eu", "us")
    assert "us" not in clock.evaluators
    looks(clock, regions, 5.0, "eu", "us")
    assert clock.evaluators["us"].asked[0][1] >= began_s + 60.0
    assert regions.losses["eu"] == 1.5


def test_region_without_a_live_island_is_left_out(
    clock: RegionsClock, regions: RegionEvaluations
) -> None:
    looks(clock, regions, 5 * EVERY_S, "us")
    assert [*clock.evaluators] == ["us"], "its node may not be there"
    assert regions.losses["eu"] is None
    assert regions.trouble is None


def test_slow_evaluations_take_a_share_of_the_time(
    clock: RegionsClock, regions: RegionEvaluations
) -> None:
    """The first one does not count: it includes the start of the process."""
    looks(clock, regions, EVERY_S, "eu")
    clock.evaluators["eu"].sampled = [(20.0, RegionLoss(9, 1.5))]
    looks(clock, regions, 1000.0, "eu")
    began = [began_s for _, began_s in clock.evaluators["eu"].asked]
    assert began[1] - began[0] <= EVERY_S + 1
    gaps = np.diff(began[1:])
    assert min(gaps) >= SHARE * 20.0
    assert max(gaps) <= SHARE * 20.0 + 2


def test_skipped_evaluation_is_no_failure(clock: RegionsClock, regions: RegionEvaluations) -> None:
    looks(clock, regions, EVERY_S, "eu")
    clock.evaluators["eu"].sampled = [None]
    looks(clock, regions, 10 * EVERY_S, "eu")
    assert regions.trouble is None
    assert regions.losses["eu"] is not None


# --- failures -------------------------------------------------------------------------------------

CODE = "ValueError, error code 5f1c09aa; its text stays in region eu"
FAILURES = [
    (CODE, f"{Unjudged.RAISED}: {CODE}"),
    (remotely(RuntimeError("text")), Unjudged.RAISED),
    (OutOfDiskError("full"), Unjudged.RAISED),
    (ActorDiedError(), Unjudged.DIED),
    (ActorUnavailableError("restarting", None), Unjudged.DIED),
]


@pytest.mark.parametrize(("answer", "why"), FAILURES)
def test_failure_in_one_region_leaves_the_others_alone(
    clock: RegionsClock, regions: RegionEvaluations, answer: object, why: str
) -> None:
    looks(clock, regions, EVERY_S + 5, "eu", "us")
    eu, us = (clock.evaluators[name] for name in ("eu", "us"))
    known = regions.losses["eu"]
    eu.sampled, before = [answer], len(us.asked)
    looks(clock, regions, EVERY_S * (TROUBLE_AFTER - 1) + 5, "eu", "us")
    assert regions.trouble is None, "one death is no alert"
    looks(clock, regions, 2 * EVERY_S, "eu", "us")
    assert regions.trouble is not None
    assert regions.trouble.startswith("the held-out loss of region eu is not known")
    assert why in regions.trouble
    assert "text" not in regions.trouble.replace("its text stays", "")
    assert len(us.asked) >= before + TROUBLE_AFTER
    assert (regions.losses["eu"], eu.restarts) == (known, 0)
    eu.sampled = [RegionLoss(90, 1.25)]
    looks(clock, regions, 2 * EVERY_S, "eu", "us")
    assert (regions.losses["eu"], regions.steps["eu"], regions.trouble) == (1.25, 90, None)


def test_trouble_ends_with_the_islands_of_the_region(
    clock: RegionsClock, regions: RegionEvaluations
) -> None:
    looks(clock, regions, EVERY_S + 5, "eu", "us")
    clock.evaluators["eu"].sampled = [ActorDiedError()]
    looks(clock, regions, EVERY_S * (TROUBLE_AFTER + 2), "eu", "us")
    assert regions.trouble is not None
    looks(clock, regions, 1.0, "us")
    assert regions.trouble is None, "nothing is evaluated there now"
    looks(clock, regions, 1.0, "eu", "us")
    assert regions.trouble is not None
    regions.verdict(VERSIONS, never)
    assert regions.trouble is None, "the loss of the final model is known"


def test_evaluations_that_never_succeed_take_a_share_of_the_time_too(
    clock: RegionsClock, regions: RegionEvaluations
) -> None:
    clock.first = (20.0, "ValueError, error code 5f1c09aa")
    looks(clock, regions, 1000.0, "eu")
    began = [began_s for _, began_s in clock.evaluators["eu"].asked]
    assert len(began) > 2
    assert min(np.diff(began)) >= SHARE * 20.0


def test_evaluator_that_hangs_is_restarted_and_the_next_region_follows(
    clock: RegionsClock, regions: RegionEvaluations
) -> None:
    looks(clock, regions, EVERY_S + 1, "eu")
    eu = clock.evaluators["eu"]
    eu.sampled = [FOREVER, RegionLoss(9, 1.5)]
    looks(clock, regions, EVERY_S, "eu")
    looks(clock, regions, HUNG_S - 5, "eu", "us")
    assert (eu.restarts, "us" in clock.evaluators) == (0, False)
    looks(clock, regions, 20.0, "eu", "us")
    assert (eu.restarts, "us" in clock.evaluators) == (1, True)
    looks(clock, regions, SHARE * HUNG_S, "eu", "us")
    assert regions.losses["eu"] == 1.5


@pytest.mark.parametrize("judges", [True, False])
def test_evaluator_is_waited_for_while_it_judges(
    clock: RegionsClock, regions: RegionEvaluations, *, judges: bool
) -> None:
    looks(clock, regions, EVERY_S + 1, "eu")
    eu = clock.evaluators["eu"]
    eu.sampled = [(3 * HUNG_S, RegionLoss(9, 1.5))]
    if judges:
        eu.judged = lambda: Judged(int(clock.now_s // 60), 60.0)
    looks(clock, regions, EVERY_S + 3 * HUNG_S + 5, "eu")
    assert (eu.restarts > 0, regions.losses["eu"] == 1.5) == (not judges, judges)


def test_silent_evaluator_is_restarted_sooner(
    clock: RegionsClock, regions: RegionEvaluations
) -> None:
    def silent() -> Judged:
        raise GetTimeoutError

    looks(clock, regions, EVERY_S + 1, "eu")
    eu = clock.evaluators["eu"]
    eu.sampled, eu.judged = [FOREVER], silent
    looks(clock, regions, EVERY_S + SILENT_S + 5, "eu")
    assert eu.restarts == 1


# --- the final model ------------------------------------------------------------------------------


def never() -> bool:
    return False


def test_final_model_is_evaluated_in_each_region(
    clock: RegionsClock, regions: RegionEvaluations
) -> None:
    looks(clock, regions, EVERY_S + 1, "us")
    clock.evaluators["us"].last = [ActorDiedError(), (30.0, RegionLoss(0, 1.75))]
    assert regions.verdict(VERSIONS, never) == ({"eu": 1.0, "us": 1.75}, [])
    assert [method for method, _ in clock.evaluators["us"].asked] == ["sample", "loss", "loss"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [*FAILURES, (FOREVER, Unjudged.HUNG), (None, Unjudged.DIED)],
)
def test_failed_last_evaluation_leaves_null(
    clock: RegionsClock, regions: RegionEvaluations, answer: object, why: str
) -> None:
    looks(clock, regions, EVERY_S + 1, "eu")
    clock.evaluators["eu"].last = [answer]
    losses, (missing,) = regions.verdict(VERSIONS, never)
    assert losses == {"eu": None, "us": 1.0}
    assert missing.startswith(f"there is no heldout_by_region of eu: its evaluation {why}")
    assert len(clock.evaluators["eu"].asked) <= 1 + DEATHS
    assert clock.now_s < 2 * HUNG_S


def test_ctrl_c_cuts_the_last_evaluations_short(
    clock: RegionsClock, regions: RegionEvaluations
) -> None:
    looks(clock, regions, EVERY_S + 1, "eu")
    clock.evaluators["eu"].last = [FOREVER]
    began_s = clock.now_s
    losses, missing = regions.verdict(VERSIONS, lambda: clock.now_s > began_s + 3)
    assert losses == {"eu": None, "us": None}
    assert len([each for each in missing if each.endswith("was cut short")]) == 2
    assert clock.now_s < began_s + 6


# --- the run --------------------------------------------------------------------------------------


class RegionsCluster(FakeCluster):
    """A cluster whose evaluators of regions answer at once."""

    def evaluating(self, evaluator: str) -> Evaluating:
        if evaluator not in map(region_evaluator, self.config.regions):
            return super().evaluating(evaluator)
        loss = 3.0 if evaluator == region_evaluator("eu") else ActorDiedError()
        fake = FakeRegionEvaluator(RegionsClock(), evaluator)
        fake.sampled = [RegionLoss(2, 2.5, ContributionEffect(Island("eu-0"), Fragment(0), -0.5))]
        fake.last = [RegionLoss(0, loss)] if isinstance(loss, float) else [loss]
        return fake


def run_of(config: Config, run_dir: Path, *looks: Callable[[], View]) -> tuple[Outcome, Any]:
    """Run a fleet to its end, which waits for no question; return the outcome and the cluster."""
    cluster = RegionsCluster(config, [*looks])
    fleet = fleet_of(config, cluster, run_dir)
    fleet.dismiss()
    fleet.keep()
    assert fleet.outcome is not None
    return fleet.outcome, cluster


def with_regions(**region: Any) -> Config:
    tables = {name: {"data": f"/corpus/{name}", **region} for name in ("eu", "us")}
    own = {"group": "eu", "region": "eu"}
    config = config_of(
        islands=own,
        regions={"eu": tables["eu"]},
        monitor={"refresh_s": 0.001, "metrics": False, "evaluate_every_s": 0.001},
    )
    us = config.islands[0].model_copy(update={"group": "us", "region": "us", "count": 1})
    return parse(
        {
            **config.model_dump(mode="json"),
            "islands": [each.model_dump(mode="json") for each in (*config.islands, us)],
            "regions": tables,
        }
    )


def test_run_has_a_loss_for_each_region_that_evaluates(tmp_path: Path) -> None:
    look = seen(t=5, eu_0="live")
    outcome, cluster = run_of(with_regions(), tmp_path / "run", *[look] * 40, FINISHED)
    assert outcome.error is None
    assert outcome.summary["heldout_by_region"] == {"eu": 3.0, "us": None}
    assert outcome.summary["heldout_loss"] == 1.5
    assert outcome.missing == "there is no heldout_by_region of us: its evaluation died"
    rows = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert '"heldout_by_region": {"eu": 2.5, "us": null}' in rows, "us had no live island"
    assert '"heldout_by_region": {"eu": 3.0, "us": null}' in rows.splitlines()[-1]
    assert (cluster.actors, cluster.places) == ({}, {}), "nothing is left"


def test_status_has_the_effect_of_a_contribution(tmp_path: Path) -> None:
    look = seen(t=5, eu_0="live")
    run_of(with_regions(), tmp_path / "run", *[look] * 40, FINISHED)
    last = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]
    (island,) = [each for each in json.loads(last)["islands"] if each["island"] == "eu-0"]
    assert (island["contribution_effect"], island["harmful_contributions"]) == (-0.5, 0)


def test_region_can_be_left_out(tmp_path: Path) -> None:
    looks = seen(t=5, eu_0="live"), FINISHED
    outcome, _ = run_of(with_regions(evaluate=False), tmp_path / "run", *looks)
    assert (outcome.summary["heldout_by_region"], outcome.missing) == ({}, None)


def test_manifest_has_memory_for_the_evaluator_of_a_region() -> None:
    layout = cut([Leaf("w", (10**9,))], 1)
    on, off = (
        island_bytes(config, layout, config.islands[0])
        for config in (with_regions(), with_regions(evaluate=False))
    )
    assert on - off >= 8 * layout.parameters


# --- where the losses are shown -------------------------------------------------------------------


def test_last_status_has_the_losses_of_the_final_model() -> None:
    begun = starting_status("mine", with_regions())
    begun["heldout_by_region"], begun["heldout_by_region_t"] = {"eu": 2.5, "us": 2.75}, {"eu": 4}
    begun["t"] = 9
    last = last_status(begun, {"heldout_by_region": {"eu": 2.25, "us": None}})
    assert last.get("heldout_by_region") == {"eu": 2.25, "us": 2.75}
    assert last.get("heldout_by_region_t") == {"eu": 9}
    assert last_status(begun, {}) == {**begun, "heldout": []}
    begun["heldout"] = [(4, 2.75), (9, 2.5)]
    assert last_status(begun, {"sample_heldout_loss": 2.25})["heldout"] == [(4, 2.75), (9, 2.25)]
    assert last_status(begun, {})["heldout"] == begun["heldout"]


def test_status_line_names_each_region() -> None:
    begun = starting_status("mine", with_regions())
    assert "by region" not in line(begun)
    begun["heldout_by_region"] = {"eu": 2.5, "us": None}
    assert "  held-out -  by region eu 2.500, us -  " in line(begun)
    assert by_region({"eu": math.nan}) == "eu not finite"


def test_trackers_get_each_evaluation_of_a_region_once(tmp_path: Path) -> None:
    Kept.made.clear()
    config = with_regions().model_dump(mode="json")
    config["monitor"]["track"] = [OWN]
    trackers = Trackers.start(parse(config), tmp_path, resumed=False)
    status = starting_status("mine", with_regions())
    for t, losses in (
        (4, {"eu": 2.5, "us": None}),
        (4, {"eu": 2.5, "us": math.nan}),
        (8, {"eu": 2.5, "us": 2.0}),
    ):
        steps = {name: t for name, loss in losses.items() if loss is not None}
        seen_now: Any = {**status, "heldout_by_region": losses, "heldout_by_region_t": steps}
        trackers.log(seen_now, 1.0)
    trackers.close(60.0)
    logged = [
        (each.t, name, value)
        for each in Kept.made[0].logged
        for name, value in each.values.items()
        if name.startswith("eval/loss/")
    ]
    assert logged == [
        (4, "eval/loss/eu", 2.5), (8, "eval/loss/eu", 2.5), (8, "eval/loss/us", 2.0),
    ]  # fmt: skip


# --- the actor in its region ----------------------------------------------------------------------

BASE: dict[str, Any] = {
    "task": {"preset": "byte-tiny"},
    "sync": {"fragments": 1},
    "data": {"window": 16, "lease_windows": 16},
}
RAISES: dict[str, BaseException] = {}


def careless(data: Any) -> Task:
    """Return the task of a preset whose held-out text is in the error that it raises."""
    task = load_task("byte-tiny", None, {}, data)

    def heldout(size: int) -> list[Any]:
        text = bytes(np.asarray(task.heldout(size)[0], np.uint8).ravel()).decode("latin-1")
        assert leaks([text]), "a sample of the region"
        error = RAISES["kind"]
        raise type(error)(f"cannot judge {text!r}")

    return replace(task, heldout=heldout)


class LeakyBorder(Border):
    """A border with one deliberate leak: errors leave with their texts."""

    def error_text(self, error: BaseException) -> str:
        """Return the text of an exception."""
        return f"{type(error).__name__}: {error}"


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Write a corpus for each region."""
    monkeypatch.setenv("ARCHIPELAGO_CACHE", str(tmp_path / "cache"))
    return {"eu": corpus_with_canaries(tmp_path / "eu"), "us": public_corpus(tmp_path / "us")}


def judge_in(
    region: str,
    texts: dict[str, Path],
    model: list[Flat],
    *,
    t: Any = 12,
    leaks: bool = False,
    sampled: SampledContribution | None = None,
    **task: Any,
) -> RegionJudge:
    """Return the evaluation inside a region, of a run with this public model.

    `sampled`: what its shards give it to measure.
    """
    logs = texts["eu"].parent / "logs"
    config = parse(
        {
            **BASE,
            "task": task or BASE["task"],
            "data": {**BASE["data"], "source": str(texts["eu"].parent / "public")},
            "islands": [{"group": name, "region": name} for name in texts],
            "regions": {
                name: {"data": str(text), "logs": str(logs)} for name, text in texts.items()
            },
        }
    )
    border = border_of(config, config.group_in(region), "run-evaluator")
    if leaks:
        border = LeakyBorder(region, config.regions[region], region, logs / "leaky.log")
    return RegionJudge(
        config.evaluated_in(region),
        border,
        lambda: (t, [(VERSIONS[0], flat) for flat in model]),
        lambda versions: model,
        lambda: sampled,
    )


def evaluator_of(text: Path) -> Evaluator:
    """Return an evaluator of a run without regions that reads this text."""
    return Evaluator(
        parse({**BASE, "data": {**BASE["data"], "source": str(text)}, "islands": [{}]})
    )


@pytest.mark.slow
def test_loss_of_a_region_is_that_of_its_own_text(texts: dict[str, Path]) -> None:
    own = {region: evaluator_of(text) for region, text in texts.items()}
    drawn = np.random.default_rng(1).normal(0.0, 0.1, own["eu"].layout.parameters)
    model = [drawn.astype(np.float32)]  # the initial model has the same loss on every text
    losses = {region: judge.loss(model) for region, judge in own.items()}
    assert abs(losses["eu"] - losses["us"]) > 0.01, "the text of another region would be noticed"
    for region, loss in losses.items():
        judge = judge_in(region, texts, model)
        assert judge.judged == Judged(0, 0.0)
        found, sample = judge.loss(VERSIONS), judge.sample()
        assert found == (0, pytest.approx(loss, abs=1e-6), None)
        assert sample == (12, pytest.approx(own[region].sample(model), abs=1e-6), None)
        assert judge.judged.batches > 0


@pytest.mark.slow
def test_effect_of_a_contribution_is_measured_on_the_text_of_its_region(
    texts: dict[str, Path],
) -> None:
    judge = evaluator_of(texts["eu"])
    drawn = np.random.default_rng(1).normal(0.0, 0.1, (2, judge.layout.parameters))
    model, delta = drawn.astype(np.float32)
    sampled = SampledContribution(Island("eu-0"), Fragment(0), VERSIONS[0], 0.25, delta)
    answer = judge_in("eu", texts, [model], sampled=sampled).sample(measures=True)
    assert isinstance(answer, RegionLoss)
    loss, without = judge.sample([model]), judge.sample([model - np.float32(0.25) * delta])
    assert answer == (12, pytest.approx(loss, abs=1e-6), ("eu-0", 0, pytest.approx(loss - without)))
    assert judge_in("eu", texts, [model], sampled=sampled).sample() == (*answer[:2], None)


@pytest.mark.parametrize("error", [ValueError(), SystemExit(), KeyboardInterrupt()])
def test_sample_in_an_exception_does_not_leave(
    texts: dict[str, Path], error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    RAISES["kind"] = error
    judge = judge_in("eu", texts, [], target=f"{__name__}:careless")
    answers = [judge.sample(), judge.loss(VERSIONS)]
    for answer in answers:
        assert isinstance(answer, str)
        assert answer.startswith(f"{type(error).__name__}, error code ")
        assert answer.endswith("its text stays in region eu")
    assert leaks([str(answers), caplog.text]) == []
    (log,) = (texts["eu"].parent / "logs").iterdir()
    assert leaks([log]), "the text is kept in the region"
    leaky = judge_in("eu", texts, [], leaks=True, target=f"{__name__}:careless")
    assert leaks([str(leaky.loss(VERSIONS))]), "a build with a leak fails this test"


@pytest.mark.slow
def test_nothing_but_numbers_leaves(texts: dict[str, Path]) -> None:
    model = evaluator_of(texts["us"]).initial()
    answer = judge_in("eu", texts, model, t=CANARIES[0]).sample()
    assert isinstance(answer, str)
    assert answer.startswith("Malformed, error code ")
    assert leaks([answer]) == []
