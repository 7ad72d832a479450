"""The door of a cluster, where a person's mistakes are told in words; the rest is tests/live."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from cluster.config import load
from cluster.submit import submit
from coordinator.errors import UserMistake

TINY = Path(__file__).parents[2] / "examples" / "tiny.toml"


class OlderRay(BaseHTTPRequestHandler):
    """A job server of another version, which has no jobs."""

    def do_GET(self) -> None:
        told = {"version": "4", "ray_version": "2.59.0"} if "version" in self.path else []
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(told).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def older() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), OlderRay) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_cluster_with_another_ray_is_refused(older: str) -> None:
    with pytest.raises(UserMistake, match=r"runs Ray 2\.59\.0, and this is Ray 2\.60"):
        submit(load(TINY), "name", older, None)


@pytest.mark.parametrize("address", ["head:8265", "10.0.0.1", "auto"])
def test_what_is_no_job_server_is_refused(address: str) -> None:
    with pytest.raises(UserMistake, match=r"such as http://HEAD:8265"):
        submit(load(TINY), "name", address, None)


@pytest.mark.parametrize("name", ["cluster/", "archipelago.toml", "islands.py"])
def test_a_folder_that_would_be_mixed_up_with_ours_is_refused(tmp_path: Path, name: str) -> None:
    if name.endswith("/"):
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).touch()
    with pytest.raises(UserMistake, match=f"its {name} would take the place of ours"):
        submit(load(TINY), "name", "http://127.0.0.1:1", tmp_path)


def test_a_folder_that_holds_our_own_source_is_fine() -> None:
    with pytest.raises(UserMistake, match="cannot be used"):  # it gets as far as the address
        submit(load(TINY), "name", "http://127.0.0.1:1", TINY.parents[1])
