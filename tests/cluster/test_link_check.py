"""A run's links are compared with what it sends: warnings, refusals, regions and addresses."""

from __future__ import annotations

import tomllib
from typing import cast

import pytest

from cluster.config.interval_inputs import model_bytes
from cluster.config.load import parse
from cluster.config.schema import Config
from cluster.fleet.placement import NODE_ID, Node
from cluster.launch.cluster_checks import region_problems
from cluster.launch.hub_links import HubMeasured
from cluster.launch.link_check import PaceWatch, refuse_or_warn
from cluster.launch.region_shares import readers_of_source, shard_shares
from cluster.status import RunStatus
from coordinator.errors import UserMistake
from coordinator.fragments import Layout, Leaf, cut
from coordinator.interval import HubLink, load

SOUND = '[task]\npreset = "byte-tiny"\n[[islands]]\ngroup = "us"\ncount = 3\n'
LAYOUT: Layout = cut([Leaf("w", (4800, 1000))], 8)
DEPOT = 'durability.dir="/mnt/shared"'
BITS = 4.8e6 * 16 * 3
"""Bits of three islands that send the whole model once, in bf16."""


def config(*overrides: str) -> Config:
    return parse(tomllib.loads(SOUND), overrides=overrides)


def link(gbit_s: float, name: str = "the link to us") -> HubLink:
    return HubLink(name, 1e9 * gbit_s, 1e9 * gbit_s, 0.08, 3)


def measured_link() -> HubMeasured:
    return HubMeasured((link(0.1),))


def said_about(gbit_s: float, *overrides: str, step_s: float = 0.2) -> list[str]:
    lines = list[str]()
    refuse_or_warn(config(*overrides), LAYOUT, [link(gbit_s)], step_s, lines.append)
    return lines


def test_link_that_carries_the_plan_is_not_mentioned() -> None:
    enough = BITS / (8 * 0.2) / 0.69 / 1e9
    assert said_about(enough) == []
    assert said_about(0.99 * enough * 0.69 / 0.70) != []


def test_warning_names_what_the_link_needs_has_and_what_to_change() -> None:
    (line,) = said_about(0.1)
    needs = BITS / (8 * 0.2) / 1e9
    for words in (
        "the link to us is too thin for this run", "H = 8 and steps of 0.2 s",
        f"the islands behind it (3) send {needs:.3g} Gbit/s, it carries 0.1",
        "sync.every = 24 or more",
        'sync.wire_down = "int4"', "fewer islands",
    ):  # fmt: skip
        assert words in line
    assert said_about(0.1, "sync.every=24", "sync.fragments=24") == [], "the advice helps"


def test_shards_behind_a_link_add_their_exchanges_to_its_load() -> None:
    """Four regions with an island and a shard each: 3/4 of an exchange, and 3 times 1/4."""
    every_s, bits = 8 * 0.2, BITS / 3
    spread = HubLink("the link to us", 2.0 * bits / every_s, 2.0 * bits / every_s, 0.0, 0.75, 0.75)
    lines = list[str]()
    refuse_or_warn(config(), LAYOUT, [spread], 0.2, lines.append)
    (line,) = lines
    assert "the islands and shards behind it (1.5 exchanges of the model) send" in line
    assert load(model_bytes(config(), 4.8e6), spread, 0.2, every=8, fragments=8).use == (
        pytest.approx(0.75)
    )


def test_shards_are_shared_out_over_the_regions_that_may_have_them() -> None:
    nodes = [node(f"10.0.0.{n}", region=name) for n, name in enumerate(("eu", "us", "asia"))]
    labels = 'sync.shard_labels={region="in(eu,us)"}'
    assert shard_shares(config(), nodes) == {}
    assert shard_shares(config("sync.shards=4"), nodes) == {}, "all are at the hub"
    assert shard_shares(config("sync.shards=4", labels, DEPOT), nodes) == {"eu": 0.5, "us": 0.5}
    three = shard_shares(config("sync.shards=3", labels, DEPOT), nodes)
    assert sorted(three.values()) == pytest.approx([1 / 3, 2 / 3])


