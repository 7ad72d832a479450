"""Tests of job submission: mistakes of users get clear messages. The rest is in tests/live."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import ray

from cluster.config.load import load
from cluster.launch.job import submit
from cluster.launch.status_stream import status_stream
from coordinator.errors import UserMistake

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"


class Head(BaseHTTPRequestHandler):
    """A job server that has no jobs, and at first no agent to start one."""

    ray_version = ray.__version__
    no_agent = 0
    job: dict[str, object] | None = None

    def do_GET(self) -> None:
        if "version" in self.path:
            self._answer(200, json.dumps({"version": "4", "ray_version": self.ray_version}))
        elif self.path == "/api/jobs/name" and self.job is not None:
            self._answer(200, json.dumps({"type": "SUBMISSION", "entrypoint": "", **self.job}))
        elif self.path.startswith("/api/jobs/") and self.path != "/api/jobs/":
            self._answer(404, "Job does not exist")
        else:
            self._answer(200, "[]")

    posted: bytes = b""

    def do_POST(self) -> None:
        Head.posted = self.rfile.read(int(self.headers["Content-Length"]))
        if Head.no_agent:
            Head.no_agent -= 1
            self._answer(500, "No available agent to submit job, please try again later.")
        else:
            self._answer(200, json.dumps({"job_id": "name", "submission_id": "name"}))

    def _answer(self, code: int, said: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(said.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


class OlderHead(Head):
    ray_version = "2.59.0"


class PendingHead(Head):
    job = {"status": "PENDING", "start_time": 0}  # noqa: RUF012


class FailedHead(Head):
    job = {"status": "FAILED", "message": "no wheel for ray"}  # noqa: RUF012


@contextmanager
def served(head: type[Head]) -> Generator[str]:
    with HTTPServer(("127.0.0.1", 0), head) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_head_that_has_just_started_is_asked_again() -> None:
    Head.no_agent = 2
    with served(Head) as address:
        assert submit(load(TINY), "name", address, None).name == "name"
    assert Head.no_agent == 0


@pytest.mark.parametrize("labels", [None, {"archipelago-group": "archipelago-control"}])
def test_labels_choose_the_node_of_the_driver(labels: dict[str, str] | None) -> None:
    with served(Head) as address:
        submit(load(TINY), "name", address, None, labels)
    assert json.loads(Head.posted).get("entrypoint_label_selector") == labels


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (PendingHead, r"run name was submitted \d+ s ago and has not started yet: its job is pend"),
        (
            FailedHead,
            r"the job of run name has ended \(failed: no wheel for ray\); see `ray job lo",
        ),
        (Head, "no run 'name'"),
    ],
)
def test_status_of_a_run_that_has_not_started_tells_of_its_job(
    head: type[Head], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run directory does not exist before the job runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with served(head) as address:
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", address)  # in place of the local one
        with pytest.raises(UserMistake, match=says):
            next(status_stream("name", None, 0.0))


def test_cluster_with_another_ray_is_refused() -> None:
    with (
        served(OlderHead) as older,
        pytest.raises(UserMistake, match=r"runs Ray 2\.59\.0, and this is Ray 2\.60"),
    ):
        submit(load(TINY), "name", older, None)


@pytest.mark.parametrize("address", ["head:8265", "10.0.0.1", "auto"])
def test_address_that_is_no_job_server_is_refused(address: str) -> None:
    with pytest.raises(UserMistake, match=r"such as http://HEAD:8265"):
        submit(load(TINY), "name", address, None)


@pytest.mark.parametrize("name", ["cluster/", "archipelago.toml", "islands.py"])
def test_folder_with_names_of_ours_is_refused(tmp_path: Path, name: str) -> None:
    if name.endswith("/"):
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).touch()
    with pytest.raises(UserMistake, match=f"its {name} would take the place of ours"):
        submit(load(TINY), "name", "http://127.0.0.1:1", tmp_path)


def test_folder_with_our_own_source_is_accepted() -> None:
    with pytest.raises(UserMistake, match="cannot be used"):  # only the address is refused
        submit(load(TINY), "name", "http://127.0.0.1:1", TINY.parents[1])
