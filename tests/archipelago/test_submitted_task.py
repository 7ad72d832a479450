"""A pickled task is in the package that `ap.submit` sends to a cluster's job server."""

from __future__ import annotations

import io
import tomllib
import zipfile
from typing import ClassVar

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


def test_submitted_package_has_the_task_of_the_caller() -> None:
    def mine(data: ap.DataSpec) -> ap.Task:
        return make(data, name="of the caller")

    with served(Storing) as address:
        assert ap.submit(TINY, {"run.name": "name"}, task=mine, address=address).name == "name"
    (package,) = Storing.packages
    with zipfile.ZipFile(io.BytesIO(package)) as archive:
        names = archive.namelist()
        (path,) = (each for each in names if each.endswith("archipelago.toml"))
        config = parse(tomllib.loads(archive.read(path).decode()))
    assert any(each.endswith("islands/pickled_task.py") for each in names)
    assert task_of(config).name == "of the caller"