def test_link_on_which_not_one_fragment_passes_is_refused_unless_forced() -> None:
    """Eight fragments: the link would be used to more than 800 %."""
    thin = BITS / (8 * 0.2) / 8.1 / 1e9
    with pytest.raises(UserMistake, match="not one fragment passes within H steps") as refusal:
        said_about(thin)
    (line,) = str(refusal.value).splitlines()
    assert "sync.force = true" in line
    assert len(said_about(thin, "sync.force=true")) == 1
    assert len(said_about(thin * 8.1 / 7.9)) == 1, "one fragment passes: only a warning"


def status(steps: int, state: str = "live", incarnation: int = 1) -> RunStatus:
    island = {"island": "us-0", "state": state, "steps": steps, "incarnation": incarnation}
    return cast(RunStatus, {"islands": [island]})


def test_links_are_compared_once_at_the_pace_that_statuses_show() -> None:
    lines, now_s = list[str](), [0.0]
    watch = PaceWatch(config(), LAYOUT, measured_link, lines.append, lambda: now_s[0])
    for second, steps in ((0, 0), (1, 2), (2, 10), (4, 20)):
        now_s[0] = float(second)
        watch.see(status(steps))
    assert lines == [], "two seconds are no measurement"
    for second, steps in ((12, 60), (20, 100)):
        now_s[0] = float(second)
        watch.see(status(steps))
    (line,) = lines
    assert "steps of 0.2 s" in line


def test_island_that_speeds_up_later_is_compared_again() -> None:
    lines, now_s = list[str](), [0.0]
    watch = PaceWatch(config(), LAYOUT, measured_link, lines.append, lambda: now_s[0])
    steps = 5
    for second in range(0, 60, 10):
        now_s[0], steps = float(second), steps + 5
        watch.see(status(steps))
    assert lines == [], "steps of 2 s"
    for second in range(60, 120, 10):
        now_s[0], steps = float(second), steps + 50
        watch.see(status(steps))
    assert len(lines) == 1, "steps of 0.2 s, and one line"


