"""A pickled task is in the package that `ap.submit` sends to a cluster's job server."""

from __future__ import annotations

import io
import tomllib
import zipfile
from pathlib import Path
from typing import Any, ClassVar

import pytest

import archipelago as ap
from cluster.config.load import parse
from cluster.workers.assembly import task_of
from tests.cluster.test_submit import TINY, Head, served
from tests.islands.test_pickled_task import make


class Storing(Head):
    """A job server that keeps the package of a job."""

    packages: ClassVar[list[bytes]] = []

    def do_GET(self) -> None:
        if self.path.startswith("/api/packages/") and not self.packages:
            self._answer(404, "no such package")
        else:
            super().do_GET()

    def do_PUT(self) -> None:
        self.packages.append(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(200, "")


def package_of(**options: Any) -> zipfile.ZipFile:
    """Return the package of a run that is submitted with these options."""
    server = type("StoringOne", (Storing,), {"packages": []})
    with served(server) as address:
        assert ap.submit(TINY, {"run.name": "name"}, address=address, **options).name == "name"
    (package,) = server.packages
    return zipfile.ZipFile(io.BytesIO(package))


def test_submitted_package_has_the_task_of_the_caller() -> None:
    def mine(data: ap.DataSpec) -> ap.Task:
        return make(data, name="of the caller")

    with package_of(task=mine) as archive:
        names = archive.namelist()
        (path,) = (each for each in names if each.endswith("archipelago.toml"))
        config = parse(tomllib.loads(archive.read(path).decode()))
    assert any(each.endswith("islands/pickled_task.py") for each in names)
    assert task_of(config).name == "of the caller"


@pytest.mark.parametrize("mark", ["layout.json", "metrics.jsonl", "live.json", "summary.json"])
def test_run_directories_and_their_tokens_are_not_sent(tmp_path: Path, mark: str) -> None:
    """Tutorials put runs beside the task; a folder of the user may have a `config.toml`, too."""
    for name in ("first", "mine", "deep/second"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.toml").write_text("")
    (tmp_path / "task.py").write_text("")
    for run in ("first", "deep/second"):
        for file in (mark, "token"):
            (tmp_path / run / file).write_text("secret")
    with package_of(working_dir=tmp_path) as archive:
        sent = archive.namelist()
    ours = ("archipelago", "cluster", "coordinator", "islands")
    files = {name for name in sent if not name.startswith(ours) and not name.endswith("/")}
    assert files == {"task.py", "mine/config.toml"}
