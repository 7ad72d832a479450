"""The command line: a mistake gives one clear message and exit code 2, and leaves no files."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from archipelago.cli.main import main
from cluster.config.load import load
from cluster.config.schema import SyncConfig
from cluster.fleet.placement import NODE_ID, Node
from cluster.fleet.status_view import starting_status
from cluster.launch import preflight as door
from cluster.launch.ray_cluster import Stores, lack
from cluster.workers.assembly import task_of
from cluster.workers.evaluator import Evaluator
from coordinator.errors import UserMistake
from islands.adopt import layout_of

CONFIG = """
[task]
preset = "byte-tiny"
[data]
source = "text"
window = 16
lease_windows = 8
[sync]
every = 6
fragments = 3
[[islands]]
count = 2
batch_size = 2
"""
ROOT = Path(__file__).resolve().parents[2]
Said = tuple[int, str, str]
"""The exit code, standard output and standard error of a command."""
Cli = Callable[..., Said]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with a valid configuration and a text, and return it."""
    (tmp_path / "run.toml").write_text(CONFIG)
    (tmp_path / "text").mkdir()
    for number in range(8):
        (tmp_path / "text" / f"{number}.txt").write_text(f"{number} and something to read\n" * 40)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Return a function that runs the command in this process."""

    def run(*arguments: str) -> Said:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        out, err = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, out, err

    return run


def files(folder: Path) -> set[Path]:
    """Return all files and folders except Python's caches, which importing a task may write."""
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


def refused(cli: Cli, here: Path, *arguments: str) -> str:
    """Return the message of a refused run; check that it has written and started nothing."""
    before = files(here)
    code, out, err = cli("run", "run.toml", "--run-dir", "new", "--json", *arguments)
    assert code == 2
    assert err.startswith("archipelago: ")
    error = json.loads(out)["error"]
    assert error["kind"] == "mistake"
    lines = [line.strip() for line in err.removeprefix("archipelago: ").splitlines()]
    assert [error["message"], *error["hints"]] == lines
    assert "Traceback" not in err
    assert files(here) == before
    assert not ray.is_initialized()
    return err


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("run.stepz=3", "run.stepz: is not known; did you mean steps?"),
        ("run.steps=many", 'run.steps: must be a whole number, given "many"'),
        ("sync.fragments=7", "sync.fragments: two of 7 fragments would be due at one step"),
        ("sync.quorum=3", "sync.quorum: no round could ever close: 3 contributions"),
        ("sync", "must look like sync.every=24"),
        ("sync.outer.target=optax:adm", "has no attribute 'adm'"),
        ("durability.dir=there", "durability.dir: must be an absolute path"),
        ("durability.dir=/there/is/none", "/there/is/none: No such file or directory"),
        ("durability.dir=/dev/null", "durability.dir: /dev/null: Not a directory"),
        ("islands.0.hosts=0", "islands.0.hosts: must be at least 1"),
        ("task.preset=byte-tinny", "did you mean 'byte-tiny'?"),
        ("task.options.width=3.5", "task.options.width = 3.5: must be of type int"),
        ("data.source=nowhere", "data.source = 'nowhere': there is no such file or folder"),
        (
            'faults.plan=[{at_step=1, kind="kill", island="fleet"}]',
            "faults.plan: the fleet of `archipelago run` is not restarted",
        ),
        ("data.window=100000", "is too small: 0 training windows of 100000 tokens, 8 needed"),
    ],
)
def test_one_mistake_gives_its_message(cli: Cli, here: Path, override: str, says: str) -> None:
    assert says in refused(cli, here, "--set", override)


