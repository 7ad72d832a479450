"""House rules: unique package names, layered imports, strict JSON, pinned dependencies."""

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

from cluster.package_guard import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[1]
OURS = ("coordinator", "islands", "cluster", "archipelago")
VOCABULARY_MODULES = (
    "frozen", "protocol", "fragments", "parts", "schedule", "codec", "scratch", "kernels",
    "inner_products", "array_sums", "rounding", "errors",
)  # fmt: skip
VOCABULARY = {
    "coordinator",
    *(f"coordinator.{m}" for m in VOCABULARY_MODULES),
}

# Import all of a package in a fresh interpreter; print each module that this loads.
IMPORT_ALL = """
import importlib, pkgutil, sys
before = set(sys.modules)
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
print(*(set(sys.modules) - before), sep="\\n")
"""

# A package index, or a path of one machine; the patterns do not match themselves.
NAMES_A_MACHINE = (
    r"index[-]url|find[-]links|pypi[.]org|pythonh[o]sted"
    r"|(^|[^[:alnum:]._~-])/(work|farm|root|opt)/"
)


def brought_in_by(package: str) -> set[str]:
    """Return the modules that importing every module of `package` loads."""
    command = [sys.executable, "-W", "error", "-c", IMPORT_ALL, package]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def of(package: str, modules: set[str]) -> set[str]:
    return {m for m in modules if m.partition(".")[0] == package}


@pytest.mark.parametrize("name", OURS)
def test_no_other_distribution_uses_our_package_names(name: str) -> None:
    owners = set(packages_distributions().get(name, ())) - {DISTRIBUTION}
    assert not owners, f"{owners} also installs a package named {name}"
    assert Path(import_module(name).__file__ or "").parent == ROOT / name


def test_imports_follow_the_layers() -> None:
    assert lint_imports(str(ROOT / "pyproject.toml"), no_cache=True) == 0


def test_islands_import_only_the_vocabulary_of_the_coordinator() -> None:
    modules = brought_in_by("islands")
    assert of("coordinator", modules) <= VOCABULARY
    assert not of("cluster", modules) | of("ray", modules)


def test_rules_import_only_numpy() -> None:
    """This holds for the import; numba compiles loops at the first call."""
    tops = {m.partition(".")[0] for m in brought_in_by("coordinator")}
    assert tops - sys.stdlib_module_names <= {"coordinator", "numpy", "ml_dtypes"}


ACTORS = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in [*(ROOT / "cluster" / "actors").rglob("*actor.py"), ROOT / "cluster/fleet/actor.py"]
]


@pytest.mark.parametrize("module", ACTORS)
def test_modules_of_actors_load_no_jax(module: str) -> None:
    """Each process that calls an actor imports the module of its class."""
    script = f"import sys, {module}; print(*sys.modules)"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not {"jax", "optax", "numba"} & set(done.stdout.split())


def actor_classes() -> dict[str, type]:
    """Return the classes of the actors that a run starts, by name.

    These are the classes that `cluster/actors/start.py` imports, the arguments of `Hosts` (the
    other hosts of an island or of the evaluator), and those of `ray.remote` in these packages.
    """
    started, found = set[str](), dict[str, type]()
    trees = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): ast.parse(path.read_text())
        for folder in ("actors", "fleet")
        for path in (ROOT / "cluster" / folder).rglob("*.py")
    }
    for module, tree in trees.items():
        for node in ast.walk(tree):
            match node:
                case ast.ImportFrom(names=aliases) if module == "cluster.actors.start":
                    started |= {each.name for each in aliases if each.name.endswith("Actor")}
                case ast.Call(
                    func=ast.Name("Hosts") | ast.Attribute(attr="remote"), args=[kind, *_]
                ):
                    started |= {each.id for each in ast.walk(kind) if isinstance(each, ast.Name)}
                case _:
                    pass
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in started:
                found[node.name] = getattr(import_module(module), node.name)
    return found