def test_slow_steps_need_no_warning_and_islands_that_are_not_live_no_pace() -> None:
    lines, now_s = list[str](), [0.0]
    watch = PaceWatch(config(), LAYOUT, measured_link, lines.append, lambda: now_s[0])
    for second in range(0, 40, 2):
        now_s[0] = float(second)
        watch.see(status(second * 100, state="joining"))
    assert lines == []
    for second in range(40, 140, 10):
        now_s[0] = float(second)
        watch.see(status(5 + second // 2, incarnation=2))
    assert lines == [], "0.072 Gbit/s would be needed at 0.4 s, and 0.014 at 2 s"


def test_links_that_are_measured_late_or_not_at_all_get_their_line() -> None:
    lines, now_s, known = list[str](), [0.0], list[HubMeasured]()
    watch = PaceWatch(
        config(), LAYOUT, lambda: known[0] if known else None, lines.append, lambda: now_s[0]
    )
    for second in range(0, 30, 6):
        now_s[0] = float(second)
        watch.see(status(5 + 5 * second))
    assert lines == [], "the links are not known yet"
    late = HubMeasured((link(0.1),), ("asia: cut",), ("us (node 10.0.0.3): no such file",))
    known.append(late)
    for second in (40, 50, 60):
        now_s[0] = float(second)
        watch.see(status(5 + 5 * second))
    corpus, missing, thin = lines
    assert corpus.startswith("data.source: python-stdlib cannot be read in the region us")
    assert missing == "a link was not measured: asia: cut"
    assert "the link to us is too thin" in thin


def node(address: str, **labels: str) -> Node:
    return Node(address, {"CPU": 2.0}, {NODE_ID: f"id-{address}-{labels}", **labels})


def test_nodes_of_a_region_with_a_table_do_not_read_the_public_source() -> None:
    text = SOUND + 'region = "us"\nlabel_selector = {disk = "us"}\n[[islands]]\ngroup = "eu"\n'
    table = 'label_selector = {disk = "eu"}\nregion = "eu"\n[regions.eu]\ndata = "/corpus/eu"\n'
    nodes = [node("10.0.0.2", disk="eu"), node("10.0.0.3", disk="us")]
    found = readers_of_source(parse(tomllib.loads(text + table)), nodes)
    assert found == {nodes[1].labels[NODE_ID]}


BOUND = 'islands.0.label_selector={region="asia"}'


def test_region_that_no_node_has_is_refused_with_the_nearest() -> None:
    nodes = [node("10.0.0.1"), node("10.0.0.2", region="eu"), node("10.0.0.3", region="asia")]
    (line,) = region_problems(config("islands.0.region=asai"), nodes, "10.0.0.1")
    assert line.startswith("islands.0.region: none of the 3 nodes has the label region=asai")
    assert "did you mean asia?" in line
    assert region_problems(config("islands.0.region=asia", BOUND), nodes, "10.0.0.1") == []
    assert region_problems(config("islands.0.region=asai"), nodes[:1], "10.0.0.1") == []
    waits = config("islands.0.region=asai", "islands.0.opportunistic=true")
    assert region_problems(waits, nodes, "10.0.0.1") == []


@pytest.mark.parametrize(
    ("selector", "outside"),
    [
        (None, "10.0.0.1 (region=), 10.0.0.2 (region=eu)"),
        ('{region="!eu"}', "10.0.0.1 (region=)"),
        ('{region="in(eu,asia)"}', "10.0.0.2 (region=eu)"),
        ('{region="eu"}', "10.0.0.2 (region=eu)"),
        ('{zone="b"}', "10.0.0.2 (region=eu)"),
    ],
)
def test_group_that_may_run_outside_of_its_region_is_refused(
    selector: str | None, outside: str
) -> None:
    nodes = [node("10.0.0.1"), node("10.0.0.2", region="eu", zone="b"),
             node("10.0.0.3", region="asia", zone="a")]  # fmt: skip
    bound = () if selector is None else (f"islands.0.label_selector={selector}",)
    (line,) = region_problems(config("islands.0.region=asia", *bound), nodes, "10.0.0.1")
    assert line == (
        'islands.0.region: "asia", but the islands may run on nodes of other regions or of none: '
        f'{outside}; bind them with label_selector = {{region = "asia"}}, or leave region out'
    )


@pytest.mark.parametrize(
    "bound",
    [BOUND, 'islands.0.label_selector={region="in(asia)"}', 'islands.0.label_selector={zone="a"}',
     "islands.0.resources={asia_chip=1}"],
)  # fmt: skip
def test_group_that_only_its_region_can_hold_passes(bound: str) -> None:
    """Labels or resources bind it, and a node without a core to give holds no island."""
    head = Node("10.0.0.1", {"CPU": 0.0}, {NODE_ID: "head", "region": "eu"})
    own = {"CPU": 2.0, "asia_chip": 1.0}
    nodes = [head, node("10.0.0.2", region="eu", zone="b"),
             Node("10.0.0.3", own, {NODE_ID: "asia", "region": "asia", "zone": "a"})]  # fmt: skip
    assert region_problems(config("islands.0.region=asia", bound), nodes, "10.0.0.1") == []
    assert region_problems(config("islands.0.region=asia"), [head, nodes[2]], "10.0.0.1") == []


def test_region_without_a_selector_passes_where_no_node_has_a_region() -> None:
    """A single machine, or a cluster whose regions are those of the data only."""
    nodes = [node("10.0.0.1"), node("10.0.0.2")]
    assert region_problems(config("islands.0.region=asia"), nodes, "10.0.0.1") == []


def test_two_regions_with_one_address_are_refused_except_on_this_machine() -> None:
    nodes = [node("10.0.0.2", region="eu"), node("10.0.0.2", region="us"), node("10.0.0.9")]
    (line,) = region_problems(config(), nodes, "10.0.0.9")
    assert "the regions eu and us have one address, 10.0.0.2" in line
    assert region_problems(config(), nodes, "10.0.0.2") == []
