"""The settings that limit a link, named from measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.launch.link_findings import LinkMeasured, NodeFacts, Severity, findings_of
from cluster.launch.links import RAY_NAMES, raylet_port
from cluster.launch.wan_settings import settings_for

TUNED = {each.name: each.value for each in settings_for(4.0, 80.0).ray}
MIB = 2**20


def node(name: str, *, tuned: bool = True) -> NodeFacts:
    if tuned:
        return NodeFacts(name, 128 * MIB, 128 * MIB, False, TUNED)
    return NodeFacts(name, 6 * MIB, 4 * MIB, True, {})


def link(rtt_ms: float, gbit_s: float, *, tuned: bool = True) -> LinkMeasured:
    return LinkMeasured(node("eu", tuned=tuned), node("us", tuned=tuned), rtt_ms, gbit_s)


def test_nothing_is_found_where_the_link_itself_is_the_limit() -> None:
    assert findings_of([link(80.0, 3.9)]) == []
    assert findings_of([link(0.2, 9.0, tuned=False)]) == [], "windows do not matter at 0.2 ms"


def test_untuned_windows_are_named_with_the_rate_that_they_allow() -> None:
    measured = link(80.0, 0.6, tuned=False)
    assert measured.window_gbit_s == pytest.approx(2 * 3 * MIB * 8 / 0.08 / 1e9)
    windows, *others = findings_of([measured])
    assert windows.where == "eu to us"
    assert "0.60 Gbit/s at a round trip of 80 ms: the socket windows allow 0.63" in windows.what
    assert "net.ipv4.tcp_rmem" in windows.hint
    texts = [each.what for each in others]
    assert any("slow start" in text for text in texts)
    assert any("2 bulk connections" in text for text in texts)
    assert {each.severity for each in (windows, *others)} == {Severity.WARNING}


def test_slow_link_with_wide_windows_is_not_blamed_on_them() -> None:
    found = findings_of([link(80.0, 0.1, tuned=False)])
    assert not [each for each in found if "windows" in each.what]


def test_timeout_below_the_transfer_of_a_large_object_is_named() -> None:
    slow = link(80.0, 0.1, tuned=False)
    (found,) = (each for each in findings_of([slow]) if "asks again" in each.what)
    assert "256 MiB take 21 s, and Ray asks again after 10 s" in found.what
    assert found.hint == "export RAY_object_manager_pull_timeout_ms=85899"
    assert not [each for each in findings_of([link(80.0, 0.1)]) if "asks again" in each.what]


def test_link_without_a_connection_is_a_problem_and_comes_first() -> None:
    dead = replace(link(0.0, 0.0), error="no connection: timed out")
    first, *_ = findings_of([link(80.0, 0.6, tuned=False), dead])
    assert first.severity is Severity.PROBLEM
    assert "timed out" in first.what


def test_settings_that_differ_between_nodes_are_a_problem() -> None:
    other = replace(node("us"), ray={**TUNED, "RAY_object_manager_pull_timeout_ms": "10000"})
    there = LinkMeasured(node("eu"), other, 80.0, 3.9)
    back = LinkMeasured(other, node("eu"), 80.0, 3.9)
    (found,) = findings_of([there, back])
    assert found.severity is Severity.PROBLEM
    assert "RAY_object_manager_pull_timeout_ms differs: eu: 30000, us: 10000" in found.what


@pytest.mark.parametrize(
    ("name", "effect", "value"),
    [
        ("RAY_health_check_failure_threshold", "5 failed checks, some 65 s of silence", "12"),
        ("RAY_gcs_rpc_server_reconnect_timeout_s", "60 s without the head", "180"),
    ],
)
def test_unset_setting_that_keeps_a_silent_node_is_named_on_a_long_link(
    name: str, effect: str, value: str
) -> None:
    assert name in RAY_NAMES, "nodes report it"
    assert TUNED[name] == value, "wan settings prints the same"
    bare = replace(node("eu"), ray={each: TUNED[each] for each in TUNED if each != name})
    other = replace(bare, name="us")
    found = findings_of(
        [LinkMeasured(bare, other, 80.0, 3.9), LinkMeasured(other, bare, 80.0, 3.9)]
    )
    assert [each.where for each in found] == ["eu", "us"]
    for each in found:
        assert each.severity is Severity.WARNING
        assert f"{name} is not set over a round trip of 80 ms" in each.what
        assert effect in each.what
        assert each.hint == f"export {name}={value} before `ray start`"
    assert findings_of([LinkMeasured(bare, other, 0.5, 3.9)]) == [], "a short link is rarely cut"


def test_own_value_of_a_setting_that_keeps_a_silent_node_is_left_alone() -> None:
    own = {**TUNED, "RAY_health_check_failure_threshold": "6"}
    ends = [replace(node(name), ray=own) for name in ("eu", "us")]
    assert findings_of([LinkMeasured(ends[0], ends[1], 80.0, 3.9)]) == []


def test_round_trip_goes_to_the_port_of_the_raylet_of_the_node() -> None:
    """The firewall of docs/howto/wan.md admits Ray's ports, and no port of the kernel's range."""
    nodes = [
        {"NodeID": "a", "NodeManagerPort": 6380, "ObjectManagerPort": 6381},
        {"NodeID": "b", "NodeManagerPort": 6390, "ObjectManagerPort": 6391},
    ]
    assert [raylet_port(nodes, node) for node in ("a", "b")] == [6380, 6390]