def test_each_actor_of_a_run_watches_its_threads() -> None:
    """Otherwise a thread that dies leaves a process that answers and does nothing."""
    classes = actor_classes()
    assert classes.keys() >= {
        "SyncerActor", "RingActor", "ShardActor", "FleetActor", "IslandActor", "RingIslandActor",
        "HostActor", "EvaluatorActor", "EvaluatorHost", "RegionEvaluatorActor",
    }  # fmt: skip
    careless = [
        name for name, each in classes.items()
        if "watch_process(" not in inspect.getsource(each.__init__)
    ]  # fmt: skip
    assert not careless


def test_no_file_names_a_machine_or_an_index() -> None:
    search = ["git", "grep", "--no-index", "--exclude-standard", "-nIiE", NAMES_A_MACHINE]
    found = subprocess.run(search, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (1, ""), found.stderr


OTHER_JSON = {
    "coordinator/fragments.py": "a fingerprint",
    "cluster/allreduce/saved_state.py": "read by us only, NaN as NaN",
    "archipelago/lab/bench/wire.py": "a value of TOML",
    "archipelago/lab/checks/audit.py": "a fingerprint",
    "archipelago/lab/checks/audit_lineage.py": "a fingerprint",
    "cluster/config/schema.py": "a fingerprint",
    "archipelago/__main__.py": "text, before our packages can be imported",
    "cluster/config/toml.py": "values of TOML",
    "cluster/storage/files.py": "the one place",
    "cluster/syncer/journal.py": "read by us only, NaN as NaN",
    "cluster/storage/model_file.py": "versions, which are whole numbers",
    "cluster/storage/snapshots.py": "read by us only, NaN as NaN",
    "cluster/storage/tape.py": "read by us only, NaN as NaN",
    "islands/data/chat_environment.py": "a filter of templates, whose text a tokenizer reads",
    "islands/data/token_index.py": "whole numbers and text",
    "islands/data/token_writer.py": "whole numbers and text",
}
"""The files that write JSON with the standard library, and why they may."""


def test_all_json_output_is_strict() -> None:
    """`cluster.storage.files.json_text` is strict, since only Python reads NaN in JSON."""
    paths = [path for name in OURS for path in (ROOT / name).rglob("*.py")]
    files = {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}
    writes = re.compile(r"json\.dumps?\(|from json import|JSONEncoder|to_json\(|print_json\(")
    assert {name for name, text in files.items() if writes.search(text)} == OTHER_JSON.keys()


def test_every_dependency_is_pinned_by_name_and_version_alone() -> None:
    pins = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    pin = re.compile(r'([a-z0-9-]+)==[\w.!]+( ; python_version [<>]=? "3\.\d+")?')
    matches = {line: pin.fullmatch(line) for line in pins}
    assert not [line for line, match in matches.items() if match is None]

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    named = [*project["dependencies"], *optional["dev"], *optional["docs"]]
    names = {re.split(r"[\[<>=]", spec)[0].replace("_", "-") for spec in named}
    assert names <= {match[1] for match in matches.values() if match}


def embedded_imports() -> list[tuple[str, str, str]]:
    """Return file, module and name of each import of ours in a string of a test or a benchmark."""
    found = list[tuple[str, str, str]]()
    wanted = re.compile(rf"^\s*from ({'|'.join(OURS)})((?:\.\w+)*) import ([\w, ]+)$", re.MULTILINE)
    for path in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "archipelago").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for package, rest, names in wanted.findall(node.value):
                    name = path.relative_to(ROOT).as_posix()
                    found += [(name, package + rest, each.strip()) for each in names.split(",")]
    return found


def test_programs_in_strings_import_what_exists() -> None:
    imports = embedded_imports()
    assert len(imports) > 10
    missing = list[tuple[str, str, str]]()
    for path, module, name in imports:
        if not hasattr(import_module(module), name):
            try:
                import_module(f"{module}.{name}")
            except ImportError:
                missing.append((path, module, name))
    assert not missing
