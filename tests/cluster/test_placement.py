"""Tests of the devices that an island needs, in Ray's terms and in messages."""

from __future__ import annotations

import pytest

from cluster.config.schema import EvaluatorConfig, IslandGroup
from cluster.fleet.placement import (
    Node,
    bundle,
    homeless,
    hosts,
    impossible,
    matches,
    room,
    selector,
    wish,
)

EU = Node("10.0.0.1", {"CPU": 8.0, "GPU": 2.0, "memory": 1e9}, {"region": "eu"})
US = Node("10.0.0.2", {"CPU": 4.0, "memory": 1e9}, {"region": "us", "ray.io/node-id": "x"})


def test_island_without_resources_still_holds_a_place() -> None:
    assert bundle(IslandGroup(resources={"CPU": 0.0})) == {"memory": 1.0}
    assert bundle(IslandGroup(resources={"CPU": 2.0, "GPU": 0.0})) == {"CPU": 2.0}


def test_accelerator_becomes_rays_label() -> None:
    group = IslandGroup(accelerator="H200", label_selector={"region": "eu"})
    assert selector(group) == {"region": "eu", "ray.io/accelerator-type": "H200"}


@pytest.mark.parametrize(
    ("wanted", "has", "fits"),
    [
        ("eu", "eu", True), ("eu", "us", False), ("eu", None, False),
        ("!eu", "us", True), ("!eu", "eu", False), ("!eu", None, True),
        ("in(eu, us)", "us", True), ("in(eu,us)", "asia", False), ("!in(eu,us)", "asia", True),
    ],
)  # fmt: skip
def test_label_conditions_follow_ray(wanted: str, has: str | None, fits: bool) -> None:
    assert matches(wanted, has) is fits


def test_room_is_counted_node_by_node() -> None:
    """An island is never split: 4 + 8 CPUs hold three of 3 CPUs, and one of 8."""
    assert room(IslandGroup(resources={"CPU": 3.0}), [EU, US]) == 3
    assert room(IslandGroup(resources={"CPU": 8.0}), [EU, US]) == 1
    assert room(IslandGroup(resources={"CPU": 1.0, "GPU": 1.0}), [EU, US]) == 2
    assert room(IslandGroup(resources={"CPU": 1.0}, label_selector={"region": "us"}), [EU, US]) == 4
    assert room(IslandGroup(resources={"CPU": 0.1}), [US]) == 40


def test_hosts_are_matching_nodes_with_the_largest_memory_first() -> None:
    one, two, three = (
        Node(f"10.0.0.{n}", {"memory": size}, {"region": "eu", "ray.io/node-id": name})
        for n, size, name in ((3, 1e9, "a"), (4, 4e9, "b"), (5, 1e9, "c"))
    )
    assert hosts({"region": "eu"}, [three, EU, US, one, two]) == ["b", "a", "c"]
    assert hosts({}, [US]) == ["x"]
    assert hosts({"region": "asia"}, [EU, US]) == []


def test_hosts_of_several_regions_take_turns() -> None:
    """Otherwise all shards would be in the region that has the largest nodes."""
    nodes = [
        Node("10.0.0.9", {"memory": memory}, {"region": region, "ray.io/node-id": name})
        for name, region, memory in (
            ("u0", "us", 2.0), ("e2", "eu", 7.0), ("e0", "eu", 9.0), ("u1", "us", 1.0),
            ("e1", "eu", 8.0), ("a0", "asia", 99.0),
        )
    ]  # fmt: skip
    assert hosts({"region": "in(eu,us)"}, nodes) == ["e0", "u0", "e1", "u1", "e2"]


def test_impossible_placement_names_what_the_cluster_has() -> None:
    group = IslandGroup(group="big", resources={"GPU": 4.0}, label_selector={"region": "eu"})
    why = impossible(group, 1, [EU, US])
    assert why == (
        "group big: 1 islands, each of 4 GPU on a node with region=eu, can never be placed: there "
        "is room for 0 at most; the cluster has 10.0.0.1: 8 CPU + 2 GPU, region=eu; "
        "10.0.0.2: 4 CPU, region=us"
    )
    assert impossible(group, 0, [EU]) is None
    assert impossible(IslandGroup(resources={"GPU": 1.0}), 2, [EU, US]) is None
    assert impossible(IslandGroup(resources={"GPU": 1.0}), 3, [EU, US]) is not None


def test_opportunistic_group_may_wait_for_nodes() -> None:
    assert impossible(IslandGroup(resources={"GPU": 4.0}, opportunistic=True), 9, [EU]) is None


