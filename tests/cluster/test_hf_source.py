"""`task.init_from = "hf:DIR"`: our own exports come back bit for bit, and misfits are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from archipelago.cli.run_header import initial_lines
from cluster.config.load import load, read
from cluster.config.schema import Config
from cluster.launch.hf_export import write_transformers
from cluster.launch.initial_source import begin
from cluster.launch.preflight import enter
from cluster.storage import runs
from cluster.storage.folder import Folder
from cluster.workers.assembly import optimizer_of, own_task_of, task_of
from coordinator.errors import UserMistake
from islands.gemma.language_task import spec_named
from islands.gemma.parameters import leaf_plans
from islands.gemma.spec import GemmaSpec
from islands.initial_model import shapes_by_path
from islands.inner import Inner
from islands.mesh import Devices
from islands.mesh_shape import MeshShape
from tests.given import LEAST, sums

NOW = datetime(2026, 4, 5, tzinfo=UTC)
ISLANDS = "[[islands]]\ncount = 1\nbatch_size = 2\n"
SIZES: dict[str, Any] = {"width": 16, "layers": 4, "pattern": "LG", "hidden": 24, "heads": 2,
                         "kv_heads": 1, "head_size": 8, "window": 8}  # fmt: skip
FOURTH = {"generation": 4, "global_head_size": 16, "keys_are_values": True, "softcap": 30.0,
          "experts": 4, "experts_used": 2, "expert_hidden": 8}  # fmt: skip
SCALARS = "0.5 1.25 0.75 1.5"
WITH_SCALARS = f'task.options.layer_scalars="{SCALARS}"'
STEPS = 3
Leaves = dict[str, NDArray[np.float32]]


def table(options: dict[str, Any]) -> list[str]:
    return [f"task.options.{name}={json.dumps(value)}" for name, value in options.items()]


GEMMA_3 = ["task.preset=gemma-0.1m", *table(SIZES)]
GEMMA_4 = ["task.preset=gemma-0.1m", *table(SIZES | FOURTH)]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with the configuration of a small run, and return it."""
    least = [line for line in LEAST.splitlines() if not line.startswith(("preset", "options"))]
    text = "\n".join(least).replace("SOURCE", str(sums(tmp_path / "text")))
    (tmp_path / "run.toml").write_text(f"{text}\n{ISLANDS}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def entered(*overrides: str, run: str = "new", resume: bool = False) -> tuple[Config, Any]:
    draft = read(Path("run.toml"), overrides)
    config, _, layout = enter(draft, Path("run.toml"), Path("runs") / run, NOW, resume=resume)
    return config, layout


def begun(*overrides: str, run: str = "new") -> Config:
    """Start a run as `archipelago run` does, as far as its directory goes."""
    config, layout = entered(*overrides, run=run)
    folder = Path("runs") / run
    folder.mkdir(parents=True)
    config = begin(config, folder, layout.leaves)
    runs.leave(Folder(folder), folder, runs.CONFIG, config.toml().encode())
    return config


def refused(*overrides: str, run: str = "new", resume: bool = False) -> str:
    with pytest.raises(UserMistake) as error:
        entered(*overrides, run=run, resume=resume)
    return str(error.value)


def spec_of(settings: list[str]) -> GemmaSpec:
    task = load(Path("run.toml"), settings).task
    assert task.preset is not None
    return spec_named(task.preset, task.options)


def random_leaves(spec: GemmaSpec) -> Leaves:
    """Return leaves that no `init` makes."""
    rng = np.random.default_rng(7)
    return {
        path: rng.normal(0.5, 0.2, plan.shape).astype(np.float32)
        for path, plan in leaf_plans(spec).items()
    }


def leaves_of(config: Config) -> Leaves:
    task = task_of(config)
    leaves = map(np.asarray, task.initial_leaves(config.run.seed))
    return dict(zip(shapes_by_path(task), leaves, strict=True))


def same(left: Leaves, right: Leaves) -> bool:
    return {*left} == {*right} and all(
        left[path].tobytes() == array.tobytes() for path, array in right.items()
    )


def losses_from(config: Config) -> list[bytes]:
    """Return the bits of the losses of some training steps, on batches that never change."""
    task = task_of(config)
    inner = Inner(task, optimizer_of(config), Devices(task, MeshShape(1, 1, 1), jax.devices()[:1]))
    state, found = inner.start(task.init(config.run.seed)), list[bytes]()
    batches = np.random.default_rng(3).integers(0, 256, (STEPS, 2, 17), dtype=np.int32)
    for clock, batch in enumerate(batches):
        state, measures = inner.step(state, batch, clock)
        found.append(np.asarray(measures.loss).tobytes())
    return found


@pytest.mark.long
@pytest.mark.parametrize("settings", [GEMMA_3, [*GEMMA_4, WITH_SCALARS]])
def test_run_continues_from_its_export_bit_for_bit(here: Path, settings: list[str]) -> None:
    spec = spec_of(settings)
    leaves = random_leaves(spec)
    write_transformers(here / "out", spec, leaves)
    save_file(leaves, here / "out.safetensors")
    plain = [each for each in settings if "layer_scalars" not in each]
    back = begun(*plain, "task.init_from=hf:out")
    direct = begun(*settings, "task.init_from=out.safetensors", run="direct")
    assert back.task.init_from == f"hf:{here / 'out'}"
    assert same(leaves_of(back), leaves)
    assert back.task.init_sha256 == direct.task.init_sha256 is not None
    assert back.task.options == direct.task.options  # the scalars of the folder, too
    found = losses_from(back)
    assert found == losses_from(direct)
    assert len({*found}) == STEPS
    assert found != losses_from(load(here / "run.toml", settings))


@pytest.mark.long
def test_layer_scalars_change_the_loss_and_return_to_transformers(here: Path) -> None:
    spec = spec_of([*GEMMA_4, WITH_SCALARS])
    leaves = random_leaves(spec)
    write_transformers(here / "out", spec, leaves)
    write_transformers(here / "ones", replace(spec, layer_scalars=()), leaves)
    config = begun(*GEMMA_4, "task.init_from=hf:out")
    assert config.task.options["layer_scalars"] == SCALARS
    ones = begun(*GEMMA_4, "task.init_from=hf:ones", run="ones")
    assert "layer_scalars" not in ones.task.options
    assert losses_from(config) != losses_from(ones)
    init: Any = own_task_of(config).init
    write_transformers(here / "again", init.spec, leaves)
    first, again = (load_file(here / name / "model.safetensors") for name in ("out", "again"))
    assert same(first, again)
    assert [first[f"model.layers.{n}.layer_scalar"].item() for n in range(4)] == [
        *map(float, SCALARS.split())
    ]


def test_report_names_what_was_taken(here: Path) -> None:
    spec = spec_of(GEMMA_3)
    write_transformers(here / "out", spec, random_leaves(spec))
    config, layout = entered(*GEMMA_3, "task.init_from=hf:out")
    count = len(leaf_plans(spec))
    assert f"{count} of {count} leaves from hf:{here / 'out'}" in initial_lines(config, layout)[0]
    begun(*GEMMA_3, "task.init_from=hf:out")
    report = json.loads((here / "runs" / "new" / "init.json").read_text())
    assert {*report["taken"]} == {*leaf_plans(spec)}
    assert report["missing"] == report["unused"] == report["other_shapes"] == []


@pytest.mark.long
def test_configuration_of_the_folder_is_a_preset(here: Path) -> None:
    spec = spec_of(GEMMA_4)
    leaves = random_leaves(spec)
    write_transformers(here / "out", spec, leaves)
    config = begun("task.preset=out/config.json", "task.init_from=hf:out")
    assert same(leaves_of(config), leaves)


@pytest.mark.long
def test_every_difference_is_named_before_the_start(here: Path) -> None:
    spec = spec_of(GEMMA_3)
    write_transformers(here / "out", spec, random_leaves(spec))
    others = {"width": 32, "window": 4, "softcap": 20.0, "local_rope_base": 500.0}
    said = refused(*GEMMA_3, *table(others), "task.init_from=hf:out")
    assert "width = 32 in the task and 16 there" in said
    assert "window = 4 in the task and 8 there" in said
    assert "softcap = 20.0 in the task and 0.0 there" in said
    assert "local_rope_base = 500.0 in the task and 10000.0 there" in said
    assert "embedding is float32[256,32] in the task and float32[256,16] there" in said
    assert f'task.preset = "{here / "out"}/config.json"' in said
    assert not (here / "runs").exists()


@pytest.mark.long
def test_options_of_the_training_alone_may_differ(here: Path) -> None:
    spec = spec_of(GEMMA_4)
    write_transformers(here / "out", spec, random_leaves(spec))
    own = {"remat": True, "compute_dtype": "bfloat16", "balance_weight": 0.5, "global_kv_heads": 1,
           "pattern": "LGLG"}  # fmt: skip
    assert begun(*GEMMA_4, *table(own), "task.init_from=hf:out").task.init_sha256


@pytest.mark.long
def test_other_shapes_can_be_skipped(here: Path) -> None:
    spec = spec_of(GEMMA_3)
    write_transformers(here / "out", spec, leaves := random_leaves(spec))
    skip = 'task.init_other_shapes="skip"'
    config = begun(*GEMMA_3, *table({"hidden": 32}), "task.init_from=hf:out", skip)
    found = leaves_of(config)
    assert np.array_equal(found["embedding"], leaves["embedding"])
    assert found["layers/local/mlp/gate"].shape[-1] == 32


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        ("gone", "out: there is no such folder"),
        pytest.param("config", "config.json: there is no such file", marks=pytest.mark.long),
        pytest.param("weights", "model.safetensors: there is no such file", marks=pytest.mark.long),
        ("field", "rope_scaling_of_mine = 3 is not implemented"),
        ("missing", "the weights do not fit config.json: no tensor model.norm.weight"),
        pytest.param(
            "unknown",
            "the weights do not fit config.json: the model has no more",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "shape", "model.norm.weight is [3], and the model has [16]", marks=pytest.mark.long
        ),
        ("nan", "NaN or infinity is in norm"),
        pytest.param("cut", "is no safetensors file, or not all of one", marks=pytest.mark.long),
    ],
)
def test_broken_folder_is_one_message(here: Path, harm: str, message: str) -> None:
    spec, out = spec_of(GEMMA_3), here / "out"
    if harm != "gone":
        write_transformers(out, spec, random_leaves(spec))
        weights = load_file(out / "model.safetensors")
        norm = "model.norm.weight"
        match harm:
            case "config" | "weights":
                (out / {"config": "config.json", "weights": "model.safetensors"}[harm]).unlink()
            case "field":
                fields = json.loads((out / "config.json").read_text())
                (out / "config.json").write_text(json.dumps(fields | {"rope_scaling_of_mine": 3}))
            case "missing":
                weights.pop(norm)
            case "unknown":
                weights["more"] = np.ones(2, np.float32)
            case "shape":
                weights[norm] = np.ones(3, np.float32)
            case _:
                weights[norm] = np.full(16, np.nan, np.float32)
        if harm in ("missing", "unknown", "shape", "nan"):
            save_file(weights, out / "model.safetensors")
        if harm == "cut":
            whole = (out / "model.safetensors").read_bytes()
            (out / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    said = refused(*GEMMA_3, "task.init_from=hf:out")
    assert message in said
    assert "task.init_from = 'hf:" in said


@pytest.mark.long
def test_resumed_run_keeps_its_scalars_and_sees_a_change(here: Path) -> None:
    spec = spec_of([*GEMMA_4, WITH_SCALARS])
    write_transformers(here / "out", spec, random_leaves(spec))
    first = begun(*GEMMA_4, "task.init_from=hf:out")
    again, _ = entered(*GEMMA_4, "task.init_from=hf:out", resume=True)
    assert again.task == first.task
    weights = load_file(here / "out" / "model.safetensors")
    weights["model.norm.weight"] += 1
    save_file(weights, here / "out" / "model.safetensors")
    said = refused(*GEMMA_4, "task.init_from=hf:out", resume=True)
    assert "it is not the model that was meant, or it has changed" in said
    (here / "out").rename(here / "away")
    away = refused(*GEMMA_4, "task.init_from=hf:out", resume=True)
    assert "there is no such folder" in away  # it is not durable yet


@pytest.mark.long
def test_task_of_a_users_own_refuses_layer_scalars(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "tasks_of_hf.py").write_text(
        "from islands.gemma.language_task import load\n"
        "def own(data, **options):\n    return load('gemma-0.1m', options, data)\n"
    )
    monkeypatch.syspath_prepend(here)
    spec = spec_of([*GEMMA_4, WITH_SCALARS])
    leaves = random_leaves(spec)
    write_transformers(here / "out", spec, leaves)
    write_transformers(here / "ones", replace(spec, layer_scalars=()), leaves)
    own = ["task.target=tasks_of_hf:own", *table(SIZES | FOURTH)]
    assert "only Gemma presets have them" in refused(*own, "task.init_from=hf:out")
    assert same(leaves_of(begun(*own, "task.init_from=hf:ones")), leaves)


@pytest.mark.parametrize(
    ("scalars", "message"),
    [("1 2", "layer_scalars has 2 numbers for 4 layers"), ("1 a 2 3", "must be numbers and spaces"),
     ("1 nan 2 3", "must be finite")],
)  # fmt: skip
def test_wrong_layer_scalars_are_refused(scalars: str, message: str) -> None:
    assert message in refused(*GEMMA_4, f'task.options.layer_scalars="{scalars}"')


def test_gemma_3_has_no_layer_scalars() -> None:
    said = refused(*GEMMA_3, WITH_SCALARS)
    assert "Gemma 3 has no such feature" in said
