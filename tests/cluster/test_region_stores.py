"""Stores of regions: kept contributions of a region's islands are there and nowhere else."""

from __future__ import annotations

import asyncio
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from archipelago.lab.checks.audit import audit
from archipelago.lab.checks.replay import replay
from cluster.actors.shard.actor import ShardActor
from cluster.config.load import load, parse
from cluster.config.schema import Config
from cluster.launch.backup import backup
from cluster.launch.verify import verify
from cluster.shard import storing_thread as storing
from cluster.storage import runs
from cluster.storage.contributions import CONTRIBUTIONS, ContributionStore
from cluster.storage.folder import Folder
from cluster.storage.format import Damaged
from cluster.storage.fragments import FragmentStore
from coordinator.codec import Wire, encode, split
from coordinator.errors import UserMistake
from coordinator.protocol import (
    ContributionId,
    Fragment,
    HandIn,
    Incarnation,
    Island,
    Item,
    Lease,
    Life,
    Merge,
    Merged,
    Progress,
    Publish,
    Version,
)
from tests.cluster.played import CONFIG, LAYOUT, Played
from tests.system_calls import SystemCalls

STEPS = 24
GROUPS = """
[[islands]]
group = "eu"
region = "eu"
batch_size = 1
[[islands]]
group = "us"
batch_size = 1
[regions.eu]
data = "/regions/eu/text"
[regions.eu.durability]
dir = "{store}"
"""


def with_store(store: Path | str) -> str:
    """Return the configuration of a played run with two groups, one of them in a region."""
    head, _, durability = CONFIG.partition("[[islands]]")
    durability = durability[durability.index("[durability]") :]
    return head + durability + GROUPS.format(store=store)


