"""Islands of different hardware in one run over links, as in `mixed-hardware.toml` of the studies.

A run that ignored one kind of island would still lower its loss, so the tape is read: each island
is in the merges, with weights as different as their batches and speeds.
"""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path

import pytest

from archipelago.lab.wan import nodes, rig
from archipelago.lab.wan.network import Network
from tests.live.cli import ROOT, finish, place
from tests.live.over_links import left_of, own_name, started

pytestmark = [
    pytest.mark.live,
    pytest.mark.long,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="there is no TUN device"),
]
UNIFORM = ROOT / "examples/studies/results/mixed-hardware/study.json"
CONFIG = """
[run]
steps = 600
[task]
preset = "byte-tiny"
[optimizer]
learning_rate = 68e-3
momentum = 0.8
floor_fraction = 0.01
[sync]
wire_up = "int4"
wire_down = "int4"
[sync.outer]
learning_rate = "auto"
momentum = 0.7
[monitor]
evaluate_every_s = 60.0
"""
GROUP = """
[[islands]]
group = "{name}"
batch_size = {batch_size}
compute_dtype = "{dtype}"
mesh = {mesh}
step_s = {step_s}
resources = {{CPU = 0.4}}
label_selector = {{region = "{region}"}}
"""
STEP_S = 0.5
"""Seconds of a step, so that two cores compute all islands' steps in time."""
GROUPS = [
    {"name": "a", "region": "us", "batch_size": 12, "dtype": "float32", "mesh": "{fsdp = 2}"},
    {"name": "b", "region": "us", "batch_size": 12, "dtype": "bfloat16", "mesh": "{fsdp = 1}"},
    {
        "name": "c",
        "region": "eu",
        "batch_size": 4,
        "dtype": "float32",
        "mesh": "{data = 2, fsdp = 1}",
    },
    {"name": "d", "region": "eu", "batch_size": 4, "dtype": "bfloat16", "mesh": "{fsdp = 1}"},
]


def test_islands_of_two_generations_over_links_learn_as_equal_ones() -> None:
    """The loss is within the spread over seeds of islands that are all alike."""
    network = Network.planned(own_name(), "10.81", ["us", "eu"], 0.1, 40.0)
    slower = {"a": STEP_S, "b": STEP_S, "c": STEP_S / 0.8, "d": STEP_S / 0.8}
    groups = [GROUP.format(**each, step_s=slower[str(each["name"])]) for each in GROUPS]
    with place() as here:
        (config := here.folder / "mixed.toml").write_text(CONFIG + "".join(groups))
        rig.up(network, print, size=nodes.NodeSize(cpus=2.0, store_mb=150), force=True)
        try:
            run = started(
                here, network, "run", str(config), "--json", "--run-dir", str(here.run_dir)
            )
            finished = finish(run)
            assert finished.code == 0, finished.err
            audit = here.run("audit", str(here.run_dir), "--lineage", "--json")
            assert audit.code == 0, audit.err
        finally:
            rig.down(network.name)
    assert left_of(network.name) == []
    summary = finished.json
    print({key: summary[key] for key in ("heldout_loss", "tokens_trained", "mean_participants")})
    fates = ("merged", "discarded", "lost", "outstanding")
    assert summary["tokens_trained"] == sum(summary[f"tokens_{fate}"] for fate in fates)
    weights = [
        {each["island"]: each["weight"] for each in merge["contributors"]}
        for merge in audit.json["lineage"]
        if len(merge["contributors"]) == len(GROUPS)
    ]
    weights = [each for each in weights if len(each) == len(GROUPS)]  # no island has two
    assert len(weights) > summary["merges"] / 2
    ratio = statistics.median(each["a-0"] / each["c-0"] for each in weights)
    assert ratio == pytest.approx(12**2 / (4**2 * 0.8), rel=0.2), "tokens squared over steps"
    uniform = json.loads(UNIFORM.read_text())
    assert summary["heldout_loss"] <= uniform["decoupled_loss_high"]
