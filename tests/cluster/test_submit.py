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
from coordinator.errors import UserMistake

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"


class Head(BaseHTTPRequestHandler):
    """A job server that has no jobs, and at first no agent to start one."""

    ray_version = ray.__version__
    no_agent = 0

    def do_GET(self) -> None:
        told = {"version": "4", "ray_version": self.ray_version} if "version" in self.path else []
        self._answer(200, json.dumps(told))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
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