def configured(*, keep: bool, store: str = "/regions/eu/store") -> Config:
    plain = tomllib.loads(with_store(store))
    plain["durability"]["keep_contributions"] = keep
    return parse(plain, origin="here")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return the directory of a run whose region has a store."""
    Played(tmp_path / "run", with_store(tmp_path / "eu")).to_the_end(STEPS)
    return tmp_path / "run"


def islands_of(folder: Path) -> set[str]:
    """Return the islands whose contributions are kept in a depot."""
    return {
        Path(name).name.partition(".")[0] for _, name in ContributionStore(Folder(folder)).kept()
    }


def kept_names(folder: Path) -> set[str]:
    """Return the names of the contributions that are kept in a depot."""
    return {Path(name).name for _, name in ContributionStore(Folder(folder)).kept()}


def test_each_contribution_is_in_the_store_of_its_region(run_dir: Path) -> None:
    assert islands_of(run_dir.parent / "eu" / "run") == {"eu-0"}
    assert islands_of(run_dir) == {"us-0"}


def test_run_is_replayed_from_both_stores(run_dir: Path) -> None:
    assert replay(run_dir)["exact"] is True
    assert verify(run_dir).ok
    (run_dir.parent / "eu").rename(run_dir.parent / "elsewhere")
    with pytest.raises(Damaged, match=r"eu-0.* is not there"):
        replay(run_dir)


def test_audit_has_digests_from_both_stores(run_dir: Path) -> None:
    found = audit(run_dir, digests=True)
    merged = [each for merge in found.lineage for each in merge.contributors]
    assert {each.island for each in merged} == {"eu-0", "us-0"}
    assert all(each.sha256 for each in merged)
    (run_dir.parent / "eu").rename(run_dir.parent / "elsewhere")
    merged = [e for merge in audit(run_dir, digests=True).lineage for e in merge.contributors]
    assert {each.island for each in merged if each.sha256 is None} == {"eu-0"}


def test_damage_in_the_store_of_a_region_is_found(run_dir: Path) -> None:
    damaged = next((run_dir.parent / "eu" / "run" / CONTRIBUTIONS).rglob("*.safetensors"))
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    (problem,) = verify(run_dir).problems
    assert damaged.name in problem


def test_backup_leaves_the_contributions_of_a_region_where_they_are(run_dir: Path) -> None:
    copy = run_dir.parent / "copy"
    backup(run_dir, copy)
    assert islands_of(copy) == {"us-0"}


def test_store_that_has_the_run_already_is_refused(run_dir: Path) -> None:
    config = configured(keep=True, store=str(run_dir.parent / "eu"))
    new = run_dir.parent / "new" / "run"
    with pytest.raises(UserMistake, match=r"regions.eu.durability.dir: .*/eu/run holds a run"):
        runs.choose(config, Path("run.toml"), new, datetime.now(UTC))
    other = run_dir.parent / "new" / "other"
    assert runs.choose(config, Path("run.toml"), other, datetime.now(UTC)) == other
    file = run_dir.parent / "file"
    file.touch()
    with pytest.raises(UserMistake, match=r"regions.eu.durability.dir: "):
        runs.choose(configured(keep=True, store=str(file)), file, other, datetime.now(UTC))


def test_store_without_kept_contributions_is_refused() -> None:
    with pytest.raises(UserMistake, match=r"regions.eu.durability.dir: has no effect without"):
        configured(keep=False)


def test_credentials_in_the_store_of_a_region_are_refused() -> None:
    with pytest.raises(UserMistake, match=r"regions.eu.durability.dir: holds cred") as refused:
        configured(keep=True, store="s3://me:secret@bucket/runs")
    assert "secret" not in str(refused.value).replace("a secret", "")
    with pytest.raises(UserMistake, match=r"regions.eu.durability.dir: must be an absolute path"):
        configured(keep=True, store="runs")


def test_temporary_files_in_all_stores_are_deleted(tmp_path: Path) -> None:
    main, own = Folder(tmp_path / "main"), Folder(tmp_path / "own")
    store = ContributionStore(main, {"eu": own, "eu-west": own})
    payload = encode(Wire.F32, np.ones(4, np.float32))
    for island in ("eu-0", "eu-west-3", "us-0"):
        life = Life(Island(island), Incarnation(1))
        contribution = ContributionId(life, Fragment(0), 0, 4)
        store.save(contribution, payload, "layout")
        np.testing.assert_array_equal(split(store.load(contribution, "layout"))[0], payload)
    assert [depot is own for depot, _ in store.kept()] == [False, True, True]
    left = [folder.path / CONTRIBUTIONS / "f0000" / ".x.1" for folder in (main, own)]
    for each in left:
        each.touch()
    assert store.depots == (str(main.path), str(own.path))
    for depot in store.depots:
        store.tidy(depot, Fragment(1))
    assert all(each.exists() for each in left)
    for depot in store.depots:
        store.tidy(depot, Fragment(0))
    assert not any(each.exists() for each in left)


def test_store_of_a_region_that_is_away_keeps_its_temporary_files(tmp_path: Path) -> None:
    main, lost = Folder(tmp_path / "main"), Folder(tmp_path / "file")
    (left := main.path / CONTRIBUTIONS / "f0000" / ".x.1").parent.mkdir(parents=True)
    left.touch()
    lost.path.touch()  # no folder, so that listing it raises
    store = ContributionStore(main, {"eu": lost})
    for depot in store.depots[::-1]:
        store.tidy(depot, Fragment(0))
    assert not left.exists()


def contributed(shard: ShardActor, island: str, p: Fragment, base: Version) -> Item:
    """Hand in a contribution of an island to a fragment."""
    life = Life(Island(island), Incarnation(1))
    said = ContributionId(life, p, base.number, base.number + 1)
    facts = HandIn(said, base, 0, 1, LAYOUT.fingerprint, Progress(1, 1, Lease(0, 1)))
    payload = encode(Wire.BF16, np.full(LAYOUT.sizes[p], 1e-3, np.float32))
    return Item(shard.process.shard.receive(facts, payload), 0.5)


def test_region_store_that_hangs_delays_neither_versions_nor_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One region's store once made the whole run undurable, and kept a shard from coming back."""
    monkeypatch.setattr(storing, "SILENCE_S", 0.2)
    run_dir, region = tmp_path / "run", tmp_path / "eu"
    played = Played(run_dir, with_store(region))
    played.to_the_end(STEPS)
    config = load(run_dir / "config.toml")
    shard = ShardActor(config.model_dump_json(), "nowhere", str(run_dir))
    wanted = {Fragment(p): each.version for p, each in enumerate(played.state.fragments)}
    store = FragmentStore(Folder(run_dir), LAYOUT, keep=9)
    p = Fragment(0)

    async def merged(number: int) -> bool | str:
        base, version = Version(0, number - 1), Version(0, number)
        names = ("eu-0", "us-0")
        items = tuple([await shard.process.compute(contributed, shard, n, p, base) for n in names])
        event, durable = await shard.merge(Merge(p, version, items, ""))
        assert isinstance(event, Merged)
        await shard.publish(Publish(p, version, base, (), ()), ())
        return durable

    async def story(disk: SystemCalls) -> None:
        disk.answers.clear()
        assert await asyncio.wait_for(shard.recover(wanted, 0), 30.0) == wanted
        assert await asyncio.to_thread(disk.hung.wait, 30.0), "its temporary files are looked for"
        first = wanted[p].number + 1
        for number in range(first, first + 3):
            assert await asyncio.wait_for(merged(number), 30.0) is True, "it is durable"
            assert store.has(p, Version(0, number))
        disk.answers.set()

    before = kept_names(run_dir)
    with SystemCalls(region) as disk:
        asyncio.run(story(disk))
    assert [name.partition(".")[0] for name in kept_names(run_dir) - before] == ["us-0"] * 3
