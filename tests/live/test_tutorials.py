"""Each tutorial's commands, in order, as a reader types them."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from cluster.storage.run_files import RUN_FILES
from tests.live.cli import ROOT, Place, last_status, place, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

TUTORIALS = ROOT / "docs" / "tutorial"
STARTED_S = 120.0


def blocks(name: str) -> list[str]:
    """Return the commands of a tutorial, one string for each bash block."""
    return re.findall(r"^```bash\n(.*?)^```", (TUTORIALS / name).read_text("utf-8"), re.M | re.S)


def listed() -> list[str]:
    """Return the patterns of the names that the reference lists for a run directory."""
    names = (name for row in RUN_FILES for name in row.split(", "))
    return [name.rstrip("/").replace("owner-N", "owner-*") for name in names]


@contextmanager
def terminal(here: Place) -> Generator[Path]:
    """Make a folder; afterwards end everything that was started in it, by process id."""
    folder = here.folder / "work"
    folder.mkdir()
    try:
        yield folder
    finally:
        for pid in here.left_running():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def environment(here: Place) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**here.environment, "PATH": path, "HOME": str(here.folder)}


def typed(here: Place, folder: Path, commands: Sequence[str]) -> str:
    """Run blocks in one shell, each as soon as the one before has succeeded."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(commands)],
        cwd=folder,
        env=environment(here),
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.long
def test_first_run() -> None:
    install, *others = blocks("first-run.md")
    assert "make install" in install
    with place() as here, terminal(here) as folder:
        said = typed(here, folder, [f"cd {ROOT}", install, f"cd {folder}", *others])
        run = folder / "my-run" / "first"
        summary = json.loads((run / "summary.json").read_text())
        parts = ("merged", "discarded", "lost", "outstanding")
        assert sum(summary[f"tokens_{part}"] for part in parts) == summary["tokens_trained"] > 0
        assert summary["heldout_loss"] < summary["initial_heldout_loss"]
        left = {path.name for path in run.iterdir()}
        assert not [name for name in left if not any(fnmatch(name, each) for each in listed())]
        assert "model.safetensors" in left
        assert "no problem was found, and nothing was started" in said
        assert "did you mean every?" in said


@pytest.mark.long
def test_own_corpus() -> None:
    make, look, encode, configure, train, use, mix = blocks("own-corpus.md")
    with place() as here, terminal(here) as folder:
        seen = typed(here, folder, [make, look, encode])
        assert "problem" not in seen
        assert "the task needs a vocabulary of at least 2,048" in seen
        assert seen.endswith("all digests agree (files: 1)\n")
        printed = typed(here, folder, [configure, train, use, mix])
        assert printed.count("no problem was found, and nothing was started") == 2
        summary = json.loads((folder / "first" / "summary.json").read_text())
        assert math.log(2048) < summary["initial_heldout_loss"] < 9
        assert summary["heldout_loss"] < 7
        assert (folder / "first-hf" / "tokenizer.json").exists()


@pytest.mark.long
def test_lora() -> None:
    base, text, write, train, add, compare = blocks("lora.md")
    with place() as here, terminal(here) as folder:
        seen = typed(here, folder, [base, text, write, train, add, compare])
        run = folder / "my-base" / "lora"
        before, after = (
            json.loads((folder / "my-base" / name / "summary.json").read_text())
            for name in ("base", "lora")
        )
        assert (before["parameters"], after["parameters"]) == (212_992, 6_400)
        (told,) = re.findall(r"([0-9.]+) nats per token", seen)[:1]
        assert after["initial_heldout_loss"] == pytest.approx(float(told), rel=0.05)
        assert float(told) > 1.2 * before["heldout_loss"], "the base does not know the new text"
        assert after["heldout_loss"] < after["initial_heldout_loss"] - 0.3
        assert not set(load_file(run / "model.safetensors")) & {"embedding", "hidden", "output"}
        own, adapted = (
            load_file(folder / "my-base" / f"{name}.safetensors") for name in ("base", "adapted")
        )
        assert adapted.keys() == own.keys()
        assert all((adapted[name] != own[name]).any() for name in own)
        assert seen.count("no problem was found, and nothing was started") == 2
        assert "os.fork()" not in seen, "a warning of JAX that means nothing here"
        found = re.findall(r"^(base|adapted) +(old text|capitals) +([0-9.]+)$", seen, re.MULTILINE)
        losses = {(name, kind): float(loss) for name, kind, loss in found}
        assert losses["adapted", "capitals"] < losses["base", "capitals"]
        assert losses["adapted", "old text"] > losses["base", "old text"]


