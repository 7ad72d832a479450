"""The Dockerfile passes its linter, and its steps install a working command into a clean folder.

No builder is needed. The steps that change the system (packages of Debian, users) are only linted;
the copies and the installation are carried out as they stand in the file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = ROOT / "Dockerfile"
BIN = Path(sys.executable).parent


def steps(text: str) -> list[tuple[str, str]]:
    """Return each instruction with its arguments; continued lines are joined, comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    words = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [(instruction, rest.strip()) for instruction, _, rest in words]


def installs() -> str:
    (found,) = [rest for _, rest in steps(DOCKERFILE.read_text()) if "pip install" in rest]
    return found


def test_the_linter_accepts_it(tmp_path: Path) -> None:
    """The linter refuses a file with a mistake, too."""
    linter = BIN / "hadolint"
    done = subprocess.run([linter, DOCKERFILE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    (tmp_path / "Dockerfile").write_text(DOCKERFILE.read_text() + "\nRUN sudo cd /\n")
    done = subprocess.run([linter, tmp_path / "Dockerfile"], capture_output=True, check=False)
    assert done.returncode != 0


@pytest.mark.parametrize(
    ("accelerator", "extras"), [("cpu", "orbax"), ("cuda", "orbax,cuda"), ("tpu", "orbax,tpu")]
)
def test_the_argument_chooses_extras_that_exist(accelerator: str, extras: str) -> None:
    script = installs().replace("pip install", "echo install").replace("pip check", "true")
    done = subprocess.run(
        ["sh", "-c", script],
        env={"ACCELERATOR": accelerator, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["install", "--constraint", "constraints.txt", f".[{extras}]"]
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras.split(",")) <= known.keys()


def test_another_argument_is_refused() -> None:
    done = subprocess.run(
        ["sh", "-c", installs()],
        env={"ACCELERATOR": "gpu", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "must be cpu, cuda or tpu, and is gpu" in done.stderr


def copied(to: Path) -> None:
    """Carry out the COPY steps, without what `.dockerignore` leaves out."""
    for kind, rest in steps(DOCKERFILE.read_text()):
        if kind == "COPY":
            *sources, target = rest.split()
            for source in sources:
                place = to if target == "./" else to / target
                if (ROOT / source).is_dir():
                    ignored = shutil.ignore_patterns("__pycache__")
                    shutil.copytree(ROOT / source, place, ignore=ignored)
                else:
                    shutil.copy(ROOT / source, place)


def test_everything_that_is_copied_is_sent_to_the_builder(tmp_path: Path) -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    copied(tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == sent


@pytest.mark.long
@pytest.mark.timeout(900)
def test_its_steps_install_the_command_in_a_clean_place(tmp_path: Path) -> None:
    copied(tmp_path)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    clean = {
        "PATH": f"{tmp_path / 'venv' / 'bin'}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "ACCELERATOR": "cpu",
    }
    kept = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "http", "HTTP", "SSL"))}
    last = steps(DOCKERFILE.read_text())[-1][1]
    for script in (installs(), last):
        subprocess.run(["sh", "-ec", script], cwd=tmp_path, env=kept | clean, check=True)
    out = tmp_path / "out"
    example = tmp_path / "archipelago" / "examples" / "tiny.toml"
    command = f"archipelago manifest kuberay {example} --out {out}"
    subprocess.run(["sh", "-ec", command], cwd=tmp_path, env=kept | clean, check=True)
    assert (out / "rayjob.yaml").exists()
