"""Messages of `submit` about a job server that fails, with a server on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, cast

import pytest
import ray

from cluster.config.schema import MonitorConfig
from cluster.launch.job import Job, metadata, reason_of, submit
from coordinator.errors import UserMistake
from tests.cluster.test_controller import config_of

VERSION = {
    "version": "4", "ray_version": ray.__version__, "ray_commit": ray.__commit__,
    "session_name": "a-test",
}  # fmt: skip
TRACEBACK = (
    "Traceback (most recent call last):\n  File x, line 1\nValueError: no room for the job\n"
)


class Handler(BaseHTTPRequestHandler):
    """Answers which version and which jobs it has, and nothing else."""

    answer: ClassVar[str | None] = None
    """The error of all other requests; None: the connection ends without an answer."""

    def _send(self, status: int, body: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def _refuse(self) -> None:
        if self.answer is not None:
            self._send(500, self.answer)

    def do_GET(self) -> None:
        known = {"/api/version": VERSION, "/api/jobs/": []}
        if self.path in known:
            self._send(200, json.dumps(known[self.path]))
        else:
            self._refuse()

    def do_PUT(self) -> None:
        self._refuse()

    def do_POST(self) -> None:
        self._refuse()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def job_server(answer: str | None) -> Generator[str]:
    handler = type("Answering", (Handler,), {"answer": answer})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "ended the connection: .*is the head still up"),
        (TRACEBACK, "does not take the job: ValueError: no room for the job"),
    ],
)
def test_server_that_fails_is_reported_in_one_line(answer: str | None, said: str) -> None:
    with job_server(answer) as address, pytest.raises(UserMistake, match=said) as refused:
        submit(config_of(), "first", address, None)
    assert "\n" not in str(refused.value)


def test_reason_of_an_error_without_words_is_its_class() -> None:
    assert reason_of(TimeoutError()) == "TimeoutError"


@pytest.mark.parametrize(
    ("monitor", "page"),
    [
        ({}, None),
        ({"metrics_port": 9464}, "http://127.0.0.1:9464/"),
        ({"metrics_port": 9464, "metrics_host": "0.0.0.0"}, "http://head:9464/"),
        ({"metrics_port": 9464, "metrics_host": "fd00::1"}, "http://[fd00::1]:9464/"),
        ({"metrics_port": 9464, "metrics": False}, None),
    ],
)
def test_job_links_the_page_of_its_run(monitor: dict[str, Any], page: str | None) -> None:
    job = Job(cast(Any, None), "first", "http://head:8265")
    found = metadata(MonitorConfig.model_validate(monitor), job)
    assert found["run"] == "first"
    assert found.get("page") == page
