"""The parts of `bench scale` that run without Ray: light learners, and figures from windows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
import pytest

from archipelago.lab.bench.load_window import LoadWindow, climbed
from archipelago.lab.bench.scale import (
    config_of,
    figures,
    layout_of,
    material_of,
    names_of,
)
from archipelago.lab.bench.stub_learner import LightLearner
from archipelago.lab.bench.stub_material import StubLink, StubPace
from cluster.names import seat_of
from coordinator.codec import Payload, decode, encode
from coordinator.errors import RunFailed
from coordinator.fragments import Flat
from coordinator.gate import plausible
from coordinator.protocol import (
    Adopted,
    Answer,
    Contribution,
    Fragment,
    Granted,
    Incarnation,
    Island,
    Join,
    Lease,
    LeaseGranted,
    LeaseWanted,
    Life,
    Publication,
    Reference,
    Refused,
    Report,
    Version,
    Vitals,
    Void,
)
from islands.own_wire import built_in

CONFIG = config_of(2, [])
LAYOUT = layout_of(CONFIG)
MATERIAL = material_of(CONFIG, LAYOUT)
LIFE = Life(Island("crew-0.1"), Incarnation(1))
F0 = Fragment(0)
WIRE_DOWN = built_in(CONFIG.sync.wire_down)
DIFFERENCE = encode(WIRE_DOWN, np.ones(LAYOUT.sizes[F0], np.float32))
STEP_S = 1e-4
"""The step time of a learner that tests need not wait for."""


class Script(StubLink):
    """A coordinator that grants everything and records messages."""

    def __init__(self, refusal: str | None = None, over: bool = False) -> None:
        self.refusal, self.over = refusal, over
        self.reports: list[Report] = []
        self.adoptions: list[Adopted] = []
        self.asked: list[tuple[Version, Version]] = []
        self.leases = 1

    async def join(self, event: Join) -> Granted | Refused:
        if self.refusal is not None:
            return Refused(event.island, self.refusal)
        versions = (Version(0, 0),) * CONFIG.sync.fragments
        return Granted(LIFE, 0, versions, (Lease(0), Lease(1)))

    async def report(
        self, event: Report, vitals: Vitals, adopted: Sequence[Adopted]
    ) -> Answer | Void:
        self.reports.append(event)
        self.adoptions.extend(adopted)
        return Void(LIFE, "of age") if self.over else Answer(0, 0, stopping=False)

    async def lease(self, event: LeaseWanted) -> LeaseGranted | Void:
        self.leases += 1
        return LeaseGranted(event.life, Lease(self.leases))

    async def whole(self, fragments: Sequence[Fragment]) -> list[tuple[Version, Flat]]:
        return [(Version(0, 7), np.zeros(LAYOUT.sizes[p], np.float32)) for p in fragments]

    async def missed(
        self, p: Fragment, older: Version, newer: Version
    ) -> list[Payload] | tuple[Version, Flat]:
        self.asked.append((older, newer))
        flat = np.zeros(LAYOUT.sizes[p], np.float32)
        if newer.number - older.number > 1:
            return Version(0, newer.number + 2), flat
        return [encode(built_in(CONFIG.sync.wire_down), flat)]


def lived(script: Script, story: Callable[[LightLearner], Awaitable[None]]) -> None:
    """Run a learner that steps during the story, and let it leave afterwards."""

    async def whole() -> None:
        learner = LightLearner(LIFE.island, MATERIAL, StubPace(STEP_S), script, time.perf_counter)
        running = asyncio.create_task(learner.run())
        try:
            await until(lambda: learner.steps > 0 or running.done())
            await story(learner)
        finally:
            learner.leave()
            await running

    asyncio.run(whole())


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not happened():
            await asyncio.sleep(0)


async def turned_away(learner: LightLearner) -> None:
    await until(lambda: learner.now is None or not learner._staying)


def test_light_learners_hand_in_passes_the_gate() -> None:
    async def story(learner: LightLearner) -> None:
        for _ in range(2):
            handed = await learner.hand_in(LIFE, F0)
            assert handed is not None
            said, payload = handed
            assert payload.nbytes == CONFIG.sync.wire_up.bytes_of(LAYOUT.sizes[F0])
            norm = float(np.linalg.norm(decode(payload, LAYOUT.sizes[F0])))
            facts = {name: getattr(said, name) for name in said.__dataclass_fields__}
            contribution = Contribution(
                **facts, norm=norm, bytes=payload.nbytes, reference=Reference("x")
            )
            assert plausible(contribution, uncovered=said.tokens)
            assert contribution.norm_per_step == pytest.approx(
                np.linalg.norm(MATERIAL.deltas[F0]), rel=1e-2
            )

    lived(Script(), story)


def test_light_learner_adopts_offers_and_reports_them() -> None:
    script = Script()

    async def story(learner: LightLearner) -> None:
        flat = np.ones(LAYOUT.sizes[F0], np.float32)
        payload = encode(built_in(CONFIG.sync.wire_down), flat)
        for version in (Version(0, 8), Version(0, 9)):
            said = Publication(F0, version, Version(0, version.number - 1), ())
            learner.offer(LIFE, said, payload)
            await until(
                lambda version=version: (
                    script.adoptions[-1:] != [] and script.adoptions[-1].version == version
                )
            )
        handed = await learner.hand_in(LIFE, F0)
        assert handed is not None
        assert handed[0].base == Version(0, 9)
        assert handed[0].id.from_step == script.adoptions[-1].progress.steps

    lived(script, story)


def test_light_learner_fetches_what_it_missed() -> None:
    """The learner fetches differences or the whole, and continues from the newest version."""
    script = Script()

    async def story(learner: LightLearner) -> None:
        payload = encode(built_in(CONFIG.sync.wire_down), np.ones(LAYOUT.sizes[F0], np.float32))
        for number, comes_to in ((9, 9), (12, 13), (10, 13), (14, 14)):
            said = Publication(F0, Version(0, number), Version(0, number - 1), ())
            learner.offer(LIFE, said, payload)
            await until(
                lambda number=comes_to: (
                    script.adoptions[-1:] != [] and script.adoptions[-1].version.number == number
                )
            )
        assert learner.caught_up == {"differences": 1, "whole": 1}

    lived(script, story)
    versions = [(older.number, newer.number) for older, newer in script.asked]
    assert versions == [(7, 8), (9, 11)]


def test_light_learner_that_catches_up_fetches_no_difference_twice() -> None:
    """Offers that come during a fetch wait for it; the newest one names all that is missed then."""
    script, shard_answers = Script(), asyncio.Event()
    answer = script.missed

    async def slow(p: Fragment, older: Version, newer: Version) -> list[Payload]:
        await shard_answers.wait()
        found = await answer(p, older, newer)
        return found if isinstance(found, list) else [encode(WIRE_DOWN, found[1])] * 4

    async def story(learner: LightLearner) -> None:
        script.missed = slow
        assert not learner.catching_up(F0)
        learner.offer(LIFE, Publication(F0, Version(0, 9), Version(0, 8), ()), DIFFERENCE)
        for number in (10, 12, 11):
            assert learner.catching_up(F0)
            learner.offer(LIFE, Publication(F0, Version(0, number), Version(0, 8), ()), None)
        shard_answers.set()
        await until(
            lambda: script.adoptions[-1:] != [] and script.adoptions[-1].version.number == 12
        )
        assert not learner.catching_up(F0)

    lived(script, story)
    asked = [(older.number, newer.number) for older, newer in script.asked]
    assert asked == [(7, 8), (9, 12)]


def test_light_learner_that_cannot_follow_raises() -> None:
    script = Script()

    async def story(learner: LightLearner) -> None:
        wrong = np.zeros(3, np.uint8)
        learner.offer(LIFE, Publication(F0, Version(0, 8), Version(0, 7), ()), wrong)
        await turned_away(learner)

    with pytest.raises(RunFailed, match=r"crew-0\.1 cannot follow"):
        lived(script, story)


def test_light_learner_fetches_a_version_without_payload() -> None:
    script = Script()

    async def story(learner: LightLearner) -> None:
        learner.offer(LIFE, Publication(F0, Version(0, 8), Version(0, 7), ()), None)
        await until(lambda: script.adoptions[-1:] != [])
        assert script.adoptions[-1].version == Version(0, 8)

    lived(script, story)
    assert [(older.number, newer.number) for older, newer in script.asked] == [(7, 8)]


def test_light_learner_reports_every_step_and_reads_new_leases() -> None:
    script = Script()
    windows = CONFIG.data.lease_windows

    async def story(learner: LightLearner) -> None:
        await until(lambda: learner.steps * MATERIAL.windows > 3 * windows)

    lived(script, story)
    steps = [report.progress.steps for report in script.reports]
    assert steps == sorted(steps)
    for report in script.reports[1:]:
        read = report.progress.lease.number * windows + report.progress.lease.start
        assert read == report.progress.steps * MATERIAL.windows


@pytest.mark.parametrize(
    ("script", "why"),
    [(Script(refusal="full"), "may not join: full"), (Script(over=True), "was ended: of age")],
)
def test_rejected_light_learner_fails_the_run(script: Script, why: str) -> None:
    with pytest.raises(RunFailed, match=why):
        lived(script, turned_away)


def test_learners_of_one_process_share_its_seat() -> None:
    crews = names_of(40)
    assert [len(islands) for islands in crews.values()] == [16, 16, 8]
    for crew, islands in crews.items():
        assert {seat_of(island) for island in islands} == {seat_of(crew)}


def window(seconds: float, reports: int, syncer_cpu_s: float, rounds: int = 0) -> LoadWindow:
    return LoadWindow(seconds, 100.0, reports, [0.002] * reports, 1.0, syncer_cpu_s, 1.0, rounds)


def test_rate_is_held_if_reached_with_timely_answers() -> None:
    assert window(10, 960, 1.0).held
    assert not window(10, 940, 1.0).held
    late = LoadWindow(10, 100.0, 1000, [0.002] * 980 + [0.06] * 20, 1.0, 1.0, 1.0, 0)
    assert not late.held
    later = LoadWindow(10, 100.0, 1000, late.latencies_s, 1.0, 1.0, 1.0, 0, late_ms=61.0)
    assert later.held


def test_highest_rate_is_searched_with_two_attempts_each() -> None:
    seen: list[float] = []

    def look(rate: float) -> LoadWindow:
        """Return a window that holds rates up to 200, but only at the second attempt."""
        seen.append(rate)
        reports = int(10 * rate) if rate <= 200 and seen.count(rate) == 2 else 0
        return LoadWindow(10.0, rate, reports, [0.001] * reports, 1.0, 1.0, 1.0, 0)

    assert climbed([100.0, 200.0, 300.0, 400.0], look).asked_per_s == 200.0
    assert seen == [100.0, 100.0, 200.0, 200.0, 300.0, 300.0]
    assert not climbed([300.0], look).held


def test_report_cost_is_not_charged_to_rounds() -> None:
    told = figures(8, window(10, 1000, 3.0, rounds=20), window(5, 500, 0.5))
    assert told["syncer_cpu_us_per_report"] == pytest.approx(1000)
    assert told["syncer_cpu_ms_per_round"] == pytest.approx(100)
    assert told["rounds_per_s"] == pytest.approx(2)
    assert told["report_p50_ms"] == pytest.approx(2)