def test_wish_names_resources_and_labels() -> None:
    group = IslandGroup(resources={"CPU": 2.0, "TPU": 4.0}, accelerator="TPU-V6E", topology="2x2")
    assert wish(group) == (
        "2 CPU + 4 TPU on a node with ray.io/accelerator-type=TPU-V6E, ray.io/tpu-topology=2x2"
    )


def test_slice_needs_its_topology_and_the_requested_labels() -> None:
    group = IslandGroup(
        resources={"TPU": 4.0},
        accelerator="TPU-V6E",
        topology="2x2",
        label_selector={"region": "eu"},
    )
    assert selector(group) == {
        "region": "eu",
        "ray.io/accelerator-type": "TPU-V6E",
        "ray.io/tpu-topology": "2x2",
    }
    tpu = {"ray.io/accelerator-type": "TPU-V6E", "ray.io/tpu-topology": "2x2"}
    here = Node("10.0.0.3", {"TPU": 4.0}, tpu | {"region": "eu"})
    far = Node("10.0.0.4", {"TPU": 4.0}, tpu | {"region": "us"})
    part = Node("10.0.0.5", {"TPU": 4.0}, {**here.labels, "ray.io/tpu-topology": "4x4"})
    assert room(group, [here, far, part]) == 1


def test_only_whole_slices_count_as_room() -> None:
    group = IslandGroup(hosts=2, accelerator="TPU-V4", topology="2x2x2")
    tpu = {"ray.io/accelerator-type": "TPU-V4", "ray.io/tpu-topology": "2x2x2"}

    def host(name: str, of: str, chips: float = 4.0) -> Node:
        return Node(name, {"CPU": 8.0, "TPU": chips}, tpu | {"ray.io/tpu-slice-name": of})

    whole = [host("a", "one"), host("b", "one"), host("c", "two"), host("d", "two")]
    assert room(group, whole) == 2
    assert room(group, whole[:3]) == 1
    assert room(group, [*whole[:3], host("d", "two", chips=0.0)]) == 1
    assert room(group, [*whole[:3], Node("d", {"CPU": 8.0, "TPU": 4.0}, tpu)]) == 1
    assert "2 hosts of 1 CPU + 4 TPU" in wish(group)


def test_slice_is_requested_with_all_its_chips() -> None:
    group = IslandGroup(resources={"CPU": 2.0}, accelerator="TPU-V6E", topology="2x4")
    assert bundle(group) == {"CPU": 2.0, "TPU": 8.0}
    assert bundle(IslandGroup(resources={"TPU": 0.0}, topology="2x2"))["TPU"] == 4.0
    assert bundle(IslandGroup(resources={"TPU": 4.0}, topology="2x2")) == {"TPU": 4.0}
    wide = IslandGroup(resources={"CPU": 2.0}, accelerator="TPU-V6E", topology="4x4", hosts=4)
    assert bundle(wide) == {"CPU": 2.0, "TPU": 4.0}


def test_evaluator_needs_a_node_with_its_resources() -> None:
    nodes = [Node("a", {"CPU": 2.0}, {}), Node("b", {"CPU": 4.0, "GPU": 1.0}, {})]
    for fits in ({}, {"CPU": 4.0}, {"GPU": 1.0, "CPU": 1.0}, {"GPU": 0.0}):
        assert homeless(EvaluatorConfig(resources=fits), nodes) is None
    for fails in ({"CPU": 5.0}, {"GPU": 2.0}, {"TPU": 1.0}):
        why = homeless(EvaluatorConfig(resources=fails), nodes)
        assert why is not None
        assert why.startswith("monitor.evaluator: no room for ")
        assert "the cluster has a: 2 CPU; b: 4 CPU + 1 GPU" in why


def test_evaluator_of_several_hosts_needs_room_for_all_of_them() -> None:
    nodes = [
        Node("a", {"CPU": 2.0, "memory": 1e9}, {}),
        Node("b", {"CPU": 4.0, "GPU": 1.0, "memory": 1e9}, {}),
    ]
    two = EvaluatorConfig(hosts=2, resources={"CPU": 2.0})
    assert two.apart
    assert homeless(two, nodes) is None
    assert homeless(EvaluatorConfig(hosts=2), nodes) is None, "they share cores with others"
    why = homeless(EvaluatorConfig(hosts=2, resources={"GPU": 1.0}), nodes) or ""
    assert "no room for 2 hosts of 1 GPU" in why
    assert not EvaluatorConfig(resources={"GPU": 1.0}).apart
    lonely = EvaluatorConfig(label_selector={"zone": "c"})
    assert lonely.apart
    assert "zone=c" in (homeless(lonely, nodes) or "")
