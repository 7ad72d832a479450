"""Packets that cross the border of a region: no canary of its corpus is in them.

The regions are network namespaces with links, and all packets of the link of one region are
captured. The run is the careless one of `test_sovereignty.py`. A useless check would look at no
packets, at packets cut within a word, or at encrypted ones: so the capture is compared with the
counters of the device, TCP streams are joined, and a run with one deliberate leak must be found.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from archipelago.lab.wan import kernel, nodes, rig
from archipelago.lab.wan.network import Network
from tests.canaries import corpus_with_canaries, leaks, public_corpus
from tests.live.careless import CARELESS_TASK, back
from tests.live.cli import ROOT, TINY, finish, place
from tests.live.over_links import happens, left_of, own_name, started
from tests.packets import packets, streams

pytestmark = [
    pytest.mark.live,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="there is no TUN device"),
]
CONFIG = """
[[islands]]
group = "eu"
batch_size = 4
resources = {{CPU = 0.5}}
region = "eu"
label_selector = {{region = "eu"}}
speed = 0.5
[[islands]]
group = "us"
batch_size = 4
resources = {{CPU = 0.5}}
label_selector = {{region = "us"}}
speed = 0.5
[regions.eu]
data = "{eu}"
logs = "{logs}"
"""
READ_METRICS = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())"


@contextmanager
def captured(network: Network, region: str, file: Path) -> Generator[None]:
    """Write all packets of a region's link to a file, and check that the capture has them all."""
    device = network.device(network.region(region).number)
    command = kernel.inside(network.backbone, sys.executable, "-m", "tests.packets", device)
    before = carried(network, region)
    process = subprocess.Popen([*command, str(file)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
        seen = carried(network, region) - before
    finally:
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate()
    assert out == "0\n", "the capture was fast enough"
    assert file.stat().st_size >= 0.98 * seen > 1_000_000


def carried(network: Network, region: str) -> int:
    """Return the bytes that the link of a region has carried in both directions."""
    (row,) = (each for each in rig.links(network) if each["region"] == region)
    return int(str(row["sent_bytes"])) + int(str(row["received_bytes"]))


def metrics_text(network: Network, targets: Path) -> str:
    """Return what the run shows to Prometheus."""
    (file,) = targets.glob("*.json")
    (address,) = json.loads(file.read_text())[0]["targets"]
    command = [sys.executable, "-c", READ_METRICS, f"http://{address}/metrics"]
    inside = kernel.inside(network.namespace(network.regions[0]), *command)
    return subprocess.run(inside, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("leak", [False, True])
def test_canaries_cross_the_border_only_with_a_leak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, leak: bool
) -> None:
    network = Network.planned(own_name(), "10.79", ["us", "eu"], 0.1, 20.0)
    with place() as here:
        (raised := here.folder / "raised").mkdir()
        if leak:
            (raised / "leak").touch()
        (here.folder / "careless_task.py").write_text(
            CARELESS_TASK.replace("Path(__file__).parent", f"Path({str(here.folder)!r})")
        )
        config, logs = here.folder / "careless.toml", tmp_path / "logs"
        base, _, _ = TINY.read_text().partition("[[islands]]")
        base = base.replace('preset = "byte-tiny"', 'target = "careless_task:task"')
        eu = corpus_with_canaries(tmp_path / "eu")
        config.write_text(base + CONFIG.format(eu=eu, logs=logs))
        targets, file = here.folder / "targets", tmp_path / "packets"
        monkeypatch.setenv("PYTHONPATH", str(here.folder))  # of Ray's nodes, for the task
        rig.up(network, print, size=nodes.NodeSize(cpus=1.0, store_mb=150), force=True)
        try:
            with captured(network, "eu", file):
                process = started(
                    here, network, "run", str(config), "--json", "--run-dir", str(here.run_dir),
                    "--set", f"data.source={public_corpus(tmp_path / 'public')}",
                    "--set", "run.steps=1000000", "--set", "monitor.refresh_s=0.2",
                    "--set", f"monitor.targets={targets}",
                    "--set", 'monitor.track=["tensorboard"]',
                )  # fmt: skip
                happens(process, lambda: back(here, raised))
                metrics = metrics_text(network, targets)
                os.killpg(process.pid, signal.SIGINT)
                finished = finish(process)
            assert finished.code == 130, finished.err
            report = here.run("report", str(here.run_dir))
            assert report.code == 0, report.err
            status = here.run("status", str(here.run_dir), "--json")
            crossed = [each.content for each in streams(packets(file))]
            (whole := tmp_path / "streams").write_bytes(b"\0".join(crossed))
            outside = [here.folder, network.folder / "ray", finished.out, finished.err, metrics]
            found = leaks([*outside, status.out, report.out])
            assert "archipelago_" in metrics
            assert leaks([logs]), "the task has shown its samples"
            if leak:
                assert leaks([whole])
                assert found
            else:
                assert leaks([whole, file]) == []
                assert found == []
        finally:
            rig.down(network.name)
    assert left_of(network.name) == []
