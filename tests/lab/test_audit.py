"""The audit of a run: leases and bytes by region, and the lineage of every merge."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from archipelago.cli.main import main
from archipelago.lab.checks.audit import audit
from archipelago.lab.checks.audit_errors import kind_of_reason
from archipelago.lab.checks.audit_result import Traffic, TrafficKind
from cluster.storage.folder import Folder
from cluster.storage.playback import read_tape
from cluster.storage.state_history import relive
from cluster.storage.tape import Tape
from coordinator.errors import UserMistake
from coordinator.protocol import (
    Arrived,
    Event,
    Fragment,
    Granted,
    Incarnation,
    Island,
    Join,
    LeaseWanted,
    Life,
    Lost,
    Merge,
    Missing,
    MomentsTaken,
    Publish,
    Region,
    Report,
    Resume,
    Unsound,
    Version,
)
from coordinator.tape import record
from tests.cluster.played import CONFIG, LAYOUT, Played

STEPS = 24
REGIONS = CONFIG.replace(
    "[[islands]]\ncount = 2\nbatch_size = 1\n",
    '[[islands]]\ngroup = "eu"\nregion = "eu"\nbatch_size = 1\n'
    '[[islands]]\ngroup = "us"\nregion = "us"\nbatch_size = 1\n',
)


class PlayedRegions(Played):
    """One island in each of two regions, the second of which asks for more data."""

    def train(self, steps: int, snapshot_every: int | None = None) -> None:
        """Let both join and take steps."""
        self._steps = {}
        for name in ("eu", "us"):
            self.feed(Join(Island(f"{name}-0"), name, LAYOUT.fingerprint, Region(name)))
        for step in range(1, steps + 1):
            for life in self._steps:
                self._steps[life] = step
                self.feed(Report(life, self._progress(life), 1.0))
                if step % 8 == 0 and life.island == "us-0":
                    self.feed(LeaseWanted(life))


def played(folder: Path, config: str = REGIONS) -> Played:
    run = PlayedRegions(folder, config)
    run.to_the_end(STEPS)
    return run


@pytest.fixture
def run(tmp_path: Path) -> Played:
    return played(tmp_path / "runs" / "regions")


def test_bytes_are_those_of_the_messages(run: Played) -> None:
    found = {each.region: each for each in audit(run.run_dir).regions}
    assert {*found} == {"eu", "us"}
    up, down, joins = dict.fromkeys(found, 0), dict.fromkeys(found, 0), dict.fromkeys(found, 0)
    for each in relive(run.rule, read_tape(Folder(run.run_dir), LAYOUT.fingerprint).events):
        if isinstance(each.event, Arrived):
            held = each.event.contribution
            up[held.id.life.island[:2]] += held.bytes
        for effect in each.effects:
            if isinstance(effect, Publish):
                for life in effect.to:
                    down[life.island[:2]] += 2 * LAYOUT.sizes[effect.fragment]  # bf16
            if isinstance(effect, Granted):
                joins[effect.life.island[:2]] += 4 * LAYOUT.parameters
    for name, region in found.items():
        assert region.islands == [f"{name}-0"]
        assert region.up[TrafficKind.DELTA].bytes == up[name] > 0
        assert region.down[TrafficKind.DIFFERENCE].bytes == down[name] > 0
        assert region.down[TrafficKind.MODEL].bytes == joins[name] > 0
        assert region.up[TrafficKind.REPORT].messages == STEPS
        assert TrafficKind.MOMENTS not in region.up


def test_moments_are_counted_beside_the_deltas(tmp_path: Path) -> None:
    shared = REGIONS.replace(
        "grace = 0.0\n", 'grace = 0.0\nmoments = "mean"\nwire_moments = "f32"\n'
    )
    run = played(tmp_path / "shared", shared)
    plain = played(tmp_path / "plain")
    eu, before = (audit(each.run_dir).regions[0] for each in (run, plain))
    moments = eu.up[TrafficKind.MOMENTS]
    assert moments.messages < eu.up[TrafficKind.DELTA].messages
    assert moments.bytes > 0
    assert eu.up[TrafficKind.DELTA].bytes == before.up[TrafficKind.DELTA].bytes


def test_report_has_the_size_of_its_record_on_the_tape(run: Played) -> None:
    found = {each.region: each for each in audit(run.run_dir).regions}
    sizes = dict.fromkeys(found, 0)
    for each in read_tape(Folder(run.run_dir), LAYOUT.fingerprint).events:
        if isinstance(each.event, Report):
            text = json.dumps(record(each.event), separators=(",", ":"))
            sizes[each.event.life.island[:2]] += len(text)
    for name, region in found.items():
        assert region.up[TrafficKind.REPORT].bytes == sizes[name] > 100 * STEPS


def digests(run: Played, *, payloads: bool = False) -> dict[tuple[str, str, TrafficKind], str]:
    return {
        (each.region, way, kind): traffic.sha256
        for each in audit(run.run_dir, digests=payloads).regions
        for way, kinds in (("up", each.up), ("down", each.down))
        for kind, traffic in kinds.items()
    }


def test_digest_of_a_kind_covers_its_messages_and_no_others(run: Played, tmp_path: Path) -> None:
    class OtherReport(PlayedRegions):
        """The island in us reports moments of an island that never joined: no rule reads that."""

        def train(self, steps: int, snapshot_every: int | None = None) -> None:
            """Send one more report."""
            super().train(steps, snapshot_every)
            _, us = self._steps
            taken = MomentsTaken(Life(Island("none"), Incarnation(9)), 4096)
            self.feed(Report(us, self._progress(us), 1.0, taken))

    before = digests(run)
    assert before == digests(run, payloads=True)
    assert before == digests(played(tmp_path / "same"))
    assert all(len(each) == 64 for each in before.values())
    assert len({*before.values()}) == len(before) == 8
    other = OtherReport(tmp_path / "other", REGIONS)
    other.to_the_end(STEPS)
    after = digests(other)
    changed = {key for key, digest in after.items() if before[key] != digest}
    assert changed == {("us", "up", TrafficKind.REPORT)}


def test_digest_of_payloads_covers_those_that_were_kept(run: Played) -> None:
    def deltas() -> list[Traffic]:
        regions = audit(run.run_dir, digests=True).regions
        return [each.up[TrafficKind.DELTA] for each in regions]

    plain = [each.up[TrafficKind.DELTA] for each in audit(run.run_dir).regions]
    assert [(each.payloads, each.payloads_sha256) for each in plain] == [(0, None)] * 2
    before = deltas()
    files = sorted((run.run_dir / "contributions").rglob("*.safetensors"))
    assert sum(each.payloads for each in before) == len(files)
    assert all(each.payloads_sha256 for each in before)
    assert audit(run.run_dir, digests=True).passed
    victim = next(each for each in files if each.name.startswith("us-0"))
    whole = victim.read_bytes()
    victim.write_bytes(b"")
    found = audit(run.run_dir, digests=True)
    (why,) = found.unconfirmed
    assert victim.name in why
    assert not found.passed
    assert audit(run.run_dir).passed, "no payload is read"
    eu, us = deltas()
    assert eu == before[0]
    assert us.payloads == before[1].payloads - 1
    assert us.payloads_sha256 != before[1].payloads_sha256
    assert us.sha256 == before[1].sha256
    victim.unlink()
    found = audit(run.run_dir, digests=True)
    assert (found.unconfirmed, found.passed) == ([], True), "it was not kept"
    victim.write_bytes(whole)


def test_moments_that_a_joining_island_took_cross_the_border_once(tmp_path: Path) -> None:
    class Taking(PlayedRegions):
        """The island in us takes moments of eu; the one in eu, of an island that never joined."""

        def train(self, steps: int, snapshot_every: int | None = None) -> None:
            """Report what was taken: the first report is sent twice."""
            super().train(steps, snapshot_every)
            eu, us = self._steps
            for life, donor in ((us, eu), (us, eu), (eu, Life(Island("none"), Incarnation(9)))):
                taken = MomentsTaken(donor, 4096)
                self.feed(Report(life, self._progress(life), 1.0, taken))

    run = Taking(tmp_path / "taking", REGIONS)
    run.to_the_end(STEPS)
    eu, us = audit(run.run_dir).regions
    moments = eu.up[TrafficKind.MOMENTS]
    assert (moments.messages, moments.bytes) == (1, 4096)
    assert us.down[TrafficKind.MOMENTS] == moments, "the digest is the same on both sides"
    assert TrafficKind.MOMENTS not in us.up
    assert TrafficKind.MOMENTS not in eu.down


def test_moments_within_a_region_cross_no_border(tmp_path: Path) -> None:
    class Near(PlayedRegions):
        """Both islands are in one region."""

        def train(self, steps: int, snapshot_every: int | None = None) -> None:
            """Let both join and take steps, one with moments of the other."""
            self._steps = {}
            for name in ("eu-0", "eu-1"):
                self.feed(Join(Island(name), "eu", LAYOUT.fingerprint, Region("eu")))
            first, second = self._steps
            taken = MomentsTaken(first, 4096)
            for step in range(1, steps + 1):
                for life in self._steps:
                    self._steps[life] = step
                    moments = taken if life == second and step == 1 else None
                    self.feed(Report(life, self._progress(life), 1.0, moments))

    near = REGIONS.replace('[[islands]]\ngroup = "us"\nregion = "us"\nbatch_size = 1\n', "")
    near = near.replace('region = "eu"\n', 'region = "eu"\ncount = 2\n')
    run = Near(tmp_path / "near", near)
    run.to_the_end(STEPS)
    (eu,) = audit(run.run_dir).regions
    assert TrafficKind.MOMENTS not in {**eu.up, **eu.down}


def test_island_that_joins_from_another_region_is_counted_there(tmp_path: Path) -> None:
    class Moving(PlayedRegions):
        """The island in us joins once more, from eu."""

        def train(self, steps: int, snapshot_every: int | None = None) -> None:
            """Let it move at the end, and report."""
            super().train(steps, snapshot_every)
            eu, _ = self._steps
            self.feed(Join(Island("us-0"), "us", LAYOUT.fingerprint, Region("eu")))
            *_, moved = self._steps
            assert moved not in (eu, _)
            self._steps[moved] = 1
            self.feed(Report(moved, self._progress(moved), 1.0))

    run = Moving(tmp_path / "moving", REGIONS)
    run.to_the_end(STEPS)
    eu, us = audit(run.run_dir).regions
    assert (eu.islands, us.islands) == (["eu-0", "us-0"], ["us-0"])
    assert (eu.up[TrafficKind.REPORT].messages, us.up[TrafficKind.REPORT].messages) == (
        STEPS + 1, STEPS,
    )  # fmt: skip
    assert (eu.down[TrafficKind.MODEL].messages, us.down[TrafficKind.MODEL].messages) == (2, 1)


def test_each_region_reads_its_own_leases(run: Played) -> None:
    eu, us = audit(run.run_dir).regions
    assert eu.leases[0][0] == us.leases[0][0] == 0
    count = {each.region: sum(b - a + 1 for a, b in each.leases) for each in (eu, us)}
    assert count["us"] == count["eu"] + 3


def test_lineage_has_every_merge_with_its_contributors(run: Played) -> None:
    found = audit(run.run_dir, digests=True)
    orders = [
        effect
        for each in relive(run.rule, read_tape(Folder(run.run_dir), LAYOUT.fingerprint).events)
        for effect in each.effects
        if isinstance(effect, Merge)
    ]
    assert [(m.fragment, m.version) for m in found.lineage] == [
        (order.fragment, str(order.version)) for order in orders
    ]
    for merge, order in zip(found.lineage, orders, strict=True):
        assert [each.id for each in merge.contributors] == [
            str(item.contribution.id) for item in order.items
        ]
        assert sum(each.weight for each in merge.contributors) == pytest.approx(1)
        assert all(each.sha256 and len(each.sha256) == 64 for each in merge.contributors)
    assert found.lineage_sha256 == audit(run.run_dir, digests=True).lineage_sha256
    digests = [merge.sha256 for merge in found.lineage]
    assert len({*digests}) == len(digests)


def test_merge_that_was_undone_is_not_in_the_lineage(tmp_path: Path) -> None:
    class Undone(PlayedRegions):
        """The shard answers the first merge as one whose step is not finite."""

        undone: Merge | None = None

        def merged(self, order: Merge) -> Event:
            """Answer a merge."""
            if self.undone is None:
                self.undone = order
                return Unsound(order.fragment, order.version, math.inf)
            return super().merged(order)

    run = Undone(tmp_path / "undone", REGIONS)
    run.to_the_end(STEPS)
    assert run.undone is not None
    found = audit(run.run_dir)
    versions = [(each.fragment, each.version) for each in found.lineage]
    assert (run.undone.fragment, str(run.undone.version)) not in versions
    assert found.merges == len(versions) > 2


FINAL = 2
"""The merges at the end of a run: one of each fragment; a restart without islands has none."""


class Restarted(PlayedRegions):
    """A run whose syncer restarts: a fragment has lost two merges, the other one is newer."""

    def train(self, steps: int, snapshot_every: int | None = None) -> None:
        """Train, restart, and train on."""
        super().train(steps, snapshot_every)
        older, newer = (each.version for each in self.state.fragments)
        older, newer = Version(0, older.number - 2), Version(0, newer.number + 3)
        self.feed(Resume(1, (older, newer)))


def test_restart_marks_lost_merges_and_versions_of_unknown_origin(
    run: Played, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = audit(run.run_dir)
    again = Restarted(tmp_path / "again", REGIONS)
    again.to_the_end(STEPS)
    found = audit(again.run_dir)
    assert (before.merges_lost, before.unknown_versions) == (0, 0)
    assert (found.merges_lost, found.unknown_versions) == (2, 1)
    assert found.merges == before.merges - FINAL - 2
    lost = [each for each in found.lineage if each.lost]
    assert lost == [each for each in found.lineage if each.fragment == 0][-2:]
    (unknown,) = [each for each in found.lineage if each.has_unknown_origin]
    assert (unknown.fragment, unknown.contributors) == (1, [])
    assert unknown.why.startswith("unknown origin")
    with pytest.raises(SystemExit):
        main(["audit", str(again.run_dir), "--lineage"])
    text = capsys.readouterr().out
    assert "2 more merges were lost at restarts" in text
    assert "1 versions are of unknown origin" in text
    with pytest.raises(SystemExit):
        main(["audit", str(again.run_dir), "--lineage", "--json"])
    rows = json.loads(capsys.readouterr().out)["lineage"]
    newest = [each.sha256 for each in found.lineage if each.fragment == 0][-1]
    unchanged = hashlib.sha256(f"{newest} {unknown.sha256}".encode()).hexdigest()
    assert found.lineage_sha256 != unchanged, "the loss is in the digest"
    assert [each["lost"] for each in rows] == [each.lost for each in found.lineage]
    assert sum(each["has_unknown_origin"] for each in rows) == 1


def test_restart_that_lost_nothing_changes_no_lineage(run: Played, tmp_path: Path) -> None:
    class Whole(PlayedRegions):
        """A run whose syncer restarts with all versions."""

        def train(self, steps: int, snapshot_every: int | None = None) -> None:
            """Train, and restart."""
            super().train(steps, snapshot_every)
            self.feed(Resume(1, tuple(each.version for each in self.state.fragments)))

    again = Whole(tmp_path / "again", REGIONS)
    again.to_the_end(STEPS)
    before, found = audit(run.run_dir), audit(again.run_dir)
    assert (found.merges, found.merges_lost) == (before.merges - FINAL, 0)
    assert found.lineage == before.lineage[:-FINAL]
    newest = [
        max((e for e in found.lineage if e.fragment == p), key=lambda e: e.at_s) for p in (0, 1)
    ]
    digest = hashlib.sha256(" ".join(each.sha256 for each in newest).encode()).hexdigest()
    assert found.lineage_sha256 == digest, "the restart adds no record"


class WentBack(PlayedRegions):
    """A run that trained on, and then went back: a later generation replaces these events."""

    def train(self, steps: int, snapshot_every: int | None = None) -> None:
        """Train, lose an island with a text, and go back to before that."""
        super().train(steps, snapshot_every)
        kept, first = self.state, self._tape.seq
        _, us = self._steps
        for _ in range(3):
            self.feed(Report(us, self._progress(us), 1.0))
        self.feed(Lost(us, "ValueError in train: a sentence of the corpus"))
        self._tape.close()
        self.state = kept
        self._tape = Tape(Folder(self.run_dir), 1, LAYOUT.fingerprint, first_seq=first)
        self.feed(Resume(1, tuple(each.version for each in kept.fragments)))


KEEPS = '[regions.us]\ndata = "/corpus/us"\n[[islands]]\ngroup = "eu"'


def test_replaced_events_are_traffic_and_no_lineage(run: Played, tmp_path: Path) -> None:
    went_back = WentBack(tmp_path / "back", REGIONS.replace('[[islands]]\ngroup = "eu"', KEEPS))
    went_back.to_the_end(STEPS)
    before, found = audit(run.run_dir), audit(went_back.run_dir)
    eu, us = found.regions
    assert us.up[TrafficKind.REPORT].messages == STEPS + 3
    assert eu.up[TrafficKind.REPORT].messages == STEPS
    assert us.violations == ["errors"], "it left, although the run went back"
    assert found.lineage == before.lineage[:-FINAL]
    assert (found.damage, found.passed) == (None, False)
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(went_back.run_dir)])
    assert ended.value.code == 1


@pytest.mark.parametrize(("cut", "code"), [(0, 0), (5, 0), (-1, 1)], ids=["whole", "torn", "hole"])
def test_damage_of_the_tape_fails_an_audit_unless_a_crash_cut_it_off(
    run: Played, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, cut: int,
    code: int,
) -> None:  # fmt: skip
    """The run is found by its name, as other commands find it."""
    monkeypatch.chdir(run.run_dir.parent.parent)
    tape = run.run_dir / "tape-0.arrow"
    content = bytearray(tape.read_bytes())
    if cut > 0:
        del content[-cut - 100 :]
    elif cut < 0:  # a later generation began beyond what can be read
        del content[len(content) // 2 :]
        late = Tape(Folder(run.run_dir), 1, LAYOUT.fingerprint, first_seq=10**6)
        late.append(99.0, Resume(1, ()), ())
        late.close()
    tape.write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        main(["audit", run.run_dir.name])
    assert ended.value.code == code
    assert ("the tape is damaged" in capsys.readouterr().out) == (cut != 0)


CODED = "error code 0123abcd; its text stays in region us"


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        (f"ValueError, {CODED} (train)", TrafficKind.ERROR_CODE),
        (f"hand_in, {CODED}", TrafficKind.ERROR_CODE),
        (CODED, TrafficKind.ERROR_CODE),
        ("its process ended (ActorDiedError)", None),
        ("ActorUnavailableError: could not be asked", None),
        ("its learner has ended this life", None),
        ("nothing to hand in", None),
        ("shard-0 has died meanwhile: us-0#2 will be asked again", None),
        (f"a sentence of the corpus, {CODED}", TrafficKind.ERRORS),
        (f"ValueError, {CODED} (train): a sentence", TrafficKind.ERRORS),
        ("it cannot be read: a sentence of the corpus", TrafficKind.ERRORS),
        ("it cannot be watched: ValueError('a sentence')", TrafficKind.ERRORS),
        ("ValueError in train: a sentence of the corpus", TrafficKind.ERRORS),
        ("a sentence of the corpus", TrafficKind.ERRORS),
        ("ValueError, error code 0123abcd; its text stays in region eu", TrafficKind.ERRORS),
    ],
)
def test_reason_that_is_not_of_the_border_is_a_text(why: str, kind: TrafficKind | None) -> None:
    assert kind_of_reason(why, "us") is kind


@pytest.mark.parametrize("event", [Lost, lambda life, why: Missing(life, Fragment(0), why)])
def test_leaked_text_of_any_form_is_a_violation(
    tmp_path: Path, event: Callable[[Life, str], Event]
) -> None:
    class Leaking(PlayedRegions):
        """The island in us sends a text in its reason."""

        def train(self, steps: int, snapshot_every: int | None = None) -> None:
            """Train, and leak."""
            super().train(steps, snapshot_every)
            _, us = self._steps
            self.feed(event(us, "it cannot be read: a sentence of the corpus, error code 0123abcd"))

    run = Leaking(tmp_path / "leaking", REGIONS.replace('[[islands]]\ngroup = "eu"', KEEPS))
    run.to_the_end(STEPS)
    eu, us = audit(run.run_dir).regions
    assert (eu.violations, us.violations) == ([], ["errors"])
    assert us.up[TrafficKind.ERRORS].messages == 1


def test_payload_that_has_changed_has_no_digest(run: Played) -> None:
    before = audit(run.run_dir, digests=True)
    file = min((run.run_dir / "contributions").rglob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    after = audit(run.run_dir, digests=True)
    missing = [
        each.id for merge in after.lineage for each in merge.contributors if each.sha256 is None
    ]
    assert len(missing) == 1
    assert after.lineage_sha256 == before.lineage_sha256


def test_command_prints_text_and_json(run: Played, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["audit", str(run.run_dir), "--json"])
    plain = json.loads(capsys.readouterr().out)
    assert [each["region"] for each in plain["regions"]] == ["eu", "us"]
    assert "lineage" not in plain
    report = plain["regions"][0]["up"]["report"]
    assert (report["messages"], len(report["sha256"])) == (STEPS, 64)
    with pytest.raises(SystemExit):
        main(["audit", str(run.run_dir), "--lineage"])
    text = capsys.readouterr().out
    assert "region us: islands us-0" in text
    assert f"lineage {plain['lineage_sha256']}" in text
    assert "leases read: 0" in text
    rows = [line.split() for line in text.splitlines()]
    (row, _) = [each for each in rows if each[:2] == ["up", "report"]]
    assert row[2:] == [str(STEPS), f"{report['bytes']:,}", report["sha256"][:12]]
    assert re.search(r"up +delta .* \d+, digest [0-9a-f]{12}", text)


def test_ring_cannot_be_audited(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        CONFIG.replace("[task]", '[run]\nmode = "data-parallel"\n[task]', 1).replace(
            "[sync]\nevery = 4\nfragments = 2\ngrace = 0.0\nmax_staleness = 100\n", ""
        )
    )
    with pytest.raises(UserMistake, match="has no tape of merges"):
        audit(tmp_path)