def test_reports_every_mistake_in_the_file_at_once(cli: Cli, here: Path) -> None:
    said = refused(
        cli, here, "--set", "run.stepz=3", "--set", "sync.quorum=9", "--set", "data.window=x"
    )
    assert said.splitlines()[0] == "archipelago: run.toml: 3 problems"
    assert len(said.splitlines()) == 4


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("examples/cluster.toml", "is a cluster file, with [groups], [objective], [regions], "),
        ("examples/cluster.toml", "to plan for it use `archipelago plan "),
        ("examples/studies/modes.toml", "is a study, with [arms], [study], where a run's "),
        ("examples/studies/modes.toml", "to train it use `archipelago study "),
        ("plan.toml", "is a fault plan, with [faults], where a run's"),
        ("plan.toml", "use `archipelago chaos RUN --plan plan.toml`"),
    ],
)
@pytest.mark.parametrize("command", [("run",), ("submit", "--address", "http://127.0.0.1:1")])
def test_file_of_another_command_is_one_mistake(
    cli: Cli, here: Path, command: tuple[str, ...], file: str, says: str
) -> None:
    fault = 'after_s = 1.0\nkind = "kill"\nisland = "local-0"\n'
    (here / "plan.toml").write_text(f"[[faults]]\n{fault}")
    path = file if (here / file).exists() else str(ROOT / file)
    code, out, err = cli(*command, path)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


def test_reports_every_mistake_in_the_environment_at_once(cli: Cli, here: Path) -> None:
    (here / "old").mkdir()
    (here / "old" / "config.toml").write_text("")
    code, _, err = cli("run", "run.toml", "--run-dir", "old", "--set", "data.source=nowhere")
    assert code == 2
    assert "run directory old holds a run already; choose another one with --run-dir" in err
    assert "data.source = 'nowhere'" in err
    assert list((here / "old").iterdir()) == [here / "old" / "config.toml"]


@pytest.mark.parametrize(
    ("mistakes", "says"),
    [
        (
            ["sync.quorum=9", "data.source=/nope"],
            ["sync.quorum: no round could ever close", "data.source = '/nope': there is no such"],
        ),
        (
            ["task.preset=byte-tinny", "data.source=/nope"],
            ["did you mean 'byte-tiny'?", "data.source = '/nope': there is no such file"],
        ),
        (
            ["task.target=a:b", "data.source=/nope"],
            ["task: preset and target are both given; keep one"],  # unknown whether it is read
        ),
        (
            ["run.stepz=1", "sync.outer.target=optax:adm", "durability.dir=/dev/null"],
            ["run.stepz: is not known", "has no attribute 'adm'", "/dev/null: Not a directory"],
        ),
        (
            ["data.window=x", "task.options.width=3.5", "data.source=/nope"],
            [
                "data.window: must be a whole number",
                "task.options.width = 3.5: must be of type",
                "data.source = '/nope': there is no such file",
            ],
        ),
        (
            ["task.options.vocabulary=9", "data.source=/nope"],
            ["text is read as 256 bytes, the task has a vocabulary of 9", "'/nope': there is no"],
        ),
        (
            ["sync.fragments=7", "durability.dir=there"],
            ["sync.fragments: two of 7 fragments", "durability.dir: must be an absolute path"],
        ),
        (
            ["sync.every=none", 'faults.plan=[{at_step=1, kind="kill", island="fleet"}]'],
            ["sync.every: must be a count of steps", "faults.plan: the fleet of `archipelago run`"],
        ),
    ],
)
def test_reports_mistakes_in_file_and_environment_together(
    cli: Cli, here: Path, mistakes: list[str], says: list[str]
) -> None:
    said = refused(cli, here, *(part for text in mistakes for part in ("--set", text)))
    assert [word for word in says if word not in said] == []
    assert len(said.splitlines()) in (len(says), len(says) + 1), "and nothing else is"


def test_first_line_counts_all_problems(cli: Cli, here: Path) -> None:
    said = refused(cli, here, "--set", "sync.quorum=9", "--set", "data.source=/nope")
    first, *others = said.splitlines()
    assert first == "archipelago: run.toml: 2 problems"
    assert all(line.startswith("  ") for line in others)


