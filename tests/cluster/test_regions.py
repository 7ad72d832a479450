"""The tables `[regions.NAME]`: one message for each problem, before anything starts."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from cluster.config.load import parse
from cluster.config.region_checks import overlap
from cluster.config.region_tables import Leaving
from coordinator.errors import UserMistake

EU = {"data": "/corpus/eu"}


def tables(**regions: dict[str, Any]) -> dict[str, Any]:
    return {
        "task": {"preset": "byte-tiny"},
        "islands": [{"group": "eu", "region": "eu"}, {"group": "us", "region": "us"}],
        "regions": regions,
    }


def problems(given: dict[str, Any], *overrides: str) -> list[str]:
    with pytest.raises(UserMistake) as refused:
        parse(given, overrides=overrides)
    return [line.strip() for line in str(refused.value).splitlines()[1:]]


def test_region_has_defaults_and_survives_its_own_file() -> None:
    config = parse(tables(eu=EU))
    region = config.regions["eu"]
    assert region.may_leave == (Leaving.DELTA, Leaving.MOMENTS, Leaving.REPORT)
    assert region.keeps_errors
    assert parse(tomllib.loads(config.toml())) == config


def test_islands_read_the_corpus_of_their_region() -> None:
    given = tables(eu=EU)
    given["data"] = {"mixture": [{"source": "/public/a", "weight": 1.0}]}
    config = parse(given)
    eu, us = config.islands
    within = config.within(eu).data
    assert (within.source, within.mixture) == ("/corpus/eu", ())
    assert config.within(us) is config, "a region without a table reads what all read"


def test_group_has_a_type_of_its_own() -> None:
    given = tables()
    given["task"]["compute_dtype"] = "float16"
    given["islands"] = [
        {"group": "a"},
        {"group": "b", "compute_dtype": "bfloat16"},
        {"group": "c", "compute_dtype": "float32"},
    ]
    del given["regions"]
    config = parse(given)
    found = [config.within(group).task.compute_dtype for group in config.islands]
    assert found == ["float16", "bfloat16", None]
    given["run"] = {"mode": "data-parallel"}
    assert any("islands.1.compute_dtype: not in run.mode" in each for each in problems(given))


def test_run_without_regions_has_no_table_of_them() -> None:
    given = tables()
    del given["regions"]
    assert "regions" not in parse(given).toml()


@pytest.mark.parametrize(
    ("regions", "expected"),
    [
        ({"eu": {}}, "regions.eu.data: is missing; it has no default"),
        ({"eu": {"data": ""}}, 'regions.eu.data: must not be empty, given ""'),
        ({"eu": {**EU, "dta": "x"}}, "regions.eu.dta: is not known; did you mean data?"),
        (
            {"eu": {**EU, "may_leave": ["delta", "report", "texts"]}},
            'regions.eu.may_leave.2: must be "delta", "moments", "report", "errors" or "corpus", '
            'given "texts"',
        ),
        (
            {"eu": {**EU, "may_leave": ["report"]}},
            'regions.eu.may_leave: has no "delta", and islands send deltas in run.mode = '
            '"decoupled"; add it, or leave the islands of the region out',
        ),
        (
            {"eu": {**EU, "may_leave": ["delta"]}},
            'regions.eu.may_leave: has no "report", and islands report each step in run.mode = '
            '"decoupled"; add it, or leave the islands of the region out',
        ),
        (
            {"eau": EU},
            "regions.eau: no group of islands is in it: did you mean eu?; set region = "
            '"eau" in [[islands]], or leave the table out',
        ),
        (
            {"eu": EU, "us": {"data": "/corpus/eu/part"}},
            "regions.us.data: is also the corpus of region eu, or part of it, or contains it; give "
            "each region its own, or, if the paths are on different disks, one key of "
            "label_selector in all groups of both regions, with another plain value in each "
            'region, such as {region = "eu"} and {region = "us"}',
        ),
    ],
)
def test_region_that_cannot_be_is_refused(regions: dict[str, Any], expected: str) -> None:
    assert problems(tables(**regions)) == [expected]


def test_allow_list_without_moments_refuses_to_share_them() -> None:
    strict = tables(eu={**EU, "may_leave": ["delta", "report"]})
    parse(strict)
    (found,) = problems(strict, "sync.moments=mean")
    assert found.startswith('regions.eu.may_leave: has no "moments", which sync.moments = "mean"')


@pytest.mark.parametrize(
    "source", ["/corpus/eu", "/corpus", "/corpus/eu/a.txt", "/corpus/**/*.txt"]
)
def test_evaluator_that_would_read_a_region_is_refused(source: str) -> None:
    (found,) = problems(tables(eu=EU) | {"data": {"source": source}})
    assert found.startswith("data.source: is read by the evaluator and by the machine that starts")


def test_corpus_that_may_leave_may_be_read_by_the_evaluator() -> None:
    region = {**EU, "may_leave": ["delta", "report", "corpus"]}
    parse(tables(eu=region) | {"data": {"source": "/corpus/eu"}})


def test_mixture_of_the_evaluator_is_checked_part_by_part() -> None:
    parts = [{"source": each, "weight": 1.0} for each in ("/public", "/corpus/eu")]
    (found,) = problems(tables(eu=EU) | {"data": {"mixture": parts}})
    assert found.startswith("data.mixture.1.source: is read by the evaluator")


def test_regions_with_one_path_need_nodes_of_their_own() -> None:
    given = tables(eu=EU, us=EU)
    for group in given["islands"]:
        group["label_selector"] = {"region": group["region"]}
    parse(given)
    given["regions"] = {name: {"data": "s3://corpus/eu"} for name in ("eu", "us")}
    (found,) = problems(given)
    assert found.startswith("regions.us.data: is also the corpus of region eu")


@pytest.mark.parametrize(
    ("eu", "us", "apart"),
    [
        ({"zone": "a"}, {"zone": "b"}, True),
        ({"zone": "a", "disk": "x"}, {"rack": "1", "disk": "y"}, True),
        ({"zone": "a"}, {"zone": "a"}, False),
        ({"zone": "a"}, {"rack": "1"}, False),
        ({"zone": "in(a,b)"}, {"zone": "in(b,c)"}, False),
        ({"zone": "a"}, {"zone": "!b"}, False),
        ({"zone": "a"}, {}, False),
    ],
)
def test_regions_with_one_path_need_different_values_of_one_label(
    eu: dict[str, str], us: dict[str, str], *, apart: bool
) -> None:
    given = tables(eu=EU, us=EU)
    for group, labels in zip(given["islands"], (eu, us), strict=True):
        group["label_selector"] = labels
    if apart:
        parse(given)
        return
    (found,) = problems(given)
    assert found.startswith("regions.us.data: is also the corpus of region eu")


def test_all_groups_of_regions_with_one_path_need_the_label() -> None:
    given = tables(eu=EU, us=EU)
    for group in given["islands"]:
        group["label_selector"] = {"zone": group["region"]}
    given["islands"].append({"group": "b", "region": "us", "label_selector": {"zone": "us-b"}})
    parse(given)
    given["islands"][2]["label_selector"] = {"zone": "eu"}
    (found,) = problems(given)
    assert found.startswith("regions.us.data: is also the corpus of region eu")


@pytest.mark.parametrize("data", ["s3://corpus/eu", "gs://corpus/eu/*.txt"])
def test_corpus_in_a_bucket_needs_labels(data: str) -> None:
    given = tables(eu={"data": data})
    assert problems(given) == [
        "islands.0.label_selector: is missing, and the corpus of region eu is in a bucket "
        "(regions.eu.data), which nodes of other regions can read, too; write label_selector = "
        '{region = "eu"} and start the nodes of the region with `ray start --labels=region=eu`, '
        'or add "corpus" to regions.eu.may_leave'
    ]
    given["islands"][0]["label_selector"] = {"region": "eu"}
    parse(given)
    for unbound in ("!us", "in(eu,us)"):
        given["islands"][0]["label_selector"] = {"region": unbound}
        (found,) = problems(given)
        assert found.startswith("islands.0.label_selector: binds no island to its region, and ")
    given["islands"][0]["label_selector"] = {"disk": "ssd"}
    given["islands"][1]["label_selector"] = {"disk": "ssd"}
    (found,) = problems(given)
    assert found.startswith("islands.0.label_selector: binds no island")


def test_corpus_in_a_bucket_that_may_leave_needs_no_labels() -> None:
    parse(tables(eu={"data": "s3://corpus/eu", "may_leave": ["delta", "report", "corpus"]}))


def test_credentials_in_the_address_of_a_region_are_refused() -> None:
    given = tables(eu={"data": "s3://b/eu?secret_key=abc"})
    given["islands"][0]["label_selector"] = {"region": "eu"}
    (found,) = problems(given)
    assert found.startswith("regions.eu.data: holds credentials")
    assert "abc" not in found


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ("/a/b", "/a/b", True),
        ("/a/b", "/a/bc", False),
        ("/a/b/", "/a/./b/c", True),
        ("/a/*/c", "/a/b", True),
        ("/a", "/b", False),
        ("a", str(Path.cwd() / "a"), True),
        ("~/a", str(Path.home() / "a" / "b"), True),
        ("s3://a/b", "s3://a/b/c?region=x", True),
        ("gs://a/b", "gcs://a/b", True),
        ("s3://a/b", "gs://a/b", False),
        ("s3://a/b", "/a/b", False),
        ("python-stdlib", "/a", False),
        ("python-stdlib", "python-stdlib", True),
    ],
)
def test_overlap_of_two_sources(one: str, two: str, *, expected: bool) -> None:
    assert overlap(one, two) is overlap(two, one) is expected


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """Return a folder with a corpus `eu` and a symbolic link `public` to it."""
    (tmp_path / "eu" / "texts").mkdir(parents=True)
    (tmp_path / "public").symlink_to("eu", target_is_directory=True)
    return tmp_path


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("public", True),
        ("public/texts", True),
        ("public/*.txt", True),
        ("public/not-there/a.txt", True),
        ("other", False),
        ("oth*/a.txt", True),
        ("public/../elsewhere", False),
    ],
)
def test_symbolic_link_to_a_corpus_overlaps_with_it(
    linked: Path, source: str, *, expected: bool
) -> None:
    one, two = str(linked / source), str(linked / "eu")
    assert overlap(one, two) is overlap(two, one) is expected


def test_link_whose_name_has_wildcards_overlaps_with_its_target(linked: Path) -> None:
    (linked / "a" / "b").mkdir(parents=True)
    (linked / "a" / "b" / "[all]").symlink_to(linked / "eu", target_is_directory=True)
    assert overlap(str(linked / "a" / "b" / "[all]"), str(linked / "eu"))


def test_evaluator_that_would_read_a_region_through_a_link_is_refused(linked: Path) -> None:
    given = tables(eu={"data": str(linked / "eu")}) | {"data": {"source": str(linked / "public")}}
    (found,) = problems(given)
    assert found.startswith("data.source: is read by the evaluator")