@pytest.mark.long
def test_watch_and_break() -> None:
    start, look, kill, again, change, end = blocks("watch-and-break.md")
    with place() as here, terminal(here) as folder:
        typed(here, folder, ["archipelago init my-run"])
        run = folder / "my-run"
        first = subprocess.Popen(
            ["bash", "-c", start], cwd=run, env=environment(here), stdout=subprocess.PIPE, text=True
        )
        until(lambda: states(run / "long") == ["live", "live"], STARTED_S)
        assert "local-1" in typed(here, run, [look])
        typed(here, run, [kill, again])
        until(lambda: lives(run / "long") == [1, 2], STARTED_S)
        typed(here, run, [change])
        until(lambda: "local-2" in names(run / "long"), STARTED_S)
        typed(here, run, [end])
        said, _ = first.communicate(timeout=STARTED_S)
        assert first.returncode == 0, said
        summary = json.loads((run / "long" / "summary.json").read_text())
        assert summary["faults"] == 1
        assert len(summary["recovery_s"]) == 1
        assert (run / "snapshot.safetensors").exists()


@pytest.mark.long
def test_cluster() -> None:
    prepare, head, node, submit, address, look, scale, end = blocks("cluster.md")
    with place() as here, terminal(here) as folder:
        typed(here, folder, ["archipelago init my-run"])
        (folder / "my-run" / "first").mkdir()  # the run of the first tutorial
        run = here.folder / "archipelago" / "runs" / "shared"
        shell = [f"cd {folder / 'my-run'}", prepare]
        token = typed(here, folder, [prepare]).strip()
        shell[1] = f"export RAY_AUTH_MODE=token RAY_AUTH_TOKEN={token}"
        own = (
            " --dashboard-agent-listen-port={}\n"  # another Ray of this machine may have Ray's own
        )
        nodes = [each.rstrip() + own.format(free_port()) for each in (head, node)]
        typed(here, folder, [*shell, *nodes, submit])
        until(lambda: states(run) == ["live", "live"], STARTED_S)
        assert "local-1" in typed(here, folder, [*shell, address, look])
        typed(here, folder, [*shell, address, scale])
        until(lambda: "local-2" in names(run), STARTED_S)
        typed(here, folder, [*shell, address, end])
        until((run / "summary.json").exists, STARTED_S)


@pytest.mark.long
@pytest.mark.timeout(2400)
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="there is no TUN device")
def test_regions() -> None:
    (
        shell, up, reach, describe, two, kill, silence, drain, decide, four, decide_four, eight,
        cut, decide_last, down,
    ) = blocks("regions.md")  # fmt: skip
    reach = shell + reach  # each call of `typed` is another shell
    with place() as here, terminal(here) as folder:
        try:
            typed(here, folder, [shell, up])
            typed(here, folder, [describe])
            stages = [("two", 2, two, decide), ("four", 4, four, decide_four)]
            stages += [("eight", 8, eight, decide_last)]
            for number, (name, count, submit, decision) in enumerate(stages, 1):
                run = here.folder / "archipelago" / "runs" / name
                everyone = partial(together, run, count)
                typed(here, folder, [reach, submit])
                until(everyone, 3 * STARTED_S)
                if name == "eight":
                    typed(here, folder, [reach, cut])
                    until(everyone, 3 * STARTED_S)
                typed(here, folder, [reach, kill.replace("two", name)])
                until(lambda run=run: max(lives(run), default=1) > 1, 3 * STARTED_S)
                until(everyone, 3 * STARTED_S)
                typed(here, folder, [reach, silence.replace("two", name)])
                until(everyone, 3 * STARTED_S)
                typed(here, folder, [reach, drain.replace("two", name)])
                until(partial(evaluated, run), 6 * STARTED_S)
                said = typed(here, folder, [decision])
                assert f"{name}: stage {number} passed" in said
        finally:
            assert "removed" in typed(here, folder, [down])


def evaluated(run_dir: Path) -> bool:
    """Return whether the summary has the loss of the final model; it is written before, too."""
    file = run_dir / "summary.json"
    return file.exists() and json.loads(file.read_text())["heldout_loss"] is not None


def together(run_dir: Path, count: int) -> bool:
    """Return whether so many islands are live and all took part in the last merge of a fragment."""
    status = last_status(run_dir)
    joined = {island for each in status.get("fragments", ()) for island in each["participants"]}
    return states(run_dir) == ["live"] * count and joined == {*names(run_dir)}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def states(run_dir: Path) -> list[str]:
    return [each["state"] for each in last_status(run_dir).get("islands", ())]


def names(run_dir: Path) -> list[str]:
    return [each["island"] for each in last_status(run_dir).get("islands", ())]


def lives(run_dir: Path) -> list[int]:
    found = last_status(run_dir).get("islands", ())
    return sorted(each["life"] for each in found if each["state"] == "live")