def test_reports_all_mistakes_of_a_submission_together(cli: Cli, here: Path) -> None:
    (here / "mine" / "islands").mkdir(parents=True)
    arguments = ("--address", "head:8265", "--working-dir", "mine", "--set", "sync.quorum=9")
    code, out, err = cli("submit", "run.toml", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("archipelago: run.toml: 3 problems\n")
    assert "  sync.quorum: no round could ever close" in err
    assert "  --address head:8265: that is not the job server's, such as http://HEAD:8265" in err
    assert "  --working-dir mine: its islands/ would take the place of ours" in err


def test_reports_all_mistakes_of_chaos_and_scale_together(cli: Cli) -> None:
    code, _, err = cli("chaos", "a-run", "--kind", "nap", "--kind", "kil")
    assert code == 2
    assert "give either --plan PLAN.toml or --kill-every S" in err
    assert "--kind nap: not known" in err
    assert "--kind kil: not known" in err
    code, _, err = cli("scale", "a-run", "eu", "us=many")
    assert code == 2
    assert "'eu': that is not GROUP=N" in err
    assert "'us=many': that is not GROUP=N" in err


def test_refuses_an_empty_text(cli: Cli, here: Path) -> None:
    (here / "empty.txt").write_text("")
    said = refused(cli, here, "--set", "data.source=empty.txt")
    assert "'empty.txt' is too small: 0 training windows" in said
    assert "0 held-out windows" in said


def test_refuses_an_empty_folder(cli: Cli, here: Path) -> None:
    (here / "nothing").mkdir()
    assert "is empty: no text file is below it" in refused(
        cli, here, "--set", "data.source=nothing"
    )


def test_refuses_a_missing_parquet_column(cli: Cli, here: Path) -> None:
    pq.write_table(pa.table({"content": ["some text"], "id": [3]}), here / "rows.parquet")
    said = refused(cli, here, "--set", "data.source=rows.parquet", "--set", "data.column=text")
    assert "no 'text'; its columns are content, id" in said
    said = refused(cli, here, "--set", "data.source=rows.parquet", "--set", "data.column=id")
    assert "column 'id' cannot be read as text" in said


UNFIT = """
import dataclasses
import jax.numpy as jnp
from islands.task import load_task

def mixed(data):
    task = load_task("byte-tiny", None, {}, data)
    def init(seed):
        params = task.init(seed)
        params["blocks"]["mlp"]["up"] = params["blocks"]["mlp"]["up"].astype("float8_e5m2")
        return {**params, "step": jnp.int32(0)}
    return dataclasses.replace(task, name="mixed", init=init, loss=lambda p, b: 0 * p["step"])

def by_example(data):
    task = load_task("byte-tiny", None, {}, data)
    return dataclasses.replace(task, name="by_example", loss=lambda p, b: p["norm"])

def whole(data):
    task = load_task("byte-tiny", None, {}, data)
    return dataclasses.replace(task, name="whole", init=lambda seed: task.init(seed))
"""
MIXED = (
    "task mixed: parameter blocks/mlp/up is float8_e5m2[2,64,160]: hold it in float32, bfloat16 or "
    "float16",
    "task mixed: parameter step is int32[]: only float32 can be trained and merged; make it a "
    "constant of the task, or a part of its batches",
)


def mixed() -> str:
    """Return the message about the task `mixed`, each problem with the line of its `init`."""
    file = sys.modules["tasks_that_are_unfit"].__file__
    where = f"{file}:{UNFIT.splitlines().index('    def init(seed):') + 1}"
    return "".join(f"{where}: {problem}\n" for problem in MIXED)


@pytest.fixture
def unfit(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a module of tasks that no island could train, and return the configuration."""
    (here / "tasks_that_are_unfit.py").write_text(UNFIT)
    monkeypatch.syspath_prepend(here)
    text = (here / "run.toml").read_text()
    text = text.replace('preset = "byte-tiny"', 'target = "tasks_that_are_unfit:mixed"')
    (here / "run.toml").write_text(text)
    return here / "run.toml"


@pytest.mark.usefixtures("unfit")
def test_untrainable_parameters_are_named_before_the_start(cli: Cli, here: Path) -> None:
    said = refused(cli, here)
    assert said == f"archipelago: {mixed()}"
    said = refused(cli, here, "--set", "task.target=tasks_that_are_unfit:by_example")
    for size in (2, 16):  # an island's batch, and the evaluator's
        assert f"loss gives float32[64] for a batch of int32[{size},17]: it must be" in said


def test_leaves_that_a_mesh_cannot_split_are_named_before_the_start(cli: Cli, here: Path) -> None:
    said = refused(cli, here, "--set", "islands.0.mesh={tensor=3, fsdp=1}")
    found = "islands.0.mesh: task byte-tiny: blocks/attention/query, [2, 64, 64], cannot be split"
    assert found in said
    assert "its axis of 64 does not divide by 3, mesh = {data = 1, fsdp = 1, tensor = 3}" in said


@pytest.mark.usefixtures("unfit")
def test_refuses_whole_model_init_for_islands_of_several_hosts(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "LARGEST_INIT_BYTES", 2**18)
    options = "task.target=tasks_that_are_unfit:whole", "islands.0.hosts=2"
    said = refused(cli, here, *(word for each in options for word in ("--set", each)))
    assert "task whole: init makes 0.00 GiB at once, and several hosts are for" in said


@pytest.mark.usefixtures("unfit")
def test_untrainable_parameters_are_reported_with_other_mistakes(cli: Cli, here: Path) -> None:
    said = refused(cli, here, "--set", "data.source=nowhere", "--set", "sync.outer.target=no:where")
    assert mixed() in said
    assert "data.source = 'nowhere': there is no such file or folder" in said
    assert "sync.outer.target" in said


@pytest.mark.usefixtures("unfit")
def test_job_refuses_a_submitted_run(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's module need not exist where the run is submitted."""
    monkeypatch.setenv("HOME", str(here / "home"))
    code, out, err = cli("job", "run.toml", "--set", "run.name=mine")
    assert (code, out, err) == (2, "", f"archipelago: {mixed()}")
    assert not ray.is_initialized()


def test_evaluator_refuses_an_untrainable_task(unfit: Path) -> None:
    """The evaluator's code may differ from that of the process that started the run."""
    with pytest.raises(UserMistake) as caught:
        Evaluator(load(unfit))
    assert f"{caught.value}\n" == mixed()


def test_refuses_a_run_too_large_for_the_object_store(cli: Cli, here: Path) -> None:
    said = refused(cli, here, "--set", "islands.0.count=2000000")
    assert "no room in the object store" in said
    assert "MiB of shared memory are needed" in said
    assert "use more fragments or fewer islands" in said


def test_object_store_has_room_for_model_and_data_in_flight(here: Path) -> None:
    config = load(here / "run.toml")
    layout = layout_of(task_of(config), config.sync.fragments)
    model, bf16 = 4 * layout.parameters, 2 * max(layout.sizes)
    stores = Stores.of(config, layout)
    assert stores.shards == pytest.approx(1.5 * (2 * model + 2 * (2 + 1) * bf16), abs=1)
    assert stores.island == pytest.approx(1.5 * (model + 2 * bf16), abs=1)


def test_object_store_room_is_checked_per_node() -> None:
    """The check is per node, not for the sum over a cluster."""

    def node(name: str, mib: float, zone: str = "a") -> Node:
        labels = {NODE_ID: f"id-{name}", "zone": zone}
        return Node(name, {"object_store_memory": mib * 2**20}, labels)

    sync, stores = SyncConfig(), Stores(shards=100 * 2**20, island=40 * 2**20)
    nodes = [node("head", 100), node("b", 10), node("c", 70, "c"), node("d", 70, "c")]
    assert lack(sync, stores, nodes, "id-head") is None
    said = lack(sync, stores, nodes, "id-c")
    assert said == "100 MiB for the shards are needed on c, it has 70"
    spread = SyncConfig(shards=2, shard_labels={"zone": "c"})
    assert lack(spread, stores, nodes, "id-b") is None, "half of them on each"
    more = SyncConfig(shards=3, shard_labels={"zone": "c"})
    said = lack(more, Stores(120 * 2**20, 0), nodes, "id-b")
    assert said == "80 MiB for the shards are needed on c, it has 70"
    said = lack(sync, Stores(0, 101 * 2**20), nodes, "id-head")
    assert said == "101 MiB for an island are needed on head, it has 100"


@pytest.mark.parametrize(
    ("address", "reason"),
    [("127.0.0.1:1", "refused"), ("nonsense", "not HOST:PORT")],  # "auto" finds any cluster here
)
def test_unreachable_ray_cluster_is_reported_at_once(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch, address: str, reason: str
) -> None:
    """The command fails at once, where Ray itself would retry for minutes."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    began_s = time.monotonic()
    said = refused(cli, here, "--address", address)
    assert f"no Ray cluster at {address}" in said
    assert reason in said
    assert "ray start --head" in said
    assert time.monotonic() - began_s < 60


def test_refuses_an_unknown_command(cli: Cli) -> None:
    for arguments in (["fly"], ["run"], ["run", "run.toml", "--fast"]):
        code, out, err = cli(*arguments)
        assert (code, out) == (2, "")
        assert "Traceback" not in err


def test_refuses_a_missing_file(cli: Cli) -> None:
    code, out, err = cli("run", "nowhere.toml")
    assert (code, out) == (2, "")
    assert "nowhere.toml: no such file; `archipelago init DIR` writes one to start from" in err


@pytest.mark.parametrize("command", ["status", "stop"])
def test_refuses_an_unknown_run(cli: Cli, command: str) -> None:
    code, out, err = cli(command, "nowhere")
    assert (code, out) == (2, "")
    assert "no run 'nowhere'" in err
    code, _, err = cli(command)
    assert code == 2
    assert "there is no run in runs/" in err


def test_ended_run_shows_its_status_and_cannot_be_stopped(cli: Cli, here: Path) -> None:
    (here / "old").mkdir()
    (here / "old" / "config.toml").write_text("")
    code, _, err = cli("status", "old")
    assert code == 2
    assert "ended before it wrote a status" in err
    lines = [json.dumps({"t": t, "heldout": [[0, 5.5]]}) for t in (1, 2)]
    (here / "old" / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    code, out, _ = cli("status", "old", "--json")
    assert (code, json.loads(out)) == (0, {"t": 2, "heldout": [[0, 5.5]]})
    code, _, err = cli("stop", "old")
    assert code == 2
    assert "run old is not live, so this command can do nothing" in err


def test_top_prints_one_status_without_a_terminal(cli: Cli, here: Path) -> None:
    (here / "old").mkdir()
    (here / "old" / "config.toml").write_text("")
    status = starting_status("old", load(here / "run.toml"))
    (here / "old" / "metrics.jsonl").write_text(f"{json.dumps(status)}\n")
    code, out, _ = cli("top", "old")
    assert code == 0
    assert f"t 0/{status['steps']}" in out
    assert len(out.splitlines()) <= 3


def test_non_finite_loss_is_shown_as_such(cli: Cli, here: Path) -> None:
    """This holds also for lines that were written before they were strict JSON."""
    status = starting_status("old", load(here / "run.toml"))
    for loss in ("NaN", "null"):
        (here / "old").mkdir(exist_ok=True)
        (here / "old" / "config.toml").write_text("")
        line = json.dumps({**status, "heldout": [[0, 5.5], [8, "?"]]}).replace('"?"', loss)
        (here / "old" / "metrics.jsonl").write_text(f"{line}\n")
        _, out, _ = cli("status", "old")
        assert "held-out not finite" in " ".join(out.split())
        code, out, _ = cli("status", "old", "--json")
        told = json.loads(out, parse_constant=pytest.fail)
        assert (code, told["heldout"]) == (0, [[0, 5.5], [8, None]])
        assert told["not_finite"] == ["heldout.1.1 = nan"]


@pytest.mark.parametrize(
    "command", ["run", "status", "stop", "replay", "bench parity", "bench scale", "bench overhead"]
)
def test_every_command_has_help_with_an_example(cli: Cli, command: str) -> None:
    code, out, _ = cli(*command.split(), "--help")
    assert code == 0
    assert f"Example: archipelago {command}" in " ".join(out.split())


def test_command_runs_as_a_module(here: Path) -> None:
    """The command runs in its own process."""
    command = [sys.executable, "-m", "archipelago", "run", "run.toml", "--set", "sync.quorum=9"]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"PYTHONPATH": root}
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == "archipelago: run.toml: 1 problem"
    assert not (here / "runs").exists()


def test_from_stored_needs_resume(cli: Cli, here: Path) -> None:
    assert "give --resume as well" in refused(cli, here, "--from-stored")


def test_every_command_finds_a_task_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_own_task.py").write_text("ANSWER = 42\n")
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "runs"))  # the old path comes back after the test
    with pytest.raises(SystemExit):
        main(["list"])
    assert str(tmp_path) in sys.path
    assert importlib.import_module("my_own_task").ANSWER == 42
