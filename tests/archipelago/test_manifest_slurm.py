"""The batch file for Slurm: valid shell, and nodes that offer what the placement asks for."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from archipelago.manifest.slurm import BATCH_FILE, CONFIG_FILE, SlurmSite
from archipelago.manifest.slurm_files import slurm_manifest
from cluster.config.load import load, parse
from cluster.fleet.placement import NODE_ID, Node, unplaceable
from cluster.launch.preflight import model_layout
from coordinator.errors import UserMistake
from coordinator.fragments import Layout

ROOT = Path(__file__).resolve().parents[2]
SHELLCHECK = Path(sys.executable).parent / "shellcheck"


@cache
def layout() -> Layout:
    return model_layout(load(ROOT / "deploy" / "cpu.toml"))


def made(example: str, site: SlurmSite | None = None) -> dict[str, str]:
    config = load(ROOT / example)
    return slurm_manifest(config, layout(), site or SlurmSite(name="x"))[0]


EXAMPLES = ("deploy/cpu.toml", "deploy/gpu.toml", "examples/hosts.toml", "examples/tiny.toml")


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_shell_accepts_it(example: str, tmp_path: Path) -> None:
    """ShellCheck refuses a variable without quotes, which shows that it reads the file."""
    text = made(example)[BATCH_FILE]
    file = tmp_path / BATCH_FILE
    file.write_text(text)
    subprocess.run(["bash", "-n", file], check=True)
    done = subprocess.run([SHELLCHECK, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    file.write_text(text.replace('"$address"', "$address"))
    assert subprocess.run([SHELLCHECK, file], capture_output=True, check=False).returncode != 0


def nodes_of(text: str) -> list[Node]:
    """Return the Ray nodes of a batch file: those of each component, as its step starts them."""
    counts = [int(count) for count in re.findall(r"^#SBATCH --nodes=(\d+)", text, re.M)]
    joined = text.replace("\\\n", " ")
    found: list[Node] = []
    for line in joined.splitlines():
        if not line.startswith("srun "):
            continue
        words = shlex.split(line)
        number = int(next((w[12:] for w in words if w.startswith("--het-group=")), "0"))
        given = dict(w[2:].split("=", 1) for w in words if w.startswith("--") and "=" in w)
        total = {"CPU": float(given["num-cpus"]), "memory": 1e12}
        total |= {"GPU": float(given["num-gpus"])} if "num-gpus" in given else {}
        labels = dict(pair.split("=") for pair in given["labels"].split(","))
        found += [
            Node(f"{number}-{each}", total, {**labels, NODE_ID: f"{number}-{each}"})
            for each in range(counts[number])
        ]
        assert words[words.index("--min-nodes") + 1] == str(sum(counts))
    return found


@pytest.mark.parametrize("example", EXAMPLES)
def test_nodes_offer_what_the_placement_asks_for(example: str) -> None:
    """All islands fit, and not with one node less of any component, also with half a CPU each."""
    files = made(example)
    config = parse(tomllib.loads(files[CONFIG_FILE]))
    islands = [group.model_copy(update={"opportunistic": False}) for group in config.islands]
    config = config.model_copy(update={"islands": tuple(islands)})
    nodes = nodes_of(files[BATCH_FILE])
    assert unplaceable(config, nodes) == []
    for group in config.islands:
        mine = [n for n in nodes if n.labels["archipelago-group"] == group.group]
        assert len(mine) == (group.count + group.spares) * group.hosts
        assert unplaceable(config, [n for n in nodes if n is not mine[0]])


def steps_of(text: str) -> list[list[str]]:
    """Return the words of the commands that start Ray on the nodes of a component."""
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.startswith("srun ")]


def test_amounts_are_whole_numbers_with_all_their_digits() -> None:
    """`ray start` refuses a part of a resource."""
    tables = load(ROOT / "deploy/cpu.toml").model_dump(mode="json", exclude_none=True)
    asked = {"CPU": 0.5, "lane": 0.5, "ticket": 12345678.0}
    for island in tables["islands"]:
        island["resources"] = asked
    files = slurm_manifest(parse(tables), layout(), SlurmSite(name="x"))[0]
    for words in steps_of(files[BATCH_FILE]):
        assert "--num-cpus=1" in words
        (resources,) = [each for each in words if each.startswith("--resources=")]
        assert json.loads(resources.partition("=")[2]) == {"lane": 1, "ticket": 12345678}


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_step_asks_for_the_cpus_of_its_nodes(example: str) -> None:
    """Since version 22.05 Slurm's steps do not inherit the CPUs of a task from the job."""
    text = made(example)[BATCH_FILE]
    given = re.findall(r"^#SBATCH --nodes=.* (--cpus-per-task=\d+)$", text, re.M)
    steps = steps_of(text)
    assert len(given) == len(steps) > 0
    for cpus, words in zip(given, reversed(steps), strict=True):
        assert cpus in words[: words.index("ray")]


def test_the_head_has_the_last_step_and_an_island() -> None:
    text = made("deploy/gpu.toml")[BATCH_FILE]
    groups = re.findall(r"--het-group=(\d+) --label", text)
    assert len(groups) > 1
    assert groups == sorted(groups, reverse=True), "the shell waits for the last one"
    steps = [line for line in text.replace("\\\n", " ").splitlines() if line.startswith("srun ")]
    assert "archipelago-group=eu" in steps[-1]


def test_a_job_resumes_after_it_was_put_back() -> None:
    text = made("deploy/cpu.toml", SlurmSite(name="x", time="2:00:00", setup=("module load cuda",)))
    batch = text[BATCH_FILE]
    assert batch.count("--continue") == 2
    for line in ("#SBATCH --requeue", "#SBATCH --time=2:00:00", "module load cuda"):
        assert line in batch.splitlines()
    assert "trap 'scontrol requeue" in batch


def test_mistakes_are_named() -> None:
    with pytest.raises(UserMistake, match=r"did you mean steady\?"):
        made("deploy/cpu.toml", SlurmSite(name="x", partitions={"steddy": "gpu"}))
    with pytest.raises(UserMistake, match="use `archipelago manifest kuberay`"):
        made("deploy/tpu-v6e.toml")
